package figures

import (
	"math"
	"math/bits"
	"time"
)

// Classes is the number of classes of durations. Class 0 has all up to 1 ms, class i those up to
// 2^(i/2) ms, and the last one all others.
const Classes = 46

// class returns the class of a duration.
func class(d time.Duration) int {
	us := d.Microseconds()
	if us <= 1000 {
		return 0
	}
	// The whole octaves above 1 ms, then the half of the octave.
	octave := bits.Len64(uint64((us-1)/1000)) - 1
	c := 2*octave + 1
	if float64(us) > 1000*math.Exp2(float64(c)/2) {
		c++
	}
	return min(c, Classes-1)
}

// upper returns the upper bound of a class.
func upper(class int) time.Duration {
	return time.Duration(math.Exp2(float64(class)/2) * float64(time.Millisecond))
}

// Distribution describes durations.
type Distribution struct {
	Count         int64
	P50, P99, Max time.Duration
}

// Distribution returns the distribution of the durations in the classes that begin at a place.
func (f *Figures) Distribution(p Place) (d Distribution) {
	counts := f.n[p : p+Classes]
	for i, n := range counts {
		if d.Count += n; n > 0 {
			d.Max = upper(i)
		}
	}
	d.P50, d.P99 = quantile(counts, d.Count, 50), quantile(counts, d.Count, 99)
	return d
}

// quantile returns the duration that percent of all do not exceed.
func quantile(counts []int64, total, percent int64) time.Duration {
	rank := (total*percent + 99) / 100
	for i, n := range counts {
		if rank -= n; rank <= 0 && n > 0 {
			return time.Duration(float64(upper(i)) / math.Pow(2, 0.25))
		}
	}
	return 0
}
