package shards

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/perceptor/perceptor/internal/testenv"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/pack"
	"github.com/perceptor/perceptor/store/shards/bulk"
	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/task"
)

// backfills returns the backfill tasks by their sources.
func (b *bundle) backfills() map[task.ID][]*task.Row {
	all := map[task.ID][]*task.Row{}
	for _, r := range b.rows() {
		if r.BackfillOf != 0 && r.Run == 0 {
			all[r.BackfillOf] = append(all[r.BackfillOf], r)
		}
	}
	return all
}

// hourlyFromDayBefore has had 24 instants when a day has passed.
func hourlyFromDayBefore(s *task.Spec) { s.Interval = time.Hour }

func TestABackfillAddsOneTaskForEachSourceInEachTierAndChangesNone(t *testing.T) {
	for _, rate := range []int32{0, 80} {
		t.Run(fmt.Sprint("at ", rate), func(t *testing.T) {
			b := setup(t, nearOnly)
			own := b.chores()
			day := b.now
			var sources []task.ID
			for _, p := range everyPlace {
				ids := b.add(slices.Repeat([]task.Spec{b.spec(task.NonBlocking, hourlyFromDayBefore, tagged("red"))}, 7)...)
				b.put(p, pack.Hour, ids...)
				sources = append(sources, ids...)
			}
			b.add(b.spec(task.OneShot, b.inHours(90), tagged("red")), b.spec(task.NonBlocking, hourlyFromDayBefore))
			b.advance(24*time.Hour + time.Minute)
			terms := task.BulkTerms{Filter: task.Filter{Tags: []string{"red"}}, BackfillFrom: day.Add(2 * time.Hour), BackfillUntil: day.Add(5 * time.Hour), MaxRate: rate}
			dry := terms
			dry.DryRun = true
			if sum := b.finishBulk(own, b.bulk(task.BulkBackfill, dry), func() {}); sum != (task.BulkSum{Matched: 63}) {
				t.Errorf("the dry run counted %+v", sum)
			}
			before := b.everywhere()
			op := b.bulk(task.BulkBackfill, terms)
			if sum := b.finishBulk(own, op, func() { b.advance(time.Minute) }); sum != (task.BulkSum{Matched: 63, Done: 63}) {
				t.Errorf("the backfill counted %+v", sum)
			}
			made := b.backfills()
			for _, id := range sources {
				if len(made[id]) != 1 || made[id][0].Backfill != op.ID || made[id][0].ID.Shard() != id.Shard() {
					t.Errorf("task %d has %d backfill tasks", id, len(made[id]))
				}
			}
			after := b.everywhere()
			for k, r := range before {
				if diff := cmp.Diff(r.ScheduledAt, after[k].ScheduledAt); diff != "" || after[k].Version != r.Version {
					t.Errorf("task %d has changed: %s", k.ID, diff)
				}
			}
			if len(after) != len(before)+len(sources) {
				t.Errorf("%d tasks, then %d", len(before), len(after))
			}
			if found, err := b.Recount(t.Context(), b.d, b.tenant, false); err != nil || len(found) > 0 {
				t.Errorf("counters differ: %+v, %v", found, err)
			}
		})
	}
}

// TestASourceThatMovesBetweenTiersHasOneBackfillTask recalls packed sources after the backfill has
// passed their packs, so that it meets them again as rows.
func TestASourceThatMovesBetweenTiersHasOneBackfillTask(t *testing.T) {
	b := setup(t, nearOnly)
	own, day := b.chores(), b.now
	b.advance(time.Millisecond)
	ids := b.add(slices.Repeat([]task.Spec{b.spec(task.Blocking, func(s *task.Spec) { s.Interval = time.Hour })}, 9)...)
	b.put(inPack, pack.Hour, ids...)
	b.advance(24 * time.Hour)
	op := b.bulk(task.BulkBackfill, task.BulkTerms{BackfillFrom: day, BackfillUntil: day.Add(3 * time.Hour)})
	first := true
	b.finishBulk(own, op, func() {
		if !first {
			return
		}
		first = false
		for _, id := range ids {
			if _, err := b.Pause(t.Context(), b.tenant, id); err != nil {
				t.Fatal(err)
			}
		}
	})
	made := b.backfills()
	for _, id := range ids {
		if len(made[id]) != 1 {
			t.Errorf("task %d has %d backfill tasks", id, len(made[id]))
		}
	}
	if s, err := b.Get(t.Context(), b.tenant, ids[0]); err != nil || !s.Paused {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestABackfillTaskFiresAtTheMinuteOfItsSource(t *testing.T) {
	b := setup(t, nearOnly)
	own, day := b.chores(), b.now
	id := b.add(b.spec(task.NonBlocking, byCron("H H * * * *", "UTC"), func(s *task.Spec) { s.Spread = time.Minute }))[0]
	source := b.rows()[kernel.KeyOf(b.tenant, id, 0)]
	first := source.ScheduledAt
	b.advance(24 * time.Hour)
	op := b.bulk(task.BulkBackfill, task.BulkTerms{BackfillFrom: day, BackfillUntil: day.Add(2 * time.Hour)})
	if sum := b.finishBulk(own, op, func() {}); sum.Done != 2 {
		t.Fatalf("%+v", sum)
	}
	var fired []task.Instant
	for range 4 {
		for _, p := range b.claim(task.RangeForm).Publications {
			if p.BackfillOf == id {
				fired = append(fired, p.ScheduledAt)
			}
		}
		b.advance(time.Second)
	}
	if want := []task.Instant{first, first.Add(time.Hour)}; !slices.Equal(fired, want) {
		t.Errorf("fired %v, want %v", fired, want)
	}
}

func TestTheResultOfABackfilledBlockingRunIsFollowedByTheNextInstant(t *testing.T) {
	b := setup(t, nearOnly)
	own, day := b.chores(), b.now
	id := b.add(b.spec(task.Blocking, hourlyFromDayBefore))[0]
	b.advance(24 * time.Hour)
	b.finishBulk(own, b.bulk(task.BulkBackfill, task.BulkTerms{BackfillFrom: day, BackfillUntil: day.Add(3 * time.Hour)}), func() {})
	made := b.backfills()[id][0].ID
	var fired []task.Instant
	for range 5 {
		for _, p := range b.claim(task.RangeForm).Publications {
			if p.Task != made {
				continue
			}
			fired = append(fired, p.ScheduledAt)
			a := attempt(made, p.Seq, 1)
			if got := b.start(7, a); got[0].Code != task.Accepted {
				t.Fatal(got)
			}
			res := success(made, p.Seq, 1, 7)
			res.Next = b.now.Add(time.Minute) // ignored: SQL must not take it either
			if got := b.report(res); got[0] != task.Accepted {
				t.Fatal(got)
			}
		}
		b.advance(time.Millisecond)
	}
	if want := []task.Instant{day, day.Add(time.Hour), day.Add(2 * time.Hour)}; !slices.Equal(fired, want) {
		t.Errorf("fired %v, want %v", fired, want)
	}
	if found, err := b.Recount(t.Context(), b.d, b.tenant, false); err != nil || len(found) > 0 {
		t.Errorf("counters differ: %+v, %v", found, err)
	}
	if left := b.backfills()[id]; len(left) != 0 {
		t.Errorf("the backfill task has not ended: %+v", left[0])
	}
}

func TestASourceWithTooManyRunsGetsNoBackfill(t *testing.T) {
	b := setup(t, nearOnly)
	own, day := b.chores(), b.now
	many := b.add(b.spec(task.NonBlocking, func(s *task.Spec) { s.Interval = time.Second }))[0]
	few := b.add(b.spec(task.NonBlocking, hourlyFromDayBefore))[0]
	b.advance(24 * time.Hour)
	terms := task.BulkTerms{BackfillFrom: day, BackfillUntil: day.Add(10 * time.Hour)}
	dry := terms
	dry.DryRun = true
	if sum := b.finishBulk(own, b.bulk(task.BulkBackfill, dry), func() {}); sum != (task.BulkSum{Matched: 36_010, Failed: 36_000}) {
		t.Errorf("the dry run counted %+v", sum)
	}
	if sum := b.finishBulk(own, b.bulk(task.BulkBackfill, terms), func() {}); sum != (task.BulkSum{Matched: 36_010, Done: 10, Failed: 36_000}) {
		t.Errorf("the backfill counted %+v", sum)
	}
	if made := b.backfills(); len(made[many]) != 0 || len(made[few]) != 1 {
		t.Errorf("%d and %d backfill tasks", len(made[many]), len(made[few]))
	}
}

func TestABackfillKeepsTheMaximumOfUnfinishedTasks(t *testing.T) {
	const most = 30
	b := withQuotas(t, task.Quotas{task.QuotaBacklog: most}, 0)
	own, day := b.chores(), b.now
	b.add(slices.Repeat([]task.Spec{b.spec(task.NonBlocking, hourlyFromDayBefore)}, 20)...)
	b.advance(24 * time.Hour)
	op := b.bulk(task.BulkBackfill, task.BulkTerms{BackfillFrom: day, BackfillUntil: day.Add(90 * time.Minute)})
	b.steps(own, 5, 2*time.Second)
	if p := b.part(op); p.Done != 20 || p.State != task.BulkRunning { // two runs of ten sources
		t.Errorf("the operation %+v", p)
	}
	cancelled := b.bulk(task.BulkCancel, task.BulkTerms{Filter: task.Filter{Backfill: op.ID}})
	b.steps(own, 12, 2*time.Second)
	if p, q := b.part(cancelled), b.part(op); p.Done < 10 || q.Done != 40 || q.State != task.BulkDone {
		t.Errorf("cancelled %+v, then the backfill %+v", p, q)
	}
}

// TestABackfillThatIsKilledAtAnyPointFiresEachInstantOnce kills the owner of the chores before and
// after each commit of a backfill. Another owner goes on. One of the sources is a row, the others
// are in a pack.
func TestABackfillThatIsKilledAtAnyPointFiresEachInstantOnce(t *testing.T) {
	killAt, passed := 0, 0
	b := setup(t, nearOnly, func(c *Config) {
		c.Failpoint = func(p string, _ int) error {
			if !strings.HasPrefix(p, "bulk:") {
				return nil
			}
			if passed++; passed == killAt {
				return errors.New("killed " + p)
			}
			return nil
		}
	})
	day := b.now
	sources := b.add(slices.Repeat([]task.Spec{b.spec(task.NonBlocking, hourlyFromDayBefore)}, 4)...)
	b.put(inPack, pack.Hour, sources[1:]...)
	b.advance(24 * time.Hour)
	operations := map[int64]bool{}
	for killed := true; killed; {
		killed, passed, killAt = false, 0, killAt+1
		op := b.bulk(task.BulkBackfill, task.BulkTerms{BackfillFrom: day, BackfillUntil: day.Add(2 * time.Hour)})
		for i := 0; b.part(op).State != task.BulkDone; i++ {
			if step, err := b.Bulk(t.Context(), b.d, b.chores(), true); err != nil || step.Err != nil {
				killed = true
			}
			if b.advance(10 * time.Second); i == 20 {
				t.Fatalf("the operation does not end: %+v", b.part(op))
			}
		}
		if p := b.part(op); p.BulkSum != (task.BulkSum{Matched: 8, Done: 8}) {
			t.Errorf("killed at point %d: %+v", killAt, p)
		}
		operations[op.ID] = true
	}
	if len(operations) < 5 { // both tiers, before and after, and once without a kill
		t.Errorf("%d points", len(operations)-1)
	}
	type run struct {
		operation int64
		source    task.ID
		at        task.Instant
	}
	made, fired := map[task.ID]*task.Row{}, map[run]int{}
	for _, list := range b.backfills() {
		for _, r := range list {
			made[r.ID] = r
		}
	}
	for range 3 {
		for claimed := true; claimed; {
			c := b.claim(task.RangeForm)
			claimed = len(c.Publications) > 0
			for _, p := range c.Publications {
				if r := made[p.Task]; r != nil {
					fired[run{r.Backfill, r.BackfillOf, p.ScheduledAt}]++
				}
			}
		}
		b.advance(time.Second)
	}
	for op := range operations {
		for _, id := range sources {
			for _, at := range []task.Instant{day, day.Add(time.Hour)} {
				if n := fired[run{op, id, at}]; n != 1 {
					t.Errorf("operation %d: the instant %s of task %d has fired %d times", op, at, id, n)
				}
			}
		}
	}
	if want := len(operations) * len(sources) * 2; len(fired) != want {
		t.Errorf("%d instants have fired, want %d", len(fired), want)
	}
}

// TestADryRunThatTakesTooLongIsAborted: each try would take as long, and keeps the other chores of the database.
func TestADryRunThatTakesTooLongIsAborted(t *testing.T) {
	var ended <-chan struct{}
	b := setup(t, nearOnly, func(c *Config) {
		c.Windows = func(int32, []string, []string) (*task.Windows, task.MissingCalendar) {
			if ended != nil {
				<-ended // as if a search took that long
			}
			return nil, task.MissingCalendar{}
		}
	})
	own, day := b.chores(), b.now
	for range 2 {
		b.add(b.spec(task.NonBlocking, hourlyFromDayBefore, func(s *task.Spec) { s.Exclude = []string{"x"} }))
	}
	b.advance(24 * time.Hour)
	op, err := b.CreateBulk(t.Context(), b.tenant, task.BulkBackfill, task.BulkTerms{DryRun: true, BackfillFrom: day.Add(2 * time.Hour), BackfillUntil: day.Add(5 * time.Hour)}, "", []byte("hash"))
	if err != nil {
		t.Fatal(err)
	}
	within, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	ended = within.Done()
	if _, err := b.Bulk(within, b.d, own, false); err != nil {
		t.Error(err)
	}
	if p := b.part(&bulk.Row{Tenant: b.tenant, ID: op.ID}); p.State != task.BulkAborted || !strings.Contains(p.Error, "too long") {
		t.Errorf("the dry run is %+v", p)
	}
}

// TestADryRunMayComputeForLongerThanASessionMayBeIdle: it is one snapshot, which locks nothing.
func TestADryRunMayComputeForLongerThanASessionMayBeIdle(t *testing.T) {
	cluster, err := store.Open(t.Context(), store.Config{
		Servers: []store.Server{{DSN: testenv.PackageDatabase(t, checked())}}, Application: application, IdleInTransaction: 300 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	b := setup(t, nearOnly, func(c *Config) {
		c.Windows = func(int32, []string, []string) (*task.Windows, task.MissingCalendar) {
			return nil, task.MissingCalendar{}
		}
	})
	own, day := b.chores(), b.now
	b.add(b.spec(task.NonBlocking, hourlyFromDayBefore, func(s *task.Spec) { s.Exclude = []string{"x"} }))
	b.advance(24 * time.Hour)
	op := b.bulk(task.BulkBackfill, task.BulkTerms{DryRun: true, BackfillFrom: day.Add(2 * time.Hour), BackfillUntil: day.Add(5 * time.Hour)})
	slow := New(cluster, Config{Windows: func(int32, []string, []string) (*task.Windows, task.MissingCalendar) {
		time.Sleep(time.Second) // as if a search took that long
		return nil, task.MissingCalendar{}
	}})
	if step, err := slow.Bulk(t.Context(), b.d, own, false); err != nil || step.Matched != 3 {
		t.Errorf("%+v, %v", step, err)
	}
	if p := b.part(op); p.State != task.BulkDone {
		t.Errorf("the dry run is %+v", p)
	}
}
