package client

import (
	"context"
	"errors"
	"math"
	"sync"
	"testing"
	"time"
)

// crowded returns a client whose requests for adds are all on their way to a service that hangs. The callers are
// gone at the end of the test.
func crowded(t *testing.T, cfg Config) *Client {
	t.Helper()
	s, c := api(t, cfg)
	s.before = func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() }
	ctx, cancel := context.WithCancel(context.Background())
	var callers sync.WaitGroup
	t.Cleanup(func() { cancel(); callers.Wait() })
	for n := range addBatchesOut {
		callers.Go(func() { _, _ = c.AddTask(ctx, Task{Kind: "k", Type: OneShot}) })
		for len(c.adds.slots) <= n {
			time.Sleep(time.Millisecond)
		}
	}
	return c
}

// TestAnAddThatWaitsForOthersEndsWithItsCallTimeout and not one CallTimeout after those before it.
func TestAnAddThatWaitsForOthersEndsWithItsCallTimeout(t *testing.T) {
	t.Parallel()
	const timeout = 12 * time.Second
	c := crowded(t, Config{CallTimeout: timeout})
	began := time.Now()
	_, err := c.AddTask(t.Context(), Task{Kind: "k", Type: OneShot})
	if took := time.Since(began); !errors.Is(err, ErrUnavailable) || took >= timeout*3/2 {
		t.Errorf("AddTask returned %v after %s; CallTimeout is %s", err, took, timeout)
	}
}

func TestACallTimeoutMayBeTheLongestDuration(t *testing.T) {
	t.Parallel()
	_, c := api(t, Config{CallTimeout: math.MaxInt64})
	if _, err := c.AddTask(t.Context(), Task{Kind: "k", Type: OneShot}); err != nil {
		t.Error(err)
	}
}

// TestAddsWhoseCallersAreGoneAreForgotten though no request can be sent meanwhile.
func TestAddsWhoseCallersAreGoneAreForgotten(t *testing.T) {
	t.Parallel()
	c := crowded(t, Config{})
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 * addsPerBatch {
		if _, err := c.AddTask(gone, Task{Kind: "k", Type: OneShot}); !errors.Is(err, context.Canceled) {
			t.Fatalf("AddTask returned %v", err)
		}
	}
	c.adds.mu.Lock()
	defer c.adds.mu.Unlock()
	if n := len(c.adds.queue); n > 2*addsPerBatch {
		t.Errorf("%d adds wait, and nobody waits for them", n)
	}
}
