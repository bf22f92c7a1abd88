package assign

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"
)

// A ZooKeeper is the [Assigner] that shares items between processes.
type ZooKeeper struct {
	cfg     Config
	worker  Worker
	id      string
	info    MemberInfo
	running atomic.Bool
	inbox   *inbox
	snap    atomic.Pointer[Snapshot]
}

// NewZooKeeper makes a member of which Run has not been called. It answers all
// faults of cfg at once, and connects to nothing yet.
func NewZooKeeper(cfg Config, w Worker) (*ZooKeeper, error) {
	cfg = cfg.withDefaults()
	if err := errors.Join(cfg.Validate(), validateWorker(w)); err != nil {
		return nil, err
	}
	z := &ZooKeeper{cfg: cfg, worker: w, id: newID(), info: cfg.info(time.Now().UTC()), inbox: newInbox(cfg.Items)}
	hold := newHolding(cfg.Items, cfg.Fenced, cfg.TakeoverAfter)
	z.snap.Store(snapshot(z.id, z.info, nil, hold, Counts{}))
	return z, nil
}

// Lost implements [Assigner].
func (z *ZooKeeper) Lost(ids ...int) { z.inbox.put(ids) }

// Snapshot implements [Assigner].
func (z *ZooKeeper) Snapshot() Snapshot { return *z.snap.Load() }

// Run implements [Assigner]. It waits for a ZooKeeper that is away, at the
// start too, and logs that it does.
func (z *ZooKeeper) Run(ctx context.Context) error {
	if !z.running.CompareAndSwap(false, true) {
		return ErrRunning
	}
	return newMember(ctx, z).run(ctx)
}

// snapshot shows the state of a member that sees v.
func snapshot(self string, info MemberInfo, v *view, hold *holding, counts Counts) *Snapshot {
	s := &Snapshot{Self: self, At: time.Now(), Leader: v.leader(), Counts: counts}
	owners := map[int]string{}
	if v != nil && v.plan != nil {
		s.Generation, s.PlannedAt, owners = v.plan.Generation, v.plan.WrittenAt, v.plan.Owners
	}
	current, _ := v.holders(self)
	for _, e := range hold.entries {
		it := ItemState{Item: e.item, Requested: owners[e.item.ID], Current: current[e.item.ID], Phase: hold.phaseOf(e)}
		if e.phase != Absent {
			it.Current = append([]string{self}, it.Current...)
		}
		s.Items = append(s.Items, it)
	}
	sortItems(s.Items)
	if v == nil {
		return s
	}
	requested := byOwner(owners)
	for _, m := range v.members {
		state := MemberState{ID: m.id, Seq: m.seq, Leaving: v.leaving[m.id], Info: m.info, Requested: len(requested[m.id]), Holds: m.held}
		if m.id == self {
			state.Info, state.Holds = info, hold.held()
		}
		s.Members = append(s.Members, state)
	}
	return s
}

func sortItems(items []ItemState) {
	slices.SortFunc(items, func(a, b ItemState) int { return cmp.Compare(a.ID, b.ID) })
}
