package shards

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/perceptor/perceptor/store/pack"
	"github.com/perceptor/perceptor/task"
)

// why returns the reasons of a task.
func (b *bundle) why(id task.ID) []task.Why {
	b.t.Helper()
	e, err := b.Explain(b.t.Context(), b.tenant, id, 3)
	if err != nil {
		b.t.Fatal(err)
	}
	var out []task.Why
	for _, r := range e.Reasons {
		if r.Text == "" {
			b.t.Errorf("reason %d has no text", r.Why)
		}
		out = append(out, r.Why)
	}
	return out
}

func TestExplainNamesWhatHoldsATaskBack(t *testing.T) {
	for name, tc := range map[string]struct {
		make func(b *bundle) task.ID
		want []task.Why
	}{
		"unknown": {func(*bundle) task.ID { return 512 }, []task.Why{task.WhyUnknown}},
		"finished": {func(b *bundle) task.ID {
			id := b.add(b.spec(task.OneShot, func(s *task.Spec) { s.Retention = time.Hour }))[0]
			b.claim(task.RangeForm)
			b.report(success(id, 1, 1, 7))
			return id
		}, []task.Why{task.WhyFinished}},
		"not due": {func(b *bundle) task.ID { return b.add(b.spec(task.OneShot, b.inHours(1)))[0] }, []task.Why{task.WhyNotDue}},
		"far": {func(b *bundle) task.ID {
			id := b.add(b.spec(task.OneShot, b.inHours(3)))[0]
			b.put(inPack, pack.Hour, id)
			return id
		}, []task.Why{task.WhyNotDue, task.WhyFar}},
		"paused": {func(b *bundle) task.ID {
			id := b.add(b.spec(task.Blocking))[0]
			if _, err := b.Pause(b.t.Context(), b.tenant, id); err != nil {
				b.t.Fatal(err)
			}
			return id
		}, []task.Why{task.WhyPaused}},
		"waits for a result": {func(b *bundle) task.ID {
			id := b.add(b.spec(task.Blocking))[0]
			b.claim(task.RangeForm)
			b.start(7, attempt(id, 1, 1))
			return id
		}, []task.Why{task.WhyWaitingForResult}},
		"retries": {func(b *bundle) task.ID {
			id := b.add(b.spec(task.OneShot))[0]
			b.claim(task.RangeForm)
			b.report(failure(id, 1, 1, 7))
			return id
		}, []task.Why{task.WhyRetrying}},
		"silent": {func(b *bundle) task.ID {
			id := b.add(b.spec(task.OneShot))[0]
			b.claim(task.RangeForm)
			b.advance(time.Minute)
			b.claim(task.RangeForm)
			return id
		}, []task.Why{task.WhySilent}},
		"last runs open": {func(b *bundle) task.ID {
			id := b.add(b.spec(task.NonBlocking, func(s *task.Spec) { s.MaxCount = 1 }))[0]
			b.claim(task.RangeForm)
			return id
		}, []task.Why{task.WhyLastRunsOpen, task.WhyWaitingForResult}},
		"overdue": {func(b *bundle) task.ID {
			id := b.add(b.spec(task.OneShot))[0]
			b.advance(time.Minute)
			return id
		}, []task.Why{task.WhyOverdue}},
		"without an owner": {func(b *bundle) task.ID {
			id := b.add(b.spec(task.OneShot))[0]
			b.exec(`UPDATE owner SET name = ''`)
			b.advance(time.Minute)
			return id
		}, []task.Why{task.WhyNoOwner, task.WhyOverdue}},
		"topic broken": {func(b *bundle) task.ID {
			id := b.add(b.spec(task.OneShot))[0]
			_, err := b.Claim(b.t.Context(), task.ClaimRequest{Database: b.d, Owned: b.owned, Form: task.RangeForm, MaxRows: 100,
				Blocked: []int32{b.tenant}, BlockedFor: 10 * time.Second})
			if err != nil {
				b.t.Fatal(err)
			}
			return id
		}, []task.Why{task.WhyTopicBroken}},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, nearOnly)
			if got := b.why(tc.make(b)); !slices.Equal(got, tc.want) {
				t.Errorf("reasons %v, want %v", got, tc.want)
			}
		})
	}
}

func TestExplainTellsTheNextInstants(t *testing.T) {
	b := setup(t)
	id := b.add(b.spec(task.NonBlocking, b.inHours(1), func(s *task.Spec) { s.Interval, s.MaxCount = time.Hour, 2 }))[0]
	e, err := b.Explain(t.Context(), b.tenant, id, 5)
	if err != nil {
		t.Fatal(err)
	}
	want := []task.Instant{b.now.Add(time.Hour), b.now.Add(2 * time.Hour)}
	if diff := cmp.Diff(want, e.Next); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}
