package check

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestASpreadTellsQuantilesWithinFourPercent(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for _, most := range []time.Duration{20 * time.Microsecond, time.Millisecond, time.Second, time.Hour} {
		var s Spread
		var all []time.Duration
		for range 5000 {
			d := time.Duration(random.Int64N(int64(most))).Truncate(time.Microsecond)
			s.Add(d)
			all = append(all, d)
		}
		slices.Sort(all)
		for _, q := range []float64{0, 0.5, 0.99} {
			got, want := s.Quantile(q), all[int(q*5000)]
			if diff := (got - want).Abs(); diff > want/25 {
				t.Errorf("durations up to %v: quantile %v = %v, want %v", most, q, got, want)
			}
		}
	}
}

func TestASpreadTakesWhatDoesNotFit(t *testing.T) {
	var s, none Spread
	s.Add(-time.Second)
	s.Add(100 * time.Hour)
	if first, last := s.Quantile(0), s.Quantile(0.5); first != 0 || last < time.Hour {
		t.Errorf("quantiles = %v and %v, want 0 and at least an hour", first, last)
	}
	var missing *Spread
	if none.Quantile(0.5) != 0 || missing.Quantile(0.5) != 0 {
		t.Error("Quantile without durations is not 0")
	}
}
