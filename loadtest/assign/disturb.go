package assign

import (
	"context"
	"errors"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	core "github.com/perceptor/perceptor/assign"
)

func (s *storm) join(context.Context, *member) error {
	if len(s.members) >= s.o.MaxMembers {
		return nil
	}
	_, err := s.birth()
	return err
}

func (s *storm) stop(ctx context.Context, m *member) error {
	if !m.resume.IsZero() {
		return nil
	}
	limit, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	_ = m.process.Stop(limit, syscall.SIGTERM) // one that is cut off may need to be killed
	s.bury(m)
	return nil
}

func (s *storm) kill(_ context.Context, m *member) error {
	err := m.process.Kill()
	s.bury(m)
	return err
}

// suspendOne stops a process for half a session, one and a half, or five.
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

// mendServers starts what was killed.
func (s *storm) mendServers(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	began := time.Now()
	err := s.ensemble.Restart(ctx)
	s.report.MendedMS = max(s.report.MendedMS, time.Since(began).Milliseconds())
	return err
}

// tree does something with nodes by hand; that ZooKeeper is away does not matter.
func (s *storm) tree(f func() error) error {
	done := make(chan struct{})
	s.byHand.Go(func() {
		defer close(done)
		if err := f(); err != nil {
			s.o.Progress("by hand: %v", err)
		}
	})
	select {
	case <-done:
	case <-time.After(2 * time.Second):
	}
	return nil
}

func (s *storm) env(parts ...string) string {
	return path.Join(append([]string{root, "env", "BASE"}, parts...)...)
}

func (s *storm) garble(context.Context, *member) error {
	what, n := s.rand.IntN(3), s.rand.IntN(1000)
	return s.tree(func() error {
		p := s.env([]string{"plan", "strategy", "members"}[what])
		if what == 2 {
			var err error
			if p, err = s.childOf(p, n); p == "" {
				return err
			}
		}
		_, err := s.hands.Set(p, []byte("garbage"), -1)
		return err
	})
}

// childOf returns the path of one of the node's children, which n chooses; empty: it
// has none.
func (s *storm) childOf(node string, n int) (string, error) {
	names, _, err := s.hands.Children(node)
	if err != nil || len(names) == 0 {
		return "", err
	}
	slices.Sort(names)
	return path.Join(node, names[n%len(names)]), nil
}

// deleteNode removes a member's node, the goodbyes, or the format.
func (s *storm) deleteNode(context.Context, *member) error {
	what, n := s.rand.IntN(3), s.rand.IntN(1000)
	return s.tree(func() error {
		p := []string{s.env("leaving"), root + "/format", s.env("members")}[what]
		if what == 2 {
			var err error
			if p, err = s.childOf(p, n); p == "" {
				return err
			}
		}
		return s.hands.Delete(p, -1)
	})
}

// restrict has an operator change the strategy, for as long as the storm lasts.
func (s *storm) restrict(ctx context.Context, m *member) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	what, item := s.rand.IntN(4), s.rand.IntN(s.o.Items)
	_, _ = s.admin.Edit(ctx, func(st *core.Strategy) error { // ZooKeeper may be away, or the strategy garbled
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

// hurtServer kills or suspends one server of an ensemble that is whole.
func (s *storm) hurtServer(ctx context.Context, _ *member) error {
	if err := s.mendServers(ctx); err != nil {
		return err
	}
	server := s.ensemble.Servers[s.rand.IntN(len(s.ensemble.Servers))]
	if s.rand.IntN(2) == 0 {
		return server.Pause()
	}
	return server.Kill()
}

// outage takes all servers away for up to two sessions.
func (s *storm) outage(ctx context.Context, _ *member) error {
	if err := s.ensemble.Kill(); err != nil {
		return err
	}
	s.pass(ctx, time.Duration(s.rand.Int64N(int64(2*s.o.Session))))
	return s.mendServers(ctx)
}

// coup holds a leader back that is about to write a plan, removes its node, waits
// for the next leader's plan, and lets the late one go.
func (s *storm) coup(ctx context.Context) error {
	o, err := s.overview(ctx)
	leader := s.named(o, o.Leader)
	if err != nil || leader == nil || len(s.members) < 2 {
		return nil
	}
	young, err := s.birth()
	if err != nil {
		return err
	}
	_, _ = await(ctx, 10*time.Second, func() error { return s.listed(ctx, young.name) })
	s.pass(ctx, s.o.Settle/3) // the leader has read it, and settles
	leader.proxy.Freeze()
	s.pass(ctx, s.o.Settle)
	s.o.Progress("coup: %s is held back with its plan", leader.name)
	_ = s.tree(func() error { return s.hands.Delete(s.node(o.Leader), -1) })
	before := o.Generation
	_, _ = await(ctx, s.o.Session/2, func() error {
		if now, err := s.overview(ctx); err != nil || now.Generation == before {
			return errors.New("no new plan")
		}
		return nil
	})
	s.pass(ctx, 100*time.Millisecond) // the checker has seen it
	leader.proxy.Thaw()
	return nil
}

// named is the living member of that id.
func (s *storm) named(o core.Overview, id string) *member {
	for _, m := range o.Members {
		i := slices.IndexFunc(s.members, func(own *member) bool { return own.name == m.Info.Name })
		if m.ID == id && i >= 0 {
			return s.members[i]
		}
	}
	return nil
}

func (s *storm) listed(ctx context.Context, name string) error {
	o, err := s.overview(ctx)
	if err == nil && !slices.ContainsFunc(o.Members, func(m core.MemberState) bool { return m.Info.Name == name }) {
		err = errors.New("not listed")
	}
	return err
}

// node is the path of a member's node.
func (s *storm) node(id string) string {
	names, _, err := s.hands.Children(s.env("members"))
	if err != nil {
		return s.env("members", "unknown")
	}
	i := slices.IndexFunc(names, func(name string) bool { return strings.HasPrefix(name, "m-"+id+"-") })
	return s.env("members", names[max(i, 0)])
}
