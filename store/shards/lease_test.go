package shards

import (
	"testing"
	"time"

	"github.com/perceptor/perceptor/task"
)

// The end of a lease is an instant of the database's clock. The dispatcher knows what the
// clock would show if it had not been set.
func TestLeaseEndsAfterItsTimeThoughTheClockIsSetForward(t *testing.T) {
	for _, form := range []task.ClaimForm{task.RangeForm, task.CappedForm} {
		t.Run(form.String(), func(t *testing.T) {
			b := setup(t)
			b.add(b.spec(task.Blocking), b.spec(task.Blocking))
			runs := b.claim(form).Publications
			held, unheld := runs[0].RunID(), runs[1].RunID()
			if got := b.start(7, attempt(held.Task, 1, 1)); got[0].Code != task.Accepted || got[0].Lease != time.Minute {
				t.Fatalf("start = %+v", got)
			}
			steady := b.now.Add(10 * time.Second)
			b.advance(time.Hour)
			claim := func(steady task.Instant, setFor time.Duration) []task.Publication {
				t.Helper()
				c, err := b.Claim(t.Context(), task.ClaimRequest{Database: b.d, Owned: b.owned, Form: form, MaxRows: 1000, SteadyNow: steady, SetFor: setFor})
				if err != nil {
					t.Fatal(err)
				}
				return c.Publications
			}
			if got := claim(steady, 10*time.Second); len(got) != 1 || got[0].RunID() != unheld {
				t.Fatalf("10 s after the start, runs = %+v, want only %s, which nobody holds", got, unheld)
			}
			if got := claim(steady.Add(49*time.Second), 59*time.Second); len(got) != 0 {
				t.Fatalf("59 s after the start, runs = %+v, want none", got)
			}
			if got := b.start(8, attempt(held.Task, 1, 1)); got[0].Code != task.Held {
				t.Fatalf("start by another = %+v", got)
			}
			if got := b.handBack(8, attempt(held.Task, 1, 1)); got[0].Code != task.Held {
				t.Fatalf("hand-back by another = %+v", got)
			}
			if got := claim(steady, time.Minute); len(got) != 1 || got[0].RunID() != held || got[0].Attempt != 2 {
				t.Fatalf("when the lease has lasted for its time, runs = %+v, want %s", got, held)
			}
		})
	}
}

func TestLeaseIsNoLongerThanItsTimeThoughTheClockWasSetBack(t *testing.T) {
	for name, extend := range map[string]func(*bundle, task.Attempt) task.Reply{
		"start":     func(b *bundle, a task.Attempt) task.Reply { return b.start(7, a)[0] },
		"heartbeat": func(b *bundle, a task.Attempt) task.Reply { return b.heartbeat(7, a)[0] },
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			id := b.add(b.spec(task.Blocking))[0]
			b.claim(task.RangeForm)
			b.start(7, attempt(id, 1, 1))
			b.advance(-time.Hour)
			if got := extend(b, attempt(id, 1, 1)); got.Code != task.Accepted || got.Lease != time.Minute {
				t.Errorf("answer = %+v, want a lease of 1 min", got)
			}
		})
	}
}
