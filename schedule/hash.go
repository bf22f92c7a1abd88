package schedule

import (
	"slices"
	"strings"
)

// H is a value that a hash determines, so that many equal expressions do not
// fire together. The values must never change, because stored schedules would
// move.

// hash determines values. The zero value has no key.
type hash struct {
	keyed bool
	bits  uint64
}

// fieldHash returns the hash of a key for one field: FNV-1a of the key, mixed
// with the number of the field by the finalizer of SplitMix64, so that fields
// differ.
func fieldHash(key string, number int) hash {
	h := uint64(0xcbf29ce484222325)
	for i := range len(key) {
		h = (h ^ uint64(key[i])) * 0x100000001b3
	}
	h += uint64(number+1) * 0x9e3779b97f4a7c15
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return hash{key != "", h ^ h>>31}
}

// pick returns a number below n.
func (h hash) pick(n int) int { return int(h.bits % uint64(n)) }

// hashedList is [field.list] with support for H. It replaces H in the text of p
// by its value.
func (f *field) hashedList(p *part, h hash) ([]element, error) {
	parts := p.split(',')
	elements := make([]element, len(parts))
	for i, e := range parts {
		var err error
		if isHash(e) {
			elements[i], err = f.hashed(e, h)
			parts[i].text = f.plainElement(elements[i])
		} else {
			elements[i], err = f.element(e)
		}
		if err != nil {
			return nil, err
		}
	}
	p.text = joined(parts, ",")
	return elements, nil
}

// hashed parses H, H/n, H(a-b), H(a-b)/n.
func (f *field) hashed(p part, h hash) (element, error) {
	if !h.keyed {
		return element{}, f.refuse(p, "H requires a hash key")
	}
	e := element{lo: f.lo, hi: f.end, step: 1}
	rest := p.from(1)
	if strings.HasPrefix(rest.text, "(") {
		end := strings.IndexByte(rest.text, ')')
		if end < 0 {
			return e, f.refuse(p, "the parenthesis is not closed")
		}
		if err := f.base(rest.to(end).from(1), &e); err != nil {
			return e, err
		}
		if !e.ranged {
			return e, f.refuse(p, "the parentheses must have a range a-b")
		}
		rest = rest.from(end + 1)
	}
	if step, ok := strings.CutPrefix(rest.text, "/"); ok {
		e.stepped = true
		var err error
		if e.step, err = f.stepOf(rest.from(len(rest.text) - len(step))); err != nil {
			return e, err
		}
	} else if rest.text != "" {
		return e, f.refuse(p, "H must be followed by nothing, (a-b), /n or (a-b)/n")
	}
	return f.pick(e, h), nil
}

// pick replaces the beginning of e by a value of its range or, with a step, of
// its first step.
func (f *field) pick(e element, h hash) element {
	if e.stepped {
		e.lo += h.pick(min(e.step, e.hi-e.lo+1))
		return e
	}
	if !e.ranged && f.hi == 31 {
		e.hi = 28 // a day that every month has
	}
	e.lo += h.pick(e.hi - e.lo + 1)
	e.hi, e.ranged = e.lo, false
	return e
}

// isHash reports whether an element begins with H; no name does.
func isHash(p part) bool { return p.text != "" && (p.text[0] == 'H' || p.text[0] == 'h') }

// hasHash reports whether any element of a field does.
func hasHash(p part) bool { return slices.ContainsFunc(p.split(','), isHash) }
