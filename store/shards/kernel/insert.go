package kernel

import (
	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// Inserts collects new rows, column by column, for one statement.
type Inserts struct {
	// Due is the earliest due instant of the rows.
	Due              task.Instant
	tenants          []int32
	ids, created     []int64
	types            []int16
	params           [][]byte
	terms            termColumns
	dues, scheduleds []int64
	modeled          []bool
}

// NewInserts returns an empty collection.
func NewInserts() *Inserts { return &Inserts{Due: task.Never} }

// Add adds a row.
func (n *Inserts) Add(r *task.Row) {
	n.Due = min(n.Due, r.DueAt)
	n.tenants = append(n.tenants, r.Tenant)
	n.ids = append(n.ids, int64(r.ID))
	n.types = append(n.types, int16(r.Type))
	n.params = append(n.params, NotNil(r.Params))
	n.created = append(n.created, int64(r.CreatedAt))
	n.terms.add(r)
	n.dues = append(n.dues, int64(r.DueAt))
	n.scheduleds = append(n.scheduleds, int64(r.ScheduledAt))
	n.modeled = append(n.modeled, r.Modeled())
}

// Queue adds the statement that inserts the rows.
func (n *Inserts) Queue(b *pgx.Batch) {
	if len(n.ids) > 0 {
		sql.TaskInsert.Queue(b, append(n.Args(), n.dues, n.scheduleds, n.modeled)...)
	}
}

// Args returns the columns that are the first arguments of TaskInsert and DoneInsert.
func (n *Inserts) Args() []any {
	return append([]any{n.tenants, n.ids, n.types, n.params, n.created}, n.terms.args()...)
}
