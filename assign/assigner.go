package assign

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"
)

// A Member is the [Assigner] that distributes items over processes. Members of one
// environment meet in ZooKeeper or in a [Registry].
type Member struct {
	cfg     Config
	worker  Worker
	id      string
	info    MemberInfo
	running atomic.Bool
	inbox   *inbox
	snap    atomic.Pointer[Snapshot]
	// open starts a session and does no I/O. signal wakes Run.
	open func(signal func()) (link, error)
}

// NewZooKeeper returns a member that is not running yet. It returns all faults
// of cfg at once. It does not connect.
func NewZooKeeper(cfg Config, w Worker) (*Member, error) {
	if err := errors.Join(cfg.Validate(), validateWorker(w)); err != nil {
		return nil, err
	}
	m := newAssigner(cfg, w)
	m.open = func(signal func()) (link, error) { return newSession(m.cfg, signal) }
	return m, nil
}

// NewMember returns a member that is not running yet, for members that meet in a
// registry. It returns all faults of cfg at once, and uses all of its fields but
// Servers, Root, User, Password and Dial. It does not connect.
func NewMember(cfg Config, r Registry, w Worker) (*Member, error) {
	var missing error
	if r == nil {
		missing = errors.New("assign: registry: nil: must be given")
	}
	if err := errors.Join(cfg.validateShared(), missing, validateWorker(w)); err != nil {
		return nil, err
	}
	m := newAssigner(cfg, w)
	m.open = func(signal func()) (link, error) { return newRowLink(r, m.cfg, m.id, signal), nil }
	return m, nil
}

func newAssigner(cfg Config, w Worker) *Member {
	cfg = cfg.withDefaults()
	m := &Member{cfg: cfg, worker: w, id: newID(), info: cfg.info(time.Now().UTC()), inbox: newInbox(cfg.Items)}
	items := newLifecycle(cfg.Items, cfg.Fenced, cfg.TakeoverAfter)
	m.snap.Store(snapshot(m.id, m.info, nil, items, heartbeat{}, Counts{}))
	return m
}

// Lost implements [Assigner].
func (m *Member) Lost(ids ...int) { m.inbox.put(ids) }

// Snapshot implements [Assigner].
func (m *Member) Snapshot() Snapshot { return *m.snap.Load() }

// Run implements [Assigner]. It waits, and logs that it waits, while the servers
// are unavailable where members meet, also at the start.
func (m *Member) Run(ctx context.Context) error {
	if !m.running.CompareAndSwap(false, true) {
		return ErrRunning
	}
	return newMember(ctx, m).run(ctx)
}

// snapshot returns the state of a member whose last view is v.
func snapshot(self string, info MemberInfo, v *view, items *lifecycle, p heartbeat, counts Counts) *Snapshot {
	s := &Snapshot{Self: self, At: time.Now(), Counts: counts, State: v.state()}
	plan := v.proposal()
	current, _ := v.currentOwners(self)
	for _, e := range items.entries {
		id := e.item.ID
		it := ItemState{Item: e.item, Requested: plan.Owners[id], Without: plan.Without[id], Current: current[id], Phase: items.phaseOf(e)}
		if e.phase != Absent {
			it.Current = append([]string{self}, it.Current...)
		}
		s.Items = append(s.Items, it)
	}
	sortItems(s.Items)
	for i := range s.Members {
		if m := &s.Members[i]; m.ID == self {
			m.Info, m.Current, m.Heartbeat, m.Figures = info, items.current(), p.at, p.figures
		}
	}
	return s
}

// proposal returns the content of the plan; the zero value if there is none.
func (v *view) proposal() proposal {
	if v == nil || v.plan == nil {
		return proposal{}
	}
	return v.plan.proposal
}

// state returns what every reader of the environment can know.
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
			ID: m.id, Seq: m.seq, Leaving: v.leaving[m.id], Info: m.info, Requested: len(requested[m.id]), Current: m.current,
			Heartbeat: m.heartbeat, Figures: m.figures, Barred: v.strategy != nil && !v.strategy.allowed(m),
		})
	}
	return s
}

func sortItems(items []ItemState) {
	slices.SortFunc(items, func(a, b ItemState) int { return cmp.Compare(a.ID, b.ID) })
}
