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
		{"a moment later on", func(s, i int) bool { return s == 40 && i == 0 }, 0},
	} {
		if got := delayed(samples(c.slow), freeze, 50); got != c.want {
			t.Errorf("%s: delayed for %v s, want %v s", c.name, got, c.want)
		}
	}
}

func TestTheRecoveryEndsWithTheLastLateWindow(t *testing.T) {
	from := time.UnixMilli(1_800_000_000_000)
	samples := func(slow func(at time.Duration) bool) (all []sample) {
		for at := time.Duration(0); at < 35*time.Second; at += 10 * time.Millisecond {
			took := 20 * time.Millisecond
			if slow(at) {
				took = time.Second
			}
			all = append(all, sample{from.Add(at), took})
		}
		return all
	}
	for _, c := range []struct {
		name string
		slow func(at time.Duration) bool
		want float64
	}{
		{"never late", func(time.Duration) bool { return false }, 0},
		{"late for 12 s", func(at time.Duration) bool { return at < 12*time.Second }, 12},
		{"one late run is no relapse", func(at time.Duration) bool { return at == 30*time.Second }, 0},
	} {
		if got := lastAbove(samples(c.slow), span{from, from.Add(35 * time.Second)}, 100); got != c.want {
			t.Errorf("%s: recovered after %v s, want %v s", c.name, got, c.want)
		}
	}
}
