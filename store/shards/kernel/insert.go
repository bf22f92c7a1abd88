package kernel

import (
	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// Inserts collects new rows column by column, for one statement.
type Inserts struct {
	// Due is the earliest due instant.
	Due                                       task.Instant
	tenants                                   []int32
	ids, dues, begins                         []int64
	ends, intervals, maxCounts                []*int64
	giveUps, retentions, created              []int64
	ackTimeouts, initialBackoffs, maxBackoffs []int32
	maxAttempts, multipliers, jitters, types  []int16
	stopOnFailure                             []bool
	kinds                                     []string
	params                                    [][]byte
	// Of tasks with an extra, which are inserted by a statement of their own.
	extra      *Inserts
	scheduleds []int64
	modeled    []bool
	// Extras, when it is not nil, keeps tasks with an extra among the others. The
	// caller appends to it.
	Extras [][]byte
}

// NewInserts returns an empty collection.
func NewInserts() *Inserts { return &Inserts{Due: task.Never} }

// Add adds a row.
func (n *Inserts) Add(r *task.Row) {
	n.Due = min(n.Due, r.DueAt)
	if blob := task.Seal(&r.Terms, &r.Origin); blob != nil && n.Extras == nil {
		if n.extra == nil {
			n.extra = &Inserts{Extras: [][]byte{}}
		}
		n.extra.scheduleds = append(n.extra.scheduleds, int64(r.ScheduledAt))
		n.extra.modeled = append(n.extra.modeled, r.Modeled())
		n.extra.Extras = append(n.extra.Extras, blob)
		n.extra.Add(r)
		return
	}
	n.tenants = append(n.tenants, r.Tenant)
	n.ids = append(n.ids, int64(r.ID))
	n.dues = append(n.dues, int64(r.DueAt))
	n.begins = append(n.begins, int64(r.Begin))
	n.ends = append(n.ends, Nullable(r.End))
	n.intervals = append(n.intervals, OrNull(r.Interval.Milliseconds()))
	n.maxCounts = append(n.maxCounts, OrNull(r.MaxCount))
	n.giveUps = append(n.giveUps, r.GiveUpAfter.Milliseconds())
	n.retentions = append(n.retentions, max(0, r.Retention.Milliseconds()))
	n.created = append(n.created, int64(r.CreatedAt))
	n.ackTimeouts = append(n.ackTimeouts, int32(r.AckTimeout.Milliseconds()))
	n.initialBackoffs = append(n.initialBackoffs, int32(r.Retry.InitialBackoff.Milliseconds()))
	n.maxBackoffs = append(n.maxBackoffs, int32(r.Retry.MaxBackoff.Milliseconds()))
	n.maxAttempts = append(n.maxAttempts, int16(r.Retry.MaxAttempts))
	n.multipliers = append(n.multipliers, Hundredths(r.Retry.Multiplier))
	n.jitters = append(n.jitters, Hundredths(r.Retry.Jitter))
	n.types = append(n.types, int16(r.Type))
	n.stopOnFailure = append(n.stopOnFailure, r.StopOnFailure)
	n.kinds = append(n.kinds, r.Kind)
	n.params = append(n.params, NotNil(r.Params))
}

// Queue adds the statements that insert the near rows.
func (n *Inserts) Queue(b *pgx.Batch) {
	if len(n.ids) > 0 {
		b.Queue(sql.Get("TaskInsert"), n.Args()...)
	}
	if e := n.extra; e != nil {
		b.Queue(sql.Get("TaskInsertExtra"), append(e.Args(), e.scheduleds, e.modeled, e.Extras)...)
	}
}

// Args returns the columns in the order that TaskInsert and DoneInsert take them.
func (n *Inserts) Args() []any {
	return []any{
		n.tenants, n.ids, n.dues, n.begins, n.ends, n.intervals, n.maxCounts, n.giveUps, n.retentions, n.created,
		n.ackTimeouts, n.initialBackoffs, n.maxBackoffs, n.maxAttempts, n.multipliers, n.jitters, n.types,
		n.stopOnFailure, n.kinds, n.params,
	}
}
