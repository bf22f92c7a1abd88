package assign

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/go-zookeeper/zk"
)

// StormReport is what a storm has found.
//
// The bounds count from when the servers serve again: a ZooKeeper that was
// suspended may take half a minute to find its leader, which is not the members'.
type StormReport struct {
	Seed       uint64         `json:"seed"`
	Steps      map[string]int `json:"steps"`
	Calms      int            `json:"calms"`
	Looks      int            `json:"looks"`
	Violations []string       `json:"violations"`
	// SettledMS is the longest time from the end of disturbances until all was
	// well, IdleMS the longest that an item was idle, Moved the most items that
	// one more member has moved.
	SettledMS int64 `json:"settled_ms"`
	// MendedMS is the longest that the servers themselves took to serve again.
	MendedMS int64 `json:"mended_ms"`
	IdleMS   int64 `json:"idle_ms"`
	Moved    int   `json:"moved_on_join"`
}

// A storm lets members join, stop, die, be suspended and cut off, servers die and
// come back, and nodes be garbled, at random.
type storm struct {
	*world
	rand   *rand.Rand
	check  *checker
	report *StormReport
}

// Storm disturbs members for a while, lets them come to rest now and then, and
// answers what the checker has found. Its error is about the world, not about
// violations.
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
	err = s.rage(ctx, length)
	stop()
	err = errors.Join(err, <-done)
	s.report.Violations = s.check.violations()
	s.report.Looks, s.report.IdleMS = s.check.looks, s.check.idlest.Milliseconds()
	return s.report, errors.Join(err, w.close())
}

// maxIdle holds the longest suspension, the end of a session, and a second
// disturbance of the same kind right after it.
func (s *storm) maxIdle() time.Duration { return 15*s.o.Session + s.calmBound() }

// calmBound is how long it may take until all is well once nobody disturbs.
func (s *storm) calmBound() time.Duration { return 4*s.o.Session + 30*time.Second }

func (s *storm) rage(ctx context.Context, length time.Duration) error {
	ends := time.Now().Add(length)
	for range 3 {
		if _, err := s.birth(); err != nil {
			return err
		}
	}
	if err := s.calm(ctx); err != nil {
		return err
	}
	for time.Now().Before(ends) && ctx.Err() == nil && len(s.check.violations()) == 0 {
		s.report.Steps["coup"]++
		if err := s.coup(ctx); err != nil { // it needs a calm to begin in
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

// pass lets time go by, and members wake up.
func (s *storm) pass(ctx context.Context, d time.Duration) {
	for until := time.Now().Add(d); time.Now().Before(until) && ctx.Err() == nil; {
		if err := s.wakeUp(false); err != nil {
			s.o.Progress("%v", err)
		}
		sleep(ctx, 20*time.Millisecond)
	}
}

// An action is one disturbance, and how often it comes.
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

// step does one random thing.
func (s *storm) step(ctx context.Context) error {
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

// calm ends all disturbances and demands that all is well within the bound, and
// that one more member moves no more than its share.
func (s *storm) calm(ctx context.Context) error {
	if len(s.members) == 0 {
		if _, err := s.birth(); err != nil {
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
		s.check.violate("calm", "not all is well %v after the last disturbance: %v", took.Round(time.Millisecond), err)
		return nil
	}
	s.report.Calms++
	s.report.SettledMS = max(s.report.SettledMS, took.Milliseconds())
	s.o.Progress("all is well after %v", took.Round(time.Millisecond))
	return s.oneMore(ctx)
}

// unrestrict resets the strategy, which may be garbled.
func (s *storm) unrestrict(ctx context.Context) error {
	_, err := await(ctx, time.Minute, func() error {
		err := s.admin.Reset(ctx)
		if errors.Is(err, zk.ErrNoNode) {
			return nil // nobody has been there
		}
		return err
	})
	return err
}

// oneMore lets a member join and counts what that moves.
func (s *storm) oneMore(ctx context.Context) error {
	before, err := s.overview(ctx)
	if err != nil || len(s.members) >= s.o.MaxMembers {
		return nil
	}
	if _, err := s.birth(); err != nil {
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
		s.check.violate("moved", "a member that joined moved %d items, allowed are %d", moved, share)
	}
	return nil
}
