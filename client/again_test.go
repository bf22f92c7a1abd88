package client

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// hangs makes the service answer the entries of even tasks with RETRY, as if their database
// did not answer.
func (s *fakeService) hangs(yes bool) {
	s.with(func() {
		s.code = nil
		if yes {
			s.code = func(_ string, a *perceptorv1.Attempt) perceptorv1.RunCode {
				if a.GetTaskId()/task.Shards%2 == 0 {
					return perceptorv1.RunCode_RUN_CODE_RETRY
				}
				return 0
			}
		}
	})
}

// numbered returns n runs of one type with every second number from first on.
func numbered(first, n int, typ task.Type, kind string) []task.Publication {
	pubs := make([]task.Publication, n)
	for i := range pubs {
		pubs[i] = newRunOf(int64(first+2*i), typ, kind, nil)
	}
	return pubs
}

// In TestRunsWithoutAnAnswerHoldUpNoOthers more runs of a database that hangs arrive than the
// listener has workers, leases to request, slots of a kind, and records ahead.
func TestRunsWithoutAnAnswerHoldUpNoOthers(t *testing.T) {
	t.Parallel()
	for _, typ := range task.Types {
		t.Run(typ.String(), func(t *testing.T) {
			t.Parallel()
			b := setup(t, 1)
			var free, limited gauge
			slow := func(ctx context.Context, r *Run) error {
				time.Sleep(20 * time.Millisecond)
				return free.handle(ctx, r)
			}
			l := b.listener(ListenerConfig{Workers: 1})
			l.Handle("free", slow)
			l.Handle("limited", limited.handle, MaxConcurrent(1))
			b.start(l)
			b.svc.hangs(true)
			const stuck, others = 120, 20
			b.publish(numbered(2, stuck, typ, "free")...)
			b.publish(numbered(2002, stuck, typ, "limited")...)
			b.publish(numbered(1, others, typ, "free")...)
			b.publish(numbered(2001, others, typ, "limited")...)
			b.svc.await(t, "the results of the others", func() bool { return b.svc.codes["report ACCEPTED"] == 2*others })
			b.svc.hangs(false)
			b.svc.await(t, "all results", func() bool { return b.svc.codes["report ACCEPTED"] == 2*(stuck+others) })
			// Runs of a busy kind are put off, so not all of them were executed.
			if free.done() != stuck+others || limited.done() < others || limited.most != 1 {
				t.Errorf("%d and %d runs were executed, of the kind with a limit %d at a time; want %d, at least %d, and 1",
					free.done(), limited.done(), limited.most, stuck+others, others)
			}
		})
	}
}

func TestRepeatedCallsAddLittleLoad(t *testing.T) {
	t.Parallel()
	b := setup(t, 4)
	b.listen(ListenerConfig{}, map[string]Handler{"k": func(context.Context, *Run) error { return nil }})
	next := 1
	// load publishes 50 runs per second, on a machine that can, and returns the number of calls and of
	// entries, and how long it took in units of what it should take.
	load := func(seconds int) (calls, entries int, slow float64) {
		began := time.Now()
		b.svc.with(func() { calls, entries = -b.svc.calls["report"], -len(b.svc.results) })
		for range 50 * seconds {
			b.publish(numbered(next, 1, task.OneShot, "k")...)
			next += 2
			time.Sleep(20 * time.Millisecond)
		}
		b.svc.with(func() { calls, entries = calls+b.svc.calls["report"], entries+len(b.svc.results) })
		return calls, entries, max(1, time.Since(began).Seconds()/float64(seconds))
	}
	load(1)
	calls, entries, _ := load(4)
	b.svc.hangs(true)
	b.publish(numbered(100_000, 25, task.OneShot, "k")...) // those of half a second
	load(1)
	repeatedCalls, repeatedEntries, slow := load(4)
	half := func(n int) int { return int(slow*float64(n)/2) + 1 } // repetitions are so many per second
	if most := calls + half(calls); repeatedCalls > most {
		t.Errorf("%d calls while a database hangs and %d before, want at most %d", repeatedCalls, calls, most)
	}
	if most := entries + half(entries); repeatedEntries > most {
		t.Errorf("%d results were sent while a database hangs and %d before, want at most %d", repeatedEntries, entries, most)
	}
}

func TestAnAddThatWasNotStoredMovesToAnotherDatabase(t *testing.T) {
	s, c := api(t, Config{})
	stalled, err := status.New(codes.Unavailable, "hangs").WithDetails(&errdetails.ErrorInfo{Reason: string(task.ReasonDatabaseStalled)})
	if err != nil {
		t.Fatal(err)
	}
	hangs := func(id string) bool { return task.ShardOf(id).Database() < task.Databases/2 }
	s.before = func(context.Context, string) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if hangs(s.adds[len(s.adds)-1].GetRequestId()) {
			return stalled.Err()
		}
		return nil
	}
	for range 20 {
		c.placement = placement{}
		began := time.Now()
		if _, err := c.AddTask(t.Context(), Task{Kind: "k", Type: OneShot}); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("an add took %v, want no wait", took)
		}
	}
	if len(s.tasks) != 20 {
		t.Errorf("%d tasks were stored, want 20", len(s.tasks))
	}
	// A try of unknown outcome stays where it may have been stored.
	lost := true
	s.adds = nil
	s.before = func(context.Context, string) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		switch {
		case lost:
			lost = false
			return status.Error(codes.Unavailable, "the answer was lost")
		case len(s.adds) < 4:
			return stalled.Err()
		}
		return nil
	}
	if _, err := c.AddTask(t.Context(), Task{Kind: "k", Type: OneShot}); err != nil {
		t.Fatal(err)
	}
	for _, a := range s.adds {
		if a.GetRequestId() != s.adds[0].GetRequestId() {
			t.Errorf("request id %q after %q, whose outcome is unknown", a.GetRequestId(), s.adds[0].GetRequestId())
		}
	}
}

// The service answers each task with a key by itself, so those whose database does not answer
// do not hold up others.
func TestAddsWithKeysDoNotWaitForThoseOfADatabaseThatHangs(t *testing.T) {
	t.Parallel()
	s, c := api(t, Config{CallTimeout: 20 * time.Second})
	var stalled atomic.Bool
	stalled.Store(true)
	s.refuse = func(task *perceptorv1.Task) *rpcstatus.Status {
		if stalled.Load() && task.GetIdempotencyKey() == "held" {
			return status.New(codes.Unavailable, "a database does not answer").Proto()
		}
		return nil
	}
	keyed := func(key string) Task { return Task{Kind: "k", Type: OneShot, IdempotencyKey: key} }
	held := make(chan error, 2)
	go func() {
		_, err := c.AddTask(t.Context(), keyed("held"))
		held <- err
	}()
	go func() {
		results, err := c.AddTasks(t.Context(), []Task{keyed("a"), keyed("held"), keyed("b")})
		for _, r := range results {
			err = errors.Join(err, r.Err)
		}
		held <- err
	}()
	for i := range 20 {
		began := time.Now()
		if _, err := c.AddTask(t.Context(), keyed(fmt.Sprint("free-", i))); err != nil || time.Since(began) > 5*time.Second {
			t.Errorf("an add took %v: %v", time.Since(began), err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	if len(held) > 0 {
		t.Errorf("an add was answered while its database hung: %v", <-held)
	}
	stalled.Store(false)
	for range 2 {
		if err := within(t, "the adds that were held up", held); err != nil {
			t.Error(err)
		}
	}
	s.with(func() {
		if n := len(s.tasks); n != 24 { // 20, and 4 of the others
			t.Errorf("%d tasks were stored, want 24", n)
		}
	})
}
