package assign

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perceptor/perceptor/internal/testenv"
)

// TestAssignersKeepTheContract runs the same tests against each Assigner.
func TestAssignersKeepTheContract(t *testing.T) {
	makers := map[string]func(t *testing.T, cfg Config, w Worker) (Assigner, error){
		"local": func(_ *testing.T, cfg Config, w Worker) (Assigner, error) { return NewLocal(cfg, w) },
		"zookeeper": func(t *testing.T, cfg Config, w Worker) (Assigner, error) {
			cfg.Servers, cfg.Root = []string{testenv.ZooKeeper(t).Addr()}, testenv.Root(t)
			return NewZooKeeper(cfg, w)
		},
		"postgres": func(t *testing.T, cfg Config, w Worker) (Assigner, error) {
			return NewMember(cfg, registryOver(t, tablesOn(t, testenv.Postgres(t))), w)
		},
	}
	for name, maker := range makers {
		t.Run(name, func(t *testing.T) { conformance(t, maker) })
	}
}

func conformance(t *testing.T, maker func(t *testing.T, cfg Config, w Worker) (Assigner, error)) {
	items := itemsOf(0, 0, 0, 1, 1, 2)
	setup := func(t *testing.T, change func(*Config)) *running {
		t.Helper()
		cfg := testConfig(t, items)
		if change != nil {
			change(&cfg)
		}
		h := newObserver(t).hand("a", items)
		a, err := maker(t, cfg, h)
		if err != nil {
			t.Fatal(err)
		}
		return &running{Assigner: a, hand: h}
	}
	run := func(t *testing.T, r *running) *running { t.Helper(); return start(t, r.Assigner, r.hand) }
	all := idsOf(items)
	ownsAll := func(r *running) func() bool {
		return func() bool {
			return slices.Equal(r.Snapshot().Owned(), all) && slices.Equal(r.hand.observer.owned("a"), all)
		}
	}

	t.Run("a lone member gets everything in one call per group and says so", func(t *testing.T) {
		r := run(t, setup(t, nil))
		r.hand.observer.await(t, "all owned", ownsAll(r))
		acquires, _ := r.hand.calls()
		slices.SortFunc(acquires, slices.Compare)
		if want := [][]int{{0, 1, 2}, {3, 4}, {5}}; !slices.EqualFunc(acquires, want, slices.Equal) {
			t.Errorf("acquired by %v, want %v", acquires, want)
		}
		s := r.Snapshot()
		if !s.Leading() || !s.Connected || !s.Registered || s.Generation < 1 || len(s.Members) != 1 || s.Counts.Acquired != 6 {
			t.Errorf("snapshot %+v", s)
		}
		if it := s.Items[4]; it.Item != items[4] || it.Requested != s.Self || !slices.Equal(it.Current, []string{s.Self}) || it.Phase != Owned {
			t.Errorf("item state %+v", it)
		}
		if m := s.Members[0]; m.ID != s.Self || m.Info.Name != "tester" || m.Requested != 6 || !slices.Equal(m.Current, all) {
			t.Errorf("member state %+v", m)
		}
	})

	t.Run("a snapshot before Run says that nothing is owned", func(t *testing.T) {
		s := setup(t, nil).Snapshot()
		if s.Connected || s.Leading() || len(s.Owned()) != 0 || len(s.Items) != len(items) {
			t.Errorf("snapshot %+v", s)
		}
	})

	t.Run("cancelling releases everything, and Run returns nil", func(t *testing.T) {
		r := run(t, setup(t, nil))
		r.hand.observer.await(t, "all owned", ownsAll(r))
		if err := r.result(t); err != nil {
			t.Errorf("Run: %v", err)
		}
		_, releases := r.hand.calls()
		slices.SortFunc(releases, slices.Compare)
		if want := [][]int{{0, 1, 2}, {3, 4}, {5}}; !slices.EqualFunc(releases, want, slices.Equal) {
			t.Errorf("released by %v, want %v", releases, want)
		}
		if s := r.Snapshot(); len(s.Owned()) != 0 || s.Connected {
			t.Errorf("snapshot %+v", s)
		}
	})

	t.Run("a failed Acquire is repeated and delays no other group", func(t *testing.T) {
		r := setup(t, nil)
		failures := 0 // only in calls for group 0, which never overlap
		r.hand.on(func(_ context.Context, ids []int) error {
			if ids[0] != 0 {
				return nil
			}
			if failures++; failures <= 3 {
				r.hand.observer.await(t, "the other groups are owned", func() bool {
					return len(r.hand.observer.owned("a")) == 6 && len(r.Snapshot().Owned()) == 3
				})
				return errPlanted
			}
			return nil
		}, nil)
		run(t, r)
		r.hand.observer.await(t, "all owned", ownsAll(r))
		if n := r.Snapshot().Counts.FailedCalls; n != 3 {
			t.Errorf("%d failed calls, want 3", n)
		}
	})

	t.Run("items reported as lost are acquired again, others not", func(t *testing.T) {
		r := run(t, setup(t, nil))
		r.hand.observer.await(t, "all owned", ownsAll(r))
		r.hand.drop([]int{1, 3})
		r.Lost(1, 3, 77)
		r.hand.observer.await(t, "all owned again", func() bool { return ownsAll(r)() && r.Snapshot().Counts.Lost == 2 })
		acquires, releases := r.hand.calls()
		if len(releases) != 0 {
			t.Errorf("released %v, want nothing", releases)
		}
		again := acquires[3:]
		slices.SortFunc(again, slices.Compare)
		if want := [][]int{{1}, {3}}; !slices.EqualFunc(again, want, slices.Equal) {
			t.Errorf("acquired again %v, want %v", again, want)
		}
	})

	t.Run("items lost while they are being acquired are acquired again", func(t *testing.T) {
		r := setup(t, nil)
		first := true
		r.hand.on(func(_ context.Context, ids []int) error {
			if ids[0] == 5 && first {
				first = false
				r.Lost(5)
				r.hand.observer.await(t, "the loss is seen", func() bool { return r.Snapshot().Counts.Lost == 1 })
			}
			return nil
		}, nil)
		run(t, r)
		r.hand.observer.await(t, "all owned", func() bool {
			acquires, _ := r.hand.calls()
			return ownsAll(r)() && len(acquires) == 4
		})
	})

	t.Run("a failed Release is repeated", func(t *testing.T) {
		r := setup(t, nil)
		failures := 0
		r.hand.on(nil, func(_ context.Context, ids []int) error {
			if ids[0] == 3 && failures < 2 {
				failures++
				return errPlanted
			}
			return nil
		})
		r = run(t, r)
		r.hand.observer.await(t, "all owned", ownsAll(r))
		if err := r.result(t); err != nil || failures != 2 || len(r.hand.observer.owned("a")) != 0 {
			t.Errorf("Run: %v after %d failures, still owned %v", err, failures, r.hand.observer.owned("a"))
		}
	})

	t.Run("an Acquire that is running ends when Run is cancelled", func(t *testing.T) {
		r := setup(t, nil)
		entered := make(chan struct{}, 3)
		r.hand.on(func(ctx context.Context, ids []int) error {
			entered <- struct{}{}
			<-ctx.Done()
			return ctx.Err()
		}, nil)
		r = run(t, r)
		<-entered
		if err := r.result(t); err != nil || len(r.hand.observer.owned("a")) != 0 {
			t.Errorf("Run: %v, still owned %v", err, r.hand.observer.owned("a"))
		}
	})

	t.Run("Run reports a worker that never releases its items", func(t *testing.T) {
		r := setup(t, func(cfg *Config) { cfg.StopTimeout = 300 * time.Millisecond })
		r.hand.on(nil, func(ctx context.Context, ids []int) error {
			if ids[0] != 3 {
				return nil
			}
			<-ctx.Done()
			return ctx.Err()
		})
		r = run(t, r)
		r.hand.observer.await(t, "all owned", ownsAll(r))
		if err := r.result(t); !errors.Is(err, ErrUnreleased) || !strings.Contains(err.Error(), "3-4") {
			t.Errorf("Run: %v", err)
		}
	})

	t.Run("a call that takes too long fails", func(t *testing.T) {
		r := setup(t, func(cfg *Config) { cfg.CallTimeout = 50 * time.Millisecond })
		slow := true
		r.hand.on(func(ctx context.Context, ids []int) error {
			if ids[0] == 5 && slow {
				slow = false
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}, nil)
		run(t, r)
		r.hand.observer.await(t, "all owned", func() bool { return ownsAll(r)() && r.Snapshot().Counts.FailedCalls >= 1 })
	})

	t.Run("a second Run is refused", func(t *testing.T) {
		r := run(t, setup(t, nil))
		r.hand.observer.await(t, "all owned", ownsAll(r))
		if err := r.Run(t.Context()); !errors.Is(err, ErrRunning) {
			t.Errorf("second Run: %v", err)
		}
	})

	t.Run("faulty items and a missing worker are refused", func(t *testing.T) {
		for _, bad := range [][]Item{nil, {{ID: -1}}, {{ID: 1}, {ID: 1}}, make([]Item, MaxItems+1)} {
			if _, err := maker(t, Config{Items: bad}, newObserver(t).hand("a", nil)); err == nil {
				t.Errorf("%d items are accepted", len(bad))
			}
		}
		if _, err := maker(t, testConfig(t, items), nil); err == nil {
			t.Error("a nil worker is accepted")
		}
	})
}

// testConfig has short times, and a log that is printed if the test fails.
func testConfig(t *testing.T, items []Item) Config {
	t.Helper()
	return Config{
		Items: items, Name: "tester", Fenced: true, SessionTimeout: 4 * time.Second,
		RebalanceDelay: 100 * time.Millisecond, Reconcile: time.Second, Log: testLog(t, filepath.Base(t.Name())),
	}
}
