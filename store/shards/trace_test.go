package shards

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/task"
)

// gate is a failpoint that stops the first transaction of a step until it is
// opened, or for some seconds when the test has failed before.
type gate struct {
	point   string
	reached chan struct{}
	open    chan error
}

func newGate(point string) *gate {
	return &gate{point: point, reached: make(chan struct{}, 1), open: make(chan error)}
}

func (g *gate) failpoint(point string, _ int) error {
	if point != g.point {
		return nil
	}
	select {
	case g.reached <- struct{}{}:
	default:
		return nil
	}
	select {
	case err := <-g.open:
		return err
	case <-time.After(time.Minute):
		return errors.New("the gate was not opened")
	}
}
func withGate(g *gate) func(*Config) { return func(c *Config) { c.Failpoint = g.failpoint } }

// async runs f and returns where its error will be.
func async(f func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	return done
}

// quiet asserts that nothing comes for a while: the other side must be waiting.
func quiet(t *testing.T, what string, done <-chan error) {
	t.Helper()
	select {
	case err := <-done:
		t.Fatalf("%s did not wait: %v", what, err)
	case <-time.After(300 * time.Millisecond):
	}
}

func TestTakeOverWaitsForTheClaimOfTheOldOwnerAndFindsItsOutbox(t *testing.T) {
	g := newGate("claim:" + kernel.BeforeCommit)
	b := setup(t, withGate(g))
	id := b.add(b.spec(task.OneShot))[0]
	claimed := async(func() error {
		_, err := b.Claim(context.Background(), task.ClaimRequest{Database: b.d, Owned: b.owned, Form: task.RangeForm})
		return err
	})
	<-g.reached
	var owned []task.Ownership
	taken := async(func() (err error) {
		owned, err = b.Acquire(context.Background(), b.d, shardsOfOwned(b.owned), task.Owner{Name: "new"})
		return err
	})
	quiet(t, "the take-over", taken)
	g.open <- nil
	if err := errors.Join(<-claimed, <-taken); err != nil {
		t.Fatal(err)
	}
	batches, _, err := b.Unpublished(context.Background(), b.d, owned, 0, 1_000_000)
	if err != nil || len(batches) != 1 || len(batches[0].Publications) != 1 || batches[0].Publications[0].Task != id {
		t.Fatalf("the outbox holds %+v, %v", batches, err)
	}
}

func shardsOfOwned(owned []task.Ownership) []task.Shard {
	var out []task.Shard
	for _, o := range owned {
		out = append(out, o.Shard)
	}
	return out
}

func TestOldOwnerClaimsNothingAfterATakeOver(t *testing.T) {
	b := setup(t)
	b.add(b.spec(task.OneShot))
	old := b.owned
	lostShard := old[3].Shard
	if _, err := b.Acquire(context.Background(), b.d, []task.Shard{lostShard}, task.Owner{Name: "new"}); err != nil {
		t.Fatal(err)
	}
	c, err := b.Claim(context.Background(), task.ClaimRequest{Database: b.d, Owned: old, Form: task.RangeForm})
	if err != nil || !slices.Equal(c.Lost, []task.Shard{lostShard}) || c.Rows != 0 || c.Outbox != 0 {
		t.Fatalf("claim = %+v, %v", c, err)
	}
	lost, err := b.AcknowledgeOutbox(context.Background(), b.d, old, []task.OutboxPart{{Row: 1, Shards: []task.Shard{lostShard}}})
	if err != nil || !slices.Equal(lost, []task.Shard{lostShard}) {
		t.Fatalf("take off = %v, %v", lost, err)
	}
}

func TestRestoredEpochWithAnotherNonceIsNotOwnership(t *testing.T) {
	b := setup(t)
	forged := slices.Clone(b.owned)
	forged[0].Nonce++
	c, err := b.Claim(context.Background(), task.ClaimRequest{Database: b.d, Owned: forged, Form: task.RangeForm})
	if err != nil || len(c.Lost) != 1 {
		t.Fatalf("claim = %+v, %v", c, err)
	}
}

func TestCommitOfUnknownOutcomeIsReportedAsSuch(t *testing.T) {
	lostAnswer := errors.New("connection lost")
	b := setup(t, func(c *Config) {
		c.Failpoint = func(point string, _ int) error {
			if point == "claim:"+kernel.AfterCommit {
				return lostAnswer
			}
			return nil
		}
	})
	id := b.add(b.spec(task.NonBlocking))[0]
	if _, err := b.Claim(context.Background(), task.ClaimRequest{Database: b.d, Owned: b.owned, Form: task.RangeForm}); !errors.Is(err, task.ErrOutcomeUnknown) {
		t.Fatalf("claim: %v", err)
	}
	b.acquire() // like a stranger: bump, then read the outbox
	batches, _, err := b.Unpublished(context.Background(), b.d, b.owned, 0, 1_000_000)
	if err != nil || len(batches) != 1 || batches[0].Publications[0].RunID() != (task.RunID{Task: id, Seq: 1}) {
		t.Fatalf("the outbox holds %+v, %v", batches, err)
	}
}

func TestOutboxRowLosesOnlyTheShardsTakenOff(t *testing.T) {
	b := setup(t)
	var ids []task.ID
	for len(shardSet(ids)) < 2 {
		ids = append(ids, b.add(b.spec(task.OneShot))...)
	}
	c := b.claim(task.RangeForm)
	all := shardSet(ids)
	acknowledge := func(s task.Shard) {
		if _, err := b.AcknowledgeOutbox(context.Background(), b.d, b.owned, []task.OutboxPart{{Row: c.Outbox, Shards: []task.Shard{s}}}); err != nil {
			t.Fatal(err)
		}
	}
	acknowledge(all[0])
	batches, _, err := b.Unpublished(context.Background(), b.d, b.owned, 0, 1_000_000)
	if err != nil || len(batches) != 1 || !slices.Equal(batches[0].Part.Shards, all[1:]) {
		t.Fatalf("the outbox holds %+v, %v", batches, err)
	}
	for _, p := range batches[0].Publications {
		if p.Task.Shard() == all[0] {
			t.Fatalf("run %s was taken off and comes back", p.RunID())
		}
	}
	for _, s := range all[1:] {
		acknowledge(s)
	}
	if o, err := b.OutboxStats(context.Background(), b.d); err != nil || o.Rows != 0 {
		t.Fatalf("%d outbox rows are left, %v", o.Rows, err)
	}
}

func shardSet(ids []task.ID) []task.Shard {
	var out []task.Shard
	for _, id := range ids {
		out = append(out, id.Shard())
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func TestUnpublishedEntryOfAClosedRunIsNotPublished(t *testing.T) {
	b := setup(t)
	id := b.add(b.spec(task.OneShot))[0]
	c := b.claim(task.RangeForm)
	b.report(success(id, 1, 1, 7))
	batches, _, err := b.Unpublished(context.Background(), b.d, b.owned, 0, 1_000_000)
	if err != nil || len(batches) != 1 || len(batches[0].Publications) != 0 || batches[0].Part.Row != c.Outbox {
		t.Fatalf("the outbox holds %+v, %v", batches, err)
	}
}

func TestCancelWaitsForAClaimUnderWay(t *testing.T) {
	g := newGate("claim:" + kernel.BeforeCommit)
	b := setup(t, withGate(g))
	id := b.add(b.spec(task.Blocking))[0]
	claimed := async(func() error {
		_, err := b.Claim(context.Background(), task.ClaimRequest{Database: b.d, Owned: b.owned, Form: task.RangeForm})
		return err
	})
	<-g.reached
	cancelled := async(func() error { _, err := b.Cancel(context.Background(), b.tenant, id); return err })
	quiet(t, "the cancel", cancelled)
	g.open <- nil
	if err := errors.Join(<-claimed, <-cancelled); err != nil {
		t.Fatal(err)
	}
	if rows := b.rows(); len(rows) != 0 {
		t.Fatalf("rows are left: %v", rows)
	}
	b.advance(time.Hour)
	if c := b.claim(task.RangeForm); c.Rows != 0 {
		t.Fatalf("claimed after the cancel: %+v", c)
	}
}

func TestEarlyEndOfTheLastRunLeavesEarlierOpenRunsAlive(t *testing.T) {
	b := setup(t)
	id := b.add(b.spec(task.NonBlocking, func(s *task.Spec) { s.MaxCount, s.AckTimeout = 3, time.Hour }))[0]
	for range 3 {
		b.claim(task.RangeForm)
		b.advance(time.Minute)
	}
	for _, seq := range []int64{3, 1} {
		if got := b.report(success(id, seq, 1, 7)); got[0] != task.Accepted {
			t.Fatalf("SUCCESS of run %d: %v", seq, got)
		}
	}
	if got := b.report(failure(id, 2, 1, 7)); got[0] != task.Accepted {
		t.Fatalf("FAIL of run 2 after SUCCESS of the first and the last run: %v", got)
	}
	b.advance(time.Second)
	c := b.claim(task.RangeForm)
	if len(c.Publications) != 1 || c.Publications[0].Seq != 2 || c.Publications[0].Attempt != 2 {
		t.Fatalf("the retry is not delivered: %+v", c)
	}
	if got := b.report(success(id, 2, 2, 7)); got[0] != task.Accepted {
		t.Fatal(got)
	}
	if rows := b.rows(); len(rows) != 0 {
		t.Fatalf("rows are left: %v", rows)
	}
}

func TestRunWhoseBitIsPushedOutGetsARow(t *testing.T) {
	b := setup(t)
	id := b.add(b.spec(task.NonBlocking, func(s *task.Spec) { s.AckTimeout = 2 * time.Hour }))[0]
	begin := b.now
	for range 65 {
		b.claim(task.RangeForm)
		b.advance(time.Minute)
	}
	run := b.rows()[kernel.KeyOf(b.tenant, id, 1)]
	if run == nil || run.ScheduledAt != begin || run.State != task.Running || run.Attempt != 1 {
		t.Fatalf("run 1 has the row %+v", run)
	}
	if got := b.report(success(id, 1, 1, 7), success(id, 2, 1, 7)); !slices.Equal(got, []task.Code{task.Accepted, task.Accepted}) {
		t.Fatal(got)
	}
}

func TestOneExecutionSpendsOneAttempt(t *testing.T) {
	b := setup(t)
	id := b.add(b.spec(task.OneShot, func(s *task.Spec) { s.Retry.MaxAttempts = 2 }))[0]
	b.claim(task.RangeForm)
	want := []task.Code{task.Accepted, task.Superseded}
	if diff := cmp.Diff(want, b.report(failure(id, 1, 1, 7), failure(id, 1, 1, 7))); diff != "" {
		t.Fatal(diff)
	}
	b.advance(time.Hour)
	if c := b.claim(task.RangeForm); len(c.Publications) != 1 || c.Publications[0].Attempt != 2 {
		t.Fatalf("claim = %+v", c)
	}
	if got := b.report(failure(id, 1, 1, 7)); got[0] != task.Superseded {
		t.Fatalf("the FAIL of attempt 1 counts for attempt 2: %v", got)
	}
}

func TestHandBackOfALeasedRunIsRefused(t *testing.T) {
	b := setup(t)
	id := b.add(b.spec(task.Blocking))[0]
	b.claim(task.RangeForm)
	b.start(7, attempt(id, 1, 1))
	if got := b.handBack(8, attempt(id, 1, 1)); got[0].Code != task.Held {
		t.Fatal(got)
	}
}

func TestHandBackOfANonBlockingRunMakesItsRow(t *testing.T) {
	b := setup(t)
	id := b.add(b.spec(task.NonBlocking, func(s *task.Spec) { s.MaxCount = 1 }))[0]
	b.claim(task.RangeForm)
	if got := b.handBack(7, attempt(id, 1, 1)); got[0].Code != task.Accepted {
		t.Fatal(got)
	}
	b.advance(task.HandBackDelay)
	c := b.claim(task.RangeForm)
	if len(c.Publications) != 1 || c.Publications[0].Attempt != 2 || c.Publications[0].Seq != 1 {
		t.Fatalf("claim = %+v", c)
	}
}

func TestLateHeartbeatDoesNotReviveAClosedRun(t *testing.T) {
	b := setup(t)
	id := b.add(b.spec(task.NonBlocking))[0]
	b.claim(task.RangeForm)
	b.report(success(id, 1, 1, 7))
	if got := b.heartbeat(7, attempt(id, 1, 1)); got[0].Code != task.Already {
		t.Fatal(got)
	}
	if rows := b.rows(); len(rows) != 1 {
		t.Fatalf("rows = %v", rows)
	}
}

func TestResultOfAnOldRunDoesNotCountForTheNext(t *testing.T) {
	b := setup(t)
	id := b.add(b.spec(task.Blocking))[0]
	b.claim(task.RangeForm)
	b.start(7, attempt(id, 1, 1))
	b.report(success(id, 1, 1, 7))
	b.advance(time.Minute)
	b.claim(task.RangeForm)
	b.start(7, attempt(id, 2, 1))
	if got := b.report(success(id, 1, 1, 7)); got[0] != task.Already {
		t.Fatalf("result of run 1 while run 2 is open: %v", got)
	}
	if row := b.rows()[kernel.KeyOf(b.tenant, id, 0)]; row.State != task.Running || row.Holder != 7 {
		t.Fatalf("run 2 was closed: %+v", row)
	}
}

func TestResultOfAnotherHolderOrAttemptDoesNotCount(t *testing.T) {
	b := setup(t)
	id := b.add(b.spec(task.Blocking))[0]
	b.claim(task.RangeForm)
	b.start(7, attempt(id, 1, 1))
	b.advance(2 * time.Minute)
	b.claim(task.RangeForm) // silence: attempt 2
	b.start(8, attempt(id, 1, 2))
	want := []task.Code{task.Superseded}
	if diff := cmp.Diff(want, b.report(success(id, 1, 1, 7))); diff != "" {
		t.Fatalf("result of attempt 1 after attempt 2 was started: %s", diff)
	}
	if diff := cmp.Diff(want, b.report(success(id, 1, 2, 7))); diff != "" {
		t.Fatalf("result from another holder: %s", diff)
	}
	if got := b.report(success(id, 1, 2, 8)); got[0] != task.Accepted {
		t.Fatal(got)
	}
}

func TestSilenceGrowsAndEndsAtGiveUpAfter(t *testing.T) {
	b := setup(t)
	id := b.add(b.spec(task.OneShot, func(s *task.Spec) { s.AckTimeout = 10 * time.Second; s.GiveUpAfter = time.Minute }))[0]
	var at []time.Duration
	begin := b.now
	for range 200 {
		if c := b.claim(task.RangeForm); len(c.Publications) > 0 {
			at = append(at, b.now.Sub(begin))
		} else if len(c.Dead) > 0 {
			at = append(at, -b.now.Sub(begin))
			if c.Dead[0].Reason != task.Silent || c.Dead[0].RunID.Task != id {
				t.Fatalf("dead = %+v", c.Dead)
			}
		}
		b.advance(time.Second)
	}
	want := []time.Duration{0, 10 * time.Second, 30 * time.Second, -70 * time.Second}
	if diff := cmp.Diff(want, at); diff != "" {
		t.Fatal(diff)
	}
}
