package transfer

import (
	"strconv"
	"time"

	"github.com/perceptor/perceptor/task"
)

// Clock says what the times of an input mean.
type Clock struct {
	// Format is rfc3339, unix-s or unix-ms. Empty means rfc3339.
	Format string
	// Zone is that of times without one. nil means UTC.
	Zone *time.Location
}

// TimeFormats are the values of [Clock.Format].
var TimeFormats = []string{"rfc3339", "unix-s", "unix-ms"}

const timeRule = "is not an instant such as 2026-01-31T12:00:00Z"

// parse reads an instant. It returns the rule that the text breaks, or "".
func (c *Clock) parse(text []byte) (at task.Instant, rule string) {
	switch c.Format {
	case "unix-s":
		return parseUnix(text, 1000, "is not a number of seconds since 1970")
	case "unix-ms":
		return parseUnix(text, 1, "is not a number of milliseconds since 1970")
	}
	ms, zoned, ok := parseDateTime(text, false)
	if !ok {
		return 0, timeRule
	}
	if !zoned && c.Zone != nil && c.Zone != time.UTC {
		t := time.UnixMilli(ms).UTC()
		ms = time.Date(t.Year(), t.Month(), t.Day(), t.Hour(), t.Minute(), t.Second(), t.Nanosecond(), c.Zone).UnixMilli()
	}
	return checked(task.Instant(ms))
}

// checked returns an instant, or the rule that it breaks.
func checked(at task.Instant) (task.Instant, string) {
	if rule := task.InstantFault(at); rule != "" {
		return 0, rule
	}
	return at, ""
}

// parseUnix reads a number of units of some milliseconds, with an optional fraction, which counts to the
// millisecond.
func parseUnix(text []byte, unit int64, rule string) (task.Instant, string) {
	whole, fraction := text, []byte(nil)
	for i, c := range text {
		if c == '.' {
			whole, fraction = text[:i], text[i+1:]
			break
		}
	}
	n, err := strconv.ParseInt(string(whole), 10, 64)
	if err != nil || len(fraction) == 0 && len(whole) != len(text) || !digits(fraction) || n > int64(task.LastInstant) || n < -int64(task.LastInstant) {
		return 0, rule
	}
	ms := n * unit
	for scale, i := unit/10, 0; scale > 0 && i < len(fraction); scale, i = scale/10, i+1 {
		ms += int64(fraction[i]-'0') * scale
	}
	return checked(task.Instant(ms))
}

func digits(text []byte) bool {
	for _, c := range text {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}

// two reads two digits at i; a negative number means that they are none.
func two(t []byte, i int) int {
	a, b := int(t[i])-'0', int(t[i+1])-'0'
	if uint(a) > 9 || uint(b) > 9 { //nolint:gosec // a negative number becomes a large one
		return -1 << 20
	}
	return a*10 + b
}

// parseDateTime reads 2026-01-31T12:00:00.123Z, to the millisecond. strict allows what RFC 3339 does. Otherwise the zone may be
// left out, and minutes of the zone, seconds and the time of day, and a blank may replace the T.
func parseDateTime(t []byte, strict bool) (ms int64, zoned, ok bool) {
	if len(t) < 10 || t[4] != '-' || t[7] != '-' {
		return 0, false, false
	}
	year, month, day := two(t, 0)*100+two(t, 2), two(t, 5), two(t, 8)
	if year < 0 || month < 1 || month > 12 || day < 1 || day > daysIn(year, month) {
		return 0, false, false
	}
	ms = daysFromCivil(year, month, day) * 86_400_000
	t = t[10:]
	if len(t) == 0 {
		return ms, false, !strict
	}
	if t[0] != 'T' && (strict || t[0] != ' ') {
		return 0, false, false
	}
	clock, rest, ok := parseClock(t[1:], strict)
	if !ok {
		return 0, false, false
	}
	offset, zoned, ok := parseOffset(rest, strict)
	return ms + clock - offset, zoned, ok
}

// parseClock reads 12:00:00.123 and returns what follows.
func parseClock(t []byte, strict bool) (ms int64, rest []byte, ok bool) {
	if len(t) < 5 || t[2] != ':' {
		return 0, nil, false
	}
	hour, minute, second := two(t, 0), two(t, 3), 0
	t = t[5:]
	switch {
	case len(t) >= 3 && t[0] == ':':
		second = two(t, 1)
		t = t[3:]
	case strict:
		return 0, nil, false
	}
	if hour < 0 || hour > 23 || minute < 0 || minute > 59 || second < 0 || second > 59 {
		return 0, nil, false
	}
	ms = int64(hour*3600+minute*60+second) * 1000
	if len(t) == 0 || t[0] != '.' {
		return ms, t, true
	}
	n, scale := 1, int64(100)
	for ; n < len(t) && t[n] >= '0' && t[n] <= '9'; n++ {
		ms += int64(t[n]-'0') * scale
		scale /= 10
	}
	return ms, t[n:], n > 1 && n <= 10
}

// parseOffset reads Z, +01:00, and if it is not strict +0100, +01 and nothing.
func parseOffset(t []byte, strict bool) (ms int64, zoned, ok bool) {
	switch {
	case len(t) == 0:
		return 0, false, !strict
	case len(t) == 1 && (t[0] == 'Z' || !strict && t[0] == 'z'):
		return 0, true, true
	case len(t) < 3 || t[0] != '+' && t[0] != '-':
		return 0, false, false
	}
	hour, minute := two(t, 1), 0
	switch {
	case len(t) == 6 && t[3] == ':':
		minute = two(t, 4)
	case len(t) == 5 && !strict:
		minute = two(t, 3)
	case len(t) == 3 && !strict:
	default:
		return 0, false, false
	}
	if hour < 0 || hour > 23 || minute < 0 || minute > 59 {
		return 0, false, false
	}
	ms = int64(hour*60+minute) * 60_000
	if t[0] == '-' {
		ms = -ms
	}
	return ms, true, true
}

func daysIn(year, month int) int {
	switch month {
	case 4, 6, 9, 11:
		return 30
	case 2:
		if year%4 == 0 && (year%100 != 0 || year%400 == 0) {
			return 29
		}
		return 28
	}
	return 31
}

// daysFromCivil returns the number of days since 1970 of a date of the Gregorian calendar, by the usual
// arithmetic on years that begin in March.
func daysFromCivil(year, month, day int) int64 {
	if month <= 2 {
		year--
		month += 12
	}
	era := int64(year) / 400
	if year < 0 {
		era = (int64(year) - 399) / 400
	}
	of := int64(year) - era*400
	yearDay := int64(153*(month-3)+2)/5 + int64(day) - 1
	return era*146097 + of*365 + of/4 - of/100 + yearDay - 719468
}
