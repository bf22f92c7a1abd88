package client

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// seenRuns records which runs handlers saw, and with what terms.
type seenRuns struct {
	mu   sync.Mutex
	list []string
}

func (s *seenRuns) handler(name string) Handler {
	return func(_ context.Context, r *Run) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.list = append(s.list, fmt.Sprintf("%d by %s, version %d, n=%s", r.TaskID/task.Shards, name, r.Version, r.Params["n"]))
		return nil
	}
}

func (s *seenRuns) sorted() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(slices.Values(s.list))
}

func TestRunsOfCancelledAndEditedTasksAreCheckedBeforeTheirHandlers(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	terms := func(kind string) *perceptorv1.RunTerms {
		return &perceptorv1.RunTerms{Version: 2, Kind: kind, Params: &perceptorv1.Params{Entries: map[string]string{"n": "new"}}}
	}
	id := func(number int64) int64 { return int64(task.NewID(number, 1)) }
	b.svc.terms = map[int64]*perceptorv1.RunTerms{id(2): terms("old"), id(3): terms("other"), id(4): terms("unknown here"), id(5): terms("old")}
	b.svc.code = func(op string, a *perceptorv1.Attempt) perceptorv1.RunCode {
		if op == "check" && a.GetTaskId() == id(1) {
			return perceptorv1.RunCode_RUN_CODE_FINISHED
		}
		return 0
	}
	var s seenRuns
	b.listen(ListenerConfig{Check: CheckAlways}, map[string]Handler{"old": s.handler("old"), "other": s.handler("other")})
	for number := range int64(6) {
		typ := task.NonBlocking
		if number == 4 {
			typ = task.Blocking
		}
		p := newRunOf(number+1, typ, "old", map[string]string{"n": "old"})
		p.Version = 1
		b.publish(p)
	}
	b.svc.await(t, "four results and a hand-back", func() bool {
		return b.svc.codes["report ACCEPTED"] == 4 && b.svc.codes["hand back ACCEPTED"] == 1
	})
	b.awaitCommitted()
	want := []string{"2 by old, version 2, n=new", "3 by other, version 2, n=new", "5 by old, version 2, n=new", "6 by old, version 1, n=old"}
	if got := s.sorted(); !slices.Equal(got, want) {
		t.Errorf("handlers saw %q, want %q", got, want)
	}
}

func TestTheServiceClockFollowsNeitherAClockThatIsSetBackNorOneThatStandsStill(t *testing.T) {
	read := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	c := serviceClock{shown: read.Add(time.Minute), read: read, ahead: time.Minute}
	for name, tc := range map[string]struct{ wall, passed time.Duration }{
		"nothing happened":                  {time.Hour, time.Hour},
		"the wall clock was set back":       {-time.Hour, time.Hour},
		"the machine was suspended so long": {time.Hour, time.Second},
	} {
		if got, want := c.later(read.Add(tc.wall), tc.passed), read.Add(time.Hour+time.Minute); !got.Equal(want) {
			t.Errorf("%s: the service's clock shows %s, want %s", name, got, want)
		}
	}
}

func TestOnlyLateRunsAreCheckedUnlessAskedFor(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		policy CheckPolicy
		want   int
	}{"late": {CheckLate, 1}, "always": {CheckAlways, 2}, "never": {CheckNever, 0}} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, 1)
			var s seenRuns
			b.listen(ListenerConfig{Check: tc.policy}, map[string]Handler{"k": s.handler("k")})
			fresh, late := newRunOf(1, task.OneShot, "k", nil), newRunOf(2, task.OneShot, "k", nil)
			fresh.ClaimedAt, late.ClaimedAt = task.At(time.Now().Add(time.Hour)), task.At(time.Now().Add(-5*time.Second))
			b.publish(fresh, late)
			b.svc.await(t, "two results", func() bool { return b.svc.codes["report ACCEPTED"] == 2 })
			if got := b.svc.codes["check ACCEPTED"]; got != tc.want {
				t.Errorf("%d runs were checked, want %d", got, tc.want)
			}
		})
	}
}

func TestAnAnswerThatTookLongDoesNotReplaceABetterReadingOfTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g engine
		now := time.Now()
		late := now.Add(-2 * lateAfter)
		g.setClock(timestamppb.New(late), late)
		if behind := time.Since(g.service.now(time.Now())); behind > lateAfter/4 {
			t.Fatalf("by the first answer the service is %v behind, want the present", behind)
		}
		g.setClock(timestamppb.New(now.Add(time.Minute)), now)
		g.setClock(timestamppb.New(now.Add(time.Minute)), late) // was read at the end
		if off := g.service.ahead - time.Minute; off.Abs() > lateAfter/4 {
			t.Errorf("the service is %v ahead, want a minute", g.service.ahead)
		}
	})
}

// promptService answers at once, with the right time.
type promptService struct {
	perceptorv1.RunServiceClient
}

func (promptService) GetDelivery(context.Context, *perceptorv1.GetDeliveryRequest, ...grpc.CallOption) (*perceptorv1.Delivery, error) {
	return &perceptorv1.Delivery{Now: timestamppb.Now()}, nil
}

// TestAListenerThatStartedSlowlyDoesNotCheckEveryRun holds that the clock is read again: by the
// answer that a listener starts with, the service may seem ahead by as long as the answer took.
func TestAListenerThatStartedSlowlyDoesNotCheckEveryRun(t *testing.T) {
	l, err := (&Client{runs: promptService{}}).NewListener(ListenerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	punctual := &arrival{pub: task.Publication{Type: task.OneShot, ClaimedAt: task.At(time.Now())}}
	l.engine.setClock(timestamppb.Now(), time.Now().Add(-2*lateAfter))
	if !l.engine.wantsCheck(punctual) {
		t.Fatal("a run is not checked although the service may be ahead")
	}
	if err := l.keys.refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if l.engine.wantsCheck(punctual) {
		t.Error("a punctual run is checked after a prompt answer of the service")
	}
}

// TestChecksGoFurtherAheadThanLeases: a service that is so busy that runs are late answers late,
// and must not be asked for less because of that.
func TestChecksGoFurtherAheadThanLeases(t *testing.T) {
	for _, tt := range []struct {
		name           string
		mean           time.Duration
		busy           int
		leases, checks int
	}{
		{"short handlers", 0, 4, 4 * maxLeasesAhead, 4 * maxChecksAhead},
		{"handlers of the time of an answer", leaseAhead, 4, 4, 4},
		{"long handlers", time.Minute, 4, 1, 1},
		{"long handlers, and free workers", time.Minute, 1, 3, 3},
	} {
		g := &engine{l: &Listener{cfg: ListenerConfig{Workers: 4}}, mean: tt.mean, busy: tt.busy}
		for perWorker, want := range map[int]int{maxLeasesAhead: tt.leases, maxChecksAhead: tt.checks} {
			if n := g.askAhead(perWorker); n != want {
				t.Errorf("%s: at most %d questions, %d for each worker; want %d", tt.name, n, perWorker, want)
			}
		}
	}
}

// TestLeasedRunsDoNotWaitForManyCheckedOnes: a lease binds the run to this listener, so it executes soon,
// although many more checks are made ahead.
func TestLeasedRunsDoNotWaitForManyCheckedOnes(t *testing.T) {
	const workers = 2
	g := &engine{l: &Listener{cfg: ListenerConfig{Workers: workers}}, executions: map[*execution]struct{}{}, workers: workers, runs: make(chan *execution, workers)}
	ready := func(typ task.Type, n int) {
		for range n {
			f := &execution{rec: &arrival{pub: task.Publication{Type: typ}}}
			q := g.askedOf(f.rec)
			q.ready, q.n = append(q.ready, f), q.n+1
		}
	}
	ready(task.OneShot, workers*maxChecksAhead)
	ready(task.Blocking, 1)
	g.pump()
	first, second := <-g.runs, <-g.runs
	if first.rec.pub.Type != task.Blocking && second.rec.pub.Type != task.Blocking {
		t.Error("no worker has the leased run, want one of the first two executions")
	}
	if g.starts.n != 0 || g.checks.n != workers*maxChecksAhead-1 || g.busy != workers {
		t.Errorf("%d leases and %d checks are left and %d workers busy, want 0, %d and %d", g.starts.n, g.checks.n, g.busy, workers*maxChecksAhead-1, workers)
	}
}
