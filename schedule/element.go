package schedule

import (
	"strconv"
	"strings"
)

// field is the grammar of one field of a dialect.
type field struct {
	name   string
	lo, hi int
	// end is the end of * and a/n. It is hi, unless hi is another name of lo.
	end int
	// names are the values' names in upper case, from lo on.
	names []string
	// maxStep is the largest step.
	maxStep int
	// quartz: /n means */n, and a range must not mix a name and a number.
	quartz bool
	// wraps: the end of a range may be before its beginning.
	wraps bool
}

var (
	monthNames = []string{"JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"}
	dayNames   = []string{"SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"}
)

// part is a piece of an expression with its position, counted from 1.
type part struct {
	text string
	at   int
}

// refuse returns an error about a piece of a field.
func (f *field) refuse(p part, rule string) error {
	return &Error{Field: f.name, Value: p.text, Position: p.at, Rule: rule}
}

// from returns the rest of p after its first n bytes.
func (p part) from(n int) part { return part{p.text[n:], p.at + n} }

// to returns the first n bytes of p.
func (p part) to(n int) part { return part{p.text[:n], p.at} }

// split splits p at a separator, which must be one byte.
func (p part) split(sep byte) []part {
	parts := make([]part, 0, 1+strings.Count(p.text, string(sep)))
	for {
		i := strings.IndexByte(p.text, sep)
		if i < 0 {
			return append(parts, p)
		}
		parts = append(parts, p.to(i))
		p = p.from(i + 1)
	}
}

// splitFields splits an expression at its blanks and tabs.
func splitFields(expr string) ([]part, error) {
	whole := part{expr, 1}
	if len(expr) > MaxExpressionBytes {
		return nil, tooLong(expr)
	}
	fields := make([]part, 0, 7)
	begin := -1
	for i := 0; i <= len(expr); i++ {
		blank := i == len(expr) || expr[i] == ' ' || expr[i] == '\t'
		switch {
		case !blank && (expr[i] <= ' ' || expr[i] > '~'):
			return nil, notPrintable(expr, i)
		case blank && begin >= 0:
			fields = append(fields, whole.from(begin).to(i-begin))
			begin = -1
		case !blank && begin < 0:
			begin = i
		}
	}
	return fields, refusePrefix(fields)
}

func tooLong(expr string) error {
	return &Error{Field: "expression", Value: expr, Rule: "is " + strconv.Itoa(len(expr)) + " bytes long; the limit is " + strconv.Itoa(MaxExpressionBytes)}
}

// refusePrefix returns the error for prefixes that other programs allow.
func refusePrefix(fields []part) error {
	rule := ""
	switch {
	case len(fields) == 0:
	case IsRule(fields[0].text):
		rule = "a recurrence rule belongs to the dialect rrule"
	case strings.Contains(fields[0].text, "="):
		rule = "the time zone is a separate setting and not part of an expression"
	case fields[0].text[0] == '@':
		rule = "names such as @daily belong to the dialect named; @every is an interval"
	}
	if rule == "" {
		return nil
	}
	return &Error{Field: "expression", Value: fields[0].text, Position: fields[0].at, Rule: rule}
}

// joined returns the text of parts.
func joined(parts []part, sep string) string {
	texts := make([]string, len(parts))
	for i, p := range parts {
		texts[i] = p.text
	}
	return strings.Join(texts, sep)
}

// element is one element of a field's list: the values from lo to hi in steps.
type element struct {
	lo, hi int // lo > hi wraps around
	// every: written as *, ranged: as a range. stepped: with a step.
	every, ranged, stepped bool
	step                   int
}

// list parses a list of elements.
func (f *field) list(p part) ([]element, error) {
	parts := p.split(',')
	elements := make([]element, len(parts))
	for i, e := range parts {
		var err error
		if elements[i], err = f.element(e); err != nil {
			return nil, err
		}
	}
	return elements, nil
}

// element parses *, a, or a-b, each with or without a step.
func (f *field) element(p part) (element, error) {
	e := element{lo: f.lo, hi: f.end, step: 1}
	if p.text == "" {
		return e, f.refuse(p, "the list has an empty element")
	}
	base := p
	if i := strings.IndexByte(p.text, '/'); i >= 0 {
		e.stepped = true
		base = p.to(i)
		var err error
		if e.step, err = f.stepOf(p.from(i + 1)); err != nil {
			return e, err
		}
	}
	return e, f.base(base, &e)
}

// base parses the part before the step.
func (f *field) base(p part, e *element) (err error) {
	if p.text == "*" || p.text == "" && e.stepped && f.quartz {
		e.every = true
		return nil
	}
	bounds := p.split('-')
	if len(bounds) > 2 {
		return f.refuse(p, "a range must have exactly one hyphen")
	}
	if e.lo, err = f.value(bounds[0]); err != nil {
		return err
	}
	if len(bounds) == 1 {
		if !e.stepped || e.lo > e.hi {
			e.hi = e.lo
		}
		return nil
	}
	e.ranged = true
	if e.hi, err = f.value(bounds[1]); err != nil {
		return err
	}
	if f.quartz && isNumber(bounds[0].text) != isNumber(bounds[1].text) {
		return f.refuse(p, "a range must have two names or two numbers")
	}
	if e.lo > e.hi && !f.wraps {
		return f.refuse(p, "the range ends before it begins; write it as a list of two ranges")
	}
	return nil
}

// stepOf parses the part after the slash.
func (f *field) stepOf(p part) (int, error) {
	n, ok := number(p.text)
	if !ok || n < 1 || n > f.maxStep {
		return 0, f.refuse(p, "a step must be a number from 1 to "+strconv.Itoa(f.maxStep))
	}
	return n, nil
}

// value parses a number or a name.
func (f *field) value(p part) (int, error) {
	n, ok := number(p.text)
	if !ok {
		for i, name := range f.names {
			if strings.EqualFold(p.text, name) {
				return f.lo + i, nil
			}
		}
		return 0, f.refuse(p, "is not "+f.values())
	}
	if n < f.lo || n > f.hi {
		return 0, f.refuse(p, "is not "+f.values())
	}
	return n, nil
}

// values describes the values of a field.
func (f *field) values() string {
	text := "a number from " + strconv.Itoa(f.lo) + " to " + strconv.Itoa(f.hi)
	if len(f.names) > 0 {
		text += " or a name from " + f.names[0] + " to " + f.names[len(f.names)-1]
	}
	return text
}

// number parses one to four digits.
func number(text string) (int, bool) {
	if !isNumber(text) || len(text) > 4 {
		return 0, false
	}
	n := 0
	for i := range len(text) {
		n = n*10 + int(text[i]-'0')
	}
	return n, true
}

// isNumber reports whether text has only digits.
func isNumber(text string) bool {
	for i := range len(text) {
		if text[i] < '0' || text[i] > '9' {
			return false
		}
	}
	return text != ""
}

// addTo adds the values of e, minus base, to a set. A range that wraps around
// continues in the field's full cycle.
func (e *element) addTo(set *bitset, f *field, base int) {
	hi, size := e.hi, f.hi-f.lo+1
	if e.lo > e.hi {
		hi += size
	}
	for v := e.lo; v <= hi; v += e.step {
		set.add(f.lo + (v-f.lo)%size - base)
	}
}

// goesByElapsedTime reports whether a second, minute or hour field makes its
// expression follow elapsed time: it begins with *, or is a step without an
// end.
func goesByElapsedTime(text string, elements []element) bool {
	return text[0] == '*' || len(elements) == 1 && elements[0].stepped && !elements[0].ranged
}
