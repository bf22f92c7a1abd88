package client

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

func TestStopFinishesWhatRunsAndCommitsIt(t *testing.T) {
	t.Parallel()
	b := setup(t, 2)
	release := make(chan struct{})
	begun := make(chan struct{}, 10)
	l := b.listen(ListenerConfig{Workers: 2}, map[string]Handler{"slow": func(ctx context.Context, _ *Run) error {
		begun <- struct{}{}
		<-release
		return ctx.Err()
	}})
	b.publish(newRunOf(1, task.OneShot, "slow", nil), newRunOf(2, task.Blocking, "slow", nil))
	within(t, "a handler", begun)
	within(t, "a handler", begun)
	l.cancel()
	b.eventually("the listener stops", func() bool { l.engine.mu.Lock(); defer l.engine.mu.Unlock(); return l.engine.stopping })
	close(release)
	l.stop(t)
	if b.svc.codes["report ACCEPTED"] != 2 || b.svc.results[0].GetOutcome() != perceptorv1.RunResult_SUCCESS {
		t.Errorf("answers %v", b.svc.codes)
	}
	if lag := b.lag(); lag != 0 {
		t.Errorf("%d records are not committed", lag)
	}
	if info := b.kafka.GroupInfo(testTopic); info != nil && len(info.Members) != 0 {
		t.Errorf("the listener did not leave the group: %v", info.Members)
	}
}

func TestStopEndsHandlersAfterItsGrace(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	cause := make(chan error, 1)
	begun := make(chan struct{})
	l := b.listen(ListenerConfig{StopGrace: 50 * time.Millisecond}, map[string]Handler{"slow": func(ctx context.Context, _ *Run) error {
		close(begun)
		<-ctx.Done()
		cause <- context.Cause(ctx)
		return ctx.Err()
	}})
	b.publish(newRunOf(1, task.OneShot, "slow", nil))
	within(t, "the handler", begun)
	l.stop(t)
	if err := within(t, "the end of the context", cause); !errors.Is(err, ErrStopping) {
		t.Errorf("the context ended because of %v", err)
	}
	if b.svc.codes["report ACCEPTED"] != 1 || b.lag() != 0 {
		t.Errorf("answers %v, lag %d", b.svc.codes, b.lag())
	}
}

func TestAHandlerThatAStopInterruptsMaySnoozeItsRun(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	begun := make(chan struct{})
	l := b.listen(ListenerConfig{StopGrace: 50 * time.Millisecond}, map[string]Handler{"slow": func(ctx context.Context, _ *Run) error {
		close(begun)
		<-ctx.Done()
		if errors.Is(context.Cause(ctx), ErrStopping) {
			return Snooze(time.Second)
		}
		return ctx.Err()
	}})
	b.publish(newRunOf(1, task.OneShot, "slow", nil))
	within(t, "the handler", begun)
	l.stop(t)
	if len(b.svc.results) != 1 || b.svc.results[0].GetOutcome() != perceptorv1.RunResult_SNOOZE || b.lag() != 0 {
		t.Errorf("results %v, lag %d", b.svc.results, b.lag())
	}
}

func TestKilledListenersRunsAreTakenOver(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	child := exec.Command(os.Args[0], "-test.run=^$")
	child.Env = append(os.Environ(), "TEST_LISTENER_CHILD="+b.address)
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	lines := make(chan string, 10)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
	}()
	p := newRunOf(1, task.NonBlocking, "hang", nil)
	b.publish(p)
	if got := within(t, "the child's handler", lines); got != "handling "+p.RunID().String() {
		t.Errorf("child printed %q", got)
	}
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait() // the error says that it was killed
	handled := make(chan string, 1)
	b.listen(ListenerConfig{}, map[string]Handler{"hang": func(_ context.Context, r *Run) error {
		handled <- r.RunID()
		return nil
	}})
	if got := within(t, "the run elsewhere", handled); got != p.RunID().String() {
		t.Errorf("run %s", got)
	}
	b.awaitCommitted()
}

// childListener is the process that TestKilledListenersRunsAreTakenOver kills.
func childListener(address string) {
	c, err := New(Config{Address: address, Token: testToken})
	if err != nil {
		panic(err)
	}
	times := fast
	times.session = 3 * time.Second // its partition is given to others after that
	l, err := c.NewListener(ListenerConfig{kafka: times})
	if err != nil {
		panic(err)
	}
	l.Handle("hang", func(_ context.Context, r *Run) error {
		fmt.Println("handling", r.RunID())
		select {}
	})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := l.Run(ctx); err != nil {
		panic(err)
	}
}
