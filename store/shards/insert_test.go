package shards

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/task"
)

// TestCopiedRowsEqualInsertedOnes: a task is stored alike whether it is added alone or with many, whose
// rows are copied into the table of their shard, or into the parent if they are few.
func TestCopiedRowsEqualInsertedOnes(t *testing.T) {
	b := setup(t)
	specs := []task.Spec{
		b.spec(task.OneShot), b.spec(task.OneShot, begin(b.now.Add(time.Minute)), tagged("a", "b"), large(3000)),
		b.spec(task.NonBlocking), b.spec(task.NonBlocking, byCron("*/5 * * * * *", "Europe/Berlin"), misfire(task.Terms{Misfire: task.FireAll, CatchUp: 3})),
		b.spec(task.Blocking, func(s *task.Spec) {
			s.End, s.MaxCount, s.Retention, s.StopOnFailure = b.now.Add(time.Hour), 9, time.Hour, true
		}),
		b.spec(task.NonBlocking, ofKind("other"), func(s *task.Spec) { s.Spread, s.Overlap = time.Second, task.OverlapSkip }),
	}
	var inserted, copied []*task.Row
	for i := range 2 * 70 {
		shard := b.owned[0].Shard
		if i%14 == 0 { // too few for a COPY of their own
			shard = b.owned[1+i%3].Shard
		}
		for tenant, rows := range map[int32]*[]*task.Row{b.tenant: &inserted, b.tenant + 1: &copied} {
			r, faults := b.machines.Place(tenant, task.NewID(int64(1<<20+i), shard), &specs[i%len(specs)], b.now)
			if len(faults) > 0 {
				t.Fatal(faults)
			}
			*rows = append(*rows, r)
		}
	}
	kernel.SortNear(copied)
	if err := pgx.BeginFunc(t.Context(), b.db.Pool(b.d), func(tx pgx.Tx) error {
		if err := insertRows(tx, inserted); err != nil {
			return err
		}
		return copyRows(tx, copied)
	}); err != nil {
		t.Fatal(err)
	}
	want, got := map[task.ID]*task.Row{}, map[task.ID]*task.Row{}
	for _, r := range b.rows() {
		want[r.ID] = r
	}
	b.tenant++
	for _, r := range b.rows() {
		r.Tenant--
		got[r.ID] = r
	}
	if diff := cmp.Diff(want, got); diff != "" || len(got) != len(copied) {
		t.Errorf("%d of %d rows (-inserted +copied)\n%s", len(got), len(copied), diff)
	}
}

// TestALargeGroupOfAddsIsCopied: also beside far tasks.
func TestALargeGroupOfAddsIsCopied(t *testing.T) {
	b := setup(t)
	var specs []task.Spec
	for i := range 3 * copyFrom {
		at := b.now.Add(time.Duration(i%7) * time.Second)
		if i%3 == 1 {
			at = b.now.Add(300 * 24 * time.Hour)
		}
		specs = append(specs, b.spec(task.OneShot, begin(at)))
	}
	ids := b.add(specs...)
	b.advance(10 * time.Second)
	c := b.claim(task.RangeForm)
	fired := map[task.ID]bool{}
	for _, p := range c.Publications {
		fired[p.Task] = true
	}
	for i, id := range ids {
		if near := i%3 != 1; fired[id] != near {
			t.Fatalf("task %d fired: %t, want %t", i, fired[id], near)
		}
	}
	if len(c.Publications) != 2*copyFrom {
		t.Errorf("%d runs, want %d", len(c.Publications), 2*copyFrom)
	}
}
