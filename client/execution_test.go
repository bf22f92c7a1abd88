package client

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
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
	b := setup(t, 1)
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
	defer close(release)
	b.publish(newRunOf(1, task.Blocking, "deaf", nil))
	if err := within(t, "the end of the context", cause); !errors.Is(err, ErrLeaseOver) {
		t.Errorf("the context ended because of %v", err)
	}
	within(t, "the event", stuck)
	b.svc.await(t, "FAIL", b.svc.count("report ACCEPTED"))
	if r := b.svc.results[0]; r.GetOutcome() != perceptorv1.RunResult_FAIL || !strings.Contains(r.GetError(), "ignored the end of its context") {
		t.Errorf("reported %v", r)
	}
}

func TestLeaseIsCountedFromBeforeTheCall(t *testing.T) {
	b := setup(t, 1)
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
	b.publish(newRunOf(1, task.Blocking, "long", nil))
	if after := within(t, "the end of the context", ended).Sub(judged); after > b.svc.lease+time.Second/2 {
		t.Errorf("the context ended %s after a lease of %s was given", after, b.svc.lease)
	}
}

func TestLongHandlersKeepTheirLeaseByHeartbeats(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
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
	b.publish(newRunOf(1, task.Blocking, "long", nil))
	b.svc.await(t, "heartbeats for longer than a lease", func() bool { return b.svc.codes["beat ACCEPTED"] >= 5 })
	close(release)
	if err := within(t, "the handler", ended); err != nil {
		t.Errorf("the context ended: %v", err)
	}
	b.svc.await(t, "the result", b.svc.count("report ACCEPTED"))
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
	b := setup(t, 1)
	b.svc.lease = 3 * time.Second
	b.svc.code = func(op string, _ *perceptorv1.Attempt) perceptorv1.RunCode {
		if op == "beat" {
			return perceptorv1.RunCode_RUN_CODE_SUPERSEDED
		}
		return 0
	}
	cause := make(chan error, 1)
	b.listen(ListenerConfig{}, map[string]Handler{"long": func(ctx context.Context, r *Run) error {
		<-ctx.Done()
		cause <- context.Cause(ctx)
		if err := r.Heartbeat(context.Background()); !errors.Is(err, ErrLeaseLost) {
			t.Errorf("Heartbeat returned %v", err)
		}
		return context.Cause(ctx)
	}})
	b.publish(newRunOf(1, task.Blocking, "long", nil))
	if err := within(t, "the end of the context", cause); !errors.Is(err, ErrLeaseLost) {
		t.Errorf("the context ended because of %v", err)
	}
}

func TestHeartbeatByHandKeepsTheLease(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
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
	b.publish(newRunOf(1, task.Blocking, "long", nil))
	if err := within(t, "the handler", done); err != nil {
		t.Error(err)
	}
}
