package ranges

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/perceptor/perceptor/schedule"
)

// stamp is a date or a time of an event.
type stamp struct {
	// clock has the date and what the clock of the zone shows, written as UTC.
	clock time.Time
	// date means that it is a whole day.
	date     bool
	zone     string
	location *time.Location
}

// instant is the instant of the stamp; for a date, its start.
func (s *stamp) instant() time.Time {
	if s.date {
		return startOfDay(s.clock, s.location)
	}
	c := s.clock
	return time.Date(c.Year(), c.Month(), c.Day(), c.Hour(), c.Minute(), c.Second(), 0, s.location)
}

// event is a VEVENT.
type event struct {
	line       int
	uid        string
	start, end *stamp
	duration   time.Duration
	rule       *property
	except     []stamp
	replaces   *stamp // the occurrence that it replaces
	cancelled  bool
}

// events reads the events of a file. Floating times and dates are of the zone.
func events(text, zone string) ([]*event, error) {
	list, err := properties(text)
	if err != nil {
		return nil, err
	}
	if len(list) == 0 || list[0].name != "BEGIN" || !strings.EqualFold(list[0].value, "VCALENDAR") {
		return nil, fmt.Errorf("does not begin with BEGIN:VCALENDAR")
	}
	var all []*event
	var open []string // the components around the line
	for i := range list {
		p := &list[i]
		switch p.name {
		case "BEGIN":
			open = append(open, strings.ToUpper(p.value))
			if len(open) == 2 && open[1] == "VEVENT" {
				all = append(all, &event{line: p.line})
			}
		case "END":
			if len(open) == 0 || open[len(open)-1] != strings.ToUpper(p.value) {
				return nil, p.fault("ends what did not begin")
			}
			open = open[:len(open)-1]
		default:
			if len(open) == 2 && open[1] == "VEVENT" {
				err = all[len(all)-1].read(p, zone)
			}
		}
		if err != nil {
			return nil, err
		}
	}
	if len(open) > 0 {
		return nil, fmt.Errorf("ends before END:%s: is the file cut off?", open[len(open)-1])
	}
	return all, checkEvents(all)
}

func (e *event) read(p *property, zone string) (err error) {
	switch p.name {
	case "UID":
		e.uid = p.value
	case "DTSTART":
		e.start, err = p.stamp(zone)
	case "DTEND":
		e.end, err = p.stamp(zone)
	case "RECURRENCE-ID":
		if p.params["RANGE"] != "" {
			return p.fault("RANGE is not supported")
		}
		e.replaces, err = p.stamp(zone)
	case "DURATION":
		e.duration, err = p.duration()
	case "RRULE":
		if e.rule != nil {
			return p.fault("an event has one rule")
		}
		e.rule = p
	case "EXDATE":
		for _, value := range strings.Split(p.value, ",") {
			one := *p
			one.value = value
			s, err := one.stamp(zone)
			if err != nil {
				return err
			}
			e.except = append(e.except, *s)
		}
	case "RDATE", "EXRULE":
		return p.fault("is not supported; write the days as events of their own")
	case "STATUS":
		e.cancelled = strings.EqualFold(p.value, "CANCELLED")
	}
	return err
}

// checkEvents refuses events whose ends do not fit.
func checkEvents(all []*event) error {
	for _, e := range all {
		switch {
		case e.cancelled && e.start == nil:
		case e.start == nil:
			return fmt.Errorf("line %d: the event has no DTSTART", e.line)
		case e.end != nil && e.duration != 0:
			return fmt.Errorf("line %d: the event has a DTEND and a DURATION", e.line)
		case e.end != nil && e.end.date != e.start.date:
			return fmt.Errorf("line %d: DTSTART and DTEND are not both days, or both times", e.line)
		case e.end != nil && e.end.instant().Before(e.start.instant()):
			return fmt.Errorf("line %d: the event ends before it begins", e.line)
		case e.start.date && e.duration%(24*time.Hour) != 0:
			return fmt.Errorf("line %d: the DURATION of an event of whole days is not in days", e.line)
		}
	}
	return nil
}

// stamp reads "20261225", "20261225T090000" or "20261225T080000Z".
func (p *property) stamp(zone string) (s *stamp, err error) {
	s = &stamp{zone: zone}
	if id := p.params["TZID"]; id != "" {
		s.zone = id
	}
	text, utc := strings.CutSuffix(p.value, "Z")
	if utc {
		s.zone = "UTC"
	}
	form := "20060102T150405"
	if s.date = len(text) == len("20060102") && !utc; s.date {
		form = "20060102"
	}
	if s.clock, err = time.Parse(form, text); err != nil || len(text) != len(form) || s.clock.Year() < firstYear || s.clock.Year() > lastYear {
		return nil, p.fault("is not a date or a time from %d to %d, such as 20261225 or 20261225T090000", firstYear, lastYear)
	}
	if s.location, err = schedule.Location(s.zone); err != nil {
		return nil, p.fault("TZID: %v", err)
	}
	return s, nil
}

var durationForm = regexp.MustCompile(`^\+?P(?:(\d{1,4})W)?(?:(\d{1,4})D)?(?:T(?:(\d{1,5})H)?(?:(\d{1,6})M)?(?:(\d{1,8})S)?)?$`)

// duration reads "P1D" or "PT1H30M".
func (p *property) duration() (d time.Duration, err error) {
	m := durationForm.FindStringSubmatch(p.value)
	if m == nil {
		return 0, p.fault("is not a duration, such as P1D or PT1H30M")
	}
	for i, unit := range []time.Duration{7 * 24 * time.Hour, 24 * time.Hour, time.Hour, time.Minute, time.Second} {
		if m[i+1] != "" {
			n, _ := strconv.Atoi(m[i+1]) // a few digits, by the expression
			d += time.Duration(n) * unit
		}
	}
	return d, nil
}
