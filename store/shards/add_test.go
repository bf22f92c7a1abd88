package shards

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"

	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/task"
)

// running starts the store's groups and stops them when the test ends.
func (b *bundle) running() *bundle {
	ctx, cancel := context.WithCancel(context.Background())
	done := async(func() error { return b.Run(ctx) })
	b.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			b.t.Error(err)
		}
	})
	return b
}

func TestRepeatedRequestStoresNothingAndGetsTheFirstAnswer(t *testing.T) {
	b := setup(t).running()
	req := task.AddRequest{Tenant: b.tenant, RequestID: b.requestID(), Specs: []task.Spec{
		b.spec(task.OneShot),
		b.spec(task.OneShot, func(s *task.Spec) { s.Begin, s.End = 1, b.now }), // has ended
		b.spec(task.Blocking),
	}}
	first, err := b.Add(t.Context(), req)
	if err != nil || first.Replayed || first.Items[0].ID == 0 || len(first.Items[1].Faults) != 1 || first.Items[2].ID == 0 {
		t.Fatalf("first = %+v, %v", first, err)
	}
	again, err := b.Add(t.Context(), req)
	if err != nil || !again.Replayed || again.Items[0].ID != first.Items[0].ID || len(again.Items[1].Faults) != 1 || again.Items[2].ID != first.Items[2].ID {
		t.Fatalf("again = %+v, %v", again, err)
	}
	if rows := b.rows(); len(rows) != 2 {
		t.Fatalf("%d rows are stored", len(rows))
	}
	req.Hash[0]++
	if _, err := b.Add(t.Context(), req); task.CodeOf(err) != task.AlreadyExists {
		t.Fatalf("add with another body and the same request_id: %v", err)
	}
}

func TestAddWhoseAnswerWasLostIsStoredOnce(t *testing.T) {
	lost := true
	b := setup(t, func(c *Config) {
		c.Failpoint = func(point string, _ int) error {
			if point == "add:"+kernel.AfterCommit && lost {
				lost = false
				return errors.New("connection lost")
			}
			return nil
		}
	}).running()
	req := task.AddRequest{Tenant: b.tenant, RequestID: b.requestID(), Specs: []task.Spec{b.spec(task.OneShot)}}
	if _, err := b.Add(t.Context(), req); task.CodeOf(err) != task.Unavailable {
		t.Fatalf("add with a lost answer: %v", err)
	}
	again, err := b.Add(t.Context(), req)
	if err != nil || !again.Replayed {
		t.Fatalf("again = %+v, %v", again, err)
	}
	if rows := b.rows(); len(rows) != 1 {
		t.Fatalf("%d rows are stored", len(rows))
	}
}

func TestConcurrentAddsOfOneRequestStoreItOnce(t *testing.T) {
	b := setup(t).running()
	other := New(b.db.Cluster, Config{})
	ctx, cancel := context.WithCancel(context.Background())
	done := async(func() error { return other.Run(ctx) })
	req := task.AddRequest{Tenant: b.tenant, RequestID: b.requestID(), Specs: []task.Spec{b.spec(task.OneShot), b.spec(task.OneShot)}}
	ids := make(chan task.ID, 40)
	var g errgroup.Group
	for i := range 40 {
		g.Go(func() error {
			s := []*Store{b.Store, other}[i%2]
			r, err := s.Add(context.Background(), req)
			if err == nil {
				ids <- r.Items[1].ID
			}
			return err
		})
	}
	err := g.Wait()
	cancel()
	if err := errors.Join(err, <-done); err != nil {
		t.Fatal(err)
	}
	first := <-ids
	for range 39 {
		if id := <-ids; id != first {
			t.Fatalf("ids %s and %s", first, id)
		}
	}
	if rows := b.rows(); len(rows) != 2 {
		t.Fatalf("%d rows are stored", len(rows))
	}
}

func TestOneBadRowFailsNobodyElse(t *testing.T) {
	b := setup(t)
	good := &adding{req: task.AddRequest{Tenant: b.tenant, Specs: []task.Spec{b.spec(task.OneShot)}}, home: task.Shard(b.d * task.ShardsPerDatabase)}
	broken := b.spec(task.NonBlocking)
	broken.Interval = -time.Second // has passed no validation
	bad := &adding{req: task.AddRequest{Tenant: b.tenant, Specs: []task.Spec{broken}}, home: good.home}
	errs := b.dbs[b.d].doAdds(context.Background(), []*adding{good, bad})
	if (errs[0] == nil) == (errs[1] == nil) {
		t.Fatalf("errors = %v", errs)
	}
	if rows := b.rows(); len(rows) != 1 {
		t.Fatalf("%d rows are stored", len(rows))
	}
}

func TestAGroupThatTakesTooLongFailsOnlyWhatTakesTooLong(t *testing.T) {
	b := setup(t)
	shard := task.Shard(b.d * task.ShardsPerDatabase)
	of := func(tenant int32, bytes int) *adding {
		spec := b.spec(task.OneShot, func(s *task.Spec) { s.ParamsWire = make([]byte, bytes) })
		return &adding{req: task.AddRequest{Tenant: tenant, Specs: []task.Spec{spec}}, home: shard}
	}
	canceled := &pgconn.PgError{Severity: "ERROR", SeverityUnlocalized: "ERROR", Code: "57014", Message: "canceling statement due to statement timeout"}
	group := []*adding{of(b.tenant, 60_000), of(b.tenant+1, 10), of(b.tenant, 50_000)}
	b.dbs[b.d].store.db.SetFailpoint(func(point string, _ int) error {
		if group[0].result.Items != nil && point == "add:"+kernel.BeforeCommit {
			group[0].result.Items = nil // the transaction had the first request
			return canceled
		}
		return nil
	})
	defer b.dbs[b.d].store.db.SetFailpoint(nil)
	errs := b.dbs[b.d].doAdds(context.Background(), group)
	if errs[0] == nil || errs[1] != nil || errs[2] != nil {
		t.Fatalf("errors = %v", errs)
	}
}

func TestAddsOfATenantAreStoredBesideLargeOnesOfAnother(t *testing.T) {
	b := setup(t)
	b.running()
	shard := task.Shard(b.d * task.ShardsPerDatabase)
	large := b.spec(task.OneShot, func(s *task.Spec) { s.ParamsWire = make([]byte, largeAdd) })
	release := make(chan struct{})
	var under atomic.Int32
	b.dbs[b.d].store.db.SetFailpoint(func(point string, _ int) error {
		if point == "add:"+kernel.BeforeCommit && under.Add(1) <= largeAdds/2 {
			<-release
		}
		return nil
	})
	defer b.dbs[b.d].store.db.SetFailpoint(nil)
	var flood sync.WaitGroup
	for range 20 {
		flood.Go(func() {
			if err := b.addOne(t.Context(), &adding{req: task.AddRequest{Tenant: b.tenant, Specs: []task.Spec{large}}, home: shard}); err != nil {
				t.Error(err)
			}
		})
	}
	for under.Load() < largeAdds/2 {
		time.Sleep(time.Millisecond)
	}
	for range 20 {
		small := &adding{req: task.AddRequest{Tenant: b.tenant + 1, Specs: []task.Spec{b.spec(task.OneShot)}}, home: shard}
		if err := b.addOne(t.Context(), small); err != nil {
			t.Error(err)
		}
	}
	close(release)
	flood.Wait()
}

func TestAddAfterTheStoreHasStoppedIsRefused(t *testing.T) {
	b := setup(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := b.Run(ctx); err != nil {
		t.Fatal(err)
	}
	_, err := b.Add(t.Context(), task.AddRequest{Tenant: b.tenant, Specs: []task.Spec{b.spec(task.OneShot)}})
	if task.CodeOf(err) != task.Unavailable {
		t.Fatal(err)
	}
}

func TestExpiredKeysAndFinishedTasksArePurged(t *testing.T) {
	b := setup(t)
	id := b.add(b.spec(task.OneShot, func(s *task.Spec) { s.Retention = time.Hour }))[0]
	if _, err := b.Cancel(t.Context(), b.tenant, id); err != nil {
		t.Fatal(err)
	}
	if got, err := b.Get(t.Context(), b.tenant, id); err != nil || got.State != task.Cancelled {
		t.Fatalf("get = %+v, %v", got, err)
	}
	b.advance(25 * time.Hour)
	if _, more, err := b.Purge(t.Context(), b.d); more || err != nil {
		t.Fatal(more, err)
	}
	if n := b.count(`SELECT (SELECT count(*) FROM task_key) + (SELECT count(*) FROM task_done)`); n != 0 {
		t.Fatalf("%d keys and finished tasks are left", n)
	}
	if _, err := b.Get(t.Context(), b.tenant, id); task.CodeOf(err) != task.NotFound {
		t.Fatal(err)
	}
}

// A client stores a request elsewhere if it is told that nothing was done.
func TestNoErrorSaysThatNothingWasStoredAfterALostCommit(t *testing.T) {
	var commits atomic.Int32
	b := setup(t, func(c *Config) {
		c.Failpoint = func(point string, _ int) error {
			switch point {
			case "add:" + kernel.AfterCommit:
				if commits.Add(1) == 1 {
					return errors.New("connection lost")
				}
			case "add:" + kernel.BeforeCommit:
				if commits.Load() > 0 {
					return store.ErrStalled
				}
			}
			return nil
		}
	})
	var group []*adding
	for range 2 {
		id := b.requestID()
		group = append(group, &adding{
			req:  task.AddRequest{Tenant: b.tenant, RequestID: id, Specs: []task.Spec{b.spec(task.OneShot)}},
			home: task.ShardOf(id), key: id,
		})
	}
	for i, err := range b.dbs[b.d].doAdds(t.Context(), group) {
		var known *task.Error
		if !errors.As(kernel.Unavailable(err), &known) || known.Reason == task.ReasonDatabaseStalled {
			t.Errorf("request %d, which was stored: %v, want an unknown outcome", i, err)
		}
	}
	if rows := b.rows(); len(rows) != 2 {
		t.Errorf("%d rows are stored, want 2", len(rows))
	}
}
