package history

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// exportRows is the most events, of any tenant, that a page of an export reads.
const exportRows = 2000

// ExportEvents passes the events of all of a tenant's tasks to visit, in the order of
// (database, task, instant), each page with the position after it. Pages may be empty:
// it reads the events of all tenants. Between two pages nothing is held in the database. It
// stops at visit's first error and returns it.
func (e *Events) ExportEvents(ctx context.Context, tenant int32, at task.RunCursor, visit func([]task.RunEvent, task.RunCursor) error) error {
	for at.Database < task.Databases {
		page, next, err := e.exportPage(ctx, tenant, at)
		if err != nil {
			return kernel.Unavailable(fmt.Errorf("export history: %w", err))
		}
		at = next
		if err := visit(page, at); err != nil {
			return err
		}
	}
	return nil
}

func (e *Events) exportPage(ctx context.Context, tenant int32, at task.RunCursor) (page []task.RunEvent, next task.RunCursor, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*e.db.StatementTimeout())
	defer cancel()
	rows, err := sql.EventExport.Query(ctx, e.db.Pool(at.Database), tenant, int64(at.Task), int64(at.At), at.Seq, at.Attempt, int16(at.Event), exportRows)
	if err != nil {
		return nil, at, err
	}
	looked := 0
	var r task.RunEvent
	var scheduled *int64
	var timeline []byte
	_, err = pgx.ForEachRow(rows, []any{&r.Tenant, &r.Task, &r.At, &r.Seq, &r.Attempt, &r.Event, &scheduled, &r.Detail, &timeline}, func() error {
		looked++
		at.RunID, at.At, at.Attempt, at.Event = r.RunID, r.At, r.Attempt, r.Event
		if r.Tenant == tenant {
			r.ScheduledAt, r.Stages = kernel.InstantOr(scheduled, task.Never), task.OpenTimeline(timeline, r.At)
			page = append(page, r)
		}
		return nil
	})
	if looked < exportRows {
		at = task.RunCursor{Database: at.Database + 1}
	}
	return page, at, err
}
