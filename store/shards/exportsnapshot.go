package shards

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/RoaringBitmap/roaring/v2/roaring64"
	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// ErrPrimary is the error of [Store.ExportSnapshot] on a primary.
var ErrPrimary = errors.New("the server is a primary: a snapshot that lasts as long as the export keeps vacuum from removing the versions of rows that claims and reports make meanwhile, so that tables grow and claims become slow")

// openSnapshots and endSnapshots bound the time to begin and to end the snapshots of all databases.
const openSnapshots, endSnapshots = time.Minute, 2 * time.Second

// ExportSnapshot is [Store.Export] in one snapshot of each server: all databases of a server are
// read as of one instant. The snapshots last until it returns, which keeps vacuum from its work, so
// it is for standbys: on a primary it fails with [ErrPrimary] unless primary is set. q.After is ignored.
// The store must be opened with timeouts that are longer than visit takes for a page.
func (s *Store) ExportSnapshot(ctx context.Context, q *task.ExportQuery, primary bool, visit func(*task.ExportPage) error) error {
	snapshots, err := s.beginSnapshots(ctx, primary)
	defer func() {
		// A server that hangs must not keep the caller: without a rollback the connection is closed, which ends the snapshot, too.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endSnapshots)
		defer cancel()
		for _, tx := range snapshots {
			_ = tx.Rollback(ctx) // it has read only
		}
	}()
	if err != nil {
		return err
	}
	for d, tx := range snapshots {
		e := &exporting{store: s, q: q, visit: visit, at: task.ExportCursor{Database: d}, pageRows: exportRows, in: tx, seen: roaring64.New()}
		if err := e.database(ctx); err != nil {
			return fmt.Errorf("database %d: %w", d, err)
		}
	}
	return nil
}

// beginSnapshots begins a transaction in each database. Those at one place share the snapshot of
// the first of them.
func (s *Store) beginSnapshots(ctx context.Context, primary bool) (all []pgx.Tx, err error) {
	ctx, cancel := context.WithTimeout(ctx, openSnapshots)
	defer cancel()
	shared := map[string]string{} // names of snapshots by place
	for d := range task.Databases {
		tx, err := s.db.Pool(d).BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
		if err != nil {
			return all, kernel.Unavailable(err)
		}
		all = append(all, tx)
		_, at := s.db.Place(d) // where its connections lead, which need not be where the configuration has it
		if name := shared[string(at)]; name != "" {
			// The server has made the name. SET takes no parameters.
			_, err = tx.Exec(ctx, "SET TRANSACTION SNAPSHOT '"+strings.ReplaceAll(name, "'", "''")+"'")
		} else {
			shared[string(at)], err = firstSnapshot(ctx, tx, primary)
		}
		if err != nil {
			return all, fmt.Errorf("database %d at %s: %w", d, s.db.Address(d), err)
		}
	}
	return all, nil
}

// firstSnapshot returns the name of the snapshot of a transaction.
func firstSnapshot(ctx context.Context, tx pgx.Tx, primary bool) (name string, err error) {
	var standby bool
	err = sql.SnapshotExport.QueryRow(ctx, tx).Scan(&standby, &name)
	if err == nil && !standby && !primary {
		err = ErrPrimary
	}
	return name, err
}
