package shards

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/task"
)

// # Counters
//
// How many tasks a tenant has in each state is never found by counting rows.
// Each transaction that moves tasks from one state to another writes how many
// went where, as one row of counter_delta, with its own changes: so the two
// cannot disagree. Nobody waits for anybody, as they would for a row that holds
// a sum. [Store.FoldCounters] adds deltas up; a reader adds what is not folded
// yet. What matters:
//
//   - A delta is written in the transaction of the change, or by its statement.
//   - Moves are between cells (below); every task is in one cell, so a tenant's
//     cells add up to what was ever added.
//   - Where a task is kept does not count: near or far, it is SCHEDULED.

// cell is where a task is counted: a living state, a final state while the task
// is kept, or a final state afterwards. Dead runs have a cell of their own. The
// numbers are stored.
type cell int16

const (
	cellNone   cell = 0
	cellPurged cell = 3 // added to a final state
	cellDead   cell = 9
)

// cellOf returns the cell of a task in a state; kept matters for final ones.
func cellOf(s task.State, kept bool) cell {
	if s.Final() && !kept {
		return cell(s) + cellPurged
	}
	return cell(s)
}

// tally adds up the moves of one transaction.
type tally struct {
	tenants []int32
	moves   []int16
	ns      []int64
	index   map[tallyKey]int
	last    tallyKey // moves come in runs
	at      int
}

type tallyKey struct {
	tenant int32
	move   int16
}

// move notes that n tasks went from one cell to another.
func (t *tally) move(tenant int32, typ task.Type, from, to cell, n int64) {
	k := tallyKey{tenant, int16(typ)*100 + int16(from)*10 + int16(to)}
	if k != t.last || len(t.ns) == 0 {
		at, ok := t.index[k]
		if !ok {
			if t.index == nil {
				t.index = map[tallyKey]int{}
			}
			at = len(t.ns)
			t.index[k] = at
			t.tenants, t.moves, t.ns = append(t.tenants, tenant), append(t.moves, k.move), append(t.ns, 0)
		}
		t.last, t.at = k, at
	}
	t.ns[t.at] += n
}

// machine notes what steps did to a task.
func (t *tally) machine(k *task.Machine) {
	from, to := cell(k.Was), cellOf(k.Task.State, k.Task.Retention.Milliseconds() > 0)
	if from != to {
		t.move(k.Task.Tenant, k.Task.Type, from, to, 1)
	}
	if n := len(k.Dead); n > 0 {
		t.move(k.Task.Tenant, k.Task.Type, cellNone, cellDead, int64(n))
	}
}

// queue adds the delta to a batch; nothing moved, nothing added.
func (t *tally) queue(b *pgx.Batch) {
	if len(t.ns) > 0 {
		b.Queue(sql.Get("DeltaInsert"), t.tenants, t.moves, t.ns)
	}
}

// foldAtOnce is how many deltas one call folds at most.
const foldAtOnce = 2000

// FoldCounters adds some of the deltas of database d to its counters. It returns
// how many, and whether there may be more. Several may do it at once.
func (s *Store) FoldCounters(ctx context.Context, d int) (n int, more bool, err error) {
	err = s.inTx(ctx, d, "fold", func(tx pgx.Tx) error {
		b := &pgx.Batch{}
		b.Queue(sql.Get("CounterFold"), foldAtOnce).QueryRow(func(row pgx.Row) error { return row.Scan(&n) })
		if err := tx.SendBatch(ctx, b).Close(); err != nil {
			return err
		}
		if n == 0 {
			return errNothing
		}
		return nil
	})
	return n, err == nil && n == foldAtOnce, err
}

// Counts returns the exact counts of a tenant by type, or those of all tenants
// for 0, by tenant and type. It never counts rows. The databases are read at
// once but not at one instant, so the sum may be of no instant while tasks are
// on their way; a database's own part is.
func (s *Store) Counts(ctx context.Context, tenant int32) ([]task.TypeCounts, error) {
	var parts [task.Databases][]task.TypeCounts
	err := s.cluster.Each(ctx, func(ctx context.Context, d int) (err error) {
		parts[d], err = readCounts(ctx, s.cluster.Pool(d), tenant)
		return err
	})
	if err != nil {
		return nil, unavailable(fmt.Errorf("read counters: %w", err))
	}
	var sum []task.TypeCounts
	for _, part := range parts {
		sum = addCounts(sum, part)
	}
	return sum, nil
}

// addCounts merges b into a; both are ordered, and so is the outcome.
func addCounts(a, b []task.TypeCounts) []task.TypeCounts {
	for _, c := range b {
		i, ok := slices.BinarySearchFunc(a, c, compareCounts)
		if !ok {
			a = slices.Insert(a, i, c)
			continue
		}
		a[i].Counts = a[i].Plus(c.Counts)
	}
	return a
}

func compareCounts(a, b task.TypeCounts) int {
	return cmp.Or(cmp.Compare(a.Tenant, b.Tenant), cmp.Compare(a.Type, b.Type))
}

func readCounts(ctx context.Context, q querier, tenant int32) ([]task.TypeCounts, error) {
	rows, err := q.Query(ctx, sql.Get("CounterRead"), tenant)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (c task.TypeCounts, err error) {
		return c, row.Scan(&c.Tenant, &c.Type, &c.Added, &c.Scheduled, &c.Running, &c.Completed, &c.Cancelled, &c.Failed,
			&c.PurgedCompleted, &c.PurgedCancelled, &c.PurgedFailed, &c.Dead, &c.Died)
	})
}

// Difference is a counter that does not say what there is.
type Difference struct {
	Database int
	Tenant   int32
	Type     task.Type
	// Of is a state, or DEAD for dead runs.
	Of string
	// Counted is how many there are, Counter what the counter said.
	Counted, Counter int64
}

// Recount counts what database d holds of a tenant (0: of all), compares it with
// the counters of the same instant, and returns every difference. With repair it
// corrects the counters in the same transaction.
//
// It reads everything in one snapshot, which keeps vacuum from its work for as
// long: for quiet hours. ctx is its only time limit.
func (s *Store) Recount(ctx context.Context, d int, tenant int32, repair bool) ([]Difference, error) {
	var found []Difference
	err := pgx.BeginTxFunc(ctx, s.cluster.Pool(d), pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
		if err := prepareRecount(ctx, tx, repair); err != nil {
			return err
		}
		there, err := s.countPlaces(ctx, tx, d, tenant)
		if err != nil {
			return err
		}
		counters, err := readCounts(ctx, tx, tenant)
		if err != nil {
			return err
		}
		var fix tally
		found = differences(d, there, counters, &fix)
		if !repair || len(found) == 0 {
			return nil
		}
		b := &pgx.Batch{}
		fix.queue(b)
		return tx.SendBatch(ctx, b).Close()
	})
	if err != nil {
		return nil, fmt.Errorf("recount database %d: %w", d, err)
	}
	return found, nil
}

// prepareRecount sets a transaction up for reading all rows. Of two repairs the
// second one's snapshot must be taken after the first has ended, or both would
// make the same correction: LOCK takes none.
func prepareRecount(ctx context.Context, tx pgx.Tx, repair bool) error {
	simple := pgx.QueryExecModeSimpleProtocol
	if repair {
		if _, err := tx.Exec(ctx, `SET LOCAL lock_timeout = 10000; LOCK TABLE counter IN SHARE UPDATE EXCLUSIVE MODE`, simple); err != nil {
			return err
		}
	}
	_, err := tx.Exec(ctx, `SET LOCAL statement_timeout = 0; SET LOCAL enable_seqscan = on; SET LOCAL enable_bitmapscan = on`, simple)
	return err
}

// cellKey names a counter.
type cellKey struct {
	tenant int32
	typ    task.Type
	cell   cell
}

// places are where tasks may be: each adds what it holds, read in the snapshot
// of the transaction.
var places = []func(ctx context.Context, s *Store, tx pgx.Tx, d int, tenant int32, add func(cellKey, int64)) error{
	countRows, countPacks,
}

func (s *Store) countPlaces(ctx context.Context, tx pgx.Tx, d int, tenant int32) (map[cellKey]int64, error) {
	there := map[cellKey]int64{}
	for _, count := range places {
		if err := count(ctx, s, tx, d, tenant, func(k cellKey, n int64) { there[k] += n }); err != nil {
			return nil, err
		}
	}
	return there, nil
}

func countRows(ctx context.Context, _ *Store, tx pgx.Tx, _ int, tenant int32, add func(cellKey, int64)) error {
	rows, err := tx.Query(ctx, sql.Get("RecountRows"), tenant)
	if err != nil {
		return err
	}
	var k cellKey
	var n int64
	_, err = pgx.ForEachRow(rows, []any{&k.tenant, &k.typ, &k.cell, &n}, func() error { add(k, n); return nil })
	return err
}

// counter is a cell whose tasks can be counted, and where its number stands.
type counter struct {
	name string
	of   func(*task.Counts) int64
}

var counted = map[cell]counter{
	cell(task.Scheduled): {task.Scheduled.String(), func(c *task.Counts) int64 { return c.Scheduled }},
	cell(task.Running):   {task.Running.String(), func(c *task.Counts) int64 { return c.Running }},
	cell(task.Completed): {task.Completed.String(), func(c *task.Counts) int64 { return c.Completed }},
	cell(task.Cancelled): {task.Cancelled.String(), func(c *task.Counts) int64 { return c.Cancelled }},
	cell(task.Failed):    {task.Failed.String(), func(c *task.Counts) int64 { return c.Failed }},
	cellDead:             {"DEAD", func(c *task.Counts) int64 { return c.Dead }},
}

// differences compares what there is with what the counters said, and collects
// in fix what makes that right: a task too many or too few is corrected as if it
// had been added, or never been.
func differences(d int, there map[cellKey]int64, counters []task.TypeCounts, fix *tally) []Difference {
	said := map[cellKey]int64{}
	for _, c := range counters {
		for cell, counter := range counted {
			said[cellKey{c.Tenant, c.Type, cell}] = counter.of(&c.Counts)
		}
	}
	for k := range there {
		said[k] += 0
	}
	keys := slices.SortedFunc(maps.Keys(said), func(a, b cellKey) int {
		return cmp.Or(cmp.Compare(a.tenant, b.tenant), cmp.Compare(a.typ, b.typ), cmp.Compare(a.cell, b.cell))
	})
	var found []Difference
	for _, k := range keys {
		if n := there[k] - said[k]; n != 0 {
			found = append(found, Difference{
				Database: d, Tenant: k.tenant, Type: k.typ, Of: counted[k.cell].name, Counted: there[k], Counter: said[k],
			})
			fix.move(k.tenant, k.typ, cellNone, k.cell, n)
		}
	}
	return found
}
