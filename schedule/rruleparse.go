package schedule

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// Limits of the numbers of a recurrence rule, so that no arithmetic overflows.
const (
	maxRuleInterval = 1<<31 - 1
	maxRuleCount    = 1<<31 - 1
)

// weekdayNames are the days of the week in a recurrence rule, from Sunday on.
var weekdayNames = []string{"SU", "MO", "TU", "WE", "TH", "FR", "SA"}

// numberPart describes a part whose value is a list of numbers. If signed, the
// numbers also count from the end.
type numberPart struct {
	low, high int
	signed    bool
}

var numberParts = map[string]numberPart{
	"BYSECOND": {0, 59, false}, "BYMINUTE": {0, 59, false}, "BYHOUR": {0, 23, false}, "BYMONTH": {1, 12, false},
	"BYMONTHDAY": {1, 31, true}, "BYYEARDAY": {1, 366, true}, "BYWEEKNO": {1, 53, true}, "BYSETPOS": {1, 366, true},
}

// untilTime is UNTIL: an instant, or a time by the zone's clock.
type untilTime struct {
	given, utc bool
	local      int64
}

// ruleParser collects the parts of a recurrence rule.
type ruleParser struct {
	values          map[string]part // as they were given; DTSTART and RRULE, too
	numbers         map[string][]int
	weekdays        []ordinalDay
	freq            frequency
	interval, count int64
	weekStart       int
	start           int64
	until           untilTime
}

func refusePart(name string, p part, rule string) error {
	return &Error{Field: name, Value: p.text, Position: p.at, Rule: rule}
}

// line reads DTSTART or the rule.
func (p *ruleParser) line(line part) error {
	switch {
	case strings.HasPrefix(line.text, "DTSTART:"):
		value := line.from(len("DTSTART:"))
		if err := p.once("DTSTART", value); err != nil {
			return err
		}
		local, utc, err := readTime("DTSTART", value)
		if err == nil && utc {
			err = refusePart("DTSTART", value, "must be a time by the clock of the time zone, without Z; the time zone is a separate setting")
		}
		p.start = local
		return err
	case strings.HasPrefix(line.text, "DTSTART"):
		return refusePart("DTSTART", line, "must have the form DTSTART:20260131T090000; the time zone is a separate setting")
	case strings.HasPrefix(line.text, "RRULE:"):
		return p.parts(line.from(len("RRULE:")))
	case strings.HasPrefix(line.text, "FREQ="):
		return p.parts(line)
	}
	return refusePart("expression", line, "is neither DTSTART:TIME nor RRULE:FREQ=...; other lines, such as EXDATE and RDATE, are not supported")
}

// once refuses what was given before.
func (p *ruleParser) once(name string, value part) error {
	if _, given := p.values[name]; given {
		return refusePart(name, value, "is given twice")
	}
	p.values[name] = value
	return nil
}

// parts reads the parts of the rule, each NAME=VALUE.
func (p *ruleParser) parts(text part) error {
	if err := p.once("RRULE", text); err != nil {
		return err
	}
	p.numbers, p.interval, p.weekStart = map[string][]int{}, 1, 1
	for _, piece := range text.split(';') {
		name, _, found := strings.Cut(piece.text, "=")
		if !found {
			return refusePart("RRULE", piece, "is not of the form NAME=VALUE")
		}
		value := piece.from(len(name) + 1)
		if err := p.once(name, value); err != nil {
			return err
		}
		if err := p.part(name, value); err != nil {
			return err
		}
	}
	return nil
}

// part reads the value of a part.
func (p *ruleParser) part(name string, value part) (err error) {
	switch name {
	case "FREQ":
		i := slices.Index(frequencyNames, value.text)
		if i < 0 {
			return refusePart(name, value, "is not one of "+strings.Join(frequencyNames, ", "))
		}
		p.freq = frequency(i)
	case "INTERVAL":
		p.interval, err = wholeNumber(name, value, maxRuleInterval)
	case "COUNT":
		p.count, err = wholeNumber(name, value, maxRuleCount)
	case "UNTIL":
		p.until.given = true
		p.until.local, p.until.utc, err = readTime(name, value)
	case "WKST":
		if p.weekStart = slices.Index(weekdayNames, value.text); p.weekStart < 0 {
			return refusePart(name, value, "is not one of "+strings.Join(weekdayNames, ", "))
		}
	case "BYDAY":
		return p.byDay(value)
	default:
		kind, known := numberParts[name]
		if !known {
			return refusePart("RRULE", part{name, value.at - len(name) - 1}, "is not the name of a part of a rule")
		}
		return p.list(name, value, kind)
	}
	return err
}

func wholeNumber(name string, value part, limit int64) (int64, error) {
	n, err := strconv.ParseUint(value.text, 10, 31)
	if err != nil || n < 1 {
		return 0, refusePart(name, value, "is not a number between 1 and "+strconv.FormatInt(limit, 10))
	}
	return int64(n), nil
}

// list reads a list of numbers.
func (p *ruleParser) list(name string, value part, kind numberPart) error {
	within := strconv.Itoa(kind.low) + " and " + strconv.Itoa(kind.high)
	rule := "is not a number between " + within
	if kind.signed {
		rule += ", or between -" + strconv.Itoa(kind.high) + " and -1"
	}
	if name == "BYSECOND" {
		rule += " (a leap second is never shown)"
	}
	for _, piece := range value.split(',') {
		n, ok := signedNumber(piece.text, kind.signed)
		if size := max(n, -n); !ok || size < kind.low || size > kind.high {
			return refusePart(name, piece, rule)
		}
		p.numbers[name] = append(p.numbers[name], n)
	}
	return nil
}

// signedNumber reads digits, with a sign where one is allowed.
func signedNumber(text string, signed bool) (int, bool) {
	digits := text
	if signed && text != "" && (text[0] == '+' || text[0] == '-') {
		digits = text[1:]
	}
	n, err := strconv.ParseUint(digits, 10, 15)
	if text != "" && text[0] == '-' {
		return -int(n), err == nil
	}
	return int(n), err == nil
}

// byDay reads a list of days of the week, each perhaps with an ordinal.
func (p *ruleParser) byDay(value part) error {
	for _, piece := range value.split(',') {
		split := max(len(piece.text)-2, 0)
		day := slices.Index(weekdayNames, piece.text[split:])
		n, ok := 0, true
		if split > 0 {
			n, ok = signedNumber(piece.text[:split], true)
			ok = ok && n != 0 && max(n, -n) <= 53
		}
		if day < 0 || !ok {
			return refusePart("BYDAY", piece, "is not a day from SU to SA, perhaps with a number between 1 and 53 or -53 and -1 before it")
		}
		p.weekdays = append(p.weekdays, ordinalDay{n, day})
	}
	return nil
}

// readTime reads 20260131T090000, and whether it is in UTC: with Z at its end.
func readTime(name string, value part) (local int64, utc bool, err error) {
	const form = "20060102T150405"
	text, utc := strings.CutSuffix(value.text, "Z")
	t, err := time.Parse(form, text)
	if err != nil || len(text) != len(form) || t.Year() < FirstYear || t.Year() > LastYear {
		return 0, false, refusePart(name, value, "is not a time from 19700101T000000 to 21991231T235959")
	}
	return t.Unix(), utc, nil
}

// check refuses parts that are missing or that exclude each other.
func (p *ruleParser) check(expr string) error {
	whole := part{expr, 0}
	for _, need := range [...]struct{ name, rule string }{
		{"RRULE", "has no rule, such as RRULE:FREQ=DAILY"},
		{"DTSTART", "has no start, such as DTSTART:20260131T090000 before the rule"},
	} {
		if _, given := p.values[need.name]; !given {
			return refusePart("expression", whole, need.rule)
		}
	}
	if _, given := p.values["FREQ"]; !given {
		return refusePart("RRULE", p.values["RRULE"], "has no FREQ")
	}
	_, positions := p.numbers["BYSETPOS"]
	for _, c := range [...]struct {
		name   string
		broken bool
		rule   string
	}{
		{"UNTIL", p.count > 0, "cannot be used together with COUNT"},
		{"BYWEEKNO", p.freq != yearly, "can only be used with FREQ=YEARLY"},
		{"BYMONTHDAY", p.freq == weekly, "cannot be used with FREQ=WEEKLY"},
		{"BYYEARDAY", p.freq == monthly || p.freq == weekly || p.freq == daily, "cannot be used with FREQ=" + frequencyNames[p.freq]},
		{"BYSETPOS", positions && !p.hasBy(), "needs another BY part to choose from"},
	} {
		if value, given := p.values[c.name]; given && c.broken {
			return refusePart(c.name, value, c.rule)
		}
	}
	return p.checkOrdinals()
}

// hasBy reports whether the rule has a BY part besides BYSETPOS.
func (p *ruleParser) hasBy() bool {
	return len(p.weekdays) > 0 || len(p.numbers) > 1
}

// checkOrdinals refuses numbers before days of the week that have no meaning.
func (p *ruleParser) checkOrdinals() error {
	_, weeks := p.numbers["BYWEEKNO"]
	for i, w := range p.weekdays {
		rule := ""
		switch {
		case w.n == 0:
		case p.freq > monthly:
			rule = "has a number, which only FREQ=MONTHLY and FREQ=YEARLY allow"
		case weeks:
			rule = "has a number, which BYWEEKNO does not allow"
		case p.ordinalsInMonth() && max(w.n, -w.n) > 5:
			rule = "has a number above 5, and no month has so many"
		}
		if rule != "" {
			return refusePart("BYDAY", p.values["BYDAY"].split(',')[i], rule)
		}
	}
	return nil
}

// ordinalsInMonth reports whether 2MO is the second Monday of the month and not
// of the year.
func (p *ruleParser) ordinalsInMonth() bool {
	return p.freq == monthly || p.freq == yearly && len(p.numbers["BYMONTH"]) > 0
}

// rule returns the days and the periods of the rule.
func (p *ruleParser) rule() *rule {
	positions := slices.Clone(p.numbers["BYSETPOS"])
	slices.Sort(positions)
	r := &rule{freq: p.freq, interval: p.interval, start: p.start, weekStart: p.weekStart, positions: slices.Compact(positions)}
	f := p.filter()
	for kind := range r.years {
		r.years[kind] = f.days(kind)
	}
	return r
}

// filter returns the parts that select days. What a rule leaves open is that of
// the start: its day of the year, of the month or of the week.
func (p *ruleParser) filter() dayFilter {
	f := dayFilter{
		months: p.numbers["BYMONTH"], weeks: p.numbers["BYWEEKNO"], yearDays: p.numbers["BYYEARDAY"],
		monthDays: p.numbers["BYMONTHDAY"], weekdays: p.weekdays, inMonth: p.ordinalsInMonth(), weekStart: p.weekStart,
	}
	if len(f.yearDays)+len(f.monthDays)+len(f.weekdays) > 0 {
		return f
	}
	start := p.start / secondsPerDay
	_, month, dom := civil(start)
	switch {
	case p.freq == weekly || len(f.weeks) > 0:
		f.weekdays = []ordinalDay{{0, weekday(start)}}
	case p.freq == yearly && len(f.months) == 0:
		f.months, f.monthDays = []int{month}, []int{dom}
	case p.freq <= monthly:
		f.monthDays = []int{dom}
	}
	return f
}
