package pack

import (
	"encoding/binary"
	"math/bits"
)

// The forms of a column. The low four bits of a column's first byte are its width: the
// number of bytes of its widest value.
const (
	offsets = 0x00 // each value less the column's base, the smallest
	deltas  = 0x10 // each value less the one before it, zigzag; base: the first
)

// appendColumn writes values, at least one: the first byte, the base, then the
// values' bytes in planes: first the highest byte of every value, then the next.
// Planes of like bytes compress better than values one after another.
// It may change values.
func appendColumn(dst []byte, form byte, values []int64) []byte {
	var base int64
	if form == deltas {
		base = differ(values)
	} else {
		base = offset(values)
	}
	var all uint64
	for _, v := range values {
		all |= uint64(v)
	}
	width := (bits.Len64(all) + 7) / 8
	dst = append(dst, form|byte(width))
	dst = binary.AppendVarint(dst, base)
	for plane := width - 1; plane >= 0; plane-- {
		shift := 8 * plane
		for _, v := range values {
			dst = append(dst, byte(uint64(v)>>shift))
		}
	}
	return dst
}

// offset replaces the values by their distances from the smallest.
func offset(values []int64) (base int64) {
	base = values[0]
	for _, v := range values {
		base = min(base, v)
	}
	for i := range values {
		values[i] -= base
	}
	return base
}

// differ replaces each value by its distance from the one before it, zigzag:
// small distances of either sign become small numbers.
func differ(values []int64) (base int64) {
	base = values[0]
	prev := base
	for i, v := range values {
		values[i] = zigzag(v - prev)
		prev = v
	}
	return base
}

func zigzag(v int64) int64   { return v<<1 ^ v>>63 }
func unzigzag(v int64) int64 { return int64(uint64(v)>>1) ^ -(v & 1) }

// column is a column that was read: the same value everywhere, or one a row.
type column struct {
	same   int64
	values []int64 // nil: same is every row's
}

func (c *column) at(i int) int64 {
	if c.values == nil {
		return c.same
	}
	return c.values[i]
}

// reader parses content. After the first fault, which err holds, every further read
// returns zeros.
type reader struct {
	rest  []byte
	err   error
	cells []int64 // room for columns
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = damaged(format, args...)
	}
	r.rest = nil
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.rest)
	if n <= 0 {
		r.fail("ends within a number")
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

func (r *reader) varint() int64 {
	v, n := binary.Varint(r.rest)
	if n <= 0 {
		r.fail("ends within a number")
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

// count reads the number of items that follow. It must be at most limit.
func (r *reader) count(what string, limit int) int {
	n := r.uvarint()
	if n > uint64(limit) {
		r.fail("has %d %s; at most %d are allowed", n, what, limit)
		return 0
	}
	return int(n)
}

func (r *reader) bytes(n int) []byte {
	if n > len(r.rest) {
		r.fail("ends %d bytes early", n-len(r.rest))
		return nil
	}
	b := r.rest[:n:n]
	r.rest = r.rest[n:]
	return b
}

// column reads a column of n values.
func (r *reader) column(n int) column {
	head := r.bytes(1)
	base := r.varint()
	if r.err != nil {
		return column{}
	}
	form, width := head[0]&^0x0f, int(head[0]&0x0f)
	if width > 8 || form != offsets && form != deltas {
		r.fail("has a column of unknown form %#x", head[0])
		return column{}
	}
	planes := r.bytes(width * n)
	if r.err != nil || width == 0 {
		return column{same: base}
	}
	values := r.room(n)
	for i, b := range planes[:n] {
		values[i] = int64(b)
	}
	for p := 1; p < width; p++ {
		for i, b := range planes[p*n : p*n+n] {
			values[i] = values[i]<<8 | int64(b)
		}
	}
	if form == offsets {
		for i := range values {
			values[i] += base
		}
		return column{values: values}
	}
	for i, d := range values {
		base += unzigzag(d)
		values[i] = base
	}
	return column{values: values}
}

func (r *reader) room(n int) []int64 {
	if len(r.cells) < n {
		r.cells = make([]int64, columns*n)
	}
	values := r.cells[:n:n]
	r.cells = r.cells[n:]
	return values
}

// indexes reads a column whose values must lie in [0, limit).
func (r *reader) indexes(n int, what string, limit int) column {
	c := r.column(n)
	if c.values == nil {
		if c.same < 0 || c.same >= int64(limit) {
			r.fail("names %s %d of %d", what, c.same, limit)
		}
		return c
	}
	for _, v := range c.values {
		if v < 0 || v >= int64(limit) {
			r.fail("names %s %d of %d", what, v, limit)
			return column{}
		}
	}
	return c
}

// end checks that no further sections follow, because they might change the meaning of the
// others, and that no bytes are left.
func (r *reader) end() error {
	if n := r.uvarint(); n != 0 {
		r.fail("has %d further sections; this program knows none", n)
	}
	return r.done()
}

// done checks that no bytes are left.
func (r *reader) done() error {
	if len(r.rest) > 0 {
		r.fail("has %d bytes behind its end", len(r.rest))
	}
	return r.err
}
