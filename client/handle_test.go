package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// unconnected returns a listener that needs no service until it runs.
func unconnected(t *testing.T) *Listener {
	t.Helper()
	c, err := New(Config{Token: testToken})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	l, err := c.NewListener(ListenerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestMiddlewareIsCalledFromTheOutsideIn(t *testing.T) {
	var log []string
	note := func(name string) Middleware {
		return func(next Handler) Handler {
			return func(ctx context.Context, run *Run) error {
				log = append(log, name)
				defer func() { log = append(log, "/"+name) }()
				return next(ctx, run)
			}
		}
	}
	l := unconnected(t)
	l.Use(note("a"), note("b"))
	handler := func(context.Context, *Run) error { log = append(log, "handler"); return nil }
	l.Handle("k", handler, With(note("d"), note("e")), With(note("f")))
	l.Handle("other", handler)
	l.Use(note("c"))
	for kind, want := range map[string]string{
		"k":     "a b c d e f handler /f /e /d /c /b /a",
		"other": "a b c handler /c /b /a",
	} {
		log = nil
		if o, err := l.Execute(t.Context(), &Run{Kind: kind}); err != nil || o.Status != Success {
			t.Fatal(o, err)
		}
		if got := strings.Join(log, " "); got != want {
			t.Errorf("%s: %s, want %s", kind, got, want)
		}
	}
	if _, err := l.Execute(t.Context(), &Run{Kind: "none"}); err == nil || !strings.Contains(err.Error(), `no handler for the kind "none"`) {
		t.Errorf("a kind without handler: %v", err)
	}
}

func TestMiddlewareMayAnswerInThePlaceOfTheHandler(t *testing.T) {
	l := unconnected(t)
	l.Use(func(Handler) Handler { return func(context.Context, *Run) error { return Snooze(time.Minute) } })
	l.Handle("k", func(context.Context, *Run) error { t.Error("called"); return nil })
	if o, err := l.Execute(t.Context(), &Run{Kind: "k"}); err != nil || o.Status != Snoozed {
		t.Error(o, err)
	}
}

func TestATimeLimitIsTheCauseOfWhatItCutShort(t *testing.T) {
	wait := func(ctx context.Context, _ *Run) error { <-ctx.Done(); return fmt.Errorf("waiting: %w", ctx.Err()) }
	for name, opts := range map[string][]HandleOption{
		"of the kind":   {MaxDuration(time.Hour)},
		"in middleware": {With(Timeout(time.Hour))},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &Listener{c: &Client{}, kinds: map[string]*kind{}}
				l.Handle("k", wait, opts...)
				began := time.Now()
				o, err := l.Execute(t.Context(), &Run{Kind: "k"})
				if err != nil || !errors.Is(o.Err, ErrTimeout) || !strings.Contains(o.Err.Error(), "exceeded its time limit: waiting: context") {
					t.Errorf("%+v, %v", o, err)
				}
				if took := time.Since(began); took != time.Hour {
					t.Errorf("after %s", took)
				}
			})
		})
	}
}

func TestFailIsReportedForAHandlerThatIgnoresItsTimeLimit(t *testing.T) {
	b := setup(t, 1)
	release := make(chan struct{})
	l := b.listener(ListenerConfig{Workers: 2})
	l.Handle("deaf", func(context.Context, *Run) error { <-release; return nil }, MaxDuration(10*time.Millisecond))
	b.start(l)
	t.Cleanup(func() { close(release) })
	b.publish(newRunOf(1, task.OneShot, "deaf", nil))
	b.svc.await(t, "the result", b.svc.count("report ACCEPTED"))
	if r := b.svc.results[0]; r.GetOutcome() != perceptorv1.RunResult_FAIL || !strings.Contains(r.GetError(), "ignored the end of its context: "+ErrTimeout.Error()) {
		t.Errorf("reported %v", r)
	}
}

func TestEveryKindOfResultReachesTheService(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	sad := errors.New("sad")
	var handlers = map[string]Handler{
		"retry":     func(context.Context, *Run) error { return Retry(sad, 90*time.Second) },
		"snooze":    func(context.Context, *Run) error { return Snooze(time.Hour) },
		"permanent": func(context.Context, *Run) error { return Permanent(sad) },
		"stop":      func(context.Context, *Run) error { return Stop(nil) },
		"fail":      func(context.Context, *Run) error { return sad },
		"typed":     Typed(func(context.Context, *Run, struct{ N int }) error { return nil }),
	}
	b.listen(ListenerConfig{}, handlers)
	kinds := map[int64]string{}
	for _, typ := range task.Types {
		for kind := range handlers {
			p := newRunOf(int64(len(kinds)+1), typ, kind, map[string]string{"n": "x"})
			kinds[int64(p.Task)] = kind
			b.publish(p)
		}
	}
	b.svc.await(t, "all results", func() bool { return b.svc.codes["report ACCEPTED"] == len(kinds) })
	want := map[string]string{
		"retry": "FAIL sad after 1m30s", "snooze": "SNOOZE after 1h0m0s", "permanent": "FAIL sad permanent", "stop": "SUCCESS stop", "fail": "FAIL sad",
		"typed": `FAIL perceptor: params["n"] is "x": want a whole number of the type int: invalid syntax permanent`,
	}
	for _, r := range b.svc.results {
		words := []string{r.GetOutcome().String()}
		if r.GetError() != "" {
			words = append(words, r.GetError())
		}
		if r.RedeliverAfter != nil {
			words = append(words, "after "+r.GetRedeliverAfter().AsDuration().String())
		}
		if r.GetPermanent() {
			words = append(words, "permanent")
		}
		if r.GetStop() {
			words = append(words, "stop")
		}
		if kind := kinds[r.GetAttempt().GetTaskId()]; strings.Join(words, " ") != want[kind] {
			t.Errorf("%s: %s, want %s", kind, strings.Join(words, " "), want[kind])
		}
	}
}

func TestASnoozedRunIsHandledAgainWhenItComesAgain(t *testing.T) {
	t.Parallel()
	for _, typ := range task.Types {
		t.Run(typ.String(), func(t *testing.T) {
			b := setup(t, 1)
			attempts := make(chan int, 10)
			b.listen(ListenerConfig{}, map[string]Handler{"k": func(_ context.Context, r *Run) error {
				attempts <- r.Attempt
				if r.Attempt < 3 {
					return Snooze(time.Second)
				}
				return nil
			}})
			p := newRunOf(1, typ, "k", nil)
			b.publish(p)
			for n := 1; n <= 3; n++ {
				if got := within(t, "the handler", attempts); got != n {
					t.Fatalf("attempt %d, want %d", got, n)
				}
				b.svc.await(t, "the result", func() bool { return b.svc.codes["report ACCEPTED"] == n })
				if n < 3 {
					b.redeliver(p)
				}
			}
			b.awaitCommitted()
		})
	}
}

func TestHeartbeatsAreTheChoiceOfAKind(t *testing.T) {
	t.Parallel()
	for _, on := range []bool{true, false} {
		t.Run(fmt.Sprint(on), func(t *testing.T) {
			b := setup(t, 1)
			b.svc.lease = 1500 * time.Millisecond // a heartbeat comes each third of it
			release, began := make(chan struct{}), make(chan struct{}, 2)
			l := b.listener(ListenerConfig{NoHeartbeats: on})
			wait := func(context.Context, *Run) error { began <- struct{}{}; <-release; return nil }
			l.Handle("chosen", wait, Heartbeats(on))
			l.Handle("other", wait)
			b.start(l)
			t.Cleanup(func() { close(release) })
			chosen, other := newRunOf(1, task.NonBlocking, "chosen", nil), newRunOf(2, task.NonBlocking, "other", nil)
			chosen.AckTimeout, other.AckTimeout = 50*time.Millisecond, 50*time.Millisecond
			beating := chosen
			if !on {
				beating = other
			}
			b.publish(chosen, other)
			within(t, "a handler", began)
			within(t, "a handler", began)
			b.svc.await(t, "heartbeats", func() bool { return b.svc.runs[beating.RunID()].row && b.svc.codes["beat ACCEPTED"] > 2 })
			b.svc.with(func() {
				for id, r := range b.svc.runs {
					if id != beating.RunID() && r.row {
						t.Errorf("a heartbeat of %s", id)
					}
				}
			})
		})
	}
}

func TestLogRunsTellsHowHandlersEnd(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == "took_ms" {
			return slog.Attr{}
		}
		return a
	}}))
	run := &Run{TaskID: 5123, Seq: 2, Attempt: 3, Kind: "k"}
	for _, f := range []Handler{
		func(context.Context, *Run) error { return nil },
		func(context.Context, *Run) error { return Snooze(time.Second) },
		func(context.Context, *Run) error { return errors.New("sad") },
		func(context.Context, *Run) error { return Permanent(errors.New("sad")) },
		func(context.Context, *Run) error { panic("no") },
	} {
		Execute(t.Context(), LogRuns(log)(f), run)
	}
	rest := ` kind=k task_id=5123 run_id=5123-2 attempt=3 outcome=`
	want := []string{
		`level=DEBUG msg="run ended"` + rest + `SUCCESS`,
		`level=DEBUG msg="run ended"` + rest + `SNOOZE`,
		`level=WARN msg="attempt failed"` + rest + `FAIL err=sad`,
		`level=ERROR msg="run failed permanently"` + rest + `FAIL err=sad`,
		`level=WARN msg="attempt failed"` + rest + `FAIL err="the handler panicked"`,
	}
	if diff := cmp.Diff(want, strings.Split(strings.TrimSpace(out.String()), "\n")); diff != "" {
		t.Error(diff)
	}
}

func TestMistakesOfRegistrationPanic(t *testing.T) {
	for name, f := range map[string]func(){
		"no slots":      func() { MaxConcurrent(0) },
		"no time":       func() { MaxDuration(0) },
		"use after Run": func() { l := unconnected(t); l.ran.Store(true); l.Use(LogRuns(nil)) },
		"handle after Run": func() {
			l := unconnected(t)
			l.ran.Store(true)
			l.Handle("k", func(context.Context, *Run) error { return nil })
		},
		"the second typed": func() {
			l := unconnected(t)
			h := func(context.Context, *Run, struct{}) error { return nil }
			Handle(l, "k", h)
			Handle(l, "k", h)
		},
		"an impossible one": func() { unconnected(t).Handle("", func(context.Context, *Run) error { return nil }) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			f()
		}()
	}
}

func TestAListenerWithoutHandlersDoesNotStart(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := unconnected(t).Run(ctx); err == nil || !strings.Contains(err.Error(), "no handler") {
		t.Errorf("it ran: %v", err)
	}
}
