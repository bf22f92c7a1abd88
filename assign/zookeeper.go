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
	z.snap.Store(snapshot(z.id, z.info, nil, hold, pulse{}, Counts{}))
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
func snapshot(self string, info MemberInfo, v *view, hold *holding, p pulse, counts Counts) *Snapshot {
	s := &Snapshot{Self: self, At: time.Now(), Counts: counts, State: v.state()}
	plan := v.proposal()
	current, _ := v.holders(self)
	for _, e := range hold.entries {
		id := e.item.ID
		it := ItemState{Item: e.item, Requested: plan.Owners[id], Without: plan.Without[id], Current: current[id], Phase: hold.phaseOf(e)}
		if e.phase != Absent {
			it.Current = append([]string{self}, it.Current...)
		}
		s.Items = append(s.Items, it)
	}
	sortItems(s.Items)
	for i := range s.Members {
		if m := &s.Members[i]; m.ID == self {
			m.Info, m.Holds, m.Heartbeat, m.Figures = info, hold.held(), p.at, p.figures
		}
	}
	return s
}

// proposal is what the plan says; nothing, if there is none.
func (v *view) proposal() proposal {
	if v == nil || v.plan == nil {
		return proposal{}
	}
	return v.plan.proposal
}

// state is what everybody who reads the tree can know.
func (v *view) state() State {
	s := State{Leader: v.leader()}
	if v == nil {
		return s
	}
	if v.plan != nil {
		s.Generation, s.PlannedAt, s.Recent = v.plan.Generation, v.plan.WrittenAt, v.plan.recent
	}
	if v.strategy != nil {
		s.Strategy = *v.strategy.clone()
	}
	for _, fault := range []error{v.planFault, v.strategyFault} {
		if fault != nil {
			s.Faults = append(s.Faults, fault.Error())
		}
	}
	requested := byOwner(v.proposal().Owners)
	for _, m := range v.members {
		s.Members = append(s.Members, MemberState{
			ID: m.id, Seq: m.seq, Leaving: v.leaving[m.id], Info: m.info, Requested: len(requested[m.id]), Holds: m.held,
			Heartbeat: m.heartbeat, Figures: m.figures, Barred: v.strategy != nil && !v.strategy.allowed(m),
		})
	}
	return s
}

func sortItems(items []ItemState) {
	slices.SortFunc(items, func(a, b ItemState) int { return cmp.Compare(a.ID, b.ID) })
}
