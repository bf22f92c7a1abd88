package assign

import (
	"context"
	"errors"
	"path"
	"slices"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
)

// maxReads bounds the members' nodes that are read at the same time.
const maxReads = 8

// A reading says what to read in addition to the plan and the list of members.
type reading struct {
	self    string
	current []int // items that this member has
	all     bool  // every member's node, as the ZooKeeper leader knows it
	last    *view // view from which unchanged nodes are copied; may be nil
}

// read reads the tree in the order that [view] requires. It reads the members'
// nodes if the plan names this member for an item that it does not have, if
// there is no plan, or if r.all is set.
func (t *tree) read(ctx context.Context, r reading) (*view, error) {
	v := &view{at: time.Now()}
	if r.all {
		if err := t.sync(ctx); err != nil {
			return nil, err
		}
	}
	if err := t.readPlan(ctx, v); err != nil {
		return nil, err
	}
	if err := t.readStrategy(ctx, v, r.last); err != nil {
		return nil, err
	}
	if err := t.readMembers(ctx, v, r.last); err != nil {
		return nil, err
	}
	wanted := v.requested(r.self)
	for _, id := range r.current {
		delete(wanted, id)
	}
	v.nodesRead = r.all || len(wanted) > 0 || v.plan == nil
	return v, t.readNodes(ctx, v, r.self, wanted)
}

func (t *tree) readPlan(ctx context.Context, v *view) error {
	data, stat, err := t.get(ctx, t.plan, true)
	if err != nil {
		return err
	}
	v.setPlan(data, int64(stat.Version))
	return nil
}

// setPlan decodes the stored plan.
func (v *view) setPlan(data []byte, version int64) {
	v.planVersion = version
	if len(data) == 0 {
		return // no plan was written yet
	}
	p, err := decodePlan(data)
	if err != nil {
		v.planFault = err
		return
	}
	v.plan = &p
}

// errStrategyGone: the node of a strategy that existed is empty.
var errStrategyGone = errors.New("the strategy was deleted")

func (t *tree) readStrategy(ctx context.Context, v, last *view) error {
	data, stat, err := t.get(ctx, t.strategy, true)
	if err != nil {
		return err
	}
	v.setStrategy(data, int64(stat.Version), last)
	return nil
}

// setStrategy decodes the stored strategy. If there is none that can be read, it keeps
// that of the last view.
func (v *view) setStrategy(data []byte, version int64, last *view) {
	v.strategyVersion = version
	if last != nil {
		v.strategy = last.strategy
	}
	switch {
	case len(data) > 0:
		s, err := decodeStrategy(data)
		if err != nil {
			v.strategyFault = err
			return
		}
		v.strategy = s
	case v.strategy != nil && v.strategy.stored:
		v.strategyFault = errStrategyGone
	default:
		v.strategy = &Strategy{}
	}
}

// writeStrategy replaces the strategy of the given version. It returns
// [zk.ErrBadVersion] if the version has changed.
func (t *tree) writeStrategy(ctx context.Context, s *Strategy, version int64) error {
	_, err := requestLeader(ctx, t.s, "write strategy", func() (*zk.Stat, error) { return t.s.conn.Set(t.strategy, encodeStrategy(s), int32(version)) })
	return err
}

func (t *tree) readMembers(ctx context.Context, v *view, last *view) error {
	names, err := t.children(ctx, t.members, true)
	if err != nil {
		return err
	}
	leaving, err := t.children(ctx, t.leaving, true)
	if err != nil {
		return err
	}
	v.leaving = map[string]bool{}
	for _, id := range leaving {
		v.leaving[id] = true
	}
	for _, name := range names {
		id, seq, ok := parseMemberName(name)
		if !ok {
			continue // not created by a member
		}
		s := registration{id: id, seq: seq, node: name}
		if old := last.registration(id); old != nil && old.node == name {
			s.read, s.info, s.current, s.heartbeat, s.figures = old.read, old.info, old.current, old.heartbeat, old.figures
		}
		v.members = append(v.members, s)
	}
	slices.SortFunc(v.members, func(a, b registration) int { return int(a.seq - b.seq) })
	return nil
}

// readNodes reads the required nodes, several at a time, and watches the nodes
// of members that have a wanted item.
func (t *tree) readNodes(ctx context.Context, v *view, self string, wanted map[int]bool) error {
	var wg sync.WaitGroup
	errs := make([]error, len(v.members))
	gone := make([]bool, len(v.members))
	slots := make(chan struct{}, maxReads)
	for i := range v.members {
		s := &v.members[i]
		if !v.nodesRead && s.read {
			continue
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			gone[i], errs[i] = t.readNode(ctx, s, self, wanted)
		})
	}
	wg.Wait()
	members := v.members[:0:0]
	for i, s := range v.members {
		if !gone[i] {
			members = append(members, s)
		}
	}
	v.members = members
	return errors.Join(errs...)
}

func (t *tree) readNode(ctx context.Context, s *registration, self string, wanted map[int]bool) (gone bool, err error) {
	p := path.Join(t.members, s.node)
	read := func(watched bool) error {
		data, _, err := t.get(ctx, p, watched)
		if errors.Is(err, zk.ErrNoNode) {
			gone = true
			return nil
		}
		if err != nil {
			return err
		}
		found, err := decodeMember(data)
		if s.read = err == nil; !s.read {
			s.current = nil // the other fields keep their last known values
			return nil
		}
		s.info, s.current, s.heartbeat, s.figures = found.info, found.current, found.heartbeat, found.figures
		return nil
	}
	if err := read(false); err != nil || gone || s.id == self {
		return gone, err
	}
	if s.read && !slices.ContainsFunc(s.current, func(id int) bool { return wanted[id] }) {
		return false, nil
	}
	return gone, read(true) // read again, or a change in between would be missed
}
