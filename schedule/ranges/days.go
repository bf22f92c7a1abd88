package ranges

import (
	"fmt"
	"strings"
	"time"

	"github.com/perceptor/perceptor/schedule"
	"github.com/perceptor/perceptor/task"
)

// The years of days, and the most days of one range of days.
const (
	firstYear = 1970
	lastYear  = 2199
	maxDays   = 3660
)

// Days reads days, "2026-12-25", and ranges of days with both ends, "2026-12-24/2026-12-31",
// by the clock of an IANA time zone. It returns merged ranges.
func Days(list []string, zone string) ([]task.Range, error) {
	location, err := schedule.Location(zone)
	if err != nil {
		return nil, err
	}
	out := make([]task.Range, len(list))
	for i, text := range list {
		if out[i], err = daysIn(text, location); err != nil {
			return nil, fmt.Errorf("%q %w", text, err)
		}
	}
	return task.MergeRanges(out), nil
}

func daysIn(text string, location *time.Location) (task.Range, error) {
	from, to, ranged := strings.Cut(text, "/")
	first, err := day(from)
	last := first
	if err == nil && ranged {
		last, err = day(to)
	}
	switch {
	case err != nil:
		return task.Range{}, err
	case last.Before(first):
		return task.Range{}, fmt.Errorf("ends before it begins")
	case last.Sub(first) >= maxDays*24*time.Hour:
		return task.Range{}, fmt.Errorf("has more than %d days", maxDays)
	}
	return dates(first, last.AddDate(0, 0, 1), location), nil
}

// day reads a date. The result is midnight in UTC.
func day(text string) (time.Time, error) {
	t, err := time.Parse(time.DateOnly, text)
	if err != nil || t.Year() < firstYear || t.Year() > lastYear {
		return t, fmt.Errorf("is not a day from %d to %d, such as 2026-12-25, or two with / between them", firstYear, lastYear)
	}
	return t, nil
}

// dates returns the range from the start of one date to that of another, in a location.
func dates(from, until time.Time, location *time.Location) task.Range {
	return task.Range{From: task.At(startOfDay(from, location)), Until: task.At(startOfDay(until, location))}
}

// startOfDay returns the first instant of a date. In a zone whose clocks skip midnight that
// is later.
func startOfDay(date time.Time, location *time.Location) time.Time {
	t := time.Date(date.Year(), date.Month(), date.Day(), 0, 0, 0, 0, location)
	if t.Day() != date.Day() {
		t = t.Add(time.Hour)
	}
	return t
}
