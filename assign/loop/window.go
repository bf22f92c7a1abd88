package loop

import (
	"fmt"
	"strings"
	"time"

	"github.com/perceptor/perceptor/schedule"
)

// startRun is the prefix of a Start that also opens the window when Run starts.
const startRun = "startrun:"

// A Window limits the times of execution. The zero value is always open.
type Window struct {
	// Start is a Quartz cron expression: the window opens at each match. With
	// the prefix "startrun:" it also opens when Run starts.
	Start string
	// End is a Quartz cron expression: the window closes at each match. Empty
	// or "-1": it closes when Select finds nothing, until the next Start. At an
	// instant that both match, the window stays open.
	End string
	// Zone is the IANA name of the time zone of both (default UTC).
	Zone string
}

// openTimes is a parsed Window. It has no clock.
type openTimes struct {
	always     bool
	atOnce     bool // startrun:
	start, end *schedule.Cron
}

// untilEmpty reports whether the window closes when Select finds nothing.
func (h *openTimes) untilEmpty() bool { return !h.always && h.end == nil }

func (w Window) parse() (*openTimes, error) {
	end := strings.TrimSpace(w.End)
	if end == "-1" {
		end = ""
	}
	start := strings.TrimSpace(w.Start)
	if start == "" {
		if end != "" {
			return nil, fmt.Errorf("loop: Window: End %q: needs a Start", w.End)
		}
		return &openTimes{always: true}, nil
	}
	h := &openTimes{}
	if len(start) >= len(startRun) && strings.EqualFold(start[:len(startRun)], startRun) {
		h.atOnce, start = true, strings.TrimSpace(start[len(startRun):])
	}
	var err error
	if h.start, err = schedule.Parse(schedule.Quartz, start, w.Zone, schedule.Options{}); err != nil {
		return nil, fmt.Errorf("loop: Window: Start: %w", err)
	}
	if end == "" {
		return h, nil
	}
	if h.end, err = schedule.Parse(schedule.Quartz, end, w.Zone, schedule.Options{}); err != nil {
		return nil, fmt.Errorf("loop: Window: End: %w", err)
	}
	return h, nil
}

// openAt reports whether the window is open when Run starts: because of
// "startrun:", or because an End comes before or at the next Start, so that a
// Start has passed.
func (h *openTimes) openAt(now time.Time) bool {
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

// change returns the first instant after t at which the window opens or closes;
// zero: never.
func (h *openTimes) change(t time.Time) (at time.Time, open bool) {
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
