package dev

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/client/clienttest"
)

// calls records the calls of handlers, by task.
type calls struct {
	mu      sync.Mutex
	changed *sync.Cond
	of      map[int64][]seenCall
}

type seenCall struct {
	at          time.Time
	attempt     int
	traceParent string
}

func newCalls() *calls {
	c := &calls{of: map[int64][]seenCall{}}
	c.changed = sync.NewCond(&c.mu)
	return c
}

// note records a call, and returns the number of calls for its task.
func (c *calls) note(r *client.Run) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.of[r.TaskID] = append(c.of[r.TaskID], seenCall{time.Now(), r.Attempt, r.TraceParent})
	return len(c.of[r.TaskID])
}

func (c *calls) list(id int64) []seenCall {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.of[id]
}

// ended waits until a task has ended, and returns it.
func ended(t *testing.T, c *client.Client, id int64) *client.TaskInfo {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		info, err := c.GetTask(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if info.State.Final() {
			return info
		}
		if time.Now().After(deadline) {
			t.Fatalf("the task has not ended: %+v", info)
		}
	}
}

const pause = 300 * time.Millisecond

func TestWhatHandlersSayIsWhatHappens(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a whole installation; make test runs it")
	}
	t.Parallel()
	o := ephemeral(t, &output{})
	receiver := newOTLPReceiver(t)
	o.Traces = receiver.url
	at, _ := running(t, o)
	c, spans := dial(t, at), clientTraces(t, receiver)
	traced, err := client.New(client.Config{Address: at.GRPC, Token: at.Token, TracerProvider: spans})
	if err != nil {
		t.Fatal(err)
	}
	defer traced.Close() //nolint:errcheck // all calls have ended
	l, err := traced.NewListener(client.ListenerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	seen := newCalls()
	sad := errors.New("sad")
	l.Handle("snooze", func(_ context.Context, r *client.Run) error {
		if seen.note(r) < 4 {
			return client.Snooze(pause)
		}
		return client.Stop(nil)
	})
	l.Handle("retry", func(_ context.Context, r *client.Run) error {
		if seen.note(r) < 3 {
			return client.Retry(sad, pause)
		}
		return client.Stop(nil)
	})
	l.Handle("permanent", func(_ context.Context, r *client.Run) error { seen.note(r); return client.Permanent(sad) })
	client.Handle(l, "typed", func(_ context.Context, r *client.Run, _ struct{ Count int }) error { seen.note(r); return nil })
	l.Handle("forever", func(_ context.Context, r *client.Run) error { seen.note(r); return client.Snooze(24 * time.Hour) })
	l.Handle("traced", func(_ context.Context, r *client.Run) error {
		if seen.note(r) == 1 && r.Attempt == 1 && r.TraceParent != "" && len(r.Params) == 0 {
			return sad
		}
		return nil
	})
	l.Handle("untraced", func(context.Context, *client.Run) error { return nil })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()

	parent := trace.ContextWithSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1, 15: 2}, SpanID: trace.SpanID{3, 7: 4}, TraceFlags: trace.FlagsSampled,
	}))
	const traceParent = "00-01000000000000000000000000000002-0300000000000004-01"
	dead := func(t *testing.T, id int64, reason client.DeadReason, text string) {
		t.Helper()
		for d, err := range c.ListDeadRuns(t.Context(), client.DeadFilter{TaskID: id}) {
			if err != nil || d.Reason != reason || d.Error != text || d.RunID != client.RunID(id, 1) {
				t.Errorf("dead run = %+v, %v, want %s: %s", d, err, reason, text)
			}
			return
		}
		t.Error("no dead run was found")
	}
	distances := func(t *testing.T, id int64, n int) {
		t.Helper()
		list := seen.list(id)
		if len(list) != n {
			t.Fatalf("calls of the handler = %d, want %d", len(list), n)
		}
		for i, c := range list {
			if c.attempt != i+1 || c.traceParent != traceParent {
				t.Errorf("call %d: %+v", i+1, c)
			}
			if i > 0 && c.at.Sub(list[i-1].at) < pause {
				t.Errorf("call %d came after %s", i+1, c.at.Sub(list[i-1].at))
			}
		}
	}
	for _, typ := range []client.Type{client.OneShot, client.NonBlocking, client.Blocking} {
		add := func(kind string, change func(*client.Task)) int64 {
			task := client.Task{Kind: kind, Type: typ, MaxCount: 1, Retry: client.RetryPolicy{MaxAttempts: 3, InitialBackoff: time.Hour}}
			if typ != client.OneShot {
				task.Interval = time.Hour
			}
			change(&task)
			id, err := c.AddTask(parent, task)
			if err != nil {
				t.Fatal(err)
			}
			return id
		}
		same := func(*client.Task) {}
		snooze, retry, permanent := add("snooze", same), add("retry", same), add("permanent", same)
		typed := add("typed", func(t *client.Task) { t.Params = map[string]string{"count": "many"} })
		forever := add("forever", func(t *client.Task) { t.AckTimeout, t.GiveUpAfter = 4*time.Second, 4*time.Second })
		t.Run(typ.String()+" snooze", func(t *testing.T) {
			if info := ended(t, c, snooze); info.State != client.Completed || info.RunCount != 1 {
				t.Errorf("%+v", info)
			}
			distances(t, snooze, 4) // more than there are attempts
		})
		t.Run(typ.String()+" retry", func(t *testing.T) {
			if info := ended(t, c, retry); info.State != client.Completed {
				t.Errorf("%+v", info)
			}
			distances(t, retry, 3)
		})
		final := client.Completed // a recurring task continues, and has no run left
		if typ == client.OneShot {
			final = client.Failed
		}
		for name, c2 := range map[string]struct {
			id     int64
			calls  int
			reason client.DeadReason
			text   string
		}{
			"permanent": {permanent, 1, client.PermanentFailure, "sad"},
			"typed":     {typed, 0, client.PermanentFailure, `perceptor: params["count"] is "many": want a whole number of the type int: invalid syntax`},
			"forever":   {forever, 2, client.Silent, "snoozed until give_up_after 4s was over"},
		} {
			t.Run(typ.String()+" "+name, func(t *testing.T) {
				if info := ended(t, c, c2.id); info.State != final {
					t.Errorf("%+v", info)
				}
				if n := len(seen.list(c2.id)); n != c2.calls {
					t.Errorf("%d calls, want %d", n, c2.calls)
				}
				dead(t, c2.id, c2.reason, c2.text)
			})
		}
	}
	t.Run("traces tell one story", func(t *testing.T) { tracesTellOneStory(t, at, receiver, traced, spans) })
	t.Run("a client in memory refuses with the same words", func(t *testing.T) {
		sameRefusals(t, c, clienttest.New(t, clienttest.WithMinInterval(100*time.Millisecond)))
	})
}

// sameRefusals compares the errors of a client in memory with those of the service.
func sameRefusals(t *testing.T, real, fake client.Tasks) {
	for _, bad := range []client.Task{
		{},
		{Kind: "k", Type: client.Blocking, Interval: time.Millisecond, MaxCount: -1},
		{Kind: "k", Type: client.OneShot, Params: map[string]string{"": "x"}, AckTimeout: time.Millisecond},
		{Kind: "k", Type: client.OneShot, Begin: time.Unix(2e9, 0), End: time.Unix(1e9, 0)},
	} {
		_, want := real.AddTask(t.Context(), bad)
		_, got := fake.AddTask(t.Context(), bad)
		if want == nil || fmt.Sprint(want) != fmt.Sprint(got) {
			t.Errorf("the service says %v, the one in memory %v", want, got)
		}
	}
	_, want := real.GetTask(t.Context(), 512)
	_, got := fake.GetTask(t.Context(), 512)
	if want == nil || fmt.Sprint(want) != fmt.Sprint(got) {
		t.Errorf("the service says %v, the one in memory %v", want, got)
	}
}
