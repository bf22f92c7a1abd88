// Package examples_test runs the examples against a real installation with shortened
// hours.
package examples_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/examples/feedbackwatch/feedback"
	"github.com/perceptor/perceptor/examples/qualitycheck/quality"
	"github.com/perceptor/perceptor/loadtest/stack"
)

// hour is the duration of an hour in these tests.
const hour = 200 * time.Millisecond

// contents is a store of contents whose scores and complaints grow with every look.
type contents struct {
	mu       sync.Mutex
	looks    map[string][]time.Time
	promoted map[string]int
	deleted  map[string]int
	growth   map[string]float64 // of the score with every look
}

func newContents() *contents {
	return &contents{looks: map[string][]time.Time{}, promoted: map[string]int{}, deleted: map[string]int{}, growth: map[string]float64{}}
}

func (c *contents) look(content string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.looks[content] = append(c.looks[content], time.Now())
	return len(c.looks[content])
}

func (c *contents) Score(_ context.Context, content string) (float64, error) {
	n := c.look(content)
	if n == 2 {
		return 0, errors.New("the statistics are unavailable for a moment") // the check is retried
	}
	return c.growth[content] * float64(n), nil
}

func (c *contents) Complaints(_ context.Context, content string) (int, error) {
	return c.look(content), nil
}

func (c *contents) Promote(_ context.Context, content string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.promoted[content]++
	return nil
}

func (c *contents) Delete(_ context.Context, content string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deleted[content]++
	return nil
}

func (c *contents) seen(content string) (looks []time.Time, promoted, deleted int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.looks[content], c.promoted[content], c.deleted[content]
}

// installation starts real parts and returns a client.
func installation(t *testing.T) *client.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	s, err := stack.Real(ctx, stack.RealOptions{
		Taskds: 1, Dispatchers: 1, Session: 4 * time.Second, Progress: func(what string) { t.Log(what) },
		Settings: map[string]string{"taskd.min_interval": "100ms", "taskd.min_ack_timeout": "100ms"},
		Postgres: map[string]string{"fsync": "off"}, // the test stops processes, not the machine
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := s.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	c, err := client.New(s.Client(s.Token))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// listen runs a listener until the returned function is called.
func listen(t *testing.T, c *client.Client, handlers map[string]client.Handler) (stop func()) {
	t.Helper()
	l, err := c.NewListener(client.ListenerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	for kind, h := range handlers {
		l.Handle(kind, h)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// awaitEnd waits until a task has ended and returns it.
func awaitEnd(t *testing.T, c *client.Client, id int64) *client.TaskInfo {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		info, err := c.GetTask(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if info.State >= client.Completed {
			return info
		}
		if time.Now().After(deadline) {
			t.Fatalf("task %d has not ended: %+v", id, info)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func TestExamplesOnRealParts(t *testing.T) {
	if testing.Short() {
		t.Skip("starts every real part; make test runs it")
	}
	c := installation(t)
	t.Run("runs survive ten ack_timeouts without a listener", func(t *testing.T) { absentListeners(t, c) })
	t.Run("quality check and feedback watch", func(t *testing.T) { bothCases(t, c) })
}

func bothCases(t *testing.T, c *client.Client) {
	world := newContents()
	world.growth["good"], world.growth["dull"] = 0.2, 0
	checker := quality.Checker{Contents: world, Enough: 0.9}
	watcher := feedback.Watcher{Contents: world, TooMany: 3}
	defer listen(t, c, map[string]client.Handler{quality.Kind: client.Typed(checker.Check), feedback.Kind: client.Typed(watcher.Look)})()
	appeared := time.Now()
	add := func(id int64, err error) int64 {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	good := add(quality.Watch(t.Context(), c, "good", appeared, hour))
	dull := add(quality.Watch(t.Context(), c, "dull", appeared, hour))
	bad := add(feedback.Watch(t.Context(), c, "bad", appeared, hour))

	info := awaitEnd(t, c, good)
	looks, promoted, _ := world.seen("good")
	if info.State != client.Completed || info.RunCount != 4 || len(looks) != 5 || promoted != 1 {
		t.Errorf("good content: %v after %d runs, looked at %d times, promoted %d times", info.State, info.RunCount, len(looks), promoted)
	}
	if first := looks[0].Sub(appeared); first < hour-5*time.Millisecond {
		t.Errorf("good content was looked at %v after it appeared", first)
	}
	info = awaitEnd(t, c, bad)
	looks, _, deleted := world.seen("bad")
	if info.State != client.Completed || info.RunCount != 3 || deleted != 1 {
		t.Errorf("bad content: %v after %d runs, deleted %d times", info.State, info.RunCount, deleted)
	}
	for i := range looks[1:] {
		if d := looks[i+1].Sub(looks[i]); d < 4*hour-5*time.Millisecond {
			t.Errorf("bad content was looked at again after %v", d)
		}
	}
	info = awaitEnd(t, c, dull)
	looks, promoted, _ = world.seen("dull")
	if info.State != client.Completed || promoted != 0 || len(looks) < 5 || info.RunCount > 47 {
		t.Errorf("dull content: %v after %d runs, promoted %d times", info.State, info.RunCount, promoted)
	}
	if last := looks[len(looks)-1]; last.Before(appeared.Add(24 * hour)) {
		t.Errorf("the last look at dull content was %v after it appeared", last.Sub(appeared))
	}
}

// absentListeners adds one task of each type while no listener runs. Their runs are
// delivered again and again until a listener starts.
func absentListeners(t *testing.T, c *client.Client) {
	const ack = 300 * time.Millisecond
	var ids []int64
	for _, typ := range []client.Type{client.OneShot, client.NonBlocking, client.Blocking} {
		task := client.Task{Kind: "patient", Type: typ, AckTimeout: ack, MaxCount: 1, Retry: client.RetryPolicy{MaxAttempts: 1}}
		if typ != client.OneShot {
			task.Interval = hour
		}
		id, err := c.AddTask(t.Context(), task)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	time.Sleep(10 * ack) // the outage has a fixed length
	var mu sync.Mutex
	calls := map[int64]int{}
	defer listen(t, c, map[string]client.Handler{"patient": func(_ context.Context, run *client.Run) error {
		mu.Lock()
		defer mu.Unlock()
		calls[run.TaskID]++
		return nil
	}})()
	for _, id := range ids {
		if info := awaitEnd(t, c, id); info.State != client.Completed || info.RunCount != 1 {
			t.Errorf("task %d: %v after %d runs", id, info.State, info.RunCount)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	for _, id := range ids {
		if calls[id] < 1 {
			t.Errorf("task %d was never called", id)
		}
	}
}
