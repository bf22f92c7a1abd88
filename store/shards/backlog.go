package shards

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

const (
	// dueFor is how long a row has been due before it counts as backlog: claims need some time.
	dueFor = time.Second
	// maxDue is the most rows that one count of a database reads.
	maxDue = 10_000
)

// Backlog is what one tenant has due and not claimed of one type in one database.
type Backlog struct {
	Tenant int32
	Type   task.Type
	Tasks  int64
	// Oldest is how long the oldest row has been due.
	Oldest time.Duration
}

// Backlogs returns the backlogs of all tenants in database d. It reads the 10,000 rows that have
// been due for longest; more reports that there are further rows, of these or other tenants.
func (s *Store) Backlogs(ctx context.Context, d int) (list []Backlog, more bool, err error) {
	rows, err := sql.DueByTenant.Query(ctx, s.db.Pool(d), dueFor.Milliseconds(), maxDue)
	if err == nil {
		list, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (b Backlog, err error) {
			var ms int64
			err = row.Scan(&b.Tenant, &b.Type, &b.Tasks, &ms)
			b.Oldest = kernel.Millis(ms)
			return b, err
		})
	}
	if err != nil {
		return nil, false, fmt.Errorf("count the backlog of database %d: %w", d, err)
	}
	total := int64(0)
	for _, b := range list {
		total += b.Tasks
	}
	return list, total >= maxDue, nil
}

// Size returns the size of the tables and indexes of database d, in bytes.
func (s *Store) Size(ctx context.Context, d int) (bytes int64, err error) {
	return bytes, sql.DatabaseSize.QueryRow(ctx, s.db.Pool(d)).Scan(&bytes)
}
