package ranges

import (
	"fmt"
	"regexp"
	"time"

	"github.com/perceptor/perceptor/schedule"
	"github.com/perceptor/perceptor/task"
)

// ICalendar reads the events of an iCalendar file as merged ranges. Dates, and times
// without a zone, are of the IANA time zone. Recurring events are expanded from one instant
// until another. It returns an error with the number of the line if the file cannot be read, or
// if it has more than [task.MaxCalendarRanges] ranges.
func ICalendar(text, zone string, from, until task.Instant) ([]task.Range, error) {
	if _, err := schedule.Location(zone); err != nil {
		return nil, err
	}
	all, err := events(text, zone)
	if err != nil {
		return nil, err
	}
	x := &expansion{from: from, until: until, replaced: replacedOf(all)}
	for _, e := range all {
		if e.cancelled {
			continue
		}
		if err := x.add(e); err != nil {
			return nil, err
		}
	}
	return task.MergeRanges(x.ranges), nil
}

// replacedOf returns the occurrences that events replace, by UID. Any number of events may have the
// same UID, so none has a copy.
func replacedOf(all []*event) map[string]map[task.Instant]bool {
	out := map[string]map[task.Instant]bool{}
	for _, e := range all {
		if e.replaces == nil {
			continue
		}
		if out[e.uid] == nil {
			out[e.uid] = map[task.Instant]bool{}
		}
		out[e.uid][task.At(e.replaces.instant())] = true
	}
	return out
}

// expansion collects the ranges of events.
type expansion struct {
	from, until task.Instant
	replaced    map[string]map[task.Instant]bool
	rules       int
	ranges      []task.Range
}

// maxRules bounds the recurring events of a file. To expand one may take milliseconds, also if
// none of its ranges is in the time that is asked for.
const maxRules = 1000

func (x *expansion) add(e *event) error {
	if e.rule == nil {
		return x.occurrence(e, e.start.clock, e.start.instant())
	}
	if x.rules++; x.rules > maxRules {
		return fmt.Errorf("line %d: there are more than %d recurring events", e.rule.line, maxRules)
	}
	var replaced map[task.Instant]bool
	if e.replaces == nil {
		replaced = x.replaced[e.uid]
	}
	except := map[task.Instant]bool{}
	for i := range e.except {
		except[task.At(e.except[i].instant())] = true
	}
	rule, err := e.recurrence()
	if err != nil {
		return fmt.Errorf("line %d: %w", e.rule.line, err)
	}
	at, more := rule.Next(x.from.Add(-e.length()).Time())
	for ; more && task.At(at) < x.until; at, more = rule.Next(at) {
		if except[task.At(at)] || replaced[task.At(at)] {
			continue
		}
		if err := x.occurrence(e, at.In(e.start.location), at); err != nil {
			return err
		}
	}
	return nil
}

// untilDate is UNTIL with a date, which means the end of that day.
var untilDate = regexp.MustCompile(`(UNTIL=\d{8})(;|$)`)

// recurrence returns the rule of the event with its start.
func (e *event) recurrence() (*schedule.Cron, error) {
	rule := untilDate.ReplaceAllString(e.rule.value, "${1}T235959${2}")
	expression := "DTSTART:" + e.start.clock.Format("20060102T150405") + " RRULE:" + rule
	return schedule.Parse(schedule.RRule, expression, e.start.zone, schedule.Options{})
}

// length is the length of the event; of whole days, by clocks that are never set.
func (e *event) length() time.Duration {
	switch {
	case e.end != nil && e.start.date:
		return e.end.clock.Sub(e.start.clock)
	case e.end != nil:
		return e.end.instant().Sub(e.start.instant())
	case e.duration == 0 && e.start.date:
		return 24 * time.Hour
	}
	return e.duration
}

// occurrence adds the event as it would be at another start: clock has the date there, and
// at is the instant.
func (x *expansion) occurrence(e *event, clock, at time.Time) error {
	r := task.Range{From: task.At(at), Until: task.At(at.Add(e.length()))}
	if e.start.date {
		r = dates(clock, clock.AddDate(0, 0, int(e.length()/(24*time.Hour))), e.start.location)
	}
	if r.Until <= x.from {
		return nil
	}
	if x.ranges = append(x.ranges, r); len(x.ranges) > task.MaxCalendarRanges {
		return fmt.Errorf("line %d: there are more than %d ranges until %s", e.line, task.MaxCalendarRanges, x.until)
	}
	return nil
}
