package dead

import (
	"context"

	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// The bounds of a page of an export.
const (
	exportRows  = 1000
	exportBytes = 4 << 20
)

// ExportDead passes a tenant's dead runs that f selects to visit, in the order of (database,
// task, seq), each page with the position after it. Pages may be empty. Between two
// pages nothing is held in the database. It stops at visit's first error and returns it.
func (l *Letters) ExportDead(ctx context.Context, tenant int32, f *task.DeadFilter, at task.RunCursor, visit func([]*task.DeadLetter, task.RunCursor) error) error {
	for at.Database < task.Databases {
		list, err := l.exportPage(ctx, tenant, at)
		if err != nil {
			return kernel.Unavailable(err)
		}
		wanted, size := list[:0:0], 0
		for _, r := range list {
			at.RunID, size = r.RunID, size+len(r.Params)+len(r.Error)
			if f.Matches(r) {
				wanted = append(wanted, r)
			}
		}
		if len(list) < exportRows && size < exportBytes {
			at = task.RunCursor{Database: at.Database + 1}
		}
		if err := visit(wanted, at); err != nil {
			return err
		}
	}
	return nil
}

func (l *Letters) exportPage(ctx context.Context, tenant int32, at task.RunCursor) ([]*task.DeadLetter, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*l.db.StatementTimeout())
	defer cancel()
	rows, err := sql.DeadExport.Query(ctx, l.db.Pool(at.Database), tenant, int64(at.Task), at.Seq, exportRows, exportBytes)
	if err != nil {
		return nil, err
	}
	return Collect(rows)
}
