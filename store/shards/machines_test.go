package shards

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/pack"
	"github.com/perceptor/perceptor/store/shards/far"
	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/task"
)

// between calls then after the first statement that it passes on.
type between struct {
	kernel.Querier
	then func()
}

func (q *between) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	rows, err := q.Querier.Query(ctx, sql, args...)
	if then := q.then; then != nil && err == nil {
		q.then = nil
		return &closing{rows, then}, nil
	}
	return rows, err
}

// closing calls then when its rows have been read.
type closing struct {
	pgx.Rows
	then func()
}

func (r *closing) Close() {
	r.Rows.Close()
	if r.then != nil {
		r.then()
		r.then = nil
	}
}

// TestATaskThatLeavesItsPackDuringALookIsNotUnknown: the look at packs takes two
// statements. Reports of runs of such a task were answered with UNKNOWN.
func TestATaskThatLeavesItsPackDuringALookIsNotUnknown(t *testing.T) {
	for name, leave := range map[string]func(*bundle, task.ID){
		"recalled": func(b *bundle, id task.ID) {
			if _, err := b.Pause(context.Background(), b.tenant, id); err != nil {
				b.t.Error(err)
			}
		},
		"cancelled": func(b *bundle, id task.ID) {
			if _, err := b.Cancel(context.Background(), b.tenant, id); err != nil {
				b.t.Error(err)
			}
		},
		"its pack was compacted": func(b *bundle, id task.ID) {
			for _, p := range b.packs() {
				if _, rows, err := packOf(b, p).Living(); err != nil || len(rows) == 0 || rows[0].ID == id {
					if err := b.unpack(p); err != nil {
						b.t.Error(err)
					}
				}
			}
		},
	} {
		for _, p := range everyPlace[1:] {
			t.Run(name+" from "+p.String(), func(t *testing.T) {
				b := setup(t, nearOnly)
				ids := b.add(b.spec(task.OneShot, b.inHours(5)), b.spec(task.OneShot, b.inHours(5)), b.spec(task.OneShot, b.inHours(5)))
				b.put(p, pack.Hour, ids[1])
				b.put(inPack, pack.Hour, ids[0], ids[2]) // its range covers the task in the middle
				k := kernel.KeyOf(b.tenant, ids[1], 0)
				q := &between{b.db.Pool(b.d), func() { leave(b, ids[1]) }}
				machines, moved, err := far.Machines(t.Context(), q, []kernel.Key{k})
				if err != nil || machines[k] != nil || !moved[k] {
					t.Errorf("machine %v, moved %v, %v; want a task that has moved", machines[k], moved[k], err)
				}
			})
		}
	}
}

// TestATaskThatNoPackHoldsIsUnknown: packs whose range covers an id without holding it are
// no places of it.
func TestATaskThatNoPackHoldsIsUnknown(t *testing.T) {
	b := setup(t, nearOnly)
	ids := b.add(b.spec(task.OneShot, b.inHours(5)), b.spec(task.OneShot, b.inHours(5)), b.spec(task.OneShot, b.inHours(5)))
	b.put(inPack, pack.Hour, ids[1])
	if err := b.unpack(b.packs()[0]); err != nil {
		t.Fatal(err)
	}
	b.exec(`DELETE FROM task WHERE id = $1`, ids[1])
	b.put(inPack, pack.Hour, ids[0], ids[2])
	k := kernel.KeyOf(b.tenant, ids[1], 0)
	if machines, moved, err := far.Machines(t.Context(), b.db.Pool(b.d), []kernel.Key{k}); err != nil || len(machines)+len(moved) != 0 {
		t.Errorf("machines %v, moved %v, %v; want neither", machines, moved, err)
	}
}

func packOf(b *bundle, p far.PackName) *far.PackKeys {
	b.t.Helper()
	packs, err := far.ReadPacks(b.t.Context(), b.db.Pool(b.d), []int64{int64(p)})
	if err != nil || len(packs) != 1 {
		b.t.Fatal(len(packs), err)
	}
	return &packs[0]
}
