package client

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
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

// halfService stores no result of the upper half of the databases, as if their server hung.
type halfService struct{ promptService }

func (halfService) ReportResults(_ context.Context, q *perceptorv1.ReportResultsRequest, _ ...grpc.CallOption) (*perceptorv1.ReportResultsResponse, error) {
	a := &perceptorv1.ReportResultsResponse{}
	for _, r := range q.GetResults() {
		code := perceptorv1.RunCode_RUN_CODE_ACCEPTED
		if task.ID(r.GetAttempt().GetTaskId()).Shard().Database() >= task.Databases/2 {
			code = perceptorv1.RunCode_RUN_CODE_RETRY
		}
		a.Replies = append(a.Replies, &perceptorv1.RunReply{Code: code})
	}
	return a, nil
}

// Runs that were executed, and whose results have no answer, leave the memory and the places of listeners to others.
func TestResultsWithoutAnAnswerNeedLittleMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const runs, size = 4000, 1 << 10
		l, err := (&Client{runs: halfService{}}).NewListener(ListenerConfig{
			Check: CheckNever, NoHeartbeats: true, Workers: 16, MaxPending: runs * 3 / 4, MaxPendingBytes: runs / 8 * size,
		})
		if err != nil {
			t.Fatal(err)
		}
		l.Handle("k", func(context.Context, *Run) error { return nil })
		for _, k := range l.kinds {
			k.call = l.chain(k)
		}
		g := l.engine
		ctx, stop := context.WithCancel(t.Context())
		var senders sync.WaitGroup
		g.runSenders(ctx, &senders)
		part := newTracker(0, 0)
		admitting, end := context.WithTimeout(ctx, time.Minute)
		defer end()
		params := map[string]string{"a": strings.Repeat("x", size)}
		n := 0
		for ; n < runs && g.admit(admitting); n++ {
			p := newRunOf(1, task.NonBlocking, "k", params)
			p.Task = task.NewID(int64(n+1), task.Shard(n%task.Databases*task.ShardsPerDatabase))
			g.arrive(part, p, int64(n))
		}
		time.Sleep(time.Second)
		g.mu.Lock()
		if n != runs || g.unansweredEntries != runs/2 || g.table.bytes != 0 || len(part.open) != runs/2 {
			t.Errorf("%d of %d runs were admitted; %d have no answer, %d bytes are counted, and %d offsets are kept; want half of the runs, 0 bytes, and as many offsets",
				n, runs, g.unansweredEntries, g.table.bytes, len(part.open))
		}
		g.mu.Unlock()
		stop()
		senders.Wait()
		g.mu.Lock()
		for _, a := range []*again{g.again.starts, g.again.reports, g.again.checks, g.again.handBacks} {
			if a.timer != nil {
				a.timer.Stop()
			}
		}
		g.mu.Unlock()
		g.wait()
	})
}

// The timer of entries without an answer is set anew only by one that is to be sent sooner: there may be tens of thousands.
func TestEntriesWithoutAnAnswerShareATimer(t *testing.T) {
	l, err := (&Client{runs: promptService{}}).NewListener(ListenerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	g := l.engine
	w := g.again.reports
	push := func(after time.Duration) {
		pub := newRunOf(1, task.NonBlocking, "k", nil)
		g.pushAction(w, action{verb: doReport, entry: &entry{unanswered: true}, rec: &arrival{pub: pub}, tries: 1, notBefore: time.Now().Add(after)})
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	push(time.Hour)
	first := w.timer
	for range 100 {
		push(2 * time.Hour)
	}
	if w.timer != first {
		t.Error("an entry that is to be sent later has set the timer anew")
	}
	if push(time.Minute); w.timer == first || time.Until(w.first) > time.Minute {
		t.Errorf("the timer is not set for the entry that is to be sent first, but %s from now", time.Until(w.first))
	}
	w.timer.Stop()
}

func TestRepeatedCallsAddLittleLoad(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		b.listen(ListenerConfig{Check: CheckNever}, map[string]Handler{"k": func(context.Context, *Run) error { return nil }})
		next := 1
		// load lets 50 runs per second arrive, and returns how many calls and entries the service has got meanwhile.
		load := func(seconds int) (calls, entries int) {
			b.svc.with(func() { calls, entries = -b.svc.calls["report"], -len(b.svc.results) })
			for range 50 * seconds {
				b.arrive(numbered(next, 1, task.OneShot, "k")[0])
				next += 2
				time.Sleep(20 * time.Millisecond)
			}
			b.svc.with(func() { calls, entries = calls+b.svc.calls["report"], entries+len(b.svc.results) })
			return calls, entries
		}
		load(1)
		calls, entries := load(4)
		b.svc.hangs(true)
		for _, p := range numbered(100_000, 25, task.OneShot, "k") { // those of half a second
			b.arrive(p)
		}
		load(1)
		repeatedCalls, repeatedEntries := load(4)
		if most := calls * 3 / 2; repeatedCalls > most {
			t.Errorf("%d calls while a database hangs and %d before, want at most %d", repeatedCalls, calls, most)
		}
		if most := entries * 3 / 2; repeatedEntries > most {
			t.Errorf("%d results were sent while a database hangs and %d before, want at most %d", repeatedEntries, entries, most)
		}
		b.svc.hangs(false)
		b.svc.await(t, "all results", func() bool { return b.svc.codes["report ACCEPTED"] == next/2+25 })
		b.stop()
	})
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
		if took := time.Since(began); took > 15*time.Second { // half of CallTimeout
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
	s, c := api(t, Config{CallTimeout: 2 * time.Minute})
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
		if _, err := c.AddTask(t.Context(), keyed(fmt.Sprint("free-", i))); err != nil || time.Since(began) > 30*time.Second {
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

// In TestStartsWithoutAnAnswerGetSlotsOfABusyKind the slot of a kind passes from one parked run to the next.
func TestStartsWithoutAnAnswerGetSlotsOfABusyKind(t *testing.T) {
	t.Parallel()
	for _, typ := range task.Types {
		t.Run(typ.String(), func(t *testing.T) {
			t.Parallel()
			b := setup(t, 1)
			const stuck, others = 5, 90 // which may all be parked
			ended := make(chan int64, stuck+others)
			l := b.listener(ListenerConfig{Workers: 4, Check: CheckAlways})
			l.Handle("limited", func(_ context.Context, r *Run) error {
				time.Sleep(20 * time.Millisecond)
				ended <- r.TaskID / task.Shards
				return nil
			}, MaxConcurrent(1))
			b.start(l)
			b.svc.hangs(true)
			b.publish(numbered(2, stuck, typ, "limited")...)
			b.svc.await(t, "the questions", func() bool { return b.svc.codes["start RETRY"]+b.svc.codes["check RETRY"] >= stuck })
			b.publish(numbered(1001, others, typ, "limited")...)
			b.svc.await(t, "the first of the others", func() bool { return b.svc.codes["report ACCEPTED"] > 0 })
			b.svc.hangs(false)
			b.svc.await(t, "all results", func() bool { return b.svc.codes["report ACCEPTED"] == stuck+others })
			after := 0
			for range stuck + others {
				if after++; <-ended%2 == 0 {
					after = 0
				}
			}
			if after < 20 {
				t.Errorf("only %d of %d others ended after the last run that the service was asked about again", after, others)
			}
		})
	}
}
