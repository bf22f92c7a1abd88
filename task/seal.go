package task

import (
	"encoding/binary"
	"math"
	"time"
)

// # Sealed terms
//
// The terms of a task that no SQL statement compares are stored as one blob, with
// its origin; NULL where all of them have the values that most tasks have, so that
// a plain task pays nothing for them. The blob is the number of the format, then
// fields: a number (one byte), the length of the value (uvarint), the value. A field
// that a program does not know makes the whole unreadable, because it may change
// what the rest means.
//
// [sealed.fields] lists the fields once, for writing and for reading.

const sealedFormat = 1

// maxSealedField is the highest number of a field.
const maxSealedField = 31

// sealed writes or reads the fields of a blob.
type sealed struct {
	reading bool
	blob    []byte        // what has been written
	values  *sealedValues // what was read
	known   uint32        // bit n: there is a field of number n
	damaged bool
}

// sealedValues are values by the numbers of their fields; nil: the field is not there.
type sealedValues [maxSealedField + 1][]byte

// fields lists the fields of a blob: the number, where the value is, and the value
// that is not stored.
func (s *sealed) fields(t *Terms, o *Origin) {
	s.cron(&t.Cron)
	sealedNumber(s, 4, &t.Misfire, 0)
	s.duration(5, &t.Grace, 0)
	sealedNumber(s, 6, &t.CatchUp, 0)
	s.duration(7, &t.Spread, 0)
	s.texts(8, &t.Tags)
	s.text(9, &o.Key)
	sealedNumber(s, 10, &o.ReplayOf.Task, 0)
	sealedNumber(s, 11, &o.ReplayOf.Seq, 0)
	s.text(12, &o.TraceParent)
}

func (s *sealed) cron(c **Cron) {
	var v Cron
	if *c != nil {
		v = **c
	}
	sealedNumber(s, 1, &v.Dialect, 0)
	s.text(2, &v.Expression)
	s.text(3, &v.Zone)
	if s.reading && v != (Cron{}) {
		*c = &v
	}
}

// Seal returns the blob of terms and origin; nil: they are those of most tasks.
func Seal(t *Terms, o *Origin) []byte {
	if t.Damaged != "" {
		return []byte(t.Damaged)
	}
	var s sealed
	s.fields(t, o)
	return s.blob
}

// Unseal is the inverse of [Seal]. It takes any bytes, and keeps none: terms that
// it cannot read are Damaged. What is not in a blob is zero.
func Unseal(blob []byte) (t Terms, o Origin) {
	if len(blob) == 0 {
		return t, o
	}
	s := sealed{reading: true, values: new(sealedValues)}
	if s.split(blob); !s.damaged {
		s.fields(&t, &o)
	}
	for n, v := range s.values {
		s.damaged = s.damaged || v != nil && s.known&(1<<n) == 0
	}
	if s.damaged {
		return Terms{Damaged: string(blob)}, Origin{}
	}
	return t, o
}

// split finds the fields of a blob.
func (s *sealed) split(blob []byte) {
	s.damaged = blob[0] != sealedFormat || len(blob) > MaxSealedBytes
	for rest := blob[1:]; len(rest) > 0 && !s.damaged; {
		size, n := binary.Uvarint(rest[1:])
		if n <= 0 || size > uint64(len(rest)-1-n) || rest[0] > maxSealedField || s.values[rest[0]] != nil {
			s.damaged = true
			return
		}
		s.values[rest[0]] = rest[1+n : 1+n+int(size)]
		rest = rest[1+n+int(size):]
	}
}

// value returns the stored value of a field.
func (s *sealed) value(field byte) (v []byte, ok bool) {
	s.known |= 1 << field
	v = s.values[field]
	return v, v != nil
}

func (s *sealed) write(field byte, value []byte) {
	if s.blob == nil {
		s.blob = append(make([]byte, 0, 64), sealedFormat)
	}
	s.blob = append(binary.AppendUvarint(append(s.blob, field), uint64(len(value))), value...)
}

// sealedNumber is a field of a number of at least 0.
func sealedNumber[T ~int16 | ~int32 | ~int64](s *sealed, field byte, at *T, unstored T) {
	if !s.reading {
		if *at != unstored {
			s.write(field, binary.AppendUvarint(nil, uint64(*at)))
		}
		return
	}
	*at = unstored
	value, ok := s.value(field)
	if !ok {
		return
	}
	v, n := binary.Uvarint(value)
	*at = T(v)
	s.damaged = s.damaged || n != len(value) || n == 0 || v > math.MaxInt64 || uint64(*at) != v
}

// duration is a field of whole milliseconds.
func (s *sealed) duration(field byte, at *time.Duration, unstored time.Duration) {
	ms := at.Milliseconds()
	sealedNumber(s, field, &ms, unstored.Milliseconds())
	if s.reading {
		*at = time.Duration(min(ms, math.MaxInt64/int64(time.Millisecond))) * time.Millisecond
	}
}

func (s *sealed) text(field byte, at *string) {
	if !s.reading {
		if *at != "" {
			s.write(field, []byte(*at))
		}
		return
	}
	if v, ok := s.value(field); ok {
		*at = string(v)
	}
}

// texts is a field of several texts, each behind its length.
func (s *sealed) texts(field byte, at *[]string) {
	if !s.reading {
		var value []byte
		for _, v := range *at {
			value = append(binary.AppendUvarint(value, uint64(len(v))), v...)
		}
		if len(value) > 0 {
			s.write(field, value)
		}
		return
	}
	rest, _ := s.value(field)
	for len(rest) > 0 {
		size, n := binary.Uvarint(rest)
		if n <= 0 || size > uint64(len(rest)-n) {
			s.damaged = true
			return
		}
		*at = append(*at, string(rest[n:n+int(size)]))
		rest = rest[n+int(size):]
	}
}
