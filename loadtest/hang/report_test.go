package hang

import (
	"testing"
	"time"
)

func TestADelayEndsWhenTheRestOfTheFreezeIsInTheBound(t *testing.T) {
	from := time.UnixMilli(1_800_000_000_000)
	freeze := span{from, from.Add(time.Minute)}
	samples := func(slow func(second, sample int) bool) (all []sample) {
		for i := range 60 * 20 {
			took := 10 * time.Millisecond
			if slow(i/20, i%20) {
				took = time.Second
			}
			all = append(all, sample{from.Add(time.Duration(i) * 50 * time.Millisecond), took})
		}
		return all
	}
	for _, c := range []struct {
		name string
		slow func(int, int) bool
		want float64
	}{
		{"never", func(int, int) bool { return false }, 0},
		{"until another part has taken over", func(s, _ int) bool { return s < 7 }, 7},
		{"always", func(int, int) bool { return true }, 60},
		{"again later on", func(s, _ int) bool { return s < 7 || s == 30 }, 31},
		{"a moment later on", func(s, i int) bool { return s == 40 && i == 0 }, 0},
	} {
		if got := delayed(samples(c.slow), freeze, 50); got != c.want {
			t.Errorf("%s: delayed for %v s, want %v s", c.name, got, c.want)
		}
	}
}
