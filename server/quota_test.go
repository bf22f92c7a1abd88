package server

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// fakeQuotas has fixed numbers of available adds and unfinished tasks.
type fakeQuotas struct {
	mu     sync.Mutex
	adds   int
	living int64
	counts int
	known  map[string]task.AddResult
	err    error
}

func (f *fakeQuotas) TakeQuota(_ context.Context, _ int32, _ task.Quota, _ int64, want, _, unused int) (task.Tokens, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.adds += unused
	n := min(want, f.adds)
	f.adds -= n
	return task.Tokens{Granted: n}, f.err
}

func (f *fakeQuotas) Counts(context.Context, int32) ([]task.TypeCounts, error) {
	f.counts++
	return []task.TypeCounts{{Counts: task.Counts{Scheduled: f.living - 1, Running: 1, Completed: 99}}}, f.err
}

func (f *fakeQuotas) QuotasUsed(context.Context, int32) (map[task.Quota]time.Duration, error) {
	return map[task.Quota]time.Duration{task.QuotaAdds: time.Second / 2}, f.err
}

func (f *fakeQuotas) ReplayedDead(_ context.Context, _ int32, id task.RunID) (task.Replayed, bool, error) {
	done, ok := f.known[id.String()]
	if !ok {
		return task.Replayed{}, false, nil
	}
	return task.Replayed{ID: done.Items[0].ID, Before: true}, true, nil
}

func (f *fakeQuotas) Triggered(_ context.Context, _ int32, _ task.ID, requestID string) (int64, bool, error) {
	_, ok := f.known[requestID]
	return 7, ok, nil
}

func (f *fakeQuotas) Replay(_ context.Context, r task.AddRequest) (task.AddResult, bool, error) {
	done, ok := f.known[r.RequestID+r.Key]
	return done, ok, nil
}

func wantOver(t *testing.T, err error, quota string, wait time.Duration) {
	t.Helper()
	s := status.Convert(err)
	if s.Code() != codes.ResourceExhausted {
		t.Fatalf("got %v, want RESOURCE_EXHAUSTED", err)
	}
	var named string
	var retry time.Duration
	for _, d := range s.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			named = d.Metadata["quota"]
		case *errdetails.RetryInfo:
			retry = d.RetryDelay.AsDuration()
		}
	}
	if named != quota || retry != wait {
		t.Errorf("%v names %q and says to try again in %v, want %q and %v", err, named, retry, quota, wait)
	}
}

// over returns the error of an admission.
func over(_ *reservation, err error) error { return err }

func TestAddsBeyondTheRateAreRefusedAsAWhole(t *testing.T) {
	f := &fakeQuotas{adds: 30}
	q := quotasOf(f, slog.New(slog.DiscardHandler), &Events{})
	limited := &Tenant{ID: 1, Name: "a", Rates: task.Rates{AddRate: 100}}
	if _, err := q.admit(t.Context(), limited, 20); err != nil {
		t.Fatal(err)
	}
	wantOver(t, over(q.admit(t.Context(), limited, 20)), "add_rate", 100*time.Millisecond)
	if _, err := q.admit(t.Context(), limited, 10); err != nil {
		t.Errorf("what is left of the rate: %v", err)
	}
	if _, err := q.admit(t.Context(), &Tenant{ID: 2}, 1000); err != nil {
		t.Errorf("a tenant without quotas: %v", err)
	}
}

func TestTasksBeyondTheBacklogAreRefusedUntilItIsCountedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeQuotas{living: 90}
		q := quotasOf(f, slog.New(slog.DiscardHandler), &Events{})
		full := &Tenant{ID: 1, Name: "a", Rates: task.Rates{MaxBacklog: 100}}
		place, err := q.admit(t.Context(), full, 10)
		if err != nil {
			t.Fatal(err)
		}
		place.end(10)
		wantOver(t, over(q.admit(t.Context(), full, 1)), "max_backlog", countedFor)
		if f.counts != 1 {
			t.Errorf("counted %d times, want once", f.counts)
		}
		f.living = 50
		time.Sleep(countedFor)
		if _, err := q.admit(t.Context(), full, 50); err != nil {
			t.Errorf("after the backlog had shrunk: %v", err)
		}
	})
}

func TestQuotasThatCannotBeReadRefuseNothing(t *testing.T) {
	q := quotasOf(&fakeQuotas{err: errors.New("away")}, slog.New(slog.DiscardHandler), &Events{})
	if _, err := q.admit(t.Context(), &Tenant{ID: 1, Rates: task.Rates{AddRate: 1, MaxBacklog: 1}}, 1); err != nil {
		t.Error(err)
	}
}

// TestARepeatedRequestGetsItsFirstAnswerOverAnyQuota: a repeated request adds
// nothing.
func TestARepeatedRequestGetsItsFirstAnswerOverAnyQuota(t *testing.T) {
	first := task.AddResult{Items: []task.AddItem{{ID: 1234}}, Replayed: true}
	told := map[string]int{}
	events := &Events{OverQuota: func(_ string, q task.Quota, n int) { told[q.String()] += n }}
	s := &taskService{
		store: &fakeTasks{}, events: events,
		quotas: quotasOf(&fakeQuotas{known: map[string]task.AddResult{"seen": first}}, slog.New(slog.DiscardHandler), events),
	}
	tenant := &Tenant{ID: 1, Name: "a", Rates: task.Rates{AddRate: 1}}
	specs := []task.Spec{{Terms: task.Terms{Kind: "k"}}}
	got, err := s.addWithin(t.Context(), tenant, &batch{}, task.AddRequest{Tenant: 1, RequestID: "seen", Specs: specs})
	if err != nil || !got.Replayed || got.Items[0].ID != 1234 {
		t.Errorf("got %+v, %v", got, err)
	}
	_, err = s.addWithin(t.Context(), tenant, &batch{}, task.AddRequest{Tenant: 1, RequestID: "new", Specs: specs})
	wantOver(t, err, "add_rate", time.Second)
	if told["add_rate"] != 2 {
		t.Errorf("told of %v", told)
	}
}

// TestAKnownKeyIsAnsweredOverAnyQuota: a service may add its tasks at each
// start, even if a quota of its tenant is used up.
func TestAKnownKeyIsAnsweredOverAnyQuota(t *testing.T) {
	first := task.AddResult{Items: []task.AddItem{{ID: 1234}}, Replayed: true}
	s := &taskService{
		store: &fakeTasks{}, events: &Events{}, limits: task.DefaultLimits(),
		quotas: quotasOf(&fakeQuotas{known: map[string]task.AddResult{"seen": first}}, slog.New(slog.DiscardHandler), &Events{}),
	}
	tenant := &Tenant{ID: 1, Name: "a", ParamsBytes: 100, Rates: task.Rates{AddRate: 1}}
	keyed := func(keys ...string) *batch {
		var tasks []*perceptorv1.Task
		for _, k := range keys {
			tasks = append(tasks, &perceptorv1.Task{Kind: "k", Type: perceptorv1.Task_ONE_SHOT, IdempotencyKey: k})
		}
		return must(s.read(t.Context(), tenant, tasks, false))(t)
	}
	b := keyed("seen", "seen")
	ctx := context.WithValue(t.Context(), identityKey{}, &Identity{Tenant: *tenant})
	if replayed, err := s.add(ctx, b, ""); err != nil || !replayed || b.ids[0] != 1234 || b.ids[1] != 1234 {
		t.Errorf("replayed %t, ids %v, %v", replayed, b.ids, err)
	}
	_, err := s.add(ctx, keyed("seen", "new"), "")
	wantOver(t, err, "add_rate", 2*time.Second)
}

// TestTasksWithFaultsUseTheRateOfAdds: to find their faults may cost as much as to add them.
func TestTasksWithFaultsUseTheRateOfAdds(t *testing.T) {
	s := &taskService{
		store: &fakeTasks{}, events: &Events{}, limits: task.DefaultLimits(),
		quotas: quotasOf(&fakeQuotas{adds: 10}, slog.New(slog.DiscardHandler), &Events{}),
	}
	ctx := context.WithValue(t.Context(), identityKey{}, &Identity{Tenant: Tenant{ID: 1, Name: "a", ParamsBytes: 100, Rates: task.Rates{AddRate: 1}}})
	good, bad := &perceptorv1.Task{Kind: "k", Type: perceptorv1.Task_ONE_SHOT}, &perceptorv1.Task{Type: perceptorv1.Task_ONE_SHOT}
	for range 2 {
		reply, err := s.AddTasks(ctx, &perceptorv1.AddTasksRequest{Tasks: []*perceptorv1.Task{bad, bad, bad}})
		if err != nil || reply.Results[2].GetError() == nil {
			t.Fatalf("within the rate: %v, %v", reply, err)
		}
	}
	if _, err := s.judge(ctx, []*perceptorv1.Task{good, bad, bad, bad, bad}, false); err != nil {
		t.Fatalf("a call with another task: %v", err)
	}
	_, err := s.AddTask(ctx, &perceptorv1.AddTaskRequest{Task: bad})
	wantOver(t, err, "add_rate", time.Second)
}
