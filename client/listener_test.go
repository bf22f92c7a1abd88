package client

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/perceptor/perceptor/internal/testenv"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

func TestMain(m *testing.M) {
	if address := os.Getenv("TEST_LISTENER_CHILD"); address != "" {
		childListener(address)
		return
	}
	testenv.MainWithoutLeaks(m)
}

// counter counts the executions of each run.
type counter struct {
	mu   sync.Mutex
	runs map[string]int
}

func (c *counter) handle(_ context.Context, r *Run) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.runs == nil {
		c.runs = map[string]int{}
	}
	c.runs[r.RunID()]++
	return nil
}

func (c *counter) len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.runs)
}

func manyRuns(n int, kind string) []task.Publication {
	pubs := make([]task.Publication, n)
	for i := range pubs {
		pubs[i] = newRunOf(int64(i)+1, task.Types[i%3], kind, map[string]string{"n": fmt.Sprint(i)})
	}
	return pubs
}

func TestEveryRunIsHandledOnceReportedAndCommitted(t *testing.T) {
	t.Parallel()
	b := setup(t, 4)
	var c counter
	b.listen(ListenerConfig{}, map[string]Handler{"count": c.handle})
	b.publish(manyRuns(600, "count")...)
	b.svc.await(t, "600 results", func() bool { return b.svc.codes["report ACCEPTED"] == 600 })
	b.awaitCommitted()
	for id, n := range c.runs {
		if n != 1 {
			t.Errorf("run %s was handled %d times", id, n)
		}
	}
	if got := b.svc.codes["start ACCEPTED"]; got != 200 {
		t.Errorf("%d starts; want one for each of the 200 BLOCKING runs", got)
	}
	if b.svc.calls["report"] > 300 {
		t.Errorf("%d calls for 600 results: they were not batched", b.svc.calls["report"])
	}
}

// A commit costs the brokers as much as a record, so a listener with few runs commits those of some seconds
// together.
func TestFewRecordsAreCommittedTogether(t *testing.T) {
	t.Parallel()
	b := setup(t, 4)
	var c counter
	times := fast
	times.rest = time.Hour
	committed := make(chan struct{}, 100)
	l := b.listen(ListenerConfig{kafka: times, Events: Events{Committed: func(map[int]int64) { committed <- struct{}{} }}}, map[string]Handler{"count": c.handle})
	runs := manyRuns(commitRecords+2, "count")
	reported := 0
	report := func(n int) {
		t.Helper()
		b.publish(runs[reported : reported+n]...)
		reported += n
		b.svc.await(t, "the results", func() bool { return b.svc.codes["report ACCEPTED"] == reported })
	}
	report(1)
	within(t, "the first commit", committed) // is that of the beginning, with this record or without
	first := b.lag()
	report(20)
	time.Sleep(10 * times.commit)
	if lag := b.lag(); lag != first+20 {
		t.Errorf("20 records more: %d are not committed, and %d before", lag, first)
	}
	report(commitRecords - 20)
	b.awaitCommitted()
	report(1)
	l.stop(t)
	if lag := b.lag(); lag != 0 {
		t.Errorf("the listener has stopped, and %d records are not committed", lag)
	}
}

func TestHandlerSeesTheRunAndItsWishesAreReported(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	p := newRunOf(7, task.NonBlocking, "wish", map[string]string{"a": "1", "b": "2"})
	p.Missed, p.Version, p.Dispatcher, p.PublishedAt = 3, 9, "d-1", p.ScheduledAt+5
	seen := make(chan *Run, 1)
	next := time.Now().Add(time.Hour).Truncate(time.Millisecond)
	b.listen(ListenerConfig{Name: "web-1", Version: "v1"}, map[string]Handler{"wish": func(_ context.Context, r *Run) error {
		r.SetNext(next)
		r.Stop()
		r.SetParam("a", "new")
		r.SetParam("gone", "x")
		r.DeleteParam("gone")
		r.DeleteParam("b")
		seen <- r
		return nil
	}})
	b.publish(p)
	r := within(t, "the handler", seen)
	if r.RunID() != p.RunID().String() || r.Missed != 3 || r.Version != 9 || r.Attempt != 1 || r.Type != NonBlocking ||
		r.Kind != "wish" || !r.ScheduledAt.Equal(p.ScheduledAt.Time()) || !cmp.Equal(r.Params, map[string]string{"a": "1", "b": "2"}) {
		t.Errorf("the handler saw %+v", r)
	}
	b.svc.await(t, "the result", b.svc.count("report ACCEPTED"))
	got := b.svc.results[0]
	if !got.GetNextExecuteTime().AsTime().Equal(next) || !got.GetStop() || got.GetOutcome() != perceptorv1.RunResult_SUCCESS {
		t.Errorf("reported %v", got)
	}
	times := got.GetTimes()
	if times.GetDispatcher() != "d-1" || times.GetScheduledMs() != int64(p.ScheduledAt) || times.GetPublishedMs() != int64(p.PublishedAt) ||
		times.GetEndedAgoUs() < 1 || times.GetBegunAgoUs() < times.GetEndedAgoUs() || times.GetReceivedAgoUs() < times.GetBegunAgoUs() {
		t.Errorf("the reported stages are %v", times)
	}
	if b.svc.by.GetName() != "web-1" || b.svc.by.GetVersion() != "v1" || b.svc.by.GetHost() == "" {
		t.Errorf("the listener calls itself %v", b.svc.by)
	}
	patch := got.GetParamsPatch()
	if len(patch.GetSet()) != 1 || patch.GetSet()["a"] != "new" || len(patch.GetRemove()) != 2 {
		t.Errorf("patch %v", patch)
	}
}

func TestRebalanceLosesNothing(t *testing.T) {
	t.Parallel()
	t.Run("broker in memory", func(t *testing.T) { rebalance(t, setup(t, 6)) })
	t.Run("real broker", func(t *testing.T) { rebalance(t, setupReal(t, testenv.Kafka(t), 6)) })
}

func rebalance(t *testing.T, b *bench) {
	var one, two counter
	pause := func(c *counter) Handler {
		return func(ctx context.Context, r *Run) error {
			time.Sleep(time.Duration(rand.N(3)) * time.Millisecond)
			return c.handle(ctx, r)
		}
	}
	first := b.listen(ListenerConfig{Workers: 4}, map[string]Handler{"count": pause(&one)})
	pubs := manyRuns(1500, "count")
	b.publish(pubs[:500]...)
	b.svc.await(t, "some results", func() bool { return b.svc.codes["report ACCEPTED"] > 100 })
	shared := make(chan struct{}, 100)
	b.listen(ListenerConfig{Workers: 4, Events: Events{Assigned: func(partitions []int) {
		if len(partitions) > 0 {
			shared <- struct{}{}
		}
	}}}, map[string]Handler{"count": pause(&two)})
	b.publish(pubs[500:750]...)
	within(t, "partitions of the second listener", shared) // the first one may have handled all before that
	b.publish(pubs[750:1000]...)
	b.eventually("the second listener works", func() bool { return two.len() > 20 })
	b.publish(pubs[1000:]...)
	first.stop(t)
	b.svc.await(t, "1500 results", func() bool { return b.svc.codes["report ACCEPTED"] == 1500 })
	b.awaitCommitted()
	if one.len() == 0 || two.len() == 0 {
		t.Errorf("one listener handled %d runs, the other %d", one.len(), two.len())
	}
}

func TestBrokerThatIsAwayForAWhileLosesNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("restarts a real broker")
	}
	t.Parallel()
	server := testenv.NewKafka(t)
	b := setupReal(t, server, 3)
	var c counter
	b.listen(ListenerConfig{}, map[string]Handler{"count": c.handle})
	pubs := manyRuns(300, "count")
	b.publish(pubs[:100]...)
	b.svc.await(t, "100 results", func() bool { return b.svc.codes["report ACCEPTED"] == 100 })
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.publish(pubs[100:]...)
	b.svc.await(t, "300 results", func() bool { return b.svc.codes["report ACCEPTED"] == 300 })
	b.awaitCommitted()
}

func TestGarbageOnTheTopicIsSkippedAndCounted(t *testing.T) {
	t.Parallel()
	b := setup(t, 2)
	var c counter
	var poison atomic.Int32
	b.listen(ListenerConfig{Events: Events{Poison: func(int, int64, error) { poison.Add(1) }}}, map[string]Handler{"count": c.handle})
	for i := range 50 {
		b.write(signedValue([]byte("garbage"), i), signedValue(nil, i), signedValue([]byte{0xff, 0xff, 0xff}, i))
		b.publish(newRunOf(int64(i)+1, task.OneShot, "count", nil))
	}
	b.svc.await(t, "50 results", func() bool { return b.svc.codes["report ACCEPTED"] == 50 })
	b.awaitCommitted()
	if poison.Load() != 150 {
		t.Errorf("%d poison records were counted; want 150", poison.Load())
	}
	if n := strings.Count(b.logs.String(), "cannot be decoded"); n != 1 {
		t.Errorf("poison was logged %d times; want at most one message per interval", n)
	}
}

func TestDuplicatesInOneProcessAreHandledOnce(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	var calls atomic.Int32
	release := make(chan struct{})
	b.listen(ListenerConfig{}, map[string]Handler{"slow": func(context.Context, *Run) error {
		calls.Add(1)
		<-release
		return nil
	}})
	p := newRunOf(1, task.NonBlocking, "slow", nil)
	b.publish(p)
	b.eventually("the handler runs", func() bool { return calls.Load() == 1 })
	b.publish(p, p) // both wait for the first one
	close(release)
	b.svc.await(t, "the result", b.svc.count("report ACCEPTED"))
	b.publish(p) // skipped
	b.awaitCommitted()
	if calls.Load() != 1 || len(b.svc.results) != 1 {
		t.Errorf("%d executions, %d results", calls.Load(), len(b.svc.results))
	}
}

func TestFailedRunIsRetriedInTheSameProcess(t *testing.T) {
	t.Parallel()
	for _, typ := range task.Types {
		t.Run(typ.String(), func(t *testing.T) {
			b := setup(t, 1)
			attempts := make(chan int, 10)
			b.listen(ListenerConfig{}, map[string]Handler{"flaky": func(_ context.Context, r *Run) error {
				attempts <- r.Attempt
				if r.Attempt < 3 {
					return errors.New("not yet")
				}
				return nil
			}})
			p := newRunOf(1, typ, "flaky", nil)
			b.publish(p)
			for n := 1; n <= 3; n++ {
				if got := within(t, "an attempt", attempts); got != n {
					t.Fatalf("attempt %d ran; want %d", got, n)
				}
				b.svc.await(t, "its result", func() bool { return b.svc.codes["report ACCEPTED"] == n })
				b.publish(p) // a late duplicate of the first attempt changes nothing
				if n < 3 {
					b.redeliver(p)
				}
			}
			b.awaitCommitted()
			if len(attempts) != 0 || len(b.svc.results) != 3 {
				t.Errorf("%d more executions, %d results", len(attempts), len(b.svc.results))
			}
		})
	}
}

func TestKindWithoutAHandlerIsHandedBackBeforeItsOffsetIsDone(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	var open atomic.Bool
	b.svc.before = func(_ context.Context, op string) error {
		if op == "hand back" && !open.Load() {
			return status.Error(codes.Unavailable, "down")
		}
		return nil
	}
	b.listen(ListenerConfig{}, map[string]Handler{"known": func(context.Context, *Run) error { return nil }})
	b.publish(newRunOf(1, task.NonBlocking, "unknown", nil), newRunOf(2, task.NonBlocking, "known", nil))
	b.svc.await(t, "the known run", b.svc.count("report ACCEPTED"))
	b.svc.await(t, "three tries", func() bool { return b.svc.calls["hand back"] >= 3 })
	if lag := b.lag(); lag != 2 {
		t.Errorf("%d records are not committed; want 2: the first is not handed back yet", lag)
	}
	open.Store(true)
	b.awaitCommitted()
	if b.svc.codes["hand back ACCEPTED"] != 1 {
		t.Errorf("answers %v", b.svc.codes)
	}
}

func TestSlowServiceHoldsTheTopicBack(t *testing.T) {
	b := setup(t, 2)
	release := make(chan struct{})
	b.svc.before = func(ctx context.Context, op string) error {
		if op == "report" {
			select {
			case <-release:
			case <-ctx.Done():
			}
		}
		return nil
	}
	var started atomic.Int32
	b.listen(ListenerConfig{Workers: 8, MaxPending: 40}, map[string]Handler{"count": func(context.Context, *Run) error {
		started.Add(1)
		return nil
	}})
	b.publish(manyRuns(1000, "count")...)
	// As many as may be pending, plus one that each partition's reader has
	// fetched.
	b.eventually("the listener is full", func() bool { return started.Load() >= 40 })
	b.svc.await(t, "a report under way", func() bool { return b.svc.calls["report"] > 0 })
	if n := started.Load(); n > 42 {
		t.Errorf("%d handlers were called; 40 may be pending", n)
	}
	if len(b.svc.results) > 0 || b.lag() == 0 {
		t.Errorf("%d results, lag %d", len(b.svc.results), b.lag())
	}
	close(release)
	b.svc.await(t, "all results", func() bool { return b.svc.codes["report ACCEPTED"] == 1000 })
	b.awaitCommitted()
}

func TestSlowHandlerBoundsConcurrency(t *testing.T) {
	t.Parallel()
	b := setup(t, 4)
	var now, most atomic.Int32
	b.listen(ListenerConfig{Workers: 5}, map[string]Handler{"slow": func(context.Context, *Run) error {
		n := now.Add(1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		time.Sleep(5 * time.Millisecond)
		now.Add(-1)
		return nil
	}})
	b.publish(manyRuns(200, "slow")...)
	b.svc.await(t, "all results", func() bool { return b.svc.codes["report ACCEPTED"] == 200 })
	if most.Load() != 5 {
		t.Errorf("%d handlers ran at a time; want 5", most.Load())
	}
}

func TestLeasesAreNotTakenLongBeforeAWorkerIsFree(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	release := make(chan struct{})
	var running atomic.Int32
	l := b.listen(ListenerConfig{Workers: 16}, map[string]Handler{"slow": func(context.Context, *Run) error {
		running.Add(1)
		<-release
		return nil
	}})
	l.engine.mu.Lock()
	l.engine.mean = time.Minute // as measured for these handlers
	l.engine.mu.Unlock()
	pubs := make([]task.Publication, 60)
	for i := range pubs {
		pubs[i] = newRunOf(int64(i)+1, task.Blocking, "slow", nil)
	}
	b.publish(pubs[:30]...)
	b.eventually("all workers are busy", func() bool { return running.Load() == 16 })
	b.publish(pubs[30:]...)
	b.eventually("the listener has no room for more", func() bool {
		l.engine.mu.Lock()
		defer l.engine.mu.Unlock()
		return l.engine.table.pending == 32
	})
	l.engine.mu.Lock()
	waiting := l.engine.starts.n
	l.engine.mu.Unlock()
	if waiting != 2 {
		t.Errorf("%d leases wait for a worker; want 2, an eighth of the workers", waiting)
	}
	close(release)
	b.svc.await(t, "all results", func() bool { return b.svc.codes["report ACCEPTED"] == 60 })
}

func TestRetryCodeIsSentAgainUntilItIsSettled(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	var tries atomic.Int32
	b.svc.code = func(op string, _ *perceptorv1.Attempt) perceptorv1.RunCode {
		if tries.Add(1)%4 != 0 {
			return perceptorv1.RunCode_RUN_CODE_RETRY
		}
		return 0
	}
	var calls atomic.Int32
	b.listen(ListenerConfig{}, map[string]Handler{"count": func(context.Context, *Run) error { calls.Add(1); return nil }})
	b.publish(newRunOf(1, task.Blocking, "count", nil))
	b.svc.await(t, "the result", b.svc.count("report ACCEPTED"))
	b.awaitCommitted()
	if calls.Load() != 1 || b.svc.codes["start RETRY"] != 3 || b.svc.codes["report RETRY"] != 3 {
		t.Errorf("%d executions, answers %v", calls.Load(), b.svc.codes)
	}
}

func TestHeldRunIsLeftToItsHolder(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	b.listen(ListenerConfig{}, map[string]Handler{"x": func(_ context.Context, r *Run) error {
		if r.TaskID == int64(task.NewID(1, 1)) {
			t.Error("the handler runs although another one holds the lease")
		}
		return nil
	}})
	p := newRunOf(1, task.Blocking, "x", nil)
	b.svc.with(func() {
		b.svc.runs[p.RunID()] = newRefRun(task.Blocking, 5)
		b.svc.runs[p.RunID()].start(1, 4711)
	})
	b.publish(p)
	b.svc.await(t, "the start", b.svc.count("start HELD"))
	b.awaitCommitted()
	b.publish(newRunOf(2, task.OneShot, "x", nil))
	b.svc.await(t, "another run", b.svc.count("report ACCEPTED"))
}

func TestListenerSurvivesATopicThatIsMadeAgain(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	var c counter
	b.listen(ListenerConfig{}, map[string]Handler{"count": c.handle})
	b.publish(manyRuns(20, "count")...)
	b.awaitCommitted()
	if err := b.kafka.DeleteTopic(testTopic); err != nil {
		t.Fatal(err)
	}
	if err := b.kafka.CreateTopic(testTopic, 1, nil); err != nil {
		t.Fatal(err)
	}
	time.Sleep(1100 * time.Millisecond) // until the writer has forgotten the old topic
	b.publish(newRunOf(1000, task.OneShot, "count", nil))
	b.svc.await(t, "the run on the new topic", func() bool { return b.svc.codes["report ACCEPTED"] == 21 })
}

func TestListenerWaitsForAServiceThatIsAway(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	var c counter
	var open atomic.Bool
	b.svc.before = func(context.Context, string) error {
		if !open.Load() {
			return status.Error(codes.Unavailable, "down")
		}
		return nil
	}
	b.listen(ListenerConfig{}, map[string]Handler{"count": c.handle})
	b.svc.await(t, "two tries", func() bool { return b.svc.calls["delivery"] >= 2 })
	open.Store(true)
	b.publish(manyRuns(3, "count")...)
	b.svc.await(t, "the results", func() bool { return b.svc.codes["report ACCEPTED"] == 3 })
}

func TestListenerWithABadTokenSaysSoAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	l, err := b.newClient(Config{Token: "wrong"}).NewListener(ListenerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	l.Handle("never", func(context.Context, *Run) error { return nil })
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := l.Run(ctx); !errors.Is(err, ErrUnauthenticated) {
		t.Errorf("Run returned %v", err)
	}
	if err := l.Run(ctx); err == nil {
		t.Error("Run may be called twice")
	}
}

func TestListenerConfigurationFaultsAreAllNamed(t *testing.T) {
	c := offline(t)
	_, err := c.NewListener(ListenerConfig{Workers: -1, RememberedRuns: -2, StopGrace: -3})
	for _, want := range []string{"Workers -1", "RememberedRuns -2", "StopGrace -3ns"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not name %s", err, want)
		}
	}
	if _, err := c.NewListener(ListenerConfig{Workers: 10, MaxPending: 5}); err == nil {
		t.Error("MaxPending below Workers is accepted")
	}
	if _, err := c.NewListener(ListenerConfig{Workers: math.MaxInt}); err == nil || !strings.Contains(err.Error(), "is above 1000000") {
		t.Errorf("more Workers than there can be: error %v", err)
	}
	l, err := c.NewListener(ListenerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	l.Handle("a", func(context.Context, *Run) error { return nil })
	for name, f := range map[string]func(){
		"empty kind": func() { l.Handle("", func(context.Context, *Run) error { return nil }) },
		"nil":        func() { l.Handle("b", nil) },
		"twice":      func() { l.Handle("a", func(context.Context, *Run) error { return nil }) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: Handle does not panic", name)
				}
			}()
			f()
		}()
	}
}

// offline returns a client whose service does not answer.
func offline(t *testing.T) *Client {
	t.Helper()
	c, err := New(Config{Address: "127.0.0.1:1", Token: "x"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// TestAResultThatIsTooLargeForTheServiceFailsAndHoldsUpNoOther: the handler sets a param that no request may have.
func TestAResultThatIsTooLargeForTheServiceFailsAndHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	b.listen(ListenerConfig{}, map[string]Handler{
		"large": func(_ context.Context, r *Run) error { r.SetParam("state", strings.Repeat("x", 5<<20)); return nil },
		"small": func(context.Context, *Run) error { return nil },
	})
	large := newRunOf(1, task.NonBlocking, "large", nil)
	b.publish(large, newRunOf(2, task.NonBlocking, "small", nil))
	b.svc.await(t, "both results", func() bool { return b.svc.codes["report ACCEPTED"] == 2 })
	b.awaitCommitted()
	for _, r := range b.svc.results {
		failed := r.GetOutcome() == perceptorv1.RunResult_FAIL && strings.Contains(r.GetError(), "larger than max")
		if failed != (r.GetAttempt().GetTaskId() == int64(large.Task)) {
			t.Errorf("reported %v", r)
		}
	}
}
