package far

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/pack"
	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// Level0 collects the far tasks of a group of adds, for packs of level 0. They are
// written in the group's transaction, whatever their due times.
//
// A task of level 0 is found by its number alone, so the number ranges of any two
// packs must never overlap, no matter which process wrote them. Therefore a group draws
// its numbers at once. They form a few runs of consecutive numbers, each from one block
// of the sequence, and no other process has that block. A pack holds tasks of one run
// only. A group draws its numbers before it knows which of its tasks are far, new or
// refused; nothing else uses the numbers in between.
type Level0 struct{ rows []*task.Row }

// Add adds a task to the collection.
func (f *Level0) Add(r *task.Row) { f.rows = append(f.rows, r) }

// Queue adds the statement that inserts the packs to a batch.
func (f *Level0) Queue(b *pgx.Batch) error {
	if len(f.rows) == 0 {
		return nil
	}
	slices.SortFunc(f.rows, func(x, y *task.Row) int { return cmp.Compare(x.ID, y.ID) })
	var firsts, lasts []int64
	var counts, minTenants, maxTenants []int32
	var keys, params [][]byte
	for rest := f.rows; len(rest) > 0; {
		n := pieceOf(rest)
		p, err := pack.Encode(rest[:n], true)
		if err != nil {
			return fmt.Errorf("encode packs of level 0: %w", err)
		}
		firsts, lasts = append(firsts, kernel.NumberOf(rest[0].ID)), append(lasts, kernel.NumberOf(rest[n-1].ID))
		counts = append(counts, int32(p.N))
		minTenants, maxTenants = append(minTenants, p.MinTenant), append(maxTenants, p.MaxTenant)
		keys, params = append(keys, p.Keys), append(params, p.Params)
		rest = rest[n:]
	}
	sql.Level0Insert.Queue(b, firsts, lasts, counts, minTenants, maxTenants, keys, params)
	return nil
}

// pieceOf returns how many of the leading rows go into one pack: the rows whose numbers
// are of one block.
func pieceOf(rows []*task.Row) int {
	block := kernel.BlockOf(kernel.NumberOf(rows[0].ID))
	n := 1
	for n < len(rows) && kernel.BlockOf(kernel.NumberOf(rows[n].ID)) == block {
		n++
	}
	return pack.Fit(rows[:n], kernel.NumberBlock)
}
