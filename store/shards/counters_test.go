package shards

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"

	"github.com/perceptor/perceptor/store/shards/counters"
	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/task"
)

// counts returns the counters of the bundle's tenant, summed over types.
func (b *bundle) counts() task.Counts {
	b.t.Helper()
	list, err := b.Counts(context.Background(), b.tenant)
	if err != nil {
		b.t.Fatal(err)
	}
	var sum task.Counts
	for _, c := range list {
		sum = sum.Plus(c.Counts)
	}
	return sum
}

// sums returns the states of the tasks of one tenant, or with 0 those of all but named.
func (b *bundle) sums(tenant int32, named ...int32) (sum task.Counts) {
	b.t.Helper()
	if tenant != 0 {
		named = []int32{tenant}
	}
	list, err := b.Sums(context.Background(), b.d, named)
	if err != nil {
		b.t.Fatal(err)
	}
	for _, c := range list {
		if c.Tenant == tenant {
			sum = sum.Plus(c.Counts)
		}
	}
	return sum
}

// recounted fails if the counters differ from the stored rows.
func (b *bundle) recounted() {
	b.t.Helper()
	if found, err := b.Recount(context.Background(), b.d, b.tenant, false); err != nil || len(found) > 0 {
		b.t.Fatalf("counters differ from the rows: %+v, %v", found, err)
	}
}

// folded folds until no delta is left.
func (b *bundle) folded() {
	b.t.Helper()
	for more := true; more; {
		var err error
		if _, more, err = b.FoldCounters(context.Background(), b.d); err != nil {
			b.t.Fatal(err)
		}
	}
}

func TestCountersSayHowManyTasksThereAreWithoutAndWithAFold(t *testing.T) {
	b := setup(t)
	kept := func(s *task.Spec) { s.Retention = time.Hour }
	ids := b.add(b.spec(task.OneShot), b.spec(task.OneShot, kept), b.spec(task.NonBlocking), b.spec(task.Blocking, kept))
	b.claim(task.RangeForm)
	b.report(success(ids[0], 1, 1, 7), success(ids[1], 1, 1, 7))
	if _, err := b.Cancel(t.Context(), b.tenant, ids[3]); err != nil {
		t.Fatal(err)
	}
	want := task.Counts{Added: 4, Scheduled: 1, Completed: 1, PurgedCompleted: 1, Cancelled: 1}
	for _, folded := range []bool{false, true} {
		if diff := cmp.Diff(want, b.counts()); diff != "" {
			t.Fatalf("folded %v: %s", folded, diff)
		}
		if diff := cmp.Diff(task.Counts{Scheduled: 1, Completed: 1, Cancelled: 1}, b.sums(b.tenant)); diff != "" {
			t.Fatalf("sums of the tenant, folded %v: %s", folded, diff)
		}
		if diff := cmp.Diff(b.sums(0), b.sums(0, b.tenant).Plus(b.sums(b.tenant))); diff != "" {
			t.Fatalf("all others are not the rest, folded %v: %s", folded, diff)
		}
		b.recounted()
		b.folded()
	}
	if c := b.counts(); c.Added != c.Scheduled+c.Running+c.Finished() {
		t.Fatalf("%+v does not add up", c)
	}
}

func TestCountersAreOfOneTenant(t *testing.T) {
	b := setup(t)
	b.add(b.spec(task.OneShot))
	b.folded()
	b.add(b.spec(task.OneShot))
	other, err := b.Counts(t.Context(), b.tenant+1000)
	if err != nil || len(other) != 0 {
		t.Fatalf("another tenant sees %+v, %v", other, err)
	}
	if c := b.counts(); c.Added != 2 {
		t.Fatalf("counts = %+v", c)
	}
}

func TestPurgedTasksAreCountedAsPurged(t *testing.T) {
	b := setup(t)
	ids := b.add(b.spec(task.OneShot, func(s *task.Spec) { s.Retention = time.Hour }), b.spec(task.Blocking, func(s *task.Spec) { s.Retention = time.Hour }))
	for _, id := range ids {
		if _, err := b.Cancel(t.Context(), b.tenant, id); err != nil {
			t.Fatal(err)
		}
	}
	b.advance(2 * time.Hour)
	if _, _, err := b.Purge(t.Context(), b.d); err != nil {
		t.Fatal(err)
	}
	if _, more, err := b.FoldCounters(t.Context(), b.d); more || err != nil {
		t.Fatal(more, err)
	}
	if n := b.count(`SELECT count(*) FROM counter_delta`); n != 0 || b.counts() != (task.Counts{Added: 2, PurgedCancelled: 2}) {
		t.Fatalf("%d changes are not folded, counts = %+v", n, b.counts())
	}
	b.recounted()
}

func TestDeadRunsAreCounted(t *testing.T) {
	b := setup(t)
	ids := b.add(b.spec(task.OneShot, func(s *task.Spec) { s.Retry.MaxAttempts = 1 }), b.spec(task.OneShot))
	c := b.claim(task.RangeForm)
	b.report(failure(ids[0], 1, 1, 7))
	for i := range c.Publications {
		if c.Publications[i].Task == ids[1] {
			if _, err := b.GiveUp(t.Context(), b.d, b.owned, c.Publications[i:i+1], task.Unpublishable, "too large", nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	if diff := cmp.Diff(task.Counts{Added: 2, PurgedFailed: 2, Dead: 2, Died: 2}, b.counts()); diff != "" {
		t.Fatal(diff)
	}
	b.recounted()
}

func TestStepThatDoesNotCommitCountsAndTellsNothing(t *testing.T) {
	crash := errors.New("crash")
	var at string
	b := setup(t, withHistory(task.HistoryAll), func(c *Config) {
		c.Failpoint = func(point string, _ int) error {
			if point == at {
				return crash
			}
			return nil
		}
	})
	ids := b.add(b.spec(task.OneShot, func(s *task.Spec) { s.Retention = time.Hour }), b.spec(task.Blocking), b.spec(task.NonBlocking))
	claim := func() error {
		_, err := b.Claim(context.Background(), task.ClaimRequest{Database: b.d, Owned: b.owned, Form: task.RangeForm, MaxRows: 100})
		return err
	}
	if err := claim(); err != nil {
		t.Fatal(err)
	}
	for step, do := range map[string]func() error{
		"add": func() error {
			key := b.requestID()
			a := &adding{req: task.AddRequest{Tenant: b.tenant, RequestID: key, Specs: []task.Spec{b.spec(task.OneShot)}}, key: key, home: placeOf(b.tenant, key)}
			return b.dbs[b.d].doAdds(context.Background(), []*adding{a})[0]
		},
		"claim": func() error { b.advance(2 * time.Minute); return claim() },
		"report": func() error {
			_, err := b.reportPlain(context.Background(), b.d, []reported{{tenant: b.tenant, Report: success(ids[0], 1, 1, 7)}}, []int{0}, make([]task.Reply, 1))
			return err
		},
		"apply": func() error {
			e := (&reported{tenant: b.tenant, Report: failure(ids[2], 1, 1, 7)}).entry()
			_, err := b.applyOnce(context.Background(), b.d, []entry{e}, []int{0}, make([]task.Reply, 1))
			return err
		},
		"cancel": func() error {
			_, _, err := b.tryMachine(context.Background(), b.tenant, ids[1], stepOn{name: "cancel", change: func(k *task.Machine, _ task.Instant) error { k.Cancel(); return nil }})
			return err
		},
		"fold": func() error { _, _, err := b.FoldCounters(context.Background(), b.d); return err },
	} {
		t.Run(step, func(t *testing.T) {
			counts, events := b.counts(), b.events(ids...)
			at = step + ":" + kernel.BeforeCommit
			err := do()
			at = ""
			if !errors.Is(err, crash) {
				t.Fatalf("the step did not reach its failpoint: %v", err)
			}
			if diff := cmp.Diff(counts, b.counts()) + cmp.Diff(events, b.events(ids...)); diff != "" {
				t.Fatal(diff)
			}
			b.recounted()
		})
	}
}

// TestCountersAreExactAfterConcurrentWorkThatFailsAtRandom: adds, claims,
// reports, cancels, folds and purges of three processes, of which one in six
// fails before or after its commit.
func TestCountersAreExactAfterConcurrentWorkThatFailsAtRandom(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var mu sync.Mutex
	random := rand.New(rand.NewPCG(seed, 1))
	draw := func(n int) int { mu.Lock(); defer mu.Unlock(); return random.IntN(n) }
	crash := errors.New("crash")
	fail := func(c *Config) {
		c.Failpoint = func(point string, _ int) error {
			if !strings.HasPrefix(point, "acquire:") && draw(12) == 0 { // which the bundle begins with
				return crash
			}
			return nil
		}
	}
	b := setup(t, fail)
	var known struct {
		sync.Mutex
		ids  []task.ID
		pubs []task.Publication
	}
	var g errgroup.Group
	for range 3 {
		s := New(b.db.Cluster, b.cfg)
		g.Go(func() error {
			for range 120 {
				known.Lock()
				ids, pubs := known.ids, known.pubs
				known.Unlock()
				switch op := draw(10); {
				case op < 3:
					mu.Lock()
					key := b.requestID()
					mu.Unlock()
					spec := b.spec(task.Types[draw(3)], func(s *task.Spec) {
						s.Begin, s.Retention = b.now.Add(-time.Second), time.Duration(draw(2))*time.Hour
						s.Retry.MaxAttempts = 1
						if s.Type != task.OneShot {
							s.MaxCount = int64(1 + draw(2))
						}
					})
					a := &adding{req: task.AddRequest{Tenant: b.tenant, RequestID: key, Specs: []task.Spec{spec, spec}}, key: key, home: placeOf(b.tenant, key)}
					if s.dbs[b.d].doAdds(context.Background(), []*adding{a})[0] == nil {
						known.Lock()
						known.ids = append(known.ids, a.result.Items[0].ID)
						known.Unlock()
					}
				case op < 6:
					form := []task.ClaimForm{task.RangeForm, task.CappedForm}[draw(2)]
					if c, err := s.Claim(context.Background(), task.ClaimRequest{Database: b.d, Owned: b.owned, Form: form, MaxRows: 100}); err == nil {
						known.Lock()
						known.pubs = append(known.pubs, c.Publications...)
						known.Unlock()
					}
				case op < 8:
					var in []reported
					for range min(5, len(pubs)) {
						p := pubs[draw(len(pubs))]
						r := success(p.Task, p.Seq, p.Attempt, 1)
						if draw(3) == 0 {
							r = failure(p.Task, p.Seq, p.Attempt, 1)
						}
						if p.Type == task.Blocking {
							s.doStarts(context.Background(), b.d, holds(b.tenant, 1, []task.Attempt{r.Attempt}, (*task.Machine).Start))
						}
						in = append(in, reported{tenant: b.tenant, paramsBytes: 100, Report: r})
					}
					s.doReports(context.Background(), b.d, in)
				case op < 9 && len(ids) > 0:
					_, _ = s.Cancel(context.Background(), b.tenant, ids[draw(len(ids))]) // a crash is welcome
				default:
					_, _, _ = s.FoldCounters(context.Background(), b.d)
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	b.recounted()
	calm := &bundle{Store: New(b.db.Cluster, Config{}), t: t, d: b.d, tenant: b.tenant}
	calm.folded()
	b.recounted()
	if c := b.counts(); c.Added != c.Scheduled+c.Running+c.Finished() || c.Added == 0 || c.Finished() == 0 {
		t.Fatalf("%+v", c)
	}
}

func TestRecountTellsAndRepairsWhatDiffers(t *testing.T) {
	b := setup(t)
	b.add(b.spec(task.OneShot), b.spec(task.OneShot), b.spec(task.Blocking))
	b.folded()
	b.exec(`UPDATE counter SET scheduled = scheduled + 5, added = added + 5 WHERE tenant_id = $1 AND type = 1`, b.tenant)
	b.exec(`DELETE FROM task WHERE tenant_id = $1 AND type = 3`, b.tenant)
	want := []counters.Difference{
		{Database: b.d, Tenant: b.tenant, Type: task.OneShot, Of: "SCHEDULED", Counted: 2, Counter: 7},
		{Database: b.d, Tenant: b.tenant, Type: task.Blocking, Of: "SCHEDULED", Counted: 0, Counter: 1},
	}
	found, err := b.Recount(t.Context(), b.d, b.tenant, false)
	if diff := cmp.Diff(want, found); err != nil || diff != "" {
		t.Fatal(err, diff)
	}
	var g errgroup.Group
	for range 4 { // all at once correct it once
		g.Go(func() error { _, err := b.Recount(context.Background(), b.d, 0, true); return err })
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	b.recounted()
	if diff := cmp.Diff(task.Counts{Added: 2, Scheduled: 2}, b.counts()); diff != "" {
		t.Fatal(diff)
	}
}

func TestFoldsAtTheSameTimeCountEveryDeltaOnce(t *testing.T) {
	b := setup(t)
	for range 50 {
		b.add(b.spec(task.OneShot))
	}
	var g errgroup.Group
	for range 4 {
		g.Go(func() error { _, _, err := b.FoldCounters(context.Background(), b.d); return err })
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	if c := b.counts(); c.Scheduled != 50 {
		t.Fatalf("counts = %+v", c)
	}
}

func TestFoldIsBounded(t *testing.T) {
	b := setup(t)
	b.exec(`INSERT INTO counter_delta SELECT ARRAY[$1::int4], ARRAY[1::int2], ARRAY[0::int2], ARRAY[1::int2], ARRAY[1::int8] FROM generate_series(1, $2)`, b.tenant, counters.FoldAtOnce+1)
	_, more, err := b.FoldCounters(t.Context(), b.d)
	if err != nil || !more {
		t.Fatalf("more = %v, %v", more, err)
	}
	if _, more, err = b.FoldCounters(t.Context(), b.d); err != nil || more {
		t.Fatalf("more = %v, %v", more, err)
	}
	if c := b.counts(); c.Scheduled != counters.FoldAtOnce+1 {
		t.Fatalf("counts = %+v", c)
	}
}
