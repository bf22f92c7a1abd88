package counters

import (
	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// Tally adds up the transitions of one transaction.
type Tally struct {
	tenants         []int32
	types, from, to []int16
	counts          []int64
	index           map[transition]int
	last            transition // equal transitions often follow each other
	at              int
}

// transition is the key of a delta: a move of tasks from one cell to another.
type transition struct {
	tenant   int32
	typ      task.Type
	from, to task.Cell
}

// Move records that n tasks went from one cell to another.
func (t *Tally) Move(tenant int32, typ task.Type, from, to task.Cell, n int64) {
	k := transition{tenant, typ, from, to}
	if k != t.last || len(t.counts) == 0 {
		at, ok := t.index[k]
		if !ok {
			if t.index == nil {
				t.index = map[transition]int{}
			}
			at = len(t.counts)
			t.index[k] = at
			t.tenants, t.types = append(t.tenants, tenant), append(t.types, int16(typ))
			t.from, t.to = append(t.from, int16(from)), append(t.to, int16(to))
			t.counts = append(t.counts, 0)
		}
		t.last, t.at = k, at
	}
	t.counts[t.at] += n
}

// Machine records what the steps of a machine did to a task.
func (t *Tally) Machine(k *task.Machine) {
	from, to := task.Cell(k.Was), task.CellOf(k.Task.State, k.Task.Retention.Milliseconds() > 0)
	if from != to {
		t.Move(k.Task.Tenant, k.Task.Type, from, to, 1)
	}
	if n := len(k.Dead); n > 0 {
		t.Move(k.Task.Tenant, k.Task.Type, task.NoCell, task.DeadCell, int64(n))
	}
}

// Queue adds the statement that inserts the delta to a batch, unless nothing moved.
func (t *Tally) Queue(b *pgx.Batch) {
	if len(t.counts) > 0 {
		sql.DeltaInsert.Queue(b, t.tenants, t.types, t.from, t.to, t.counts)
	}
}
