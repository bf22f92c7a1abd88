package scenario

import (
	"fmt"
	"time"
)

// totals are what has happened up to some moment.
type totals struct {
	at                         time.Time
	added, callbacks, accepted int64
	latestMs                   float64
}

func (r *runner) totals() totals {
	t := totals{at: time.Now(), added: r.adder.Added()}
	for _, l := range r.crew.all() {
		p := l.Progress()
		t.callbacks += p.Callbacks
		t.accepted += p.Accepted
		t.latestMs = max(t.latestMs, p.LatestMs)
	}
	return t
}

// progress returns a function that says what happened since its last call.
func (r *runner) progress() func() {
	before := r.totals()
	return func() {
		now := r.totals()
		per := func(a, b int64) float64 { return float64(b-a) / now.at.Sub(before.at).Seconds() }
		r.Say("%-8s %7.0f adds/s %7.0f callbacks/s %7.0f results/s  latest %.0f ms  unanswered adds %d",
			r.phase(now.at), per(before.added, now.added), per(before.callbacks, now.callbacks), per(before.accepted, now.accepted),
			now.latestMs, r.adder.Unanswered())
		before = now
	}
}

// phase names where the run is, with the seconds of the measured window.
func (r *runner) phase(now time.Time) string {
	switch {
	case now.Before(r.from):
		return "warm-up"
	case now.Before(r.to):
		return fmt.Sprintf("%.0fs", now.Sub(r.from).Seconds())
	}
	return "drain"
}
