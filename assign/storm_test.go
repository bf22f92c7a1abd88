package assign

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/perceptor/perceptor/internal/testenv"
)

// TestNoItemHasTwoOwnersInAStorm makes members join, stop, die, and lose and regain
// their connections at random, while the observer watches from outside. Unfenced
// members must never overlap. Fenced members may be overtaken; their fence tells
// them, and they report the loss. In the end every item has one owner again.
//
// The test logs its seed; ASSIGN_STORM_SEED sets it.
func TestNoItemHasTwoOwnersInAStorm(t *testing.T) {
	overBoth(t, func(t *testing.T, newCluster clusterMaker) {
		for _, fenced := range []bool{false, true} {
			t.Run(fmt.Sprintf("fenced %v", fenced), func(t *testing.T) {
				t.Parallel()
				steps := 40
				switch {
				case testenv.Long():
					steps = 400
				case testing.Short():
					steps = 10
				}
				newStorm(t, newCluster, fenced).rage(steps)
			})
		}
	})
}

type storm struct {
	*cluster
	rand    *rand.Rand
	members map[string]*clusterMember
	born    int
}

func newStorm(t *testing.T, newCluster clusterMaker, fenced bool) *storm {
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("ASSIGN_STORM_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("ASSIGN_STORM_SEED=%d", seed)
	c := newCluster(t, databases(2), func(cfg *Config) {
		cfg.Fenced, cfg.SessionTimeout, cfg.TakeoverAfter = fenced, 1500*time.Millisecond, 200*time.Millisecond
		cfg.RebalanceDelay = 50 * time.Millisecond
	})
	c.observer.forced = fenced
	return &storm{cluster: c, rand: rand.New(rand.NewPCG(seed, 0)), members: map[string]*clusterMember{}}
}

func (s *storm) rage(steps int) {
	for range steps {
		s.step()
		s.passLosses()
		pause := time.Duration(s.rand.IntN(400)) * time.Millisecond
		began := time.Now()
		s.observer.await(s.t, "the next step", func() bool { return time.Since(began) >= pause })
	}
	for _, m := range s.members {
		m.proxy.Thaw()
		m.proxy.Heal()
	}
	if len(s.members) == 0 {
		s.birth()
	}
	s.observer.await(s.t, "all items have one owner each, evenly", func() bool { s.passLosses(); return s.settled() })
}

func (s *storm) birth() {
	s.born++
	name := fmt.Sprintf("m%02d", s.born)
	s.members[name] = s.join(name)
}

// step performs one random step.
func (s *storm) step() {
	names := make([]string, 0, len(s.members))
	for name := range s.members {
		names = append(names, name)
	}
	slices.Sort(names)
	if len(names) == 0 || len(names) < 6 && s.rand.IntN(3) == 0 {
		s.birth()
		return
	}
	name := names[s.rand.IntN(len(names))]
	m := s.members[name]
	switch s.rand.IntN(5) {
	case 0:
		m.stop()
		delete(s.members, name)
	case 1:
		s.kill(m)
		m.stop() // ends the goroutines that the test's process still has
		delete(s.members, name)
	case 2:
		m.proxy.Cut()
		m.proxy.Heal()
	case 3:
		m.proxy.Freeze()
	case 4:
		for _, m := range s.members {
			m.proxy.Thaw()
		}
	}
}

// passLosses acts as the fence: it reports lost items to the members that were
// overtaken.
func (s *storm) passLosses() {
	for name, ids := range s.observer.takeVictims() {
		if m := s.members[name]; m != nil {
			m.Lost(ids...)
		}
	}
}

func (s *storm) settled() bool {
	least, most, total := len(s.items), 0, 0
	for name, m := range s.members {
		owned := s.observer.owned(name)
		if !slices.Equal(m.Snapshot().Owned(), owned) && len(owned)+len(m.Snapshot().Owned()) > 0 {
			return false
		}
		least, most, total = min(least, len(owned)), max(most, len(owned)), total+len(owned)
	}
	return total == len(s.items) && most-least <= 1
}
