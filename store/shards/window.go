package shards

import (
	"cmp"
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/task"
)

// How many packs one statement looks at: by their names one after the other, and
// by the buckets of a range of due instants.
const (
	windowPacks = 2000
	duePacks    = 512
)

// packWindow is a stretch of packs in the order of their names.
type packWindow struct {
	names []int64 // those that may hold what is wanted
	last  int64   // the position behind it
	end   bool    // nothing comes behind it
}

// packsAfter looks for arrivals, or packs, after a position that may hold tasks of a
// tenant (0: of any) that are due in [from, until).
//
// Where a range of due instants has few packs they are found by their buckets, and
// cost the same however many others there are. Where it has many, most names that
// are passed by belong to it.
func packsAfter(ctx context.Context, q querier, arrivals bool, tenant int32, at int64, from, until task.Instant) (packWindow, error) {
	if arrivals {
		return readWindow(ctx, q, "ArrivalWindow", at, windowPacks, tenant, at, windowPacks)
	}
	if from > 0 || until < task.Never {
		w, err := readWindow(ctx, q, "PackDue", at, duePacks, tenant, at, duePacks, int64(from), int64(until))
		if w.end || err != nil {
			return w, err
		}
	}
	return readWindow(ctx, q, "PackWindow", at, windowPacks, tenant, at, windowPacks, int64(from), int64(until))
}

func readWindow(ctx context.Context, q querier, statement string, at int64, most int, args ...any) (packWindow, error) {
	rows, err := q.Query(ctx, sql.Get(statement), args...)
	if err != nil {
		return packWindow{}, err
	}
	var looked int
	w, err := pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (w packWindow, err error) {
		return w, row.Scan(&w.names, &looked, &w.last)
	})
	if err != nil {
		return packWindow{}, err
	}
	w.last, w.end = max(w.last, at), looked < most
	slices.SortFunc(w.names, func(a, b int64) int { return cmp.Compare(max(a, -a), max(b, -b)) })
	return w, nil
}
