// Package imports stores imports: very many tasks that come in numbered chunks.
//
// docs/adr/0046-imports.md has the decisions. In short:
//
//   - An import is a row of import in the tenant's home database.
//   - A chunk goes into one database, or, if its lines have idempotency_keys, in parts into the
//     databases of its keys. Each part is one transaction, which writes the tasks, and
//     the marker of the part: a row of import_chunk. A part that has its marker is not stored
//     again, so a chunk may be repeated after any failure.
//   - The database in which the last part of a chunk is stored follows from the import's id and
//     the chunk's number. The marker of that part says that the chunk is whole. So all of it is
//     there if that marker is, and only then does the chunk count as stored.
//   - A transaction of a chunk first takes a shared lock of the import's row in its
//     database (import_part). A rollback closes that row before it begins.
//
// Files:
//
//	imports.go  imports: creating, reading, ending; purging them
//	chunk.go    storing chunks: parts, markers, repetitions
//	build.go    from lines to rows
//	like.go     from lines that differ in few fields to columns
//	keyed.go    lines with an idempotency_key
package imports

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/shards/far"
	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// Config has what imports need of the other parts of the store.
type Config struct {
	// Place completes the spec of a new task that has its id, and returns its row or the faults.
	Place func(tenant int32, id task.ID, spec *task.Spec, now task.Instant) (*task.Row, []task.Fault)
	// Upsert adds the only task of a request with a key, or gives the existing one its terms.
	Upsert func(ctx context.Context, r task.AddRequest) (task.AddResult, error)
	// UpsertMany does upserts for tasks of database d in one transaction, and settles those that it
	// can. If it fails, none is settled.
	UpsertMany func(ctx context.Context, tenant int32, d int, list []*Upsert) error
	// KeyLifetime is the least lifetime of a key, and MaxKeyRenewal the longest time from now to
	// the begin of it.
	KeyLifetime, MaxKeyRenewal time.Duration
}

// Upsert is an upsert of a task that exists.
type Upsert struct {
	Request task.AddRequest
	// ID is the task that has the key. Same says that it was added with the same body.
	ID   task.ID
	Same bool
	// Settled says that Result, or Err, is the outcome.
	Settled bool
	Result  task.AddResult
	Err     error
}

// Imports are the imports of all databases. They are safe for concurrent use.
type Imports struct {
	db   *kernel.Databases
	tier *far.Tier
	cfg  Config
}

// New returns the imports of db, whose tasks are stored by tier.
func New(db *kernel.Databases, tier *far.Tier, cfg Config) *Imports {
	return &Imports{db: db, tier: tier, cfg: cfg}
}

// CreateImport stores an import and returns it. Repeating the call with the same requestID
// returns the same import; with another hash it fails with [task.AlreadyExists]. A tenant may
// have [task.MaxOpenImports] open imports.
func (im *Imports) CreateImport(ctx context.Context, tenant int32, terms task.ImportTerms, requestID string, hash []byte) (*task.Import, error) {
	text, err := json.Marshal(terms)
	if err != nil {
		return nil, fmt.Errorf("store the terms of an import: %w", err)
	}
	id, err := kernel.IDOfRequest("import", tenant, requestID)
	if err != nil {
		return nil, err
	}
	pool := im.db.Pool(kernel.Home(tenant))
	if _, err := sql.ImportInsert.Exec(ctx, pool, tenant, id, text, hash, task.MaxOpenImports); err != nil {
		return nil, kernel.Unavailable(fmt.Errorf("create import: %w", err))
	}
	var stored []byte
	switch err := sql.ImportHash.QueryRow(ctx, pool, tenant, id).Scan(&stored); {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, task.Errorf(task.ReasonTooManyImports, "the tenant has %d open imports; at most %d are allowed: finish or abort some", task.MaxOpenImports, task.MaxOpenImports)
	case err != nil:
		return nil, kernel.Unavailable(fmt.Errorf("create import: %w", err))
	case !bytes.Equal(stored, hash):
		return nil, task.Errorf(task.ReasonRequestIDReused, "request_id %q was used with another request; draw a new one", requestID)
	}
	return im.GetImport(ctx, tenant, id)
}

func noImport(id int64) error {
	return task.Errorf(task.ReasonImportNotFound, "there is no import %d", id)
}

// HeadOfImport returns an import without what its chunks say. It reads one row.
func (im *Imports) HeadOfImport(ctx context.Context, tenant int32, id int64) (*task.Import, error) {
	rows, err := sql.ImportRead.Query(ctx, im.db.Pool(kernel.Home(tenant)), tenant, id)
	if err != nil {
		return nil, kernel.Unavailable(err)
	}
	list, err := pgx.CollectRows(rows, scanImport)
	switch {
	case err != nil:
		return nil, kernel.Unavailable(err)
	case len(list) == 0:
		return nil, noImport(id)
	}
	return list[0], nil
}

func scanImport(row pgx.CollectableRow) (*task.Import, error) {
	i := &task.Import{}
	var terms []byte
	var finished *int64
	if err := row.Scan(&i.Tenant, &i.ID, &terms, &i.CreatedAt, &i.State, &finished); err != nil {
		return nil, err
	}
	i.FinishedAt = kernel.InstantOr(finished, task.Never)
	if err := json.Unmarshal(terms, &i.Terms); err != nil {
		return nil, task.Errorf(task.ReasonImportDamaged, "the terms of import %d are damaged", i.ID).CausedBy(err)
	}
	return i, nil
}

// GetImport returns an import with the numbers of its stored chunks, and the counts of these. It asks all
// databases. A chunk that is stored meanwhile is in both or in none, or an import that goes on after its program was
// killed would seem to have other lines. An import that has ended without its last chunks has what is there of these in its counts, too,
// as nothing will complete them and their tasks fire.
func (im *Imports) GetImport(ctx context.Context, tenant int32, id int64) (*task.Import, error) {
	i, err := im.HeadOfImport(ctx, tenant, id)
	if err != nil {
		return nil, err
	}
	var numbers [task.Databases][]int64
	err = im.db.Each(ctx, func(ctx context.Context, d int) error {
		rows, err := sql.ChunkNumbers.Query(ctx, im.db.Pool(d), tenant, id)
		if err == nil {
			numbers[d], err = pgx.CollectRows(rows, pgx.RowTo[int64])
		}
		return err
	})
	if err != nil {
		return nil, kernel.Unavailable(fmt.Errorf("read import: %w", err))
	}
	all := slices.Concat(numbers[:]...)
	err = im.addSums(ctx, []*task.Import{i}, func(ctx context.Context, d int) (pgx.Rows, error) {
		if i.State != task.ImportOpen {
			return sql.ChunkSums.Query(ctx, im.db.Pool(d), tenant, []int64{id})
		}
		return sql.ChunkSumsOf.Query(ctx, im.db.Pool(d), tenant, id, all)
	})
	i.Stored, i.Chunks = rangesOf(all), int64(len(all))
	return i, err
}

// rangesOf returns numbers, each of which occurs once, as ranges.
func rangesOf(numbers []int64) (ranges []task.ChunkRange) {
	slices.Sort(numbers)
	for _, n := range numbers {
		if last := len(ranges) - 1; last >= 0 && ranges[last].Last == n-1 {
			ranges[last].Last = n
			continue
		}
		ranges = append(ranges, task.ChunkRange{First: n, Last: n})
	}
	return ranges
}

// addSums adds what the markers of all databases say, which query reads.
func (im *Imports) addSums(ctx context.Context, list []*task.Import, query func(ctx context.Context, d int) (pgx.Rows, error)) error {
	ids := idsOf(list)
	var sums [task.Databases][]task.Import
	err := im.db.Each(ctx, func(ctx context.Context, d int) error {
		rows, err := query(ctx, d)
		if err == nil {
			sums[d], err = pgx.CollectRows(rows, scanSum)
		}
		return err
	})
	if err != nil {
		return kernel.Unavailable(fmt.Errorf("read imports: %w", err))
	}
	for _, sum := range slices.Concat(sums[:]...) {
		i := list[slices.Index(ids, sum.ID)]
		i.ImportSum = i.Plus(sum.ImportSum)
		i.Chunks += sum.Chunks
		i.Checksum += sum.Checksum
	}
	return nil
}

func idsOf(list []*task.Import) []int64 {
	ids := make([]int64, len(list))
	for i := range list {
		ids[i] = list[i].ID
	}
	return ids
}

func scanSum(row pgx.CollectableRow) (i task.Import, err error) {
	var checksum string
	if err := row.Scan(&i.ID, &i.Chunks, &i.Lines, &i.Added, &i.Skipped, &i.Updated, &i.Rejected, &checksum); err != nil {
		return i, err
	}
	i.Checksum, err = modulo(checksum)
	return i, err
}

// modulo returns a decimal number modulo 2^64.
func modulo(decimal string) (sum uint64, err error) {
	digits, negative := decimal, false
	if digits != "" && digits[0] == '-' {
		digits, negative = digits[1:], true
	}
	for _, c := range []byte(digits) {
		if c < '0' || c > '9' {
			return 0, fmt.Errorf("%q is not a whole number", decimal)
		}
		sum = sum*10 + uint64(c-'0')
	}
	if negative {
		sum = -sum
	}
	return sum, nil
}

// ListImports returns up to limit imports of a tenant, newest first, that come after the cursor
// (created, id), without the numbers of their chunks.
func (im *Imports) ListImports(ctx context.Context, tenant int32, created task.Instant, id int64, limit int) ([]*task.Import, error) {
	rows, err := sql.ImportList.Query(ctx, im.db.Pool(kernel.Home(tenant)), tenant, int64(created), id, limit)
	if err != nil {
		return nil, kernel.Unavailable(err)
	}
	list, err := pgx.CollectRows(rows, scanImport)
	if err != nil {
		return nil, kernel.Unavailable(err)
	}
	if len(list) == 0 {
		return nil, nil
	}
	return list, im.addSums(ctx, list, func(ctx context.Context, d int) (pgx.Rows, error) {
		return sql.ChunkSums.Query(ctx, im.db.Pool(d), tenant, idsOf(list))
	})
}

// FinishImport ends an import that has the chunks 1 to chunks with so many lines.
// [task.FailedPrecondition]: it has not, or it has ended in another way. A dry run has nothing
// that could be missing.
func (im *Imports) FinishImport(ctx context.Context, tenant int32, id, chunks, lines int64) (*task.Import, error) {
	i, err := im.GetImport(ctx, tenant, id)
	if err != nil {
		return nil, err
	}
	switch {
	case i.State == task.ImportFinished:
		return i, nil
	case i.State != task.ImportOpen:
		return nil, notOpen(i)
	case i.Terms.DryRun:
	case i.Chunks != chunks, len(i.Stored) > 1, chunks > 0 && (len(i.Stored) == 0 || i.Stored[0].First != 1):
		return nil, task.Errorf(task.ReasonImportIncomplete, "the import has %d chunks, %s; it must have the chunks 1 to %d", i.Chunks, shown(i.Stored), chunks)
	case i.Lines != lines:
		return nil, task.Errorf(task.ReasonImportIncomplete, "the chunks of the import have %d lines, and not %d", i.Lines, lines)
	}
	return im.end(ctx, i, task.ImportFinished)
}

// shown lists ranges for people, the first few.
func shown(ranges []task.ChunkRange) string {
	text := ""
	for i, r := range ranges {
		switch {
		case i == 10:
			return text + ", ..."
		case i > 0:
			text += ", "
		}
		text += strconv.FormatInt(r.First, 10)
		if r.Last > r.First {
			text += " to " + strconv.FormatInt(r.Last, 10)
		}
	}
	if text == "" {
		return "none"
	}
	return text
}

func notOpen(i *task.Import) error {
	return task.Errorf(task.ReasonImportNotOpen, "import %d is %s", i.ID, i.State)
}

// AbortImport ends an open import. Its tasks remain. A chunk that is being stored may still be.
// It does not change an import that was aborted.
func (im *Imports) AbortImport(ctx context.Context, tenant int32, id int64) (*task.Import, error) {
	i, err := im.HeadOfImport(ctx, tenant, id)
	if err != nil {
		return nil, err
	}
	return im.end(ctx, i, task.ImportAborted)
}

// BeginRollback makes an import ROLLING_BACK, whatever its state is. The caller creates the
// operation that removes its tasks.
func (im *Imports) BeginRollback(ctx context.Context, tenant int32, id int64) (*task.Import, error) {
	i, err := im.HeadOfImport(ctx, tenant, id)
	if err != nil {
		return nil, err
	}
	return im.end(ctx, i, task.ImportRollingBack)
}

// end changes the state of an import, unless it has that state, and returns it.
func (im *Imports) end(ctx context.Context, i *task.Import, state task.ImportState) (*task.Import, error) {
	if _, err := sql.ImportEnd.Exec(ctx, im.db.Pool(kernel.Home(i.Tenant)), i.Tenant, i.ID, int16(state)); err != nil {
		return nil, kernel.Unavailable(fmt.Errorf("end import: %w", err))
	}
	i, err := im.GetImport(ctx, i.Tenant, i.ID)
	if err == nil && i.State != state {
		return nil, notOpen(i)
	}
	return i, err
}

// purgeAtOnce bounds the imports that one purge removes.
const purgeAtOnce = 20

// PurgeImports removes imports that ended long ago, whose home is database d, with their markers
// in all databases. The row at home goes last, so that a purge that fails is repeated.
func (im *Imports) PurgeImports(ctx context.Context, d int) (n int, more bool, err error) {
	var exist bool
	if err := sql.ImportsExist.QueryRow(ctx, im.db.Pool(d)).Scan(&exist); err != nil || !exist {
		return 0, false, err
	}
	rows, err := sql.ImportsExpired.Query(ctx, im.db.Pool(d), task.ImportKept.Milliseconds(), purgeAtOnce)
	if err != nil {
		return 0, false, err
	}
	type expired struct {
		tenant int32
		id     int64
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (e expired, err error) { return e, row.Scan(&e.tenant, &e.id) })
	if err != nil {
		return 0, false, err
	}
	for _, e := range list {
		err := im.db.Each(ctx, func(ctx context.Context, d int) error {
			_, err := sql.ImportDropParts.Exec(ctx, im.db.Pool(d), e.tenant, e.id)
			return err
		})
		if err == nil {
			_, err = sql.ImportDrop.Exec(ctx, im.db.Pool(d), e.tenant, e.id)
		}
		if err != nil {
			return n, false, fmt.Errorf("purge import %d: %w", e.id, err)
		}
		n++
	}
	return n, len(list) == purgeAtOnce, nil
}
