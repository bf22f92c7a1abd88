package bulk

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// # Rolling an import back
//
// The first step in a database closes the import there, so the markers of its chunks are all
// that there will be. The other steps visit the packs and rows that may hold a number that a
// marker names: a pack tells the range of its ids, and the rows of a shard are in the order of theirs. They
// remove the tasks with these numbers that have not fired and were not edited: these are not kept for their
// retention, and their keys are free again. Packs of level 0 have tasks of adds only.

// imported has the numbers of the ids that an import has drawn in a database. It is read once
// for many steps: nothing changes it.
type imported struct {
	mu     sync.Mutex
	tenant int32
	id     int64 // of the import; 0: none is known
	ranges []numberRange
}

// numberRange is a range of numbers of ids that one chunk has drawn.
type numberRange struct {
	first, last int64
	chunk       int64
	// before is how many numbers of the chunk come before this range.
	before int64
	// restored says that tasks of the chunk have had runs elsewhere.
	restored bool
}

// maxRollbacks is how many operations may roll one import back, one after another.
const maxRollbacks = 8

// RollbackImport creates the operation that removes the tasks of an import, or returns the
// existing one. An operation that was aborted has left tasks, so it is followed by another one.
func (ops *Operations) RollbackImport(ctx context.Context, tenant int32, id int64, creator string) (o *task.BulkOperation, err error) {
	for n := range maxRollbacks {
		o, err = ops.CreateBulk(ctx, tenant, task.BulkRollbackImport, task.BulkTerms{Import: id, Creator: creator}, rollbackRequest(id, n), []byte{1})
		if err != nil || o.State != task.BulkAborted {
			return o, err
		}
	}
	return nil, task.Errorf(task.ReasonTooManyOperations, "the rollback of import %d was aborted %d times; cancel its tasks by another bulk operation", id, maxRollbacks)
}

func rollbackRequest(id int64, n int) string {
	if n == 0 {
		return fmt.Sprintf("\x01import %d", id)
	}
	return fmt.Sprintf("\x01import %d again %d", id, n)
}

// Rollbacks returns the rollbacks of some imports, by the imports' ids, those of an import in the order of their
// creation. Those that have ended long ago are not known any more.
func (ops *Operations) Rollbacks(ctx context.Context, tenant int32, imports []int64) (map[int64][]*task.BulkOperation, error) {
	ids, order := make([]int64, 0, len(imports)*maxRollbacks), make(map[int64]int, len(imports)*maxRollbacks)
	for _, i := range imports {
		for n := range maxRollbacks {
			id, err := kernel.IDOfRequest("bulk", tenant, rollbackRequest(i, n))
			if err != nil {
				return nil, err
			}
			ids, order[id] = append(ids, id), n
		}
	}
	rows, err := Read(ctx, ops.db.Pool(kernel.Home(tenant)), sql.BulkRead, tenant, ids)
	if err != nil {
		return nil, kernel.Unavailable(err)
	}
	slices.SortFunc(rows, func(x, y *Row) int { return order[x.ID] - order[y.ID] })
	list, err := ops.withParts(ctx, tenant, rows)
	found := map[int64][]*task.BulkOperation{}
	for _, o := range list {
		found[o.Terms.Import] = append(found[o.Terms.Import], o)
	}
	return found, err
}

// rollback executes a step of a rollback.
func (b *bulkStep) rollback(ctx context.Context) (lost bool, err error) {
	if b.row.position == "" {
		b.next = task.ListCursor{Database: b.d, Stage: task.ListPacks}.String()
		return b.tx(ctx, func(tx pgx.Tx, _ task.Instant) error {
			_, err := sql.ImportPartClose.Exec(ctx, tx, b.row.Tenant, b.terms.Import)
			return err
		})
	}
	if b.imported, err = b.s.importedIn(ctx, b.d, b.row.Tenant, b.terms.Import); err != nil {
		return false, err
	}
	if len(b.imported) == 0 {
		b.end = true
		return b.to(ctx, task.ListCursor{Database: b.d}, nil)
	}
	b.runs = map[int64][]int64{}
	return b.tasks(ctx)
}

// importedNumbers returns the first and the last number of the import.
func (b *bulkStep) importedNumbers() (first, last int64) {
	return b.imported[0].first, b.imported[len(b.imported)-1].last
}

// mayHoldImported reports whether the ids from first to last may have a number of the import.
func (b *bulkStep) mayHoldImported(first, last task.ID) bool {
	low, high := kernel.NumberOf(first), kernel.NumberOf(last)
	i, _ := slices.BinarySearchFunc(b.imported, low, func(r numberRange, n int64) int { return cmp.Compare(r.last, n) })
	return i < len(b.imported) && b.imported[i].first <= high
}

// importedRows changes some tasks of the import that are rows of the near tier.
func (b *bulkStep) importedRows(ctx context.Context, at task.ListCursor) (lost bool, err error) {
	first, last := b.importedNumbers()
	shard := task.Shard(b.d * task.ShardsPerDatabase)
	if at.Task != 0 {
		shard = at.Task.Shard()
	}
	var keys []kernel.Key
	looked := 0
	for ; shard.Database() == b.d; shard++ {
		after := task.NewID(first, shard) - 1
		if at.Task != 0 && at.Task.Shard() == shard {
			after = at.Task
		}
		most := bulkLook - looked
		list, err := b.readImported(ctx, shard, after, task.NewID(last, shard), most)
		if err != nil {
			return false, err
		}
		for _, r := range list {
			at.Task, looked = r.ID, looked+1
			if b.wants(&task.Machine{Task: r}) {
				keys = append(keys, kernel.RowKey(r))
			}
			if len(keys) == b.limit {
				break
			}
		}
		if len(keys) == b.limit || len(list) == most {
			return b.to(ctx, at, func(tx pgx.Tx, now task.Instant) error { return b.changeRows(ctx, tx, keys, now) })
		}
		at.Task = task.NewID(last, shard)
	}
	return b.to(ctx, at.NextStage(), func(tx pgx.Tx, now task.Instant) error { return b.changeRows(ctx, tx, keys, now) })
}

func (b *bulkStep) readImported(ctx context.Context, shard task.Shard, after, last task.ID, most int) ([]*task.Row, error) {
	rows, err := sql.ImportRows.Query(ctx, b.s.db.Pool(b.d), b.row.Tenant, int16(shard), int64(after), int64(last), most)
	if err != nil {
		return nil, err
	}
	return kernel.CollectRows(rows)
}

// importedIn returns the numbers of a closed import in database d, sorted.
func (ops *Operations) importedIn(ctx context.Context, d int, tenant int32, id int64) ([]numberRange, error) {
	known := &ops.imported[d]
	known.mu.Lock()
	defer known.mu.Unlock()
	if known.id == id && known.tenant == tenant {
		return known.ranges, nil
	}
	rows, err := sql.ChunkIDs.Query(ctx, ops.db.Pool(d), tenant, id)
	if err != nil {
		return nil, err
	}
	var ranges []numberRange
	var chunk int64
	var numbers []int64
	var restored bool
	_, err = pgx.ForEachRow(rows, []any{&chunk, &numbers, &restored}, func() error {
		before := int64(0)
		for i := 0; i+1 < len(numbers); i += 2 {
			r := numberRange{numbers[i], numbers[i+1], chunk, before, restored}
			ranges, before = append(ranges, r), before+r.last-r.first+1
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the chunks of import %d: %w", id, err)
	}
	slices.SortFunc(ranges, func(x, y numberRange) int { return cmp.Compare(x.first, y.first) })
	known.tenant, known.id, known.ranges = tenant, id, ranges
	return ranges, nil
}

// wantsImported reports whether a task is one of the import's and has neither fired nor been
// edited.
func (b *bulkStep) wantsImported(t *task.Row) bool {
	if t.State != task.Scheduled || t.Version != 1 || t.OpenCount() > 0 {
		return false
	}
	number := kernel.NumberOf(t.ID)
	i, found := slices.BinarySearchFunc(b.imported, number, func(r numberRange, n int64) int { return cmp.Compare(r.first, n) })
	if !found {
		i--
	}
	if i < 0 || number > b.imported[i].last {
		return false
	}
	r := &b.imported[i]
	if t.Seq == 0 || !r.restored {
		return t.Seq == 0
	}
	return b.runsOf(r.chunk, r.before+number-r.first) == t.Seq
}

// runsOf returns how many runs the task at a position of a chunk had elsewhere; -1: that cannot
// be read, and the step fails.
func (b *bulkStep) runsOf(chunk, position int64) int64 {
	runs, read := b.runs[chunk]
	if !read {
		var err error
		if runs, err = b.readRuns(chunk); err != nil {
			b.failed = errors.Join(b.failed, err)
		}
		b.runs[chunk] = runs
	}
	if position >= int64(len(runs)) {
		return -1
	}
	return runs[position]
}

func (b *bulkStep) readRuns(chunk int64) ([]int64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), bulkNote)
	defer cancel()
	var list []byte
	if err := sql.ChunkRunCounts.QueryRow(ctx, b.s.db.Pool(b.d), b.row.Tenant, b.terms.Import, chunk).Scan(&list); err != nil {
		return nil, fmt.Errorf("read the runs of chunk %d: %w", chunk, err)
	}
	var runs []int64
	for len(list) > 0 {
		n, size := binary.Uvarint(list)
		if size <= 0 {
			return nil, fmt.Errorf("the runs of chunk %d are damaged", chunk)
		}
		runs, list = append(runs, int64(n)), list[size:]
	}
	return runs, nil
}

// dropKeys removes the keys of tasks that a rollback has removed.
func (b *bulkStep) dropKeys(ctx context.Context, tx pgx.Tx) error {
	if len(b.keys) == 0 {
		return nil
	}
	slices.SortFunc(b.keys, func(x, y removedKey) int {
		return cmp.Or(cmp.Compare(x.shard, y.shard), cmp.Compare(x.key, y.key))
	})
	var shards []int16
	var tenants []int32
	var texts []string
	var firsts []int64
	for _, k := range b.keys {
		shards, tenants = append(shards, int16(k.shard)), append(tenants, b.row.Tenant)
		texts, firsts = append(texts, kernel.TaskKeyPrefix+k.key), append(firsts, int64(k.id))
	}
	_, err := sql.KeysDrop.Exec(ctx, tx, shards, tenants, texts, firsts)
	return err
}

// removedKey is the key of a removed task.
type removedKey struct {
	shard task.Shard // of the key row
	key   string
	id    task.ID
}
