package far

import (
	"cmp"
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/store/statement"
	"github.com/perceptor/perceptor/task"
)

// The most packs that one statement looks at: by consecutive names, and by the buckets
// of a range of due instants.
const (
	WindowPacks = 2000
	DuePacks    = 512
)

// Window is a range of packs in the order of their names.
type Window struct {
	Names []int64 // packs that may hold wanted tasks
	Last  int64   // the position after the window
	End   bool    // no packs follow
}

// PacksAfter returns packs after a position, of level 0 or of the other levels, that may
// hold tasks of a tenant (0: of any tenant) that are due in [from, until).
//
// If few packs lie in the range of due instants, PacksAfter finds them by their buckets,
// and the cost does not depend on the number of other packs. If many do, it walks through
// the names, most of which then belong to the range.
func PacksAfter(ctx context.Context, q kernel.Querier, level0 bool, tenant int32, at int64, from, until task.Instant) (Window, error) {
	if level0 {
		return readWindow(ctx, q, sql.Level0Window, at, WindowPacks, tenant, at, WindowPacks)
	}
	if from > 0 || until < task.Never {
		w, err := readWindow(ctx, q, sql.PackDue, at, DuePacks, tenant, at, DuePacks, int64(from), int64(until))
		if w.End || err != nil {
			return w, err
		}
	}
	return readWindow(ctx, q, sql.PackWindow, at, WindowPacks, tenant, at, WindowPacks, int64(from), int64(until))
}

func readWindow(ctx context.Context, q kernel.Querier, statement *statement.Statement, at int64, most int, args ...any) (Window, error) {
	rows, err := statement.Query(ctx, q, args...)
	if err != nil {
		return Window{}, err
	}
	var looked int
	w, err := pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (w Window, err error) {
		return w, row.Scan(&w.Names, &looked, &w.Last)
	})
	if err != nil {
		return Window{}, err
	}
	w.Last, w.End = max(w.Last, at), looked < most
	slices.SortFunc(w.Names, func(a, b int64) int { return cmp.Compare(max(a, -a), max(b, -b)) })
	return w, nil
}

// PacksOfIDs returns packs after a position, of all levels but 0, that may hold tasks of a tenant with
// ids from first to last. meets chooses among them by the range of their ids.
func PacksOfIDs(ctx context.Context, q kernel.Querier, tenant int32, at int64, first, last task.ID, meets func(first, last task.ID) bool) (Window, error) {
	rows, err := sql.ImportPacks.Query(ctx, q, tenant, at, WindowPacks, int64(first), int64(last))
	if err != nil {
		return Window{}, err
	}
	var w Window
	var looked int
	var firsts, lasts []int64
	if _, err := pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (struct{}, error) {
		return struct{}{}, row.Scan(&w.Names, &looked, &w.Last, &firsts, &lasts)
	}); err != nil {
		return Window{}, err
	}
	w.Last, w.End = max(w.Last, at), looked < WindowPacks
	n := 0
	for i, name := range w.Names {
		if meets(task.ID(firsts[i]), task.ID(lasts[i])) {
			w.Names[n], n = name, n+1
		}
	}
	w.Names = w.Names[:n]
	return w, nil
}
