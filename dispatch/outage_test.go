package dispatch

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perceptor/perceptor/task"
)

// lateness keeps the highest lateness of each tenant's runs.
type lateness struct {
	mu    sync.Mutex
	worst map[int32]time.Duration
	runs  map[int32]int
}

func newLateness(e *Events) *lateness {
	l := &lateness{worst: map[int32]time.Duration{}, runs: map[int32]int{}}
	e.Published = func(p *task.Publication, late time.Duration) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.worst[p.Tenant] = max(l.worst[p.Tenant], late)
		l.runs[p.Tenant]++
	}
	return l
}

func (l *lateness) of(tenant int32) (worst time.Duration, runs int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.worst[tenant], l.runs[tenant]
}

// TestTopicThatFailsHoldsUpNoFlowOfAnotherTenant runs a quiet installation: while the topic
// of a tenant fails, nothing is acknowledged for long times.
func TestTopicThatFailsHoldsUpNoFlowOfAnotherTenant(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, w *world) {
		const broken, rated, paused, capped = 1, 2, 3, 4
		w.kafka.answer = func(_ context.Context, p *task.Publication) (bool, error) {
			if p.Tenant == broken {
				return false, errDown
			}
			return true, nil
		}
		w.store.setRates(rated, task.Rates{DispatchRate: 1000})
		w.store.setRates(paused, task.Rates{PausedKinds: []string{"other"}})
		w.store.setRates(capped, task.Rates{KindCaps: map[string]int32{"k": 1000}})
		w.store.add(id(0, 1), broken, 0, 0)
		for tenant := int32(rated); tenant <= capped; tenant++ {
			w.store.add(id(task.Shard(tenant), int64(tenant)), tenant, 20*time.Second, 25*time.Second)
		}
		var late *lateness
		m := w.start("a", func(_ *Config, e *Events) { late = newLateness(e) })
		m.acquire(0, 1, 2, 3, 4)
		time.Sleep(4 * time.Minute)
		for tenant := int32(rated); tenant <= capped; tenant++ {
			if worst, runs := late.of(tenant); worst > 1500*time.Millisecond || runs < 8 {
				t.Errorf("tenant %d: %d runs, the latest %s late; want at least 8, at most 1.5 s late", tenant, runs, worst)
			}
		}
		if f := m.Figures(); f.Stopped || len(f.Broken) != 1 {
			t.Errorf("Figures() = %+v, want claims not stopped and one open breaker", f)
		}
		m.stop()
	})
}

// TestFlowsContinueWhenABrokerAnswersAgain also covers a Kafka whose pings keep failing: then
// the probe of a flow finds out that it has returned.
func TestFlowsContinueWhenABrokerAnswersAgain(t *testing.T) {
	t.Parallel()
	for name, pings := range map[string]bool{"pings succeed": true, "pings fail": false} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, w *world) {
				var down atomic.Bool
				down.Store(true)
				w.kafka.answer = func(context.Context, *task.Publication) (bool, error) {
					if down.Load() {
						return false, errDown
					}
					return true, nil
				}
				w.kafka.ping = func() error {
					if pings && !down.Load() {
						return nil
					}
					return errDown
				}
				w.store.setRates(2, task.Rates{DispatchRate: 1000})
				w.store.add(id(0, 1), 1, 0, 0)
				w.store.add(id(1, 2), 2, time.Minute+time.Second, 0)
				m := w.start("a", nil)
				m.acquire(0, 1)
				time.Sleep(time.Minute)
				if !m.Figures().Stopped {
					t.Error("claims have not stopped although no broker answers")
				}
				down.Store(false)
				within(t, 3*time.Second, "the flow is published", func() bool { return w.kafka.times(run(id(1, 2), 1)) == 1 })
				within(t, 6*time.Second, "all are published", func() bool { return w.kafka.total() == 2 })
				if m.Figures().Stopped {
					t.Error("claims are stopped although Kafka has returned")
				}
				m.stop()
				w.checkSettled()
			})
		})
	}
}

// TestBacklogOfATopicThatFailsStaysWhereItIs counts the rows that claims rewrite while the topic
// of a tenant fails for ten minutes, in which ever more of its rows are due.
func TestBacklogOfATopicThatFailsStaysWhereItIs(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, w *world) {
		var down atomic.Bool
		down.Store(true)
		w.kafka.answer = func(_ context.Context, p *task.Publication) (bool, error) {
			if p.Tenant == 1 && down.Load() {
				return false, errDown
			}
			return true, nil
		}
		const rows = 3000
		for n := range int64(rows) {
			w.store.add(id(task.Shard(n%8), n+1), 1, time.Duration(n)*100*time.Millisecond, 0)
		}
		w.store.add(id(0, rows+1), 2, 0, time.Second)
		var late *lateness
		m := w.start("a", func(_ *Config, e *Events) { late = newLateness(e) })
		m.acquire(0, 1, 2, 3, 4, 5, 6, 7)
		time.Sleep(10 * time.Minute)
		w.store.mu.Lock()
		deferred, noted := w.store.deferred, w.store.noted[1]
		w.store.mu.Unlock()
		if deferred > rows {
			t.Errorf("%d rows were deferred, want each of the %d at most once", deferred, rows)
		}
		if noted < 10 {
			t.Errorf("the database was told %d times that the topic fails, want at least once a minute", noted)
		}
		if worst, runs := late.of(2); worst > 200*time.Millisecond || runs < 590 {
			t.Errorf("the other tenant: %d runs, the latest %s late", runs, worst)
		}
		down.Store(false)
		within(t, 20*time.Second, "the backlog is published", func() bool { _, runs := late.of(1); return runs == rows })
		m.stop()
		w.checkSettled()
	})
}

func TestKafkaIsGoneOnlyWhileNoBrokerAnswers(t *testing.T) {
	start := time.Unix(1000, 0)
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	var o outage
	if !o.pingAt().IsZero() {
		t.Error("a ping is due although nothing has failed")
	}
	o.failed(at(0))
	o.failed(at(5))
	if got := o.pingAt(); got != at(1) {
		t.Errorf("the first ping is due %s after the first failure, want 1 s", got.Sub(start))
	}
	if o.pinged(at(1), at(2), nil); o.gone {
		t.Error("Kafka is gone although a broker answers")
	}
	o.failed(at(10))
	if o.pinged(at(11), at(13), errDown); !o.gone {
		t.Error("Kafka is not gone although no broker answers")
	}
	if got := o.pingAt(); got != at(14) {
		t.Errorf("the next ping is due %s after the last, want 1 s", got.Sub(at(13)))
	}
	if o.answered(); o.gone {
		t.Error("Kafka is gone although a record was acknowledged")
	}
	o.failed(at(16))
	if o.pinged(at(15), at(17), errDown); o.gone {
		t.Error("a ping from before the last acknowledgement counts")
	}
	o.gone = true
	if !o.pinged(at(18), at(18), nil) || o.gone {
		t.Error("the ping does not tell that Kafka has returned")
	}
}
