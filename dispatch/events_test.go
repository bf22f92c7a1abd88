package dispatch

import (
	"context"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perceptor/perceptor/task"
)

// TestEventsAreCalledWithoutLocks calls, in each event, methods of the dispatcher that take
// all its locks. They would block forever if the caller of the event held one of them.
func TestEventsAreCalledWithoutLocks(t *testing.T) {
	var last atomic.Value // the name of the last event
	last.Store("")
	stuck := time.AfterFunc(time.Minute, func() { panic("event " + last.Load().(string) + " was called under a lock") })
	defer stuck.Stop()
	inBubble(t, func(t *testing.T, w *world) {
		var mu sync.Mutex
		var member atomic.Pointer[member]
		seen := map[string]bool{}
		probe := func(event string) {
			last.Store(event)
			if m := member.Load(); m != nil {
				m.Figures()
				m.Owned()
				m.Hint(0, w.store.now())
			}
			mu.Lock()
			defer mu.Unlock()
			seen[event] = true
		}
		m := w.start("a", func(c *Config, e *Events) {
			c.MaxRecords = 4000
			probeEvents(e, probe)
		})
		member.Store(m)
		everyEvent(t, w, m)
		m.stop()
		for i := range reflect.TypeFor[Events]().NumField() {
			if name := reflect.TypeFor[Events]().Field(i).Name; !seen[name] {
				t.Errorf("event %s was not called", name)
			}
		}
	})
}

// probeEvents sets all events to call probe with their name.
func probeEvents(e *Events, probe func(event string)) {
	v := reflect.ValueOf(e).Elem()
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		v.Field(i).Set(reflect.MakeFunc(v.Field(i).Type(), func([]reflect.Value) []reflect.Value {
			probe(name)
			return nil
		}))
	}
}

// everyEvent makes each event happen: tenant 1 has a backlog, tenant 2 a rate, tenant 3 a
// topic that fails for a while, tenant 4 a record that is too large, tenant 5 is deleted. One
// claim has an unknown outcome. The clock is set forward.
func everyEvent(t *testing.T, w *world, m *member) {
	var down, lose atomic.Bool
	down.Store(true)
	w.store.fault = func(task.ClaimRequest) commitFault {
		if lose.CompareAndSwap(true, false) {
			return answerLost
		}
		return commits
	}
	w.kafka.answer = func(_ context.Context, p *task.Publication) (bool, error) {
		switch {
		case p.Tenant == 3 && down.Load():
			return false, errDown
		case p.Tenant == 4:
			return false, tooLargeError{}
		case p.Tenant == 5:
			return false, deletedError{}
		}
		return true, nil
	}
	w.store.setRates(2, task.Rates{DispatchRate: 100})
	for n := range int64(8000) {
		w.store.add(id(0, n+1), 1, -time.Minute, 0)
	}
	w.claimAsFormerOwner(0, 3, 1000)
	for tenant := range int32(4) {
		w.store.add(id(32, int64(tenant+1)), tenant+2, 0, 0)
	}
	m.acquire(0, 32)
	within(t, time.Minute, "the breaker is open", func() bool { return len(m.Figures().Broken) == 1 })
	down.Store(false)
	within(t, time.Minute, "the backlog is published", func() bool { return w.kafka.total() == 8002 })
	lose.Store(true)
	w.store.add(id(0, 9000), 1, 0, 0)
	m.Hint(0, w.store.now())
	within(t, time.Minute, "the run of the unknown commit is published", func() bool { return w.kafka.total() == 8003 })
	w.store.skew.Store(int64(time.Hour))
	time.Sleep(5 * time.Second)
}
