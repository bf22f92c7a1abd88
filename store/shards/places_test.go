package shards

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/task"
)

func TestUpsertsOfOneTenantLeaveConnectionsToOthers(t *testing.T) {
	held, release := make(chan struct{}, 64), make(chan struct{})
	var open atomic.Bool
	b := setup(t, func(c *Config) {
		c.Failpoint = func(point string, _ int) error {
			if point == "upsert:"+kernel.BeforeCommit && !open.Load() {
				held <- struct{}{}
				<-release
			}
			return nil
		}
	}).running()
	var known []task.AddRequest
	for range 12 {
		req := b.keyedRequest(1)
		b.addKey(req)
		changed := with(req, 2, func(s *task.Spec) { s.Kind = "other" })
		changed.Upsert = true
		known = append(known, changed)
	}
	var flood sync.WaitGroup
	defer flood.Wait()
	defer close(release)
	for _, req := range known {
		flood.Go(func() {
			if _, err := b.Add(context.Background(), req); err != nil {
				t.Error(err)
			}
		})
	}
	for range int(b.db.Pool(b.d).Config().MaxConns) / 2 {
		<-held
	}
	time.Sleep(50 * time.Millisecond)
	if len(held) > 0 {
		t.Errorf("%d upserts of one tenant more than half of the connections are in transactions", len(held))
	}
	open.Store(true)
	b.tenant++ // another tenant
	if _, err := b.Add(context.Background(), b.keyedRequest(1)); err != nil {
		t.Errorf("another tenant: %v", err)
	}
}

func TestOneTenantHasFewPlacesOfAllDatabasesOfAServer(t *testing.T) {
	b := setup(t)
	s := b.Store
	for d := range s.dbs {
		if s.dbs[d].server != s.dbs[0].server {
			t.Fatalf("database %d has other places than 0, which is on the same server", d)
		}
	}
	taken := 0
	for s.dbs[0].server.Take(1, 1) {
		taken++
	}
	if taken != directOfTenant {
		t.Errorf("one tenant has %d places, want %d", taken, directOfTenant)
	}
	if !s.dbs[1].server.Take(2, 1) {
		t.Error("another tenant has none")
	}
}

func TestACallThatAGroupHasTakenLastsAsLongAsTheGroup(t *testing.T) {
	held, release := make(chan struct{}, 1), make(chan struct{})
	b := setup(t, func(c *Config) {
		c.Failpoint = func(point string, _ int) error {
			if point == "report:"+kernel.BeforeCommit {
				held <- struct{}{}
				<-release
			}
			return nil
		}
	}).running()
	ctx, leave := context.WithCancel(t.Context())
	shard := task.Shard(0)
	for shard.Database() != b.d {
		shard++
	}
	unknown := task.Report{Attempt: task.Attempt{RunID: task.RunID{Task: task.NewID(1<<30, shard), Seq: 1}, Attempt: 1}, Holder: 1, Result: task.Result{Outcome: task.Success}}
	type answer struct {
		replies []task.Reply
		err     error
	}
	answered := make(chan answer, 1)
	go func() {
		replies, err := b.Report(ctx, b.tenant, 1000, []task.Report{unknown})
		answered <- answer{replies, err}
	}()
	<-held
	leave()
	select {
	case a := <-answered:
		t.Errorf("the call has left its group: %+v, so nobody learns that the run is unknown", a)
	case <-time.After(50 * time.Millisecond):
	}
	close(release)
	if a := <-answered; a.err != nil || a.replies[0].Code != task.Unknown {
		t.Errorf("got %+v", a)
	}
}

func TestARequestIDThatWasUsedForOtherTasksFailsItsOwnCallOnly(t *testing.T) {
	b := setup(t)
	used := task.AddRequest{Tenant: b.tenant, RequestID: b.requestID(), Specs: []task.Spec{b.spec(task.OneShot)}}
	other := used
	other.Hash[0]++
	place := newAdding(used)
	db := b.dbs[place.home.Database()]
	if errs := db.doAdds(t.Context(), []*adding{place}); errs[0] != nil {
		t.Fatal(errs[0])
	}
	plain := &adding{req: task.AddRequest{Tenant: b.tenant + 1, Specs: []task.Spec{b.spec(task.OneShot)}}, home: place.home}
	errs := db.doAdds(t.Context(), []*adding{newAdding(other), plain})
	if errs[1] != nil {
		t.Errorf("another tenant: %v", errs[1])
	}
	counts, err := b.Counts(t.Context(), b.tenant+1)
	if err != nil || task.Living(counts) != 1 {
		t.Errorf("the task of another tenant was stored %d times, %v", task.Living(counts), err)
	}
}

// newAdding returns the adding of a request with a request_id.
func newAdding(r task.AddRequest) *adding {
	return &adding{req: r, home: task.ShardOf(r.RequestID), key: r.RequestID}
}
