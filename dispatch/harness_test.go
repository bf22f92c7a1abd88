package dispatch

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/perceptor/perceptor/task"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is a store and a Kafka shared by some dispatchers.
type world struct {
	t     testing.TB
	store *fakeStore
	kafka *fakeKafka
	// through, if set, is the store that dispatchers use in front of store.
	through Store
}

func newWorld(t testing.TB) *world {
	w := &world{t: t, store: newFakeStore(), kafka: newFakeKafka()}
	w.kafka.clock = w.store.now
	return w
}

// member is a dispatcher with the duties of assignment: shards that it loses are acquired
// again while they are assigned to it.
type member struct {
	*Dispatcher
	w      *world
	cancel context.CancelFunc
	done   chan error

	mu       sync.Mutex
	assigned map[task.Shard]bool
	lost     []task.Shard
	// again tells whether lost shards are acquired again.
	again bool
	// added numbers the tasks of worstLateness.
	added int64
}

var errKilled = errors.New("killed")

func (w *world) start(name string, change func(*Config, *Events)) *member {
	w.t.Helper()
	m := &member{w: w, done: make(chan error, 1), assigned: map[task.Shard]bool{}, again: true, added: 10}
	cfg := Config{Owner: task.Owner{Name: name}, Lost: m.onLost}
	var events Events
	if change != nil {
		change(&cfg, &events)
	}
	var err error
	store := Store(w.store)
	if w.through != nil {
		store = w.through
	}
	m.Dispatcher, err = New(cfg, store, w.kafka, events)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel = cancel
	go func() { m.done <- m.Run(ctx) }()
	return m
}

func (m *member) onLost(shards []task.Shard) {
	m.mu.Lock()
	m.lost = append(m.lost, shards...)
	var again []task.Shard
	for _, s := range shards {
		if m.again && m.assigned[s] {
			again = append(again, s)
		}
	}
	m.mu.Unlock()
	if len(again) > 0 {
		go func() { _ = m.Dispatcher.Acquire(context.Background(), again) }()
	}
}

func (m *member) acquire(shards ...task.Shard) {
	m.w.t.Helper()
	m.mu.Lock()
	for _, s := range shards {
		m.assigned[s] = true
	}
	m.mu.Unlock()
	if err := m.Acquire(context.Background(), shards); err != nil {
		m.w.t.Fatalf("acquire: %v", err)
	}
}

// unassign removes the assignment of the shards without notifying the dispatcher.
func (m *member) unassign(shards ...task.Shard) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range shards {
		delete(m.assigned, s)
	}
}

func (m *member) hasLost() []task.Shard {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.lost
}

// stop drains the member and waits for its end.
func (m *member) stop() {
	m.w.t.Helper()
	m.cancel()
	if err := <-m.done; err != nil {
		m.w.t.Errorf("Run: %v", err)
	}
}

// ended waits for the end of a member that was stopped, or killed by a failpoint.
func (m *member) ended() {
	m.w.t.Helper()
	if err := <-m.done; err != nil && !errors.Is(err, errKilled) {
		m.w.t.Errorf("Run: %v", err)
	}
}

// killAt returns a failpoint that kills at the nth passage of a point.
func killAt(at Point, n int) func(context.Context, Point, int) error {
	var mu sync.Mutex
	return func(_ context.Context, p Point, _ int) error {
		mu.Lock()
		defer mu.Unlock()
		if p != at {
			return nil
		}
		n--
		if n == 0 {
			return errKilled
		}
		return nil
	}
}

// gate blocks the first caller that passes a point until it is opened.
type gate struct {
	at      Point
	reached chan struct{}
	open    chan struct{}
	once    sync.Once
}

func newGate(at Point) *gate {
	return &gate{at: at, reached: make(chan struct{}), open: make(chan struct{})}
}

func (g *gate) pass(_ context.Context, p Point, _ int) error {
	if p == g.at {
		first := false
		g.once.Do(func() { first = true; close(g.reached) })
		if first {
			<-g.open
		}
	}
	return nil
}

// claimAsFormerOwner makes claims of the shard by an owner that publishes nothing.
func (w *world) claimAsFormerOwner(s task.Shard, claims, rows int) {
	w.t.Helper()
	owned, err := w.store.Acquire(w.t.Context(), s.Database(), []task.Shard{s}, task.Owner{Name: "former"})
	if err != nil {
		w.t.Fatal(err)
	}
	for range claims {
		c, err := w.store.Claim(w.t.Context(), task.ClaimRequest{Database: s.Database(), Owned: owned, Form: task.CappedForm, MaxRows: rows})
		if err != nil || c.Rows != rows {
			w.t.Fatalf("claim = %+v, %v, want %d rows", c, err, rows)
		}
	}
}

// id returns the nth task id of a shard.
func id(shard task.Shard, n int64) task.ID { return task.NewID(n, shard) }

func run(id task.ID, seq int64) task.RunID { return task.RunID{Task: id, Seq: seq} }

// checkSettled fails unless every claimed run is on Kafka, dead or closed, and the outbox is
// empty.
func (w *world) checkSettled() {
	w.t.Helper()
	for _, r := range w.store.claimedRuns() {
		w.store.mu.Lock()
		closed := w.store.closed[r]
		w.store.mu.Unlock()
		if !closed && w.kafka.times(r) == 0 {
			w.t.Errorf("run %s was claimed but never published", r)
		}
	}
	if early := w.kafka.earlyRuns(); len(early) > 0 {
		w.t.Errorf("runs published before their instant: %v", early)
	}
	if n := w.store.outboxRows(); n != 0 {
		w.t.Errorf("%d rows are left in the outbox, want 0", n)
	}
}

// inBubble runs a test in fake time.
func inBubble(t *testing.T, f func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, newWorld(t)) })
}

func within(t testing.TB, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(limit); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("condition not reached within %s: %s", limit, what)
		}
	}
}

func wantTimes(t testing.TB, k *fakeKafka, r task.RunID, want int) {
	t.Helper()
	if got := k.times(r); got != want {
		t.Errorf("run %s was published %d times, want %d", r, got, want)
	}
}
