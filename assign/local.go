package assign

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// A Local is the [Assigner] of a single process. It has all items at once and
// needs no coordinator. It calls the worker by the same rules as [Member].
type Local struct {
	cfg     Config
	worker  Worker
	id      string
	started time.Time
	running atomic.Bool
	inbox   *inbox
	snap    atomic.Pointer[Snapshot]
}

// NewLocal returns a Local that is not running yet. It uses these fields of
// cfg: Items, Name, Host, Address, Version, Figures, CallTimeout, StopTimeout,
// Log and Events.
func NewLocal(cfg Config, w Worker) (*Local, error) {
	cfg = cfg.withDefaults()
	if err := errors.Join(validateItems(cfg.Items), validateWorker(w)); err != nil {
		return nil, err
	}
	l := &Local{cfg: cfg, worker: w, id: newID(), started: time.Now(), inbox: newInbox(cfg.Items)}
	l.publish(newLifecycle(cfg.Items, true, 0), Counts{}, false)
	return l, nil
}

func validateWorker(w Worker) error {
	if w == nil {
		return errors.New("assign: worker: nil: must be given")
	}
	return nil
}

// Lost implements [Assigner].
func (l *Local) Lost(ids ...int) { l.inbox.put(ids) }

// Snapshot implements [Assigner].
func (l *Local) Snapshot() Snapshot { return *l.snap.Load() }

// Run implements [Assigner].
func (l *Local) Run(ctx context.Context) error {
	if !l.running.CompareAndSwap(false, true) {
		return ErrRunning
	}
	var counts Counts
	items := newLifecycle(l.cfg.Items, true, 0)
	calls := newCaller(ctx, items, l.worker, l.cfg, &counts)
	defer calls.cancel()
	items.setRequested(allOf(l.cfg.Items), time.Now())
	stop, giveUp := ctx.Done(), (<-chan time.Time)(nil)
	for {
		now := time.Now()
		calls.dropLost(l.inbox.drain(), now)
		v := &view{at: now.Add(1), nodesRead: true} // there are no other members, so the view is always fresh
		ids, wake := items.announceable(v, l.id, now)
		items.announced(ids, func(int) bool { return false })
		wake = earliest(wake, calls.start(now))
		l.publish(items, counts, !items.stopping)
		if items.stopping && !items.working() {
			return nil
		}
		select {
		case <-stop:
			items.stopping, stop = true, nil
			calls.cancelAcquires()
			giveUp = time.After(l.cfg.StopTimeout)
		case <-giveUp:
			return unreleased(items, l.cfg.StopTimeout)
		case o := <-calls.outcomes:
			calls.finish(o, time.Now())
		case <-l.inbox.wake:
		case <-until(wake, now):
		}
	}
}

func unreleased(items *lifecycle, after time.Duration) error {
	return fmt.Errorf("%w: %s after %v", ErrUnreleased, formatIDs(items.current()), after)
}

// until returns a channel that fires at t. It never fires if t is zero.
func until(t, now time.Time) <-chan time.Time {
	if t.IsZero() {
		return nil
	}
	return time.After(t.Sub(now))
}

func allOf(items []Item) map[int]bool {
	all := make(map[int]bool, len(items))
	for _, it := range items {
		all[it.ID] = true
	}
	return all
}

func (l *Local) publish(items *lifecycle, counts Counts, up bool) {
	s := Snapshot{Self: l.id, At: time.Now(), Connected: up, Registered: up, Counts: counts}
	var figures map[string]int64
	if f := l.cfg.Figures; f != nil && up {
		figures = limitFigures(f())
	}
	self := MemberState{ID: l.id, Heartbeat: s.At, Figures: figures, Info: l.cfg.info(l.started), Leaving: items.stopping, Requested: len(l.cfg.Items), Current: items.current()}
	if up {
		s.Leader, s.Generation, s.PlannedAt, s.Members = l.id, 1, l.started, []MemberState{self}
	}
	for _, e := range items.entries {
		it := ItemState{Item: e.item, Requested: l.id, Phase: items.phaseOf(e)}
		if e.phase != Absent {
			it.Current = []string{l.id}
		}
		s.Items = append(s.Items, it)
	}
	sortItems(s.Items)
	l.snap.Store(&s)
}
