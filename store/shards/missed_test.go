package shards

import (
	"errors"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/task"
)

// missedSum adds up the missed instants that a store reports.
type missedSum struct {
	mu  sync.Mutex
	sum task.MissedCounts
}

func (m *missedSum) collect(c *Config) {
	c.Missed = func(counts task.MissedCounts) {
		m.mu.Lock()
		defer m.mu.Unlock()
		for by, n := range counts {
			m.sum.Add(by.Tenant, by.Type, by.Policy, n)
		}
	}
}

// take returns the sum and resets it.
func (m *missedSum) take() task.MissedCounts {
	m.mu.Lock()
	defer m.mu.Unlock()
	sum := m.sum
	m.sum = nil
	return sum
}

func misfire(t task.Terms) func(*task.Spec) {
	return func(s *task.Spec) { s.Misfire, s.CatchUp, s.Grace = t.Misfire, t.CatchUp, t.Grace }
}

// timing: T7.11
func TestMissedInstantsAreToldByPolicy(t *testing.T) {
	claim := func(b *bundle, _ task.ID) { b.claim(task.RangeForm) }
	none := func(*bundle, task.ID) {}
	pause := func(b *bundle, id task.ID) {
		if _, err := b.Pause(b.t.Context(), b.tenant, id); err != nil {
			b.t.Fatal(err)
		}
	}
	resume := func(b *bundle, id task.ID) {
		if _, err := b.Resume(b.t.Context(), b.tenant, id); err != nil {
			b.t.Fatal(err)
		}
	}
	inBulk := func(b *bundle, _ task.ID) {
		b.finishBulk(b.chores(), b.bulk(task.BulkResume, task.BulkTerms{}), func() {})
	}
	resumeAndClaim := func(b *bundle, id task.ID) { resume(b, id); b.claim(task.RangeForm) }
	claimAndPause := func(b *bundle, id task.ID) { b.claim(task.RangeForm); pause(b, id) }
	moveNext := func(b *bundle, id task.ID) {
		r := success(id, 1, 1, 7)
		r.Next = b.now.Add(time.Minute)
		if got := b.report(r); got[0] != task.Accepted {
			b.t.Fatal(got)
		}
	}
	everyMinute := byCron("* * * * *", "UTC")
	for _, tc := range []struct {
		name   string
		typ    task.Type
		change func(*task.Spec)
		before func(*bundle, task.ID)
		step   func(*bundle, task.ID) // 5.5 min after the task has begun
		policy task.Misfire
		want   int64
	}{
		{"FIRE_ONCE", task.NonBlocking, misfire(task.Terms{}), none, claim, task.FireOnce, 5},
		{"FIRE_ONCE by cron", task.NonBlocking, everyMinute, none, claim, task.FireOnce, 5},
		{"FIRE_ALL with a limit", task.NonBlocking, misfire(task.Terms{Misfire: task.FireAll, CatchUp: 2}), none, claim, task.FireAll, 4},
		{"FIRE_ALL without misses", task.NonBlocking, misfire(task.Terms{Misfire: task.FireAll, CatchUp: 100}), none, claim, task.FireAll, 0},
		{"FIRE_ALL of a BLOCKING task", task.Blocking, misfire(task.Terms{Misfire: task.FireAll, CatchUp: 2}), none, claim, task.FireAll, 0},
		{"SKIP, none fires", task.NonBlocking, misfire(task.Terms{Misfire: task.Skip, Grace: time.Second}), none, claim, task.Skip, 6},
		{"SKIP, one fires", task.NonBlocking, misfire(task.Terms{Misfire: task.Skip, Grace: time.Minute}), none, claim, task.Skip, 5},
		{"SKIP of a ONE_SHOT task", task.OneShot, misfire(task.Terms{Misfire: task.Skip, Grace: time.Minute}), none, claim, task.Skip, 1},
		{"a resume", task.Blocking, misfire(task.Terms{Misfire: task.Skip, Grace: time.Second}), pause, resume, task.Skip, 6},
		{"a resume, one fires", task.Blocking, misfire(task.Terms{Misfire: task.Skip, Grace: time.Minute}), pause, resumeAndClaim, task.Skip, 5},
		{"a next instant of a handler", task.NonBlocking, misfire(task.Terms{Misfire: task.FireAll, CatchUp: 2}), claim, moveNext, task.FireAll, 5},
		{"a next instant of a handler while paused", task.NonBlocking, misfire(task.Terms{}), claimAndPause, moveNext, task.FireOnce, 5},
		{"a resume that ends the task", task.OneShot, misfire(task.Terms{Misfire: task.Skip}), pause, resume, task.Skip, 1},
		{"a resume in bulk", task.NonBlocking, misfire(task.Terms{Misfire: task.Skip, Grace: time.Second}), pause, inBulk, task.Skip, 6},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var m missedSum
			b := setup(t, nearOnly, m.collect)
			b.setClock(b.now - b.now%60_000)
			id := b.add(b.spec(tc.typ, tc.change, func(s *task.Spec) { s.Retention = time.Hour }))[0]
			tc.before(b, id)
			b.advance(5*time.Minute + 30*time.Second)
			tc.step(b, id)
			want := task.MissedCounts{}
			if tc.want > 0 {
				want.Add(b.tenant, tc.typ, tc.policy, tc.want)
			}
			if got := m.take(); !maps.Equal(got, want) {
				t.Errorf("told %v, want %v", got, want)
			}
			if r, err := b.Get(t.Context(), b.tenant, id); err != nil || r.Missed != tc.want {
				t.Errorf("the task has missed %+v, %v; want %d", r, err, tc.want)
			}
			b.claim(task.RangeForm)
			if got := m.take(); len(got) > 0 {
				t.Errorf("told again: %v", got)
			}
		})
	}
}

func TestMissesOfAClaimThatIsRolledBackAreToldOnce(t *testing.T) {
	var m missedSum
	fail := true
	b := setup(t, nearOnly, m.collect, func(c *Config) {
		c.Failpoint = func(point string, _ int) error {
			if fail && point == "claim:"+kernel.BeforeCommit {
				return errors.New("stop")
			}
			return nil
		}
	})
	b.add(b.spec(task.NonBlocking))
	b.advance(3*time.Minute + 30*time.Second)
	if _, err := b.Claim(t.Context(), task.ClaimRequest{Database: b.d, Owned: b.owned, Form: task.RangeForm}); err == nil {
		t.Fatal("the claim did not fail")
	}
	if got := m.take(); len(got) > 0 {
		t.Errorf("told %v of a claim that failed", got)
	}
	fail = false
	b.claim(task.RangeForm)
	if got, want := m.take(), (task.MissedCounts{{Tenant: b.tenant, Type: task.NonBlocking, Policy: task.FireOnce}: 3}); !maps.Equal(got, want) {
		t.Errorf("told %v, want %v", got, want)
	}
}
