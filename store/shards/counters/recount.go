package counters

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// Difference is a counter that differs from the number of tasks or dead runs.
type Difference struct {
	Database int
	Tenant   int32
	Type     task.Type
	// Of is a state, or DEAD for dead runs.
	Of string
	// Counted is the number found, Counter the value of the counter.
	Counted, Counter int64
}

// Recount counts the tasks and dead runs of a tenant (0: of all tenants) in database d,
// compares the numbers with the counters of the same instant, and returns every
// difference. With repair it corrects the counters in the same transaction.
//
// It reads everything in one snapshot, which keeps vacuum from removing rows meanwhile,
// so call it in quiet hours. ctx is its only time limit.
func (c *Counters) Recount(ctx context.Context, d int, tenant int32, repair bool) ([]Difference, error) {
	var found []Difference
	err := pgx.BeginTxFunc(ctx, c.db.Pool(d), pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
		if err := prepare(ctx, tx, repair); err != nil {
			return err
		}
		there, err := c.countPlaces(ctx, tx, tenant)
		if err != nil {
			return err
		}
		counters, err := Read(ctx, tx, tenant)
		if err != nil {
			return err
		}
		var fix Tally
		found = differences(d, there, counters, &fix)
		if !repair || len(found) == 0 {
			return nil
		}
		b := &pgx.Batch{}
		fix.Queue(b)
		return tx.SendBatch(ctx, b).Close()
	})
	if err != nil {
		return nil, fmt.Errorf("recount database %d: %w", d, err)
	}
	return found, nil
}

// prepare sets a transaction up for reading all rows. LOCK takes no snapshot, so of two
// repairs the second takes its snapshot after the first has ended. Otherwise both would
// make the same correction.
func prepare(ctx context.Context, tx pgx.Tx, repair bool) error {
	if repair {
		lock := `SET LOCAL lock_timeout = 10000; LOCK TABLE counter IN SHARE UPDATE EXCLUSIVE MODE`
		if _, err := tx.Exec(ctx, lock, pgx.QueryExecModeSimpleProtocol); err != nil {
			return err
		}
	}
	return kernel.ReadAll(ctx, tx)
}

// Key identifies a counter.
type Key struct {
	Tenant int32
	Type   task.Type
	Cell   task.Cell
}

// Place calls add with the number of tasks of a tenant (0: of all tenants) in one place of
// tasks, read in the snapshot of the transaction.
type Place func(ctx context.Context, tx pgx.Tx, tenant int32, add func(Key, int64)) error

func (c *Counters) countPlaces(ctx context.Context, tx pgx.Tx, tenant int32) (map[Key]int64, error) {
	there := map[Key]int64{}
	for _, count := range c.places {
		if err := count(ctx, tx, tenant, func(k Key, n int64) { there[k] += n }); err != nil {
			return nil, err
		}
	}
	return there, nil
}

func countRows(ctx context.Context, tx pgx.Tx, tenant int32, add func(Key, int64)) error {
	rows, err := sql.RecountRows.Query(ctx, tx, tenant)
	if err != nil {
		return err
	}
	var k Key
	var n int64
	_, err = pgx.ForEachRow(rows, []any{&k.Tenant, &k.Type, &k.Cell, &n}, func() error { add(k, n); return nil })
	return err
}

// counter describes a cell whose tasks can be counted: its name and its field.
type counter struct {
	name string
	of   func(*task.Counts) int64
}

var counted = map[task.Cell]counter{
	task.Cell(task.Scheduled): {task.Scheduled.String(), func(c *task.Counts) int64 { return c.Scheduled }},
	task.Cell(task.Running):   {task.Running.String(), func(c *task.Counts) int64 { return c.Running }},
	task.Cell(task.Completed): {task.Completed.String(), func(c *task.Counts) int64 { return c.Completed }},
	task.Cell(task.Cancelled): {task.Cancelled.String(), func(c *task.Counts) int64 { return c.Cancelled }},
	task.Cell(task.Failed):    {task.Failed.String(), func(c *task.Counts) int64 { return c.Failed }},
	task.DeadCell:             {"DEAD", func(c *task.Counts) int64 { return c.Dead }},
}

// differences compares the counted numbers with the counters. It collects in fix the
// moves that correct the counters: a surplus or missing task is corrected as if it had
// been added, or had never been added.
func differences(d int, there map[Key]int64, counters []task.TypeCounts, fix *Tally) []Difference {
	said := map[Key]int64{}
	for _, c := range counters {
		for cell, counter := range counted {
			said[Key{c.Tenant, c.Type, cell}] = counter.of(&c.Counts)
		}
	}
	for k := range there {
		said[k] += 0
	}
	keys := slices.SortedFunc(maps.Keys(said), func(a, b Key) int {
		return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Type, b.Type), cmp.Compare(a.Cell, b.Cell))
	})
	var found []Difference
	for _, k := range keys {
		if n := there[k] - said[k]; n != 0 {
			found = append(found, Difference{
				Database: d, Tenant: k.Tenant, Type: k.Type, Of: counted[k.Cell].name, Counted: there[k], Counter: said[k],
			})
			fix.Move(k.Tenant, k.Type, task.NoCell, k.Cell, n)
		}
	}
	return found
}
