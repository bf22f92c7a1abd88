package loop

import (
	"fmt"
	"strings"
	"time"

	"github.com/perceptor/perceptor/schedule"
)

// startRun is the prefix of a Start that begins with the program, too.
const startRun = "startrun:"

// A Window says when work is done. The zero value is always open.
type Window struct {
	// Start is a Quartz cron expression: work begins at each match. With the
	// prefix "startrun:" it also begins when Run does.
	Start string
	// End is one, too: work ends at each match. Empty or "-1": it ends when
	// Select finds nothing, until the next Start. At an instant that both match,
	// work goes on.
	End string
	// Zone is the IANA name of the time zone of both (default UTC).
	Zone string
}

// hours are a Window that was read. It has no clock.
type hours struct {
	always     bool
	atOnce     bool // startrun:
	start, end *schedule.Cron
}

// untilEmpty: work ends when nothing is found.
func (h *hours) untilEmpty() bool { return !h.always && h.end == nil }

func (w Window) parse() (*hours, error) {
	end := strings.TrimSpace(w.End)
	if end == "-1" {
		end = ""
	}
	start := strings.TrimSpace(w.Start)
	if start == "" {
		if end != "" {
			return nil, fmt.Errorf("work: Window: End %q: needs a Start", w.End)
		}
		return &hours{always: true}, nil
	}
	h := &hours{}
	if len(start) >= len(startRun) && strings.EqualFold(start[:len(startRun)], startRun) {
		h.atOnce, start = true, strings.TrimSpace(start[len(startRun):])
	}
	var err error
	if h.start, err = schedule.Parse(schedule.Quartz, start, w.Zone, schedule.Options{}); err != nil {
		return nil, fmt.Errorf("work: Window: Start: %w", err)
	}
	if end == "" {
		return h, nil
	}
	if h.end, err = schedule.Parse(schedule.Quartz, end, w.Zone, schedule.Options{}); err != nil {
		return nil, fmt.Errorf("work: Window: End: %w", err)
	}
	return h, nil
}

// openAt says whether work is done at the beginning: at once if it says so, else
// if an end comes before the next start, or with it, so that a start has passed.
func (h *hours) openAt(now time.Time) bool {
	if h.always || h.atOnce {
		return true
	}
	just := now.Add(-1) // a start at this instant counts
	start, starts := h.start.Next(just)
	if starts && !start.After(now) {
		return true
	}
	if h.end == nil {
		return false
	}
	end, ends := h.end.Next(now)
	return ends && (!starts || !end.After(start))
}

// change is the first instant after t at which work begins or ends; zero: never.
func (h *hours) change(t time.Time) (at time.Time, open bool) {
	if h.always {
		return time.Time{}, true
	}
	start, starts := h.start.Next(t)
	if h.end != nil {
		if end, ends := h.end.Next(t); ends && (!starts || end.Before(start)) {
			return end, false
		}
	}
	if !starts {
		return time.Time{}, false
	}
	return start, true
}
