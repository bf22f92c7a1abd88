package schedule

import (
	"strconv"
	"strings"

	"github.com/robfig/cron/v3"
)

// maxStandardStep bounds the steps of the standard dialect. A step that is
// larger than its field leaves only the first value.
const maxStandardStep = 9999

// The fields of the standard dialect.
var standardFields = [...]field{
	{name: "second", lo: 0, hi: 59, end: 59, maxStep: maxStandardStep},
	{name: "minute", lo: 0, hi: 59, end: 59, maxStep: maxStandardStep},
	{name: "hour", lo: 0, hi: 23, end: 23, maxStep: maxStandardStep},
	{name: "day of month", lo: 1, hi: 31, end: 31, maxStep: maxStandardStep},
	{name: "month", lo: 1, hi: 12, end: 12, maxStep: maxStandardStep, names: monthNames},
	{name: "day of week", lo: 0, hi: 7, end: 6, maxStep: maxStandardStep, names: dayNames},
}

// fieldReader creates the bits of fields that have been validated.
var fieldReader = cron.NewParser(cron.Second | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow)

// parseStandard parses an expression of the standard dialect. It validates the
// elements strictly. robfig/cron computes the bits from their plain form, which
// has no names, no H and no Sunday but 0.
func (c *Cron) parseStandard(expr, hashKey string) error {
	fields, err := splitFields(expr)
	if err != nil {
		return err
	}
	if n := len(fields); n != 5 && n != 6 {
		return &Error{Field: "expression", Value: expr, Rule: "has " + strconv.Itoa(n) +
			" fields; the standard dialect has 5: minute hour day-of-month month day-of-week, or 6 with the second in front"}
	}
	plain := [6]string{"0"}
	for i := range fields {
		number := i + 6 - len(fields)
		f := &standardFields[number]
		c.hashed = c.hashed || hasHash(fields[i])
		elements, err := f.hashedList(&fields[i], fieldHash(hashKey, number))
		if err != nil {
			return err
		}
		plain[number] = f.plain(elements)
		c.elapsed = c.elapsed || number <= 2 && goesByElapsedTime(fields[i].text, elements)
	}
	c.text = joined(fields, " ")
	return c.setStandardBits(strings.Join(plain[:], " "), fields[len(fields)-3:])
}

// setStandardBits sets the fields of c from a plain expression. days are its
// last three fields in their original form.
func (c *Cron) setStandardBits(plain string, days []part) error {
	read, err := fieldReader.Parse(plain)
	spec, ok := read.(*cron.SpecSchedule)
	if err != nil || !ok {
		return &Error{Field: "expression", Value: plain, Rule: "is not understood"}
	}
	const sixty = 1<<60 - 1 // without the bit that marks a star
	c.seconds, c.minutes, c.hours, c.months = spec.Second&sixty, spec.Minute&sixty, uint32(spec.Hour&sixty), uint16(spec.Month&sixty)
	c.years = everyYear
	star := days[0].text[0] == '*' || days[2].text[0] == '*'
	c.days = dayRule{either: !star, dom: uint32(spec.Dom & sixty), week: uint8(spec.Dow & sixty)}
	return nil
}

// plain writes elements as numbers.
func (f *field) plain(elements []element) string {
	texts := make([]string, len(elements))
	for i, e := range elements {
		texts[i] = f.plainElement(e)
	}
	return strings.Join(texts, ",")
}

func (f *field) plainElement(e element) string {
	if e.hi > f.end { // Sunday as 7
		var days []string
		for v := e.lo; v <= e.hi; v += e.step {
			days = append(days, strconv.Itoa(v%7))
		}
		return strings.Join(days, ",")
	}
	text := "*"
	if !e.every {
		text = strconv.Itoa(e.lo)
	}
	if e.ranged {
		text += "-" + strconv.Itoa(e.hi)
	}
	if e.stepped {
		text += "/" + strconv.Itoa(e.step)
	}
	return text
}
