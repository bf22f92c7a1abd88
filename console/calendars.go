package console

import (
	"time"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// The pages of day calendars are next to the schedule. They are read here, and written by
// perceptorctl, from files.
var calendarPages = []page{
	{path: "calendars", name: "calendars", title: "Calendars", section: "schedule", show: (*view).listCalendars},
	{path: "calendar", name: "calendar", title: "Calendar", section: "schedule", show: (*view).showCalendar},
}

// shownRanges is the most ranges of a calendar that its page shows.
const shownRanges = 400

func (v *view) listCalendars() (any, error) {
	ctx, err := v.asTenant()
	if err != nil {
		return nil, err
	}
	return v.calendars.ListCalendars(ctx, &perceptorv1.ListCalendarsRequest{})
}

// calendarData is the data of the page of a calendar.
type calendarData struct {
	*perceptorv1.Calendar
	// Years are the ranges that have not passed, by the year in which they begin.
	Years []calendarYear
	// Passed is the number of ranges that have passed, More that of ranges that are not shown.
	Passed, More int
}

// calendarYear has ranges of a calendar, in its time zone.
type calendarYear struct {
	Year   int
	Ranges []calendarRange
}

// calendarRange is a range of whole days, or of instants.
type calendarRange struct {
	Text, Length string
	Now          bool
}

func (v *view) showCalendar() (any, error) {
	ctx, err := v.asTenant()
	if err != nil {
		return nil, err
	}
	c, err := v.calendars.GetCalendar(ctx, &perceptorv1.GetCalendarRequest{Name: v.Query("name")})
	if err != nil {
		return nil, err
	}
	zone, err := time.LoadLocation(c.TimeZone)
	if err != nil {
		zone = time.UTC
	}
	d := &calendarData{Calendar: c}
	now := v.config.Now()
	for i, r := range c.Ranges {
		from, until := r.StartTime.AsTime().In(zone), r.EndTime.AsTime().In(zone)
		if !until.After(now) {
			d.Passed++
			continue
		}
		if i-d.Passed == shownRanges {
			d.More = len(c.Ranges) - i
			break
		}
		if n := len(d.Years); n == 0 || d.Years[n-1].Year != from.Year() {
			d.Years = append(d.Years, calendarYear{Year: from.Year()})
		}
		year := &d.Years[len(d.Years)-1]
		year.Ranges = append(year.Ranges, calendarRange{Text: rangeText(from, until), Length: rangeLength(from, until), Now: !from.After(now)})
	}
	return d, nil
}

const (
	dayFormat    = "Mon 2 Jan 2006"
	minuteFormat = "Mon 2 Jan 2006 15:04:05 MST"
)

// rangeText writes a range: whole days by the clock of its zone as days, with both ends.
func rangeText(from, until time.Time) string {
	if days, ok := wholeDays(from, until); ok {
		if days == 1 {
			return from.Format(dayFormat)
		}
		return from.Format(dayFormat) + " – " + until.AddDate(0, 0, -1).Format(dayFormat)
	}
	return from.Format(minuteFormat) + " – " + until.Format(minuteFormat)
}

// rangeLength writes how long a range is.
func rangeLength(from, until time.Time) string {
	if days, ok := wholeDays(from, until); ok {
		if days == 1 {
			return "1 day"
		}
		return number(days) + " days"
	}
	return duration(until.Sub(from))
}

// wholeDays returns the number of days of a range, and false if it does not begin and end with
// a day. A clock that changes makes a day longer or shorter.
func wholeDays(from, until time.Time) (int, bool) {
	for _, t := range []time.Time{from, until} {
		if h, m, s := t.Clock(); h != 0 || m != 0 || s != 0 || t.Nanosecond() != 0 {
			return 0, false
		}
	}
	days := until.Sub(from).Round(24*time.Hour) / (24 * time.Hour)
	return int(days), days > 0
}
