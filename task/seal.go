package task

import (
	"encoding/binary"
	"math"
	"time"
)

// # Sealed terms
//
// The terms of a task that no SQL statement compares are stored as one blob, together
// with its origin. The blob is NULL if all of them have the values that most tasks have,
// so a plain task pays nothing for them. The blob is the number of the format, then
// fields: a number (one byte), the length of the value (uvarint), the value. A field
// that a program does not know makes the whole blob unreadable, because it may change
// the meaning of the rest.
//
// [sealed.fields] lists the fields once, for writing and for reading, in the order of
// their numbers, which is their order in the blob.

const sealedFormat = 1

// sealed writes or reads the fields of a blob.
type sealed struct {
	reading bool
	blob    []byte // the bytes that were written
	rest    []byte // the bytes that are not read yet
	damaged bool
}

// fields lists the fields of a blob: the number, the place of the value, and the value
// that is not stored.
func (s *sealed) fields(t *Terms, o *Origin) {
	s.cron(&t.Cron)
	t.Misfire = Misfire(s.number(4, int64(t.Misfire), 0, math.MaxInt16))
	s.duration(5, &t.Grace, 0)
	t.CatchUp = int32(s.number(6, int64(t.CatchUp), 0, math.MaxInt32))
	s.duration(7, &t.Spread, 0)
	s.texts(8, &t.Tags)
	s.text(9, &o.Key)
	o.ReplayOf.Task = ID(s.number(10, int64(o.ReplayOf.Task), 0, math.MaxInt64))
	o.ReplayOf.Seq = s.number(11, o.ReplayOf.Seq, 0, math.MaxInt64)
	s.text(12, &o.TraceParent)
	t.Retry.MaxAttempts = int32(s.number(13, int64(t.Retry.MaxAttempts), DefaultMaxAttempts, math.MaxInt32))
	s.duration(14, &t.Retry.InitialBackoff, DefaultInitialBackoff)
	s.hundredths(15, &t.Retry.Multiplier, DefaultMultiplier)
	s.duration(16, &t.Retry.MaxBackoff, DefaultMaxBackoff)
	s.hundredths(17, &t.Retry.Jitter, DefaultJitter)
	s.flag(18, &t.StopOnFailure)
	t.Overlap = Overlap(s.number(19, int64(t.Overlap), 0, math.MaxInt16))
	s.texts(20, &t.Exclude)
	s.texts(21, &t.Only)
	o.BackfillOf = ID(s.number(22, int64(o.BackfillOf), 0, math.MaxInt64))
	o.Backfill = s.number(23, o.Backfill, 0, math.MaxInt64)
}

func (s *sealed) cron(c **Cron) {
	var v Cron
	if *c != nil {
		v = **c
	}
	v.Dialect = Dialect(s.number(1, int64(v.Dialect), 0, math.MaxInt16))
	s.text(2, &v.Expression)
	s.text(3, &v.Zone)
	if s.reading && v != (Cron{}) {
		*c = &Cron{v.Dialect, v.Expression, v.Zone}
	}
}

// Seal returns the blob of terms and origin. It returns nil if they are those of most
// tasks.
func Seal(t *Terms, o *Origin) []byte {
	if t.Damaged != "" {
		return []byte(t.Damaged)
	}
	var s sealed
	terms, origin := *t, *o // fields also sets the values that it writes
	s.fields(&terms, &origin)
	return s.blob
}

// usual are the sealed terms of most tasks.
var usual = func() (t Terms) {
	(&sealed{reading: true}).fields(&t, &Origin{})
	return t
}()

// Unseal is the inverse of [Seal]. It accepts any bytes and keeps no reference to them.
// It returns terms that it cannot read as Damaged, and sets the other sealed terms to
// those of most tasks. Terms that are not sealed are zero.
func Unseal(blob []byte) (t Terms, o Origin) {
	if len(blob) == 0 {
		return usual, o
	}
	s := sealed{reading: true, rest: blob[1:], damaged: blob[0] != sealedFormat || len(blob) > MaxSealedBytes}
	if !s.damaged {
		s.fields(&t, &o)
	}
	if s.damaged || len(s.rest) > 0 {
		t, o = usual, Origin{}
		t.Damaged = string(blob)
	}
	return t, o
}

// value returns the stored value of a field if that field is the next one.
func (s *sealed) value(field byte) (v []byte, ok bool) {
	if len(s.rest) == 0 || s.rest[0] != field {
		return nil, false
	}
	size, n := binary.Uvarint(s.rest[1:])
	if n <= 0 || size > uint64(len(s.rest)-1-n) {
		s.damaged, s.rest = true, nil
		return nil, false
	}
	v = s.rest[1+n : 1+n+int(size)]
	s.rest = s.rest[1+n+int(size):]
	return v, true
}

func (s *sealed) write(field byte, value []byte) {
	if s.blob == nil {
		s.blob = append(make([]byte, 0, 64), sealedFormat)
	}
	s.blob = append(binary.AppendUvarint(append(s.blob, field), uint64(len(value))), value...)
}

// number is a field with a number from 0 to limit. It returns the number that it read, or v.
func (s *sealed) number(field byte, v, unstored, limit int64) int64 {
	if !s.reading {
		if v != unstored {
			s.write(field, binary.AppendUvarint(nil, uint64(v)))
		}
		return v
	}
	value, ok := s.value(field)
	if !ok {
		return unstored
	}
	u, n := binary.Uvarint(value)
	if n <= 0 || n != len(value) || u > uint64(limit) {
		s.damaged = true
		return unstored
	}
	return int64(u)
}

// duration is a field with a duration in whole milliseconds.
func (s *sealed) duration(field byte, at *time.Duration, unstored time.Duration) {
	const limit = math.MaxInt64 / int64(time.Millisecond)
	if s.reading || *at != unstored {
		*at = time.Duration(s.number(field, at.Milliseconds(), unstored.Milliseconds(), limit)) * time.Millisecond
	}
}

// hundredths is a field with a number of two decimals.
func (s *sealed) hundredths(field byte, at *float64, unstored float64) {
	if s.reading || *at != unstored {
		*at = float64(s.number(field, int64(math.Round(*at*100)), int64(math.Round(unstored*100)), math.MaxInt32)) / 100
	}
}

// flag is a field that is false for most tasks.
func (s *sealed) flag(field byte, at *bool) {
	n := int64(0)
	if *at {
		n = 1
	}
	*at = s.number(field, n, 0, 1) == 1
}

func (s *sealed) text(field byte, at *string) {
	if s.reading {
		v, _ := s.value(field)
		*at = string(v)
	} else if *at != "" {
		s.write(field, []byte(*at))
	}
}

// texts is a field with several texts, each preceded by its length.
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
