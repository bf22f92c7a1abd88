package shards

import (
	"context"
	"testing"
	"time"

	"github.com/perceptor/perceptor/task"
)

// republish runs a republication to its end.
func (b *bundle) republish(req task.RepublishRequest) (done task.Republished) {
	b.t.Helper()
	for steps := b.Republish(b.d, req); ; {
		step, err := steps.Step(context.Background())
		if err != nil {
			b.t.Fatal(err)
		}
		done.Runs, done.Busy = done.Runs+step.Runs, done.Busy+step.Busy
		if step.Done {
			return done
		}
	}
}

// attempts returns the published attempts by task.
func attempts(c task.Claim) map[task.ID][]int32 {
	out := map[task.ID][]int32{}
	for _, p := range c.Publications {
		out[p.Task] = append(out[p.Task], p.Attempt)
	}
	return out
}

func TestOpenRunsAreRepublishedWithoutAFailure(t *testing.T) {
	for _, form := range bothForms {
		b := setup(t)
		slow := func(s *task.Spec) { s.AckTimeout = time.Hour }
		old := b.add(b.spec(task.OneShot, slow))[0]
		b.claim(form)
		b.advance(time.Minute)
		since := b.now
		lost := b.add(b.spec(task.OneShot, slow), b.spec(task.Blocking, slow), b.spec(task.NonBlocking, slow))
		held, answered := b.add(b.spec(task.Blocking, slow))[0], b.add(b.spec(task.OneShot, slow))[0]
		waiting := b.add(b.spec(task.OneShot, func(s *task.Spec) { s.Begin = b.now.Add(5 * time.Minute) }))[0]
		b.claim(form)
		b.start(7, attempt(held, 1, 1))
		b.report(success(answered, 1, 1, 0))
		b.advance(time.Second)

		req := task.RepublishRequest{Since: since, Tenant: b.tenant}
		if done := b.republish(task.RepublishRequest{Since: since, Tenant: b.tenant + 1}); done.Runs != 0 {
			t.Errorf("%s: of another tenant: %+v", form, done)
		}
		dry := req
		dry.DryRun = true
		for range 2 {
			if done := b.republish(dry); done.Runs != 3 || done.Busy != 0 {
				t.Errorf("%s: a dry run finds %+v, want 3 runs", form, done)
			}
		}
		if done := b.republish(req); done.Runs != 3 || done.Busy != 0 {
			t.Errorf("%s: %+v, want 3 runs", form, done)
		}
		if done := b.republish(req); done.Runs != 0 {
			t.Errorf("%s: the second time %+v, want nothing", form, done)
		}
		got := attempts(b.claim(form))
		for _, id := range lost {
			if len(got[id]) != 1 || got[id][0] != 2 {
				t.Errorf("%s: task %d is delivered again as the attempts %v, want attempt 2", form, id, got[id])
			}
		}
		if len(got) != len(lost) {
			t.Errorf("%s: delivered again are %v; not wanted are %d, %d, %d and %d", form, got, old, held, answered, waiting)
		}
		for k, r := range b.rows() {
			if r.Failures != 0 {
				t.Errorf("%s: row %+v has %d failures", form, k, r.Failures)
			}
		}
		for _, id := range lost {
			if code := b.report(success(id, 1, 2, 0)); id != lost[1] && code[0] != task.Accepted {
				t.Errorf("%s: the result of task %d: %s", form, id, code[0])
			}
		}
	}
}

func TestARunThatWouldBeGivenUpIsNotRepublished(t *testing.T) {
	b := setup(t)
	b.add(b.spec(task.OneShot, func(s *task.Spec) { s.AckTimeout, s.GiveUpAfter = time.Minute, 2*time.Minute }))
	b.claim(task.RangeForm)
	b.advance(time.Minute)
	b.claim(task.RangeForm) // the next instant is two minutes later
	b.advance(2 * time.Minute)
	b.claim(task.RangeForm) // the second further delivery; the next instant is four minutes later
	b.advance(time.Minute)
	if done := b.republish(task.RepublishRequest{Tenant: b.tenant}); done.Runs != 0 {
		t.Errorf("%+v, want nothing: the run has no time left", done)
	}
}
