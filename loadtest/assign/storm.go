package assign

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"time"

	"github.com/go-zookeeper/zk"

	core "github.com/perceptor/perceptor/assign"
)

// StormReport is the result of a storm.
//
// The bounds count from the time at which the servers serve again. A suspended ZooKeeper
// may take half a minute to find its leader, and this is not the fault of the members.
type StormReport struct {
	Seed       uint64         `json:"seed"`
	Steps      map[string]int `json:"steps"`
	Calms      int            `json:"calms"`
	Looks      int            `json:"looks"`
	Violations []string       `json:"violations"`
	// SettledMS is the longest time from the end of disturbances until the members had
	// settled. IdleMS is the longest time that an item was idle. Moved is the largest
	// number of items that one more member moved.
	SettledMS int64 `json:"settled_ms"`
	// MendedMS is the longest time until all servers served again.
	MendedMS int64 `json:"mended_ms"`
	IdleMS   int64 `json:"idle_ms"`
	Moved    int   `json:"moved_on_join"`
}

// A storm disturbs a world at random. It starts, stops, kills, suspends and disconnects
// members, kills and restarts servers, and overwrites and deletes nodes.
type storm struct {
	*world
	rand   *rand.Rand
	check  *checker
	report *StormReport
}

// Storm disturbs members for length, with calms in between, and returns the findings of
// the checker. Violations are in the report. The error is about the world itself.
func Storm(ctx context.Context, o Options, length time.Duration) (*StormReport, error) {
	w, err := newWorld(ctx, o)
	if err != nil {
		return nil, err
	}
	s := &storm{world: w, rand: rand.New(rand.NewPCG(o.Seed, 0)), report: &StormReport{Seed: o.Seed, Steps: map[string]int{}}}
	s.check = newChecker(w, s.maxIdle())
	looking, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- s.check.run(looking) }()
	err = s.disturbFor(ctx, length)
	stop()
	err = errors.Join(err, <-done)
	s.report.Violations = s.check.violations()
	s.report.Looks, s.report.IdleMS = s.check.looks, s.check.idlest.Milliseconds()
	return s.report, errors.Join(err, w.close())
}

// maxIdle returns the bound for the idle time of an item. It covers the longest
// suspension, the end of a session, and a second disturbance of the same kind right after.
func (s *storm) maxIdle() time.Duration { return 15*s.o.Session + s.calmBound() }

// calmBound returns the time within which members must settle after the disturbances end.
func (s *storm) calmBound() time.Duration { return 4*s.o.Session + 30*time.Second }

func (s *storm) disturbFor(ctx context.Context, length time.Duration) error {
	ends := time.Now().Add(length)
	for range 3 {
		if _, err := s.startMember(); err != nil {
			return err
		}
	}
	if err := s.calm(ctx); err != nil {
		return err
	}
	for time.Now().Before(ends) && ctx.Err() == nil && len(s.check.violations()) == 0 {
		s.report.Steps["coup"]++
		if err := s.coup(ctx); err != nil { // a coup begins in a calm
			return err
		}
		for range 8 + s.rand.IntN(8) {
			if err := s.step(ctx); err != nil {
				return err
			}
			s.pass(ctx, time.Duration(s.rand.IntN(500))*time.Millisecond)
		}
		if err := s.calm(ctx); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// pass waits for d and resumes the members whose suspension ends meanwhile.
func (s *storm) pass(ctx context.Context, d time.Duration) {
	for until := time.Now().Add(d); time.Now().Before(until) && ctx.Err() == nil; {
		if err := s.wakeUp(false); err != nil {
			s.o.Progress("%v", err)
		}
		sleep(ctx, 20*time.Millisecond)
	}
}

// An action is a disturbance with its weight in the random choice.
type action struct {
	name   string
	weight int
	do     func(s *storm, ctx context.Context, m *member) error
}

var actions = []action{
	{"join", 5, (*storm).join},
	{"stop", 2, (*storm).stop},
	{"kill", 2, (*storm).kill},
	{"suspend", 4, (*storm).suspendOne},
	{"cut", 3, (*storm).cut},
	{"freeze", 3, (*storm).freeze},
	{"heal", 5, (*storm).heal},
	{"garble", 2, (*storm).garble},
	{"delete", 2, (*storm).deleteNode},
	{"strategy", 2, (*storm).restrict},
	{"server", 2, (*storm).hurtServer},
	{"outage", 1, (*storm).outage},
}

func (s *storm) step(ctx context.Context) error {
	if err := s.died(); err != nil {
		return err
	}
	if len(s.members) == 0 {
		return s.join(ctx, nil)
	}
	total := 0
	for _, a := range actions {
		total += a.weight
	}
	n := s.rand.IntN(total)
	i := slices.IndexFunc(actions, func(a action) bool { n -= a.weight; return n < 0 })
	m := s.members[s.rand.IntN(len(s.members))]
	s.report.Steps[actions[i].name]++
	s.o.Progress("%s (%s of %d)", actions[i].name, m.name, len(s.members))
	if err := actions[i].do(s, ctx, m); err != nil {
		return fmt.Errorf("%s: %w", actions[i].name, err)
	}
	return nil
}

// calm ends all disturbances. It requires that the members settle within the bound and
// that one more member moves no more than its share.
func (s *storm) calm(ctx context.Context) error {
	if len(s.members) == 0 {
		if _, err := s.startMember(); err != nil {
			return err
		}
	}
	if err := errors.Join(s.heal(ctx, nil), s.wakeUp(true), s.unrestrict(ctx), s.died()); err != nil {
		return err
	}
	took, err := await(ctx, s.calmBound(), func() error { return s.settled(ctx) })
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		s.check.violate("calm", "the members have not settled %v after the last disturbance: %v", took.Round(time.Millisecond), err)
		return nil
	}
	s.report.Calms++
	s.report.SettledMS = max(s.report.SettledMS, took.Milliseconds())
	s.o.Progress("settled after %v", took.Round(time.Millisecond))
	return s.oneMore(ctx)
}

// unrestrict resets the strategy, which may be garbled.
func (s *storm) unrestrict(ctx context.Context) error {
	_, err := await(ctx, time.Minute, func() error {
		err := s.admin.Reset(ctx)
		if errors.Is(err, zk.ErrNoNode) {
			return nil // no member has created it yet
		}
		return err
	})
	return err
}

// oneMore starts a member and counts the items that move because of it.
func (s *storm) oneMore(ctx context.Context) error {
	before, err := s.overview(ctx)
	if err != nil || len(s.members) >= s.o.MaxMembers {
		return nil
	}
	if _, err := s.startMember(); err != nil {
		return err
	}
	if _, err := await(ctx, s.calmBound(), func() error { return s.settled(ctx) }); err != nil {
		s.check.violate("join", "a member that joined in a calm did not get its share: %v", err)
		return nil
	}
	after, err := s.overview(ctx)
	if err != nil {
		return nil
	}
	moved := 0
	for _, r := range after.Recent {
		if r.Generation > before.Generation {
			moved += r.Moved
		}
	}
	share := (s.o.Items + len(s.members) - 1) / len(s.members)
	if s.report.Moved = max(s.report.Moved, moved); moved > share {
		s.check.violate("moved", "a member that joined moved %d items, at most %d are allowed", moved, share)
	}
	return nil
}

func (s *storm) join(context.Context, *member) error {
	if len(s.members) >= s.o.MaxMembers {
		return nil
	}
	_, err := s.startMember()
	return err
}

func (s *storm) stop(ctx context.Context, m *member) error {
	if !m.resume.IsZero() {
		return nil
	}
	limit, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	_ = m.process.Stop(limit, syscall.SIGTERM) // Stop kills a member that is cut off and does not end in time
	s.forgetMember(m)
	return nil
}

func (s *storm) kill(_ context.Context, m *member) error {
	err := m.process.Kill()
	s.forgetMember(m)
	return err
}

// suspendOne suspends a process for a half, one and a half, or five session timeouts.
func (s *storm) suspendOne(_ context.Context, m *member) error {
	if !m.resume.IsZero() {
		return nil
	}
	halves := []time.Duration{1, 3, 3, 10}
	return s.suspend(m, s.o.Session*halves[s.rand.IntN(len(halves))]/2)
}

func (s *storm) cut(_ context.Context, m *member) error {
	m.proxy.Cut()
	if s.rand.IntN(2) == 0 {
		m.proxy.Heal()
	}
	return nil
}

func (s *storm) freeze(_ context.Context, m *member) error {
	m.proxy.Freeze()
	return nil
}

func (s *storm) heal(ctx context.Context, _ *member) error {
	for _, m := range s.members {
		m.proxy.Thaw()
		m.proxy.Heal()
	}
	return s.mendServers(ctx)
}

func (s *storm) mendServers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	began := time.Now()
	err := s.meeting.restart(ctx)
	s.report.MendedMS = max(s.report.MendedMS, time.Since(began).Milliseconds())
	return err
}

// tree changes what is stored directly, as an operator might. It waits at most two seconds
// and ignores errors, because the servers may be down.
func (s *storm) tree(f func() error) error {
	done := make(chan struct{})
	s.byHand.Go(func() {
		defer close(done)
		if err := f(); err != nil {
			s.o.Progress("direct change: %v", err)
		}
	})
	select {
	case <-done:
	case <-time.After(2 * time.Second):
	}
	return nil
}

func (s *storm) garble(ctx context.Context, _ *member) error {
	n := s.rand.IntN(3000)
	return s.tree(func() error { return s.meeting.garble(ctx, n) })
}

// deleteNode removes a member or something that all members need.
func (s *storm) deleteNode(ctx context.Context, _ *member) error {
	n := s.rand.IntN(3000)
	return s.tree(func() error { return s.meeting.remove(ctx, n) })
}

// restrict changes the strategy, as an operator might. The next calm resets it.
func (s *storm) restrict(ctx context.Context, m *member) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	what, item := s.rand.IntN(4), s.rand.IntN(s.o.Items)
	_, _ = s.admin.Edit(ctx, func(st *core.Strategy) error { // ZooKeeper may be down, or the strategy unreadable
		switch what {
		case 0:
			st.Drain(m.name)
		case 1:
			st.Drained, st.Pins = nil, nil
		case 2:
			st.Pin(m.name, item)
		case 3:
			st.MaxItems = s.o.Items - 1 - item/2
		}
		return nil
	})
	return nil
}

// hurtServer restarts the servers that are down and then kills or suspends one.
func (s *storm) hurtServer(ctx context.Context, _ *member) error {
	if err := s.mendServers(ctx); err != nil {
		return err
	}
	return s.meeting.hurt(s.rand)
}

// outage kills all servers and restarts them after up to two session timeouts.
func (s *storm) outage(ctx context.Context, _ *member) error {
	if err := s.meeting.kill(); err != nil {
		return err
	}
	s.pass(ctx, time.Duration(s.rand.Int64N(int64(2*s.o.Session))))
	return s.mendServers(ctx)
}

// coup delays a leader that is about to write a plan, removes its node, waits for the
// next leader's plan, and then lets the delayed leader write.
func (s *storm) coup(ctx context.Context) error {
	o, err := s.overview(ctx)
	leader := s.named(o, o.Leader)
	if err != nil || leader == nil || len(s.members) < 2 {
		return nil
	}
	young, err := s.startMember()
	if err != nil {
		return err
	}
	_, _ = await(ctx, 10*time.Second, func() error { return s.listed(ctx, young.name) })
	s.pass(ctx, s.o.Settle/3) // the leader has seen the new member and waits for the rebalance delay
	leader.proxy.Freeze()
	s.pass(ctx, s.o.Settle)
	s.o.Progress("coup: %s is delayed before it writes its plan", leader.name)
	_ = s.tree(func() error { return s.meeting.unlist(ctx, o.Leader) })
	before := o.Generation
	_, _ = await(ctx, s.o.Session/2, func() error {
		if now, err := s.overview(ctx); err != nil || now.Generation == before {
			return errors.New("no new plan")
		}
		return nil
	})
	s.pass(ctx, 100*time.Millisecond) // the checker has seen the new plan
	leader.proxy.Thaw()
	return nil
}

// named returns the living member with an id, or nil.
func (s *storm) named(o core.Overview, id string) *member {
	for _, m := range o.Members {
		i := slices.IndexFunc(s.members, func(own *member) bool { return own.name == m.Info.Name })
		if m.ID == id && i >= 0 {
			return s.members[i]
		}
	}
	return nil
}

// listed returns an error unless a member of that name is in the overview.
func (s *storm) listed(ctx context.Context, name string) error {
	o, err := s.overview(ctx)
	if err == nil && !slices.ContainsFunc(o.Members, func(m core.MemberState) bool { return m.Info.Name == name }) {
		err = errors.New("not listed")
	}
	return err
}
