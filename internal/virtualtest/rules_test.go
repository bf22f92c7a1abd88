package virtualtest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/internal/virtualclock"
	"github.com/perceptor/perceptor/task"
)

// TestTheContractHoldsInVirtualTime runs all cases on one stack, one after the other.
// Each case begins at the time at which the last one ended.
func TestTheContractHoldsInVirtualTime(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a whole installation; make test runs it")
	}
	s := Start(t, Options{})
	for _, c := range []struct {
		name string
		test func(*testing.T, *Stack)
	}{
		{"a month of a daily task is thirty runs at noon", monthOfDays},
		{"a BLOCKING run follows its result by an interval", blocking},
		{"a retry comes after its backoff", retries},
		{"a run without a result is delivered again at its ack deadline", ackTimeout},
		{"a run without a result stops the clock and is named", unanswered},
		{"a task due in twenty days comes out of the far tier in time", farTier},
		{"many far tasks fire each at its instant", manyFar},
		{"a task that a handler adds fires before the clock moves on", addedByHandler},
		{"a jump is an outage: one late run, the others missed", jump},
		{"a handler that asks again and again to be called at once is an error", forEver},
		{"a copy with open runs fires the instants that the task would have fired", copied},
		{"a bounded move ends at an instant, and the next one continues there", bounded},
		{"a paused tenant does not stop the clock", paused},
		{"a rate spreads runs over virtual time", rate},
		{"the clock continues at the same time after a restart", restart},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, s) })
	}
}

// noon returns the first noon after the clock's time.
func noon(t *testing.T, s *Stack) time.Time {
	t.Helper()
	at := s.Now(t).Truncate(day).Add(day / 2)
	if at.Before(s.Now(t)) {
		at = at.Add(day)
	}
	return at
}

// fired checks that runs were scheduled and fired at the wanted instants.
func fired(t *testing.T, runs *Runs, want ...time.Time) {
	t.Helper()
	var scheduled, at []time.Time
	for _, r := range runs.All() {
		scheduled, at = append(scheduled, r.ScheduledAt), append(at, r.At)
	}
	if !slices.EqualFunc(scheduled, want, time.Time.Equal) || !slices.EqualFunc(at, want, time.Time.Equal) {
		t.Errorf("scheduled %s\nfired     %s\nwant      %s", scheduled, at, want)
	}
}

func monthOfDays(t *testing.T, s *Stack) {
	tenant, first := s.Tenant(t), noon(t, s)
	runs := tenant.Record(t, "daily")
	tenant.Add(t, client.Task{Kind: "daily", Type: client.NonBlocking, Begin: first, Interval: day})
	began := time.Now()
	s.Advance(t, 30*day)
	t.Logf("a month took %s", time.Since(began))
	var want []time.Time
	for i := range 30 {
		want = append(want, first.Add(time.Duration(i)*day))
	}
	fired(t, runs, want...)
}

func blocking(t *testing.T, s *Stack) {
	tenant, first := s.Tenant(t), s.Now(t).Add(time.Hour)
	runs := tenant.Record(t, "check")
	id := tenant.Add(t, client.Task{Kind: "check", Type: client.Blocking, Begin: first, Interval: time.Hour, MaxCount: 3, Retention: 2 * day})
	s.Advance(t, day)
	fired(t, runs, first, first.Add(time.Hour), first.Add(2*time.Hour))
	info, err := tenant.GetTask(t.Context(), id)
	if err != nil || info.State != client.Completed || !info.FinishedAt.Equal(first.Add(2*time.Hour)) {
		t.Errorf("task = %+v, %v", info, err)
	}
}

func retries(t *testing.T, s *Stack) {
	tenant, first := s.Tenant(t), s.Now(t).Add(time.Hour)
	var calls atomic.Int32
	runs := tenant.Record(t, "flaky", func(context.Context, *client.Run) error {
		if calls.Add(1) < 4 {
			return errors.New("not yet")
		}
		return nil
	})
	tenant.Add(t, client.Task{Kind: "flaky", Type: client.OneShot, Begin: first, Retry: client.RetryPolicy{
		MaxAttempts: 5, InitialBackoff: time.Minute, Multiplier: 10, MaxBackoff: time.Hour, Jitter: client.NoJitter,
	}})
	s.Advance(t, day)
	var at []time.Duration
	for _, r := range runs.All() {
		at = append(at, r.At.Sub(first))
	}
	if want := []time.Duration{0, time.Minute, 11 * time.Minute, 71 * time.Minute}; !slices.Equal(at, want) {
		t.Errorf("times of the attempts = %s, want %s", at, want)
	}
}

var impatient = virtualclock.Options{Settle: 300 * time.Millisecond, LeaveOpen: true}

func ackTimeout(t *testing.T, s *Stack) {
	tenant, first := s.Tenant(t), s.Now(t).Add(time.Hour)
	id := tenant.Add(t, client.Task{Kind: "silent", Type: client.OneShot, Begin: first, AckTimeout: time.Minute, Retention: day})
	moved := s.AdvanceWith(t, time.Hour+7*time.Minute, impatient) // nobody listens
	var at []time.Duration
	for _, i := range moved.Instants {
		at = append(at, i.Time().Sub(first))
	}
	if want := []time.Duration{0, time.Minute, 3 * time.Minute, 7 * time.Minute}; !slices.Equal(at, want) || moved.Fired != 4 {
		t.Errorf("deliveries = %d, times = %s, want %s", moved.Fired, at, want)
	}
	if n := len(moved.Open); n != 4 || moved.Open[n-1].RunID != (task.RunID{Task: task.ID(id), Seq: 1}) || moved.Open[n-1].Attempt != 4 {
		t.Errorf("left open: %v", moved.Open)
	}
	runs := tenant.Record(t, "silent")
	s.Advance(t, 0)
	if got := runs.All(); len(got) == 0 || got[0].Seq != 1 {
		t.Errorf("runs %v", got)
	}
	if info, err := tenant.GetTask(t.Context(), id); err != nil || info.State != client.Completed {
		t.Errorf("the task is %+v, %v", info, err)
	}
}

func unanswered(t *testing.T, s *Stack) {
	tenant, first := s.Tenant(t), s.Now(t).Add(time.Hour)
	id := tenant.Add(t, client.Task{Kind: "silent", Type: client.OneShot, Begin: first})
	_, err := s.Clock.AdvanceBy(t.Context(), day, virtualclock.Options{Settle: 200 * time.Millisecond})
	want := client.RunID(id, 1) + " of kind silent of tenant " + tenant.Name + ", attempt 1"
	if task.CodeOf(err) != task.FailedPrecondition || !contains(err, want) || !contains(err, task.At(first).String()) {
		t.Errorf("got %v, want %q in it", err, want)
	}
	if now := s.Now(t); !now.Equal(first) {
		t.Errorf("the clock shows %s, and the run is not answered since %s", now, first)
	}
	moved := s.AdvanceWith(t, 30*time.Second, virtualclock.Options{NoWait: true})
	if !moved.Reached || moved.Fired != 0 || len(moved.Open) != 0 {
		t.Errorf("moved %+v", moved)
	}
}

func farTier(t *testing.T, s *Stack) {
	tenant, due := s.Tenant(t), s.Now(t).Add(20*day+17*time.Minute+3*time.Millisecond)
	runs := tenant.Record(t, "later")
	id := tenant.Add(t, client.Task{Kind: "later", Type: client.OneShot, Begin: due, Retention: day})
	s.Advance(t, 20*day)
	fired(t, runs)
	s.Advance(t, 18*time.Minute)
	fired(t, runs, due)
	if info, err := tenant.GetTask(t.Context(), id); err != nil || info.State != client.Completed {
		t.Errorf("the task is %+v, %v", info, err)
	}
}

// manyFar adds so many tasks at once that they are stored in packs immediately.
func manyFar(t *testing.T, s *Stack) {
	tenant, now := s.Tenant(t), s.Now(t)
	runs := tenant.Record(t, "later")
	var tasks []client.Task
	want := map[int64]time.Time{}
	for i := range 300 {
		tasks = append(tasks, client.Task{Kind: "later", Type: client.OneShot, Begin: now.Add(time.Duration(i%15+1) * 2 * day)})
	}
	added, err := tenant.AddTasks(t.Context(), tasks)
	if err != nil {
		t.Fatal(err)
	}
	for i, a := range added {
		if a.Err != nil {
			t.Fatal(a.Err)
		}
		want[a.ID] = tasks[i].Begin
	}
	s.Advance(t, 31*day)
	for _, r := range runs.All() {
		if due := want[r.TaskID]; !r.At.Equal(due) || !r.ScheduledAt.Equal(due) {
			t.Fatalf("task %d fired at %s for %s, want %s", r.TaskID, r.At, r.ScheduledAt, due)
		}
		delete(want, r.TaskID)
	}
	if len(want) != 0 {
		t.Errorf("tasks that have not fired = %d, want 0", len(want))
	}
}

func addedByHandler(t *testing.T, s *Stack) {
	tenant, first := s.Tenant(t), s.Now(t).Add(time.Hour)
	steps := tenant.Record(t, "step", func(ctx context.Context, run *client.Run) error {
		if run.Params["last"] != "" {
			return nil
		}
		for _, next := range []client.Task{
			{Kind: "step", Type: client.OneShot, Params: map[string]string{"last": "now"}}, // at once
			{Kind: "step", Type: client.OneShot, Begin: first.Add(time.Minute), Params: map[string]string{"last": "later"}},
		} {
			if _, err := tenant.AddTask(ctx, next); err != nil {
				return err
			}
		}
		return nil
	})
	tenant.Add(t, client.Task{Kind: "step", Type: client.OneShot, Begin: first})
	s.Advance(t, day)
	fired(t, steps, first, first, first.Add(time.Minute))
}

func jump(t *testing.T, s *Stack) {
	tenant, first := s.Tenant(t), s.Now(t).Add(time.Hour)
	runs := tenant.Record(t, "hourly")
	tenant.Add(t, client.Task{Kind: "hourly", Type: client.NonBlocking, Begin: first, Interval: time.Hour})
	s.Advance(t, 2*time.Hour)
	s.Jump(t, 5*time.Hour+30*time.Minute)
	s.Advance(t, time.Hour)
	all := runs.All()
	if len(all) != 4 || all[2].Missed != 4 {
		t.Fatalf("runs = %d, missed instants of the third = %d", len(all), all[min(2, len(all)-1)].Missed)
	}
	if late := all[2]; !late.ScheduledAt.Equal(first.Add(2*time.Hour)) || !late.At.Equal(first.Add(6*time.Hour+30*time.Minute)) {
		t.Errorf("the late run was scheduled at %s and fired at %s", late.ScheduledAt, late.At)
	}
	if next := all[3]; !next.ScheduledAt.Equal(first.Add(7*time.Hour)) || !next.At.Equal(next.ScheduledAt) {
		t.Errorf("the next run was scheduled at %s and fired at %s", next.ScheduledAt, next.At)
	}
}

func forEver(t *testing.T, s *Stack) {
	tenant := s.Tenant(t)
	tenant.Listen(t, map[string]client.Handler{"again": func(_ context.Context, run *client.Run) error {
		run.SetNext(Epoch)
		return nil
	}})
	tenant.Add(t, client.Task{Kind: "again", Type: client.Blocking, Interval: time.Hour})
	_, err := s.Clock.AdvanceBy(t.Context(), day, virtualclock.Options{Settle: 2 * time.Second})
	if task.CodeOf(err) != task.FailedPrecondition || !contains(err, "without an end") {
		t.Errorf("got %v", err)
	}
}

func bounded(t *testing.T, s *Stack) {
	tenant, first := s.Tenant(t), s.Now(t).Add(time.Hour)
	runs := tenant.Record(t, "hourly")
	tenant.Add(t, client.Task{Kind: "hourly", Type: client.NonBlocking, Begin: first, Interval: time.Hour, MaxCount: 3})
	to := task.At(s.Now(t).Add(day))
	calls := 0
	for reached := false; !reached; calls++ {
		m, err := s.Clock.Advance(t.Context(), to, virtualclock.Options{Settle: settle, For: time.Nanosecond})
		if err != nil || m.Now > to {
			t.Fatalf("moved %+v, %v", m, err)
		}
		reached = m.Reached
		if calls > 100 {
			t.Fatal("a bounded move made no progress")
		}
	}
	if calls == 1 {
		t.Error("no move ended because of its bound")
	}
	fired(t, runs, first, first.Add(time.Hour), first.Add(2*time.Hour))
}

func contains(err error, text string) bool { return err != nil && strings.Contains(err.Error(), text) }

func restart(t *testing.T, s *Stack) {
	tenant, first := s.Tenant(t), s.Now(t).Add(time.Hour)
	tenant.Add(t, client.Task{Kind: "hourly", Type: client.NonBlocking, Begin: first, Interval: time.Hour})
	before := s.Now(t)
	s.Restart(t)
	if now := s.Now(t); !now.Equal(before) {
		t.Errorf("time after the restart = %s, want %s as before", now, before)
	}
	tenant.Client = tenant.Dial(t)
	runs := tenant.Record(t, "hourly")
	s.Advance(t, 3*time.Hour)
	fired(t, runs, first, first.Add(time.Hour), first.Add(2*time.Hour))
}

func paused(t *testing.T, s *Stack) {
	tenant, other, first := s.Tenant(t), s.Tenant(t), s.Now(t).Add(time.Hour)
	runs, others := tenant.Record(t, "hourly"), other.Record(t, "hourly")
	for _, who := range []*Tenant{tenant, other} {
		who.Add(t, client.Task{Kind: "hourly", Type: client.NonBlocking, Begin: first, Interval: time.Hour})
	}
	yes, no := true, false
	tenant.SetRates(t, task.RatesChange{Paused: &yes})
	s.Advance(t, 3*time.Hour)
	fired(t, runs)
	fired(t, others, first, first.Add(time.Hour), first.Add(2*time.Hour))
	tenant.SetRates(t, task.RatesChange{Paused: &no})
	s.Advance(t, time.Hour)
	if all := runs.All(); len(all) != 3 || all[0].Missed != 1 || !all[1].ScheduledAt.Equal(first.Add(2*time.Hour)) {
		t.Errorf("runs after the pause = %d", len(all))
	}
}

func rate(t *testing.T, s *Stack) {
	tenant, due := s.Tenant(t), s.Now(t).Add(time.Hour)
	runs := tenant.Record(t, "mail")
	five := int32(5)
	tenant.SetRates(t, task.RatesChange{DispatchRate: &five, DispatchBurst: &five})
	const tasks = 40
	for range tasks {
		tenant.Add(t, client.Task{Kind: "mail", Type: client.OneShot, Begin: due})
	}
	s.Advance(t, 2*time.Hour)
	all := runs.All()
	if len(all) != tasks {
		t.Fatalf("%d runs", len(all))
	}
	// Over any time t there are at most rate x (t + 1.5 s) + burst.
	for i, r := range all {
		late := r.At.Sub(due)
		if most := 5*(late.Seconds()+1.5) + 5; late < 0 || float64(i+1) > most {
			t.Errorf("run %d fired %s after it was due", i+1, late)
		}
	}
}
