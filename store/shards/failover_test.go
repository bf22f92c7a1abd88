package shards

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/perceptor/perceptor/internal/testenv"
	"github.com/perceptor/perceptor/store/identity"
	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/storetest"
	"github.com/perceptor/perceptor/task"
)

// losing is an installation on a server that is about to lose commits. Its processes reach
// the server through a proxy and are not restarted.
type losing struct {
	t       *testing.T
	ctx     context.Context
	primary *testenv.PostgresServer
	proxy   *testenv.Proxy
	dsn     string
	adds    int
	seen    map[int64]task.ID // acknowledged ids by number

	mu      sync.Mutex
	adopted map[string]int // adoptions of database 2, by process
}

// lostDatabase is the database that the tests use.
const lostDatabase = 2

func newLosing(t *testing.T) *losing {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	l := &losing{t: t, ctx: ctx, primary: storetest.NewServer(t), seen: map[int64]task.ID{}, adopted: map[string]int{}}
	l.proxy = testenv.NewProxy(t, l.primary.Addr())
	dsn, err := l.proxy.Through(l.primary.DSN())
	l.must(err)
	l.dsn = dsn
	return l
}

func (l *losing) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

// process starts what stands for a process: a store with its own connections.
func (l *losing) process(name string) *Store {
	l.t.Helper()
	cluster := storetest.OpenDSN(l.t, l.dsn)
	cluster.OnAdoption(func(a identity.Adoption) {
		if a.Database == lostDatabase {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.adopted[name]++
		}
	})
	s := New(cluster, Config{AddSpacing: time.Millisecond})
	run, stop := context.WithCancel(context.Background())
	done := async(func() error { return s.Run(run) })
	l.t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			l.t.Error(err)
		}
	})
	return s
}

// add adds n tasks in one request and checks that their numbers are new. It repeats the
// request as a client does.
func (l *losing) add(s *Store, n int, begin time.Time) []task.ID {
	l.t.Helper()
	req := task.AddRequest{Tenant: 1}
	for req.RequestID == "" || task.ShardOf(req.RequestID).Database() != lostDatabase {
		l.adds++
		req.RequestID = fmt.Sprintf("r%d", l.adds)
	}
	spec := task.Spec{Terms: task.Terms{Kind: "k", Begin: task.At(begin), End: task.Never}, Type: task.OneShot}
	if faults := spec.Validate(task.DefaultLimits()); len(faults) > 0 {
		l.t.Fatal(faults)
	}
	for range n {
		req.Specs = append(req.Specs, spec)
	}
	var done task.AddResult
	l.eventually(func() (err error) { done, err = s.Add(l.ctx, req); return err })
	var ids []task.ID
	for _, item := range done.Items {
		if other, twice := l.seen[int64(item.ID)/task.Shards]; twice {
			l.t.Errorf("the number of task %d was given to task %d before", item.ID, other)
		}
		l.seen[int64(item.ID)/task.Shards] = item.ID
		ids = append(ids, item.ID)
	}
	return ids
}

func (l *losing) eventually(step func() error) {
	l.t.Helper()
	for {
		err := step()
		if err == nil {
			return
		}
		select {
		case <-l.ctx.Done():
			l.t.Fatal(err)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// failOver promotes a standby that has everything up to now and nothing of what lose does.
func (l *losing) failOver(lose func()) {
	l.t.Helper()
	standby := testenv.NewStandby(l.t, l.primary, "standby")
	l.must(standby.CatchUp(l.ctx, l.primary))
	l.must(standby.Unfollow(l.ctx))
	lose()
	l.must(standby.Promote(l.ctx))
	l.proxy.Cut()
	l.proxy.Redirect(standby.Addr())
	l.proxy.Heal()
	l.must(l.primary.Kill())
}

func (l *losing) acquire(s *Store, name string) (owned []task.Ownership) {
	l.t.Helper()
	l.eventually(func() (err error) {
		owned, err = s.Acquire(l.ctx, lostDatabase, []task.Shard{64, 65}, task.Owner{Name: name})
		return err
	})
	return owned
}

func (l *losing) claim(s *Store, owned []task.Ownership) (c task.Claim) {
	l.t.Helper()
	l.eventually(func() (err error) {
		c, err = s.Claim(l.ctx, task.ClaimRequest{Database: lostDatabase, Owned: owned, Form: task.CappedForm, MaxRows: 100})
		return err
	})
	return c
}

// fresh starts a process that knows nothing, and checks that it draws no number again.
func (l *losing) fresh(name string) *Store {
	l.t.Helper()
	s := l.process(name)
	var firsts []int64
	l.eventually(func() (err error) { firsts, _, err = s.db.DrawBlocks(l.ctx, lostDatabase, 2*prelogged); return err })
	for number, id := range l.seen {
		for _, first := range firsts {
			if number >= first && number < first+kernel.NumberBlock {
				l.t.Errorf("the number of task %d is drawn again", id)
			}
		}
	}
	return s
}

// prelogged is more than the number of calls of a sequence that one record of the log covers:
// PostgreSQL skips so many if it loses later records.
const prelogged = 40

// found checks that every task can be read.
func (l *losing) found(s *Store, ids []task.ID) {
	l.t.Helper()
	for _, id := range ids {
		if _, err := s.Get(l.ctx, 1, id); err != nil {
			l.t.Errorf("task %d was acknowledged after the loss: %v", id, err)
		}
	}
}

func TestNothingThatAFailOverHasLostIsReliedOn(t *testing.T) {
	t.Parallel()
	l := newLosing(t)
	one, two := l.process("one"), l.process("two")
	far := time.Now().Add(48 * time.Hour)
	l.add(one, 10, far) // the standby has the block of process one, and not that of process two
	before := l.acquire(one, "one")
	var after []task.Ownership
	var lease int64
	kind := task.TenantKind{Tenant: lostDatabase, Kind: "capped"}
	l.failOver(func() {
		l.add(one, 10, far)
		_, _, err := two.db.DrawBlocks(l.ctx, lostDatabase, prelogged)
		l.must(err)
		l.add(two, 10, far)
		after = l.acquire(two, "two")
		for range 3 {
			held, err := one.AcquireCapLease(l.ctx, kind, 100)
			l.must(err)
			l.must(one.ReleaseCapLease(l.ctx, kind, held.Epoch, true))
			lease = held.Epoch
		}
	})

	// Owners from before and after the last surviving commit are equally wrong.
	for name, owned := range map[string][]task.Ownership{"one": before, "two": after} {
		if c := l.claim(one, owned); len(c.Lost) != 2 {
			t.Errorf("the shards that process %s owned before the fail-over: lost are %v, want all", name, c.Lost)
		}
	}
	three := l.fresh("three")
	var ids []task.ID
	for range 5 {
		ids = append(ids, l.add(three, 40, far)...)
		ids = append(ids, l.add(two, 40, far)...)
		ids = append(ids, l.add(one, 7, far)...)
	}
	l.found(one, ids)
	var next int64
	l.eventually(func() (err error) { // a lease may have begun without an answer
		held, err := one.AcquireCapLease(l.ctx, kind, 100)
		if next = held.Epoch; err == nil && next == 0 {
			err = errors.New("the cap lease is held")
		}
		return err
	})
	if next <= lease {
		t.Errorf("a cap lease after the fail-over has the epoch %d, a lost one has %d", next, lease)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.adopted["one"] != 1 || l.adopted["two"] != 1 {
		t.Errorf("processes have noticed the fail-over so often: %v, want once each", l.adopted)
	}
}

func TestNothingThatAnOldCopyHasLostIsReliedOn(t *testing.T) {
	t.Parallel()
	l := newLosing(t)
	one, two := l.process("one"), l.process("two")
	far := time.Now().Add(48 * time.Hour)
	l.add(one, 10, far)
	l.must(l.primary.Restart(l.ctx)) // so that the copy is of a database that was adopted a moment ago
	l.add(one, 10, far)
	dir, err := l.primary.SaveData(l.ctx, "cold")
	l.must(err)
	for range 2 { // the second life of the same copy loses what the first did
		l.add(one, 10, far)
		owned := l.acquire(one, "one")
		l.add(two, 10, far)
		l.must(l.primary.RestoreData(l.ctx, dir))
		if c := l.claim(two, owned); len(c.Lost) != 2 {
			t.Errorf("the shards that were owned before the restore: lost are %v, want all", c.Lost)
		}
		three := l.fresh("three")
		var ids []task.ID
		for range 3 {
			ids = append(ids, l.add(three, 40, far)...)
			ids = append(ids, l.add(two, 40, far)...)
			ids = append(ids, l.add(one, 7, far)...)
		}
		l.found(two, ids)
	}
}

// TestNumbersThatGoBackAreNoticed: tables were restored by hand while processes ran.
func TestNumbersThatGoBackAreNoticed(t *testing.T) {
	t.Parallel()
	l := &losing{t: t, ctx: t.Context(), dsn: storetest.DSN(t), seen: map[int64]task.ID{}, adopted: map[string]int{}}
	one := l.process("one")
	two := New(one.db.Cluster, Config{AddSpacing: time.Millisecond})
	run, stop := context.WithCancel(context.Background())
	done := async(func() error { return two.Run(run) })
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	far := time.Now().Add(48 * time.Hour)
	pool := one.db.Pool(lostDatabase)
	var at int64
	var called bool
	l.must(pool.QueryRow(l.ctx, "SELECT last_value, is_called FROM task_number").Scan(&at, &called))
	l.add(one, 10, far)
	if _, err := pool.Exec(l.ctx, "SELECT setval('task_number', $1, $2)", at, called); err != nil {
		t.Fatal(err)
	}
	var ids []task.ID
	for range 5 {
		ids = append(ids, l.add(two, 40, far)...)
		ids = append(ids, l.add(one, 7, far)...)
	}
	l.found(one, ids)
	if l.adopted["one"] != 1 {
		t.Errorf("the process has noticed it %d times, want once", l.adopted["one"])
	}
}

// TestRaisedEpochsLetNoNumberBeGivenTwice: rows were put back by hand into tables that stayed, so
// the database looks like the one that was adopted last. All processes were restarted meanwhile,
// so none remembers a greater number. Only the operator knows, and raises the epochs.
func TestRaisedEpochsLetNoNumberBeGivenTwice(t *testing.T) {
	t.Parallel()
	l := &losing{t: t, ctx: t.Context(), dsn: storetest.DSN(t), seen: map[int64]task.ID{}, adopted: map[string]int{}}
	far := time.Now().Add(48 * time.Hour)
	one := l.process("one")
	pool := one.db.Pool(lostDatabase)
	var at int64
	var called bool
	l.must(pool.QueryRow(l.ctx, "SELECT last_value, is_called FROM task_number").Scan(&at, &called))
	l.add(one, 10, far)
	if _, err := pool.Exec(l.ctx, "SELECT setval('task_number', $1, $2)", at, called); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(l.ctx, "TRUNCATE task, task_key, far_level0"); err != nil {
		t.Fatal(err)
	}
	if _, err := l.process("tool").RaiseEpochs(l.ctx, lostDatabase); err != nil {
		t.Fatal(err)
	}
	two := l.process("two")
	l.found(two, l.add(two, 10, far))
	l.found(one, l.add(one, 10, far))
}
