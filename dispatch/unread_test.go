package dispatch

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perceptor/perceptor/task"
)

func TestOutboxLargerThanMemoryIsReadInParts(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, w *world) {
		const bound, claims, rows = 400, 50, 100
		var down atomic.Bool
		down.Store(true)
		w.kafka.answer = func(context.Context, *task.Publication) (bool, error) {
			if down.Load() {
				return false, errDown
			}
			return true, nil
		}
		for n := range int64(claims*rows + 10) {
			w.store.add(id(0, n+1), int32(n%3)+1, 0, 0)
		}
		w.claimAsFormerOwner(0, claims, rows)
		m := w.start("a", func(c *Config, _ *Events) { c.MaxRecords = bound })
		m.acquire(0)
		for range 100 {
			time.Sleep(100 * time.Millisecond)
			if f := m.Figures(); f.Records > 2*bound {
				t.Fatalf("%d records in memory, want at most twice the bound %d", f.Records, bound)
			}
		}
		if n := len(w.store.claimedRuns()); n != claims*rows {
			t.Errorf("%d runs are claimed, want no more than the %d of the former owner before those are published", n, claims*rows)
		}
		down.Store(false)
		within(t, time.Minute, "all runs are published", func() bool { return w.kafka.total() == claims*rows+10 })
		time.Sleep(10 * time.Second)
		m.stop()
		w.checkSettled()
	})
}

// TestRestartsWhileKafkaIsAwayDoNotFillTheOutbox acquires the shards of two databases in a
// different order each time.
func TestRestartsWhileKafkaIsAwayDoNotFillTheOutbox(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, w *world) {
		const bound, restarts = 400, 12
		w.kafka.answer = func(context.Context, *task.Publication) (bool, error) { return false, errDown }
		w.kafka.ping = func() error { return errDown }
		for n := range int64(20_000) {
			w.store.add(id(task.Shard(n%64), n+1), int32(n%3)+1, 0, 0)
		}
		for i := range restarts {
			m := w.start("a", func(c *Config, _ *Events) { c.MaxRecords = bound })
			for s := range task.Shard(16) {
				first := (s + task.Shard(5*i)) % 16 * 4
				m.acquire(first, first+1, first+2, first+3)
			}
			time.Sleep(20 * time.Second)
			if f := m.Figures(); f.Records > 2*bound {
				t.Fatalf("%d records in memory, want at most twice the bound %d", f.Records, bound)
			}
			m.stop()
		}
		if n := len(w.store.claimedRuns()); n > 4*bound { // without reading first there would be a bound for each restart
			t.Errorf("%d runs are in the outbox after %d restarts, want at most four times the bound %d", n, restarts, bound)
		}
	})
}
