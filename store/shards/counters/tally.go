package counters

import (
	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// Cell is where a task is counted: a living state, a final state while the task
// is kept, or a final state afterwards. Dead runs have a cell of their own. The
// numbers are stored.
type Cell int16

// Cells beside those of the states.
const (
	None   Cell = 0
	Purged Cell = 3 // added to a final state
	Dead   Cell = 9
)

// CellOf returns the cell of a task in a state; kept matters for final ones.
func CellOf(s task.State, kept bool) Cell {
	if s.Final() && !kept {
		return Cell(s) + Purged
	}
	return Cell(s)
}

// Tally adds up the moves of one transaction.
type Tally struct {
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

// Move notes that n tasks went from one cell to another.
func (t *Tally) Move(tenant int32, typ task.Type, from, to Cell, n int64) {
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

// Machine notes what steps did to a task.
func (t *Tally) Machine(k *task.Machine) {
	from, to := Cell(k.Was), CellOf(k.Task.State, k.Task.Retention.Milliseconds() > 0)
	if from != to {
		t.Move(k.Task.Tenant, k.Task.Type, from, to, 1)
	}
	if n := len(k.Dead); n > 0 {
		t.Move(k.Task.Tenant, k.Task.Type, None, Dead, int64(n))
	}
}

// Queue adds the delta to a batch; nothing moved, nothing added.
func (t *Tally) Queue(b *pgx.Batch) {
	if len(t.ns) > 0 {
		sql.DeltaInsert.Queue(b, t.tenants, t.moves, t.ns)
	}
}
