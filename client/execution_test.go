package client

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

func TestWhatEndsAHandlerBecomesItsResult(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	long := strings.Repeat("é", 2000)
	b.listen(ListenerConfig{}, map[string]Handler{
		"error":  func(context.Context, *Run) error { return errors.New("no such content") },
		"long":   func(context.Context, *Run) error { return errors.New(long) },
		"panic":  func(context.Context, *Run) error { panic("out of cheese") },
		"goexit": func(context.Context, *Run) error { runtime.Goexit(); return nil },
		"next":   func(_ context.Context, r *Run) error { r.SetNext(time.Now()); return errors.New("no") },
		"nil":    func(context.Context, *Run) error { var none *ParamError; return none },
		"empty":  func(context.Context, *Run) error { return &RetryError{} },
		"stop":   func(context.Context, *Run) error { var none *StopError; return none },
	})
	want := map[string]string{"error": "no such content", "long": "éé", "panic": "execution_test.go", "goexit": "Goexit", "next": "no",
		"nil": "nil pointer", "empty": "nil pointer", "stop": "nil pointer"}
	kinds := map[int64]string{}
	n := int64(1)
	for kind := range want {
		p := newRunOf(n, task.OneShot, kind, nil)
		kinds[int64(p.Task)] = kind
		b.publish(p)
		n++
	}
	b.svc.await(t, "all results", func() bool { return b.svc.codes["report ACCEPTED"] == len(want) })
	for _, r := range b.svc.results {
		kind := kinds[r.GetAttempt().GetTaskId()]
		if r.GetOutcome() != perceptorv1.RunResult_FAIL || !strings.Contains(r.GetError(), want[kind]) {
			t.Errorf("%s: %s %q; want FAIL with %q", kind, r.GetOutcome(), r.GetError(), want[kind])
		}
		if len(r.GetError()) > task.MaxErrorBytes {
			t.Errorf("%s: an error text of %d bytes", kind, len(r.GetError()))
		}
		if kind == "panic" && !strings.HasPrefix(r.GetError(), "panic: out of cheese") {
			t.Errorf("the panic is reported as %q", r.GetError())
		}
		if r.GetNextExecuteTime() != nil {
			t.Errorf("%s: a failure carries a next time", kind)
		}
	}
}

func TestOverrunLeaseDoesNotLoseTheRun(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	first := make(chan struct{})
	b.listen(ListenerConfig{}, map[string]Handler{"late": func(_ context.Context, r *Run) error {
		if r.Attempt == 1 {
			<-first
		}
		return nil
	}})
	p := newRunOf(1, task.Blocking, "late", nil)
	b.publish(p)
	b.svc.await(t, "the start", b.svc.count("start ACCEPTED"))
	b.redeliver(p) // the service considers its lease over
	b.awaitCommitted()
	close(first)
	b.svc.await(t, "the retry's result", b.svc.count("report ACCEPTED"))
	if b.svc.codes["report SUPERSEDED"] != 1 {
		t.Errorf("answers %v", b.svc.codes)
	}
}

func TestHandlerThatIgnoresItsContextIsReportedAsFailedWhileItsLeaseRuns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		b.svc.lease = 3 * time.Second
		release := make(chan struct{})
		cause := make(chan error, 1)
		stuck := make(chan Delivery, 1)
		b.listen(ListenerConfig{NoHeartbeats: true, Events: Events{HandlerStuck: func(d Delivery) { stuck <- d }}},
			map[string]Handler{"deaf": func(ctx context.Context, _ *Run) error {
				<-ctx.Done()
				cause <- context.Cause(ctx)
				<-release
				return nil
			}})
		began := time.Now()
		b.arrive(newRunOf(1, task.Blocking, "deaf", nil))
		if err := <-cause; !errors.Is(err, ErrLeaseOver) {
			t.Errorf("the context ended because of %v", err)
		}
		<-stuck
		b.svc.await(t, "FAIL", b.svc.count("report ACCEPTED"))
		if took := time.Since(began); took >= b.svc.lease {
			t.Errorf("it was reported %s after it had begun, and its lease was %s", took, b.svc.lease)
		}
		if r := b.svc.results[0]; r.GetOutcome() != perceptorv1.RunResult_FAIL || !strings.Contains(r.GetError(), "ignored the end of its context") {
			t.Errorf("reported %v", r)
		}
		close(release)
		b.stop()
	})
}

func TestLeaseIsCountedFromBeforeTheCall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		b.svc.lease = 3 * time.Second
		var judged time.Time // when the service grants the lease; its answer takes long
		b.svc.before = func(_ context.Context, op string) error {
			if op == "start" {
				judged = time.Now()
				time.Sleep(b.svc.lease / 2)
			}
			return nil
		}
		ended := make(chan time.Time, 1)
		b.listen(ListenerConfig{NoHeartbeats: true}, map[string]Handler{"long": func(ctx context.Context, _ *Run) error {
			<-ctx.Done()
			ended <- time.Now()
			return nil
		}})
		b.arrive(newRunOf(1, task.Blocking, "long", nil))
		if after := (<-ended).Sub(judged); after >= b.svc.lease {
			t.Errorf("the context ended %s after a lease of %s was given", after, b.svc.lease)
		}
		b.stop()
	})
}

func TestLongHandlersKeepTheirLeaseByHeartbeats(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		b.svc.lease = 1500 * time.Millisecond
		release := make(chan struct{})
		ended := make(chan error, 1)
		b.listen(ListenerConfig{}, map[string]Handler{"long": func(ctx context.Context, _ *Run) error {
			select {
			case <-release:
			case <-ctx.Done():
			}
			ended <- context.Cause(ctx)
			return nil
		}})
		b.arrive(newRunOf(1, task.Blocking, "long", nil))
		b.svc.await(t, "heartbeats for longer than a lease", func() bool { return b.svc.codes["beat ACCEPTED"] >= 5 })
		close(release)
		if err := <-ended; err != nil {
			t.Errorf("the context ended: %v", err)
		}
		b.svc.await(t, "the result", b.svc.count("report ACCEPTED"))
		b.stop()
	})
}

func TestLongNonBlockingRunDoesNotPinItsPartition(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	release := make(chan struct{})
	b.listen(ListenerConfig{}, map[string]Handler{"long": func(context.Context, *Run) error {
		<-release
		return nil
	}})
	defer close(release)
	p := newRunOf(1, task.NonBlocking, "long", nil)
	p.AckTimeout = 400 * time.Millisecond
	b.publish(p)
	b.awaitCommitted() // a heartbeat has created a row for it
	if b.svc.codes["beat ACCEPTED"] == 0 {
		t.Errorf("answers %v", b.svc.codes)
	}
}

func TestRefusedHeartbeatEndsTheContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		b.svc.lease = 3 * time.Second
		b.svc.code = func(op string, _ *perceptorv1.Attempt) perceptorv1.RunCode {
			if op == "beat" {
				return perceptorv1.RunCode_RUN_CODE_SUPERSEDED
			}
			return 0
		}
		cause, logs := make(chan error, 1), &lockedBuffer{}
		b.listen(ListenerConfig{Logger: slog.New(slog.NewTextHandler(logs, nil))}, map[string]Handler{"long": func(ctx context.Context, r *Run) error {
			<-ctx.Done()
			cause <- context.Cause(ctx)
			if err := r.Heartbeat(context.Background()); !errors.Is(err, ErrLeaseLost) {
				t.Errorf("Heartbeat returned %v", err)
			}
			return context.Cause(ctx)
		}})
		b.arrive(newRunOf(1, task.Blocking, "long", nil))
		if err := <-cause; !errors.Is(err, ErrLeaseLost) {
			t.Errorf("the context ended because of %v", err)
		}
		synctest.Wait()
		b.stop()
		if told := logs.String(); strings.Contains(told, "handler failed") { // its task may just have been cancelled
			t.Errorf("a run that is no longer waited for is logged as a failure: %s", told)
		}
	})
}

func TestHeartbeatByHandKeepsTheLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		b.svc.lease = 2 * time.Second
		done := make(chan error, 1)
		b.listen(ListenerConfig{NoHeartbeats: true}, map[string]Handler{"long": func(ctx context.Context, r *Run) error {
			for end := time.Now().Add(3 * time.Second); time.Now().Before(end); {
				if err := r.Heartbeat(ctx); err != nil {
					done <- err
					return err
				}
				time.Sleep(10 * time.Millisecond)
			}
			done <- ctx.Err()
			return nil
		}})
		b.arrive(newRunOf(1, task.Blocking, "long", nil))
		if err := <-done; err != nil {
			t.Error(err)
		}
		b.svc.await(t, "the result", b.svc.count("report ACCEPTED"))
		b.stop()
	})
}
