package shards

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/task"
)

// BenchmarkInsert writes groups of near tasks of one shard by the statement for few tasks, and by
// COPY.
func BenchmarkInsert(b *testing.B) {
	for _, size := range []int{10, 30, 100, 300, 1000} {
		for name, write := range map[string]func(pgx.Tx, []*task.Row) error{"statement": insertRows, "copy": copyRows} {
			b.Run(fmt.Sprintf("%s/%d", name, size), func(b *testing.B) {
				t := setup(b)
				const groups = 20
				number, took := int64(1<<20), time.Duration(0)
				for b.Loop() {
					for range groups {
						rows := t.rowsToInsert(size, &number)
						began := time.Now()
						if err := pgx.BeginFunc(context.Background(), t.db.Pool(t.d), func(tx pgx.Tx) error { return write(tx, rows) }); err != nil {
							b.Fatal(err)
						}
						took += time.Since(began)
					}
					t.exec(`TRUNCATE task`)
				}
				b.ReportMetric(float64(took.Nanoseconds())/1000/float64(b.N*groups*size), "µs/row")
			})
		}
	}
}

func insertRows(tx pgx.Tx, rows []*task.Row) error {
	n, b := kernel.NewInserts(), &pgx.Batch{}
	for _, r := range rows {
		n.Add(r)
	}
	n.Queue(b)
	return tx.SendBatch(context.Background(), b).Close()
}

func copyRows(tx pgx.Tx, rows []*task.Row) error {
	return kernel.CopyNear(context.Background(), tx, rows)
}

// rowsToInsert returns the rows of new tasks of the first shard.
func (b *bundle) rowsToInsert(n int, number *int64) (rows []*task.Row) {
	b.t.Helper()
	spec := b.spec(task.OneShot, begin(b.now.Add(time.Second)))
	spec.ParamsWire = make([]byte, 150)
	for range n {
		*number++
		r, faults := b.machines.Place(b.tenant, task.NewID(*number, b.owned[0].Shard), &spec, b.now)
		if len(faults) > 0 {
			b.t.Fatal(faults)
		}
		rows = append(rows, r)
	}
	return rows
}
