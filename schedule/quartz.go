package schedule

import (
	"strconv"
	"strings"
)

// The fields of the Quartz dialect.
var (
	quartzFields = [...]field{
		{name: "second", lo: 0, hi: 59, end: 59, maxStep: 59, quartz: true, wraps: true},
		{name: "minute", lo: 0, hi: 59, end: 59, maxStep: 59, quartz: true, wraps: true},
		{name: "hour", lo: 0, hi: 23, end: 23, maxStep: 23, quartz: true, wraps: true},
		{name: "day of month", lo: 1, hi: 31, end: 31, maxStep: 31, quartz: true, wraps: true},
		{name: "month", lo: 1, hi: 12, end: 12, maxStep: 12, names: monthNames, quartz: true, wraps: true},
		{name: "day of week", lo: 1, hi: 7, end: 7, maxStep: 7, names: dayNames, quartz: true, wraps: true},
		{name: "year", lo: FirstYear, hi: quartzLastYear, end: quartzLastYear, maxStep: quartzLastYear - FirstYear, quartz: true},
	}
	quartzDayOfMonth = &quartzFields[3]
	quartzDayOfWeek  = &quartzFields[5]
)

const quartzLastYear = 2099

// parseQuartz parses an expression of the Quartz dialect.
func (c *Cron) parseQuartz(expr string) error {
	fields, err := splitFields(expr)
	if err != nil {
		return err
	}
	c.text = joined(fields, " ")
	if n := len(fields); n != 6 && n != 7 {
		return &Error{Field: "expression", Value: expr, Rule: "has " + strconv.Itoa(n) +
			" fields; Quartz has 6 or 7: second minute hour day-of-month month day-of-week [year]"}
	}
	sets := [7]bitset{6: everyYear}
	for i, p := range fields {
		if i == 3 || i == 5 || i == 6 && p.text == "*" {
			continue
		}
		f := &quartzFields[i]
		elements, err := f.list(p)
		if err != nil {
			return err
		}
		base := 0
		if i == 6 {
			sets[6], base = bitset{}, FirstYear
		}
		for k := range elements {
			elements[k].addTo(&sets[i], f, base)
		}
		c.elapsed = c.elapsed || i <= 2 && goesByElapsedTime(p.text, elements)
	}
	c.seconds, c.minutes, c.hours, c.months, c.years = sets[0][0], sets[1][0], uint32(sets[2][0]), uint16(sets[4][0]), sets[6]
	return c.days.parseQuartz(fields[3], fields[5])
}

// everyYear matches all years.
var everyYear = func() (years bitset) {
	for y := FirstYear; y <= LastYear; y++ {
		years.add(y - FirstYear)
	}
	return years
}()

// parseQuartz parses the two day fields, one of which is ?.
func (r *dayRule) parseQuartz(dom, dow part) error {
	*r = dayRule{dom: everyDay, week: everyWeekday}
	switch {
	case dom.text == "?" && dow.text == "?":
		return quartzDayOfWeek.refuse(dow, "both day fields are ?; only one may be")
	case dom.text == "?":
		r.week = 0
		return r.quartzWeek(dow)
	case dow.text == "?":
		r.dom = 0
		for _, p := range dom.split(',') {
			if err := r.quartzDay(p); err != nil {
				return err
			}
		}
		return nil
	default:
		return quartzDayOfWeek.refuse(dow, "one of the two day fields must be ?")
	}
}

// quartzDay adds an element of the field day of month.
func (r *dayRule) quartzDay(p part) error {
	f := quartzDayOfMonth
	text := strings.ToUpper(p.text)
	if strings.HasPrefix(text, "L") {
		return r.quartzFromLast(p, text[1:])
	}
	if day, ok := strings.CutSuffix(text, "W"); ok {
		if !isNumber(day) {
			return f.refuse(p, "W must follow one day, or L")
		}
		n, err := f.value(p.to(len(day)))
		if err != nil {
			return err
		}
		r.nearest |= 1 << n
		return nil
	}
	e, err := f.element(p)
	if err != nil {
		return err
	}
	var set bitset
	e.addTo(&set, f, 0)
	r.dom |= uint32(set[0])
	return nil
}

// quartzFromLast adds L, L-n, LW or L-nW; rest is the text after L.
func (r *dayRule) quartzFromLast(p part, rest string) error {
	const maxDistance = 30
	distance, nearest := strings.CutSuffix(rest, "W")
	n := 0
	if distance != "" {
		digits, hyphen := strings.CutPrefix(distance, "-")
		var ok bool
		if n, ok = number(digits); !ok || !hyphen || n > maxDistance {
			return quartzDayOfMonth.refuse(p, "L must be followed by nothing, W, -n or -nW, with n from 0 to "+strconv.Itoa(maxDistance))
		}
	}
	if nearest {
		r.fromLastNearest |= 1 << n
	} else {
		r.fromLast |= 1 << n
	}
	return nil
}

// quartzWeek parses the field day of week.
func (r *dayRule) quartzWeek(p part) error {
	f := quartzDayOfWeek
	text := strings.ToUpper(p.text)
	if !strings.ContainsAny(text, "#L") {
		elements, err := f.list(p)
		var set bitset
		for i := range elements {
			elements[i].addTo(&set, f, 1)
		}
		r.week = uint8(set[0])
		return err
	}
	if strings.Contains(text, ",") {
		return f.refuse(p, "L and # must not be in a list")
	}
	if text == "L" {
		r.week = 1 << 6
		return nil
	}
	day, nth := p.to(len(text)-1), lastOfMonth
	if i := strings.IndexByte(text, '#'); i >= 0 {
		n, ok := number(text[i+1:])
		if !ok || n < 1 || n > 5 {
			return f.refuse(p, "# must be followed by a number from 1 to 5")
		}
		day, nth = p.to(i), n
	} else if text[len(text)-1] != 'L' {
		return f.refuse(p, "L must stand alone or after one day of the week")
	}
	n, err := f.value(day)
	if err != nil {
		return err
	}
	r.week, r.nth = 1<<(n-1), uint8(nth)
	return nil
}
