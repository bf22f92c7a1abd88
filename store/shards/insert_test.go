package shards

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/task"
)

// TestCopiedRowsEqualInsertedOnes: a task is stored alike whether it is added near, or promoted with others, whose
// rows are copied.
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
		shard := b.owned[i%3].Shard
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
