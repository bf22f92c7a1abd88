package assign

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// A Local is the [Assigner] of a single process: it has all items at once and
// needs no coordinator. It shares the rules for calling the worker with
// [ZooKeeper]; there is nobody to share items with.
type Local struct {
	cfg     Config
	worker  Worker
	id      string
	started time.Time
	running atomic.Bool
	inbox   *inbox
	snap    atomic.Pointer[Snapshot]
}

// NewLocal makes a Local of which Run has not been called. Of cfg it uses
// Items, Name, Host, Address, Version, Figures, CallTimeout, StopTimeout, Log
// and Events.
func NewLocal(cfg Config, w Worker) (*Local, error) {
	cfg = cfg.withDefaults()
	if err := errors.Join(validateItems(cfg.Items), validateWorker(w)); err != nil {
		return nil, err
	}
	l := &Local{cfg: cfg, worker: w, id: newID(), started: time.Now(), inbox: newInbox(cfg.Items)}
	l.publish(newHolding(cfg.Items, true, 0), Counts{}, false)
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
	hold := newHolding(l.cfg.Items, true, 0)
	calls := newCaller(ctx, hold, l.worker, l.cfg, &counts)
	defer calls.cancel()
	hold.want(allOf(l.cfg.Items), time.Now())
	stop, giveUp := ctx.Done(), (<-chan time.Time)(nil)
	for {
		now := time.Now()
		calls.lose(l.inbox.take(), now)
		v := &view{at: now.Add(1), nodesRead: true} // nobody else: always fresh
		ids, wake := hold.announceable(v, l.id, now)
		hold.announced(ids, func(int) bool { return false })
		wake = earliest(wake, calls.start(now))
		l.publish(hold, counts, !hold.stopping)
		if hold.stopping && !hold.working() {
			return nil
		}
		select {
		case <-stop:
			hold.stopping, stop = true, nil
			calls.cancelAcquires()
			giveUp = time.After(l.cfg.StopTimeout)
		case <-giveUp:
			return unreleased(hold, l.cfg.StopTimeout)
		case o := <-calls.outcomes:
			calls.finish(o, time.Now())
		case <-l.inbox.wake:
		case <-until(wake, now):
		}
	}
}

func unreleased(hold *holding, after time.Duration) error {
	return fmt.Errorf("%w: %s after %v", ErrUnreleased, formatIDs(hold.held()), after)
}

// until is a channel that fires at t; never, if t is zero.
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

func (l *Local) publish(hold *holding, counts Counts, up bool) {
	s := Snapshot{Self: l.id, At: time.Now(), Connected: up, Registered: up, Counts: counts}
	var figures map[string]int64
	if f := l.cfg.Figures; f != nil && up {
		figures = limitFigures(f())
	}
	self := MemberState{ID: l.id, Heartbeat: s.At, Figures: figures, Info: l.cfg.info(l.started), Leaving: hold.stopping, Requested: len(l.cfg.Items), Holds: hold.held()}
	if up {
		s.Leader, s.Generation, s.PlannedAt, s.Members = l.id, 1, l.started, []MemberState{self}
	}
	for _, e := range hold.entries {
		it := ItemState{Item: e.item, Requested: l.id, Phase: hold.phaseOf(e)}
		if e.phase != Absent {
			it.Current = []string{l.id}
		}
		s.Items = append(s.Items, it)
	}
	sortItems(s.Items)
	l.snap.Store(&s)
}
