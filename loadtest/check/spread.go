package check

import (
	"math/bits"
	"time"
)

// Spread counts durations in 1.8 kB: of up to 31 µs exactly, longer ones in
// buckets of a sixteenth of their power of two. The zero value is ready.
type Spread struct {
	n      int64
	counts [16*28 + 16]uint32
}

const spreadLimit = 1<<32 - 1 // µs, more than an hour

func bucket(micros int64) int {
	v := uint64(min(max(micros, 0), spreadLimit))
	e := max(0, bits.Len64(v)-5)
	return 16*e + int(v>>e)
}

// middle returns what the durations of a bucket stand for.
func middle(i int) time.Duration {
	if i < 32 {
		return time.Duration(i) * time.Microsecond
	}
	e := i/16 - 1
	low := int64(i-16*e) << e
	return time.Duration(low+(1<<e)/2) * time.Microsecond
}

// Add counts d.
func (s *Spread) Add(d time.Duration) {
	s.counts[bucket(d.Microseconds())]++
	s.n++
}

// Quantile returns the duration that a share of all does not exceed, within 4 %;
// 0 when there is none. s may be nil.
func (s *Spread) Quantile(share float64) time.Duration {
	if s == nil || s.n == 0 {
		return 0
	}
	left := int64(share * float64(s.n))
	for i, c := range s.counts {
		if left -= int64(c); left < 0 {
			return middle(i)
		}
	}
	return middle(len(s.counts) - 1)
}
