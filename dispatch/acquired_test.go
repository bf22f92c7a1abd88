package dispatch

import (
	"fmt"
	"testing"
	"time"

	"github.com/perceptor/perceptor/task"
)

// TestAClaimUnderWayDoesNotPassByTheRowsOfShardsThatAreAcquired: the rows of a new shard may be overdue for long, as its former owner
// was gone. A claim of the other shards that ends later has not seen them, so no bound may pass by them until the next sweep.
func TestAClaimUnderWayDoesNotPassByTheRowsOfShardsThatAreAcquired(t *testing.T) {
	const soon = 500 * time.Millisecond
	for _, rate := range []int32{0, 1000} {
		for after := time.Duration(0); after < 300*time.Millisecond; after += 10 * time.Millisecond {
			t.Run(fmt.Sprintf("rate %d after %v", rate, after), func(t *testing.T) {
				inBubble(t, func(t *testing.T, w *world) {
					if rate > 0 {
						w.store.setRates(7, task.Rates{DispatchRate: rate})
					}
					w.store.delay = func() (before, after time.Duration) { return 0, 50 * time.Millisecond }
					for n := range int64(5) { // so that the flow of the tenant is claimed from
						w.store.add(id(0, n+10), 7, time.Duration(n)*80*time.Millisecond, 0)
					}
					w.store.add(id(1, 1), 7, -time.Minute, 0)
					m := w.start("a", func(c *Config, _ *Events) { c.Grace = time.Second })
					m.acquire(0)
					time.Sleep(after)
					m.acquire(1)
					time.Sleep(soon)
					wantTimes(t, w.kafka, run(id(1, 1), 1), 1)
					m.stop()
				})
			})
		}
	}
}

// TestAPeekUnderWayHasNotCountedTheRowsOfShardsThatAreAcquired: a claim in the range form takes all due rows, and those of a new shard
// may be a backlog of any size.
func TestAPeekUnderWayHasNotCountedTheRowsOfShardsThatAreAcquired(t *testing.T) {
	now := time.Now()
	p := newPlanning(Config{MaxRows: 100}.withDefaults())
	s := situation{shards: true, records: 1000, bytes: 1 << 20}
	p.acquired(now)
	p.next(now, s, exclusion{})
	req := p.peek(now)
	p.acquired(now)
	p.peeked(req.From, now, now, task.Peek{Now: task.At(now), Rows: 1, Soon: []task.Upcoming{{Due: task.At(now), Shard: 0}}}, false)
	if st := p.next(now, s, exclusion{}); st.do == claim && (st.form != task.CappedForm || st.shards != nil || st.low != 0) {
		t.Errorf("the next claim is in form %v of the shards %v above %d, want a capped one of all", st.form, st.shards, st.low)
	}
}
