package shards

import (
	"context"
	"testing"
	"time"

	"github.com/perceptor/perceptor/task"
)

// checkOne checks an attempt whose record has a version.
func (b *bundle) checkOne(a task.Attempt, version int32) task.Reply {
	return b.doChecks(context.Background(), b.d, []check{{tenant: b.tenant, Seen: task.Seen{Attempt: a, Version: version}}})[0]
}

func (b *bundle) edit(id task.ID, change func(*task.Spec)) {
	b.t.Helper()
	t, err := b.Get(context.Background(), b.tenant, id)
	if err != nil {
		b.t.Fatal(err)
	}
	s := t.Spec()
	change(&s)
	if _, err := b.Update(context.Background(), b.tenant, id, task.Edit{Spec: &s, Params: true}); err != nil {
		b.t.Fatal(err)
	}
}

func TestACheckAnswersWhatTheResultWouldBeTold(t *testing.T) {
	for _, typ := range task.Types {
		t.Run(typ.String(), func(t *testing.T) {
			b := setup(t)
			long := func(s *task.Spec) { s.Retention = time.Hour }
			open, failed, closed, cancelled := b.add(b.spec(typ, long))[0], b.add(b.spec(typ, long))[0], b.add(b.spec(typ, long))[0], b.add(b.spec(typ, long))[0]
			b.claim(task.RangeForm)
			if typ == task.Blocking {
				b.start(7, attempt(failed, 1, 1), attempt(closed, 1, 1))
			}
			b.report(failure(failed, 1, 1, 7), success(closed, 1, 1, 7))
			if _, err := b.Cancel(t.Context(), b.tenant, cancelled); err != nil {
				t.Fatal(err)
			}
			wantClosed := task.Already
			if typ == task.OneShot {
				wantClosed = task.Finished
			}
			for name, tc := range map[string]struct {
				a    task.Attempt
				want task.Code
			}{
				"open":      {attempt(open, 1, 1), task.Accepted},
				"failed":    {attempt(failed, 1, 1), task.Superseded},
				"closed":    {attempt(closed, 1, 1), wantClosed},
				"cancelled": {attempt(cancelled, 1, 1), task.Finished},
				"unknown":   {attempt(open+1<<40*task.Shards, 1, 1), task.Unknown},
			} {
				if got := b.checkOne(tc.a, 1); got.Code != tc.want || got.Terms != nil {
					t.Errorf("%s: %+v, want %s", name, got, tc.want)
				}
			}
			b.advance(time.Minute)
			b.claim(task.RangeForm)
			if got := b.checkOne(attempt(failed, 1, 2), 1); got.Code != task.Accepted {
				t.Errorf("the retry: %+v", got)
			}
		})
	}
}

func TestChecksAndStartsAnswerNewerTerms(t *testing.T) {
	b := setup(t)
	one, many, retried, blocking := b.add(b.spec(task.OneShot))[0], b.add(b.spec(task.NonBlocking))[0], b.add(b.spec(task.NonBlocking))[0], b.add(b.spec(task.Blocking))[0]
	b.claim(task.RangeForm)
	b.heartbeat(7, attempt(retried, 1, 1)) // gives the run a row
	for _, id := range []task.ID{one, many, retried, blocking} {
		b.edit(id, func(s *task.Spec) { s.Kind, s.ParamsWire = "new", []byte{10, 0} })
	}
	see := func(what string, r task.Reply) {
		t.Helper()
		if r.Code != task.Accepted || r.Terms == nil || r.Terms.Version != 2 || r.Terms.Kind != "new" || len(r.Terms.Params) != 2 {
			t.Errorf("%s: %+v, %+v", what, r, r.Terms)
		}
	}
	for _, id := range []task.ID{one, many, retried} {
		see("check of "+id.String(), b.checkOne(attempt(id, 1, 1), 1))
	}
	if r := b.checkOne(attempt(one, 1, 1), 2); r.Terms != nil {
		t.Errorf("the terms are known: %+v", r.Terms)
	}
	start := []held{{tenant: b.tenant, holder: 7, Attempt: attempt(blocking, 1, 1), version: 1, step: (*task.Machine).Start}}
	see("start", b.doStarts(t.Context(), b.d, start)[0])
	see("start again, by the state machine", b.doStarts(t.Context(), b.d, append(start, start[0]))[1])
}
