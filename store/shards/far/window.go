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

// How many packs one statement looks at: by their names one after the other, and
// by the buckets of a range of due instants.
const (
	WindowPacks = 2000
	DuePacks    = 512
)

// Window is a stretch of packs in the order of their names.
type Window struct {
	Names []int64 // those that may hold what is wanted
	Last  int64   // the position behind it
	End   bool    // nothing comes behind it
}

// PacksAfter looks for packs of level 0, or of the other levels, after a position that may hold tasks of a
// tenant (0: of any) that are due in [from, until).
//
// Where a range of due instants has few packs they are found by their buckets, and
// cost the same however many others there are. Where it has many, most names that
// are passed by belong to it.
func PacksAfter(ctx context.Context, q kernel.Querier, level0 bool, tenant int32, at int64, from, until task.Instant) (Window, error) {
	if level0 {
		return readWindow(ctx, q, sql.ArrivalWindow, at, WindowPacks, tenant, at, WindowPacks)
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
