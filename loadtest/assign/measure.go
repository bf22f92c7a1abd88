package assign

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"syscall"
	"time"

	core "github.com/perceptor/perceptor/assign"
)

// Measurements are the figures of one run. Times are in milliseconds.
type Measurements struct {
	// Takeovers are the times from kill -9 of a member until another member acquired the
	// last of its items, by Postgres's clock. Handovers are the same times from SIGTERM.
	Takeovers []float64 `json:"takeovers_ms"`
	Handovers []float64 `json:"handovers_ms"`
	// Settles are the times from the start of all members until every item has an owner
	// and the loads differ by at most one.
	Settles []float64 `json:"settles_ms"`
	// Joins are the numbers of items that one more member moved.
	Joins []int `json:"joins_moved"`
	// OutageIdle is the longest time that an item was idle during an outage of all
	// servers of the assignment. OutageMoved is the number of items that moved because of it.
	OutageIdle  float64 `json:"outage_idle_ms"`
	OutageMoved int     `json:"outage_moved"`
}

// Plan says what to measure.
type Plan struct {
	// Rounds is the number of members that are killed, and of members that are stopped.
	Rounds int
	// SettleItems is the number of items, and SettleMembers the number of members that
	// share them, when the time to settle is measured SettleRounds times.
	SettleItems, SettleMembers, SettleRounds int
	// Outage is how long all servers of the assignment are down; 0: no outage.
	Outage time.Duration
}

// DefaultPlan returns the plan that the flags have by default.
func DefaultPlan() Plan {
	return Plan{Rounds: 5, SettleItems: 512, SettleMembers: 20, SettleRounds: 5, Outage: 10 * time.Second}
}

// Measure starts a world and takes the measurements of the plan in it. It returns the
// violations that the checker found meanwhile.
func Measure(ctx context.Context, o Options, p Plan) (m *Measurements, violations []string, err error) {
	w, err := newWorld(ctx, o)
	if err != nil {
		return nil, nil, err
	}
	m = &Measurements{}
	check := newChecker(w, p.Outage+8*o.Session+30*time.Second)
	looking, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- check.run(looking) }()
	err = errors.Join(w.measureMoves(ctx, p, m), w.measureOutage(ctx, p, m))
	stop()
	err = errors.Join(err, <-done)
	if err == nil {
		err = w.measureSettling(ctx, p, m)
	}
	return m, check.violations(), errors.Join(err, w.close())
}

func (w *world) awaitSettled(ctx context.Context) error {
	_, err := await(ctx, 2*time.Minute, func() error { return w.settled(ctx) })
	return err
}

// measureMoves kills and stops members in turn and measures when others have acquired their items.
func (w *world) measureMoves(ctx context.Context, p Plan, m *Measurements) error {
	for len(w.members) < 3 {
		if _, err := w.startMember(); err != nil {
			return err
		}
	}
	if err := w.awaitSettled(ctx); err != nil {
		return err
	}
	for round := range 2 * p.Rounds {
		victim, into, signal := w.members[round%3], &m.Takeovers, syscall.SIGKILL
		if round%2 == 1 {
			into, signal = &m.Handovers, syscall.SIGTERM
		}
		took, err := w.leave(ctx, victim, signal)
		if err != nil {
			return err
		}
		*into = append(*into, took)
		w.o.Progress("%v: all items acquired after %.0f ms", signal, took)
		if _, err := w.startMember(); err != nil {
			return err
		}
		if err := w.awaitSettled(ctx); err != nil {
			return err
		}
	}
	return nil
}

// leave ends m by a signal and returns the time until another acquired the last of its items.
func (w *world) leave(ctx context.Context, m *member, signal syscall.Signal) (ms float64, err error) {
	owners, err := w.owners(ctx)
	if err != nil {
		return 0, err
	}
	var items []int
	for item, name := range owners {
		if name == m.name {
			items = append(items, item)
		}
	}
	began := time.Now() // Postgres has the same clock: it runs on this machine
	if err := m.process.Signal(signal); err != nil {
		return 0, err
	}
	if err := w.awaitSettledWithout(ctx, m); err != nil {
		return 0, err
	}
	var last time.Time
	err = w.db.QueryRow(ctx, "SELECT max(acquired_at) FROM item_owner WHERE item = ANY ($1) AND acquired_at > $2", items, began).Scan(&last)
	if err != nil {
		return 0, fmt.Errorf("read when %d items were acquired: %w", len(items), err)
	}
	return float64(last.Sub(began).Microseconds()) / 1000, nil
}

// awaitSettledWithout waits until member m has ended and every item has its owner.
func (w *world) awaitSettledWithout(ctx context.Context, m *member) error {
	select {
	case <-m.process.Done():
	case <-time.After(time.Minute):
		return fmt.Errorf("member %s has not ended within a minute", m.name)
	}
	w.forgetMember(m)
	return w.awaitSettled(ctx)
}

// measureOutage kills all servers of the assignment while members work, and restarts them later.
func (w *world) measureOutage(ctx context.Context, p Plan, m *Measurements) error {
	if p.Outage == 0 {
		return nil
	}
	before, err := w.overview(ctx)
	if err != nil {
		return err
	}
	w.o.Progress("the servers of the assignment in %s are down for %v", w.o.Assignment, p.Outage)
	if err := w.meeting.kill(); err != nil {
		return err
	}
	for until := time.Now().Add(p.Outage); time.Now().Before(until) && ctx.Err() == nil; {
		var seconds float64
		err := w.db.QueryRow(ctx, "SELECT max(extract(epoch FROM clock_timestamp() - worked_at))::float8 FROM item_work").Scan(&seconds)
		if err != nil {
			return err
		}
		m.OutageIdle = max(m.OutageIdle, seconds*1000)
		sleep(ctx, 50*time.Millisecond)
	}
	if err := w.meeting.restart(ctx); err != nil {
		return err
	}
	if err := w.awaitSettled(ctx); err != nil {
		return err
	}
	after, err := w.overview(ctx)
	if err != nil {
		return err
	}
	m.OutageMoved = len(differing(before, after))
	return nil
}

// differing returns the items whose requested owner differs between a and b.
func differing(a, b core.Overview) (ids []int) {
	owners := map[int]string{}
	for _, it := range a.Items {
		owners[it.ID] = it.Requested
	}
	for _, it := range b.Items {
		if owners[it.ID] != it.Requested {
			ids = append(ids, it.ID)
		}
	}
	return ids
}

// measureSettling starts many members in this process at once, and one more after they
// have settled.
func (w *world) measureSettling(ctx context.Context, p Plan, m *Measurements) error {
	for round := range p.SettleRounds {
		s := newCrowd(w, p, fmt.Sprintf("settle-%d", round))
		took, err := s.startMembers(ctx, p.SettleMembers)
		if err == nil {
			m.Settles = append(m.Settles, took)
			w.o.Progress("%d members settled on %d items after %.0f ms", p.SettleMembers, p.SettleItems, took)
			before := s.owners()
			if _, err = s.startMembers(ctx, 1); err == nil {
				m.Joins = append(m.Joins, movedBetween(before, s.owners()))
			}
		}
		if err := errors.Join(err, s.stop()); err != nil {
			return err
		}
	}
	return nil
}

// movedBetween returns the number of items whose owner differs.
func movedBetween(before, after []string) (n int) {
	for i := range before {
		if before[i] != after[i] {
			n++
		}
	}
	return n
}

// A crowd is a number of members in this process that do no work for their items.
type crowd struct {
	config    core.Config
	newMember func(core.Worker) (core.Assigner, error)
	members   []core.Assigner
	cancel    []context.CancelFunc
	running   sync.WaitGroup
	mu        sync.Mutex
	errs      []error
	change    chan struct{}
}

func newCrowd(w *world, p Plan, name string) *crowd {
	c := &crowd{change: make(chan struct{}, 1)}
	c.config = core.Config{
		Items: itemsOf(p.SettleItems, 16), Fenced: true,
		Log: slog.New(slog.DiscardHandler),
		Events: core.Events{Acquired: func([]int, []int, time.Duration) {
			select {
			case c.change <- struct{}{}:
			default:
			}
		}},
	}
	c.newMember = w.meeting.crowd(name, c.config)
	return c
}

type idle struct{}

func (idle) Acquire(context.Context, []core.Item) error { return nil }
func (idle) Release(context.Context, []core.Item) error { return nil }

// startMembers starts n more members and returns the time in milliseconds until all items
// had their owners.
func (c *crowd) startMembers(ctx context.Context, n int) (ms float64, err error) {
	began := time.Now()
	for range n {
		z, err := c.newMember(idle{})
		if err != nil {
			return 0, err
		}
		run, cancel := context.WithCancel(ctx)
		c.members, c.cancel = append(c.members, z), append(c.cancel, cancel)
		c.running.Go(func() {
			if err := z.Run(run); err != nil {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.errs = append(c.errs, err)
			}
		})
	}
	limit := time.After(2 * time.Minute)
	for !c.settled() {
		select {
		case <-c.change:
		case <-time.After(5 * time.Millisecond):
		case <-limit:
			return 0, errors.New("the members have not settled within two minutes")
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	return float64(time.Since(began).Microseconds()) / 1000, nil
}

func (c *crowd) settled() bool {
	total, least, most := 0, len(c.config.Items), 0
	for _, m := range c.members {
		n := len(m.Snapshot().Owned())
		total, least, most = total+n, min(least, n), max(most, n)
	}
	return total == len(c.config.Items) && most-least <= 1
}

// owners returns the owner of each item, by item id.
func (c *crowd) owners() []string {
	owners := make([]string, len(c.config.Items))
	for _, m := range c.members {
		s := m.Snapshot()
		for _, id := range s.Owned() {
			owners[id] = s.Self
		}
	}
	return owners
}

// stop ends all members. The youngest ends first, so that no other has to become leader.
func (c *crowd) stop() error {
	for _, cancel := range slices.Backward(c.cancel) {
		cancel()
	}
	c.running.Wait()
	return errors.Join(c.errs...)
}
