// Package figures stores the figures of package figures in Postgres, so that every process
// reads those of all.
//
// The rows of interval n are in database n mod 16, whichever process writes them. So no server
// has all the load, and when one hangs whole intervals are missing: a gap in a curve, not a
// number that is too small. If that database does not answer, a process writes into the next one
// that does. A reader therefore asks all databases and says which did not answer.
package figures

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/figures"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/figures/sql"
	"github.com/perceptor/perceptor/task"
)

const (
	// writeTimeout bounds the call of one database that stores rows.
	writeTimeout = time.Second
	// readTimeout bounds the calls of all databases that read rows.
	readTimeout = 2 * time.Second
	// keep is how long rows are kept: the hour that is shown, and what a reader may be late.
	keep = time.Hour + 5*time.Minute
	// purgeAtOnce is the most rows that one statement deletes.
	purgeAtOnce = 5000
	// mostOf is the most rows of one tenant, mostSince the most of all tenants, that one
	// database returns: more would be of more than 100 processes.
	mostOf    = 4000
	mostSince = 100_000
)

// Store is the table of figures in all databases. It is safe for concurrent use.
type Store struct{ cluster *store.Cluster }

// New returns the figures of a cluster.
func New(cluster *store.Cluster) *Store { return &Store{cluster} }

var allDatabases = databasesOf(0, task.At(time.UnixMilli(task.Databases*figures.Every.Milliseconds())))

// databaseOf returns the database of the interval of an instant.
func databaseOf(at task.Instant) int {
	return int(at / task.Instant(figures.Every.Milliseconds()) % task.Databases)
}

// databasesOf returns the databases of the intervals from an instant to another one, and the one after them, which
// has the rows of a database that did not answer.
func databasesOf(from, until task.Instant) (list []int) {
	every := task.Instant(figures.Every.Milliseconds())
	until = max(from, until) + every
	for at := from / every * every; at <= until && len(list) < task.Databases; at += every {
		list = append(list, databaseOf(at))
	}
	return list
}

// Write implements [figures.Store].
func (s *Store) Write(ctx context.Context, at task.Instant, process int64, rows []figures.Row) error {
	tenants, data := make([]int32, len(rows)), make([][]byte, len(rows))
	for i, r := range rows {
		tenants[i], data[i] = r.Tenant, r.Data
	}
	first := databaseOf(at)
	var errs []error
	for i := range task.Databases {
		err := s.write(ctx, (first+i)%task.Databases, int64(at), process, tenants, data)
		if err == nil {
			return nil
		}
		if errs = append(errs, err); ctx.Err() != nil {
			break
		}
	}
	return fmt.Errorf("store figures: %w", store.Distinct(errs...))
}

func (s *Store) write(ctx context.Context, d int, at, process int64, tenants []int32, data [][]byte) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	_, err := sql.FiguresInsert.Exec(ctx, s.cluster.Pool(d), at, process, tenants, data)
	return err
}

// Of returns the rows of some tenants from an instant on, of all databases that answer, and the
// databases that do not. It returns [task.Unavailable] if none does.
func (s *Store) Of(ctx context.Context, tenants []int32, from task.Instant) (rows []figures.Stored, missing []int, err error) {
	return s.read(ctx, func(ctx context.Context, d int) (pgx.Rows, error) {
		return sql.FiguresOf.Query(ctx, s.cluster.Pool(d), tenants, int64(from), mostOf)
	})
}

// Since is [Store.Of] for all tenants.
func (s *Store) Since(ctx context.Context, from task.Instant) (rows []figures.Stored, missing []int, err error) {
	return s.read(ctx, func(ctx context.Context, d int) (pgx.Rows, error) {
		return sql.FiguresSince.Query(ctx, s.cluster.Pool(d), int64(from), mostSince)
	})
}

func (s *Store) read(ctx context.Context, query func(ctx context.Context, d int) (pgx.Rows, error)) ([]figures.Stored, []int, error) {
	var lists [task.Databases][]figures.Stored
	missing, err := s.each(ctx, allDatabases, func(ctx context.Context, d int) error {
		rows, err := query(ctx, d)
		if err != nil {
			return err
		}
		lists[d], err = pgx.CollectRows(rows, scan)
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	var all []figures.Stored
	for _, list := range lists {
		all = append(all, list...)
	}
	return all, missing, nil
}

func scan(row pgx.CollectableRow) (r figures.Stored, err error) {
	return r, row.Scan(&r.Tenant, &r.At, &r.Process, &r.Data)
}

// each calls ask for several databases at once and returns those that failed, or an error if all
// did.
func (s *Store) each(ctx context.Context, databases []int, ask func(ctx context.Context, d int) error) (missing []int, err error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	var asking sync.WaitGroup
	var errs [task.Databases]error
	for _, d := range databases {
		asking.Go(func() { errs[d] = ask(ctx, d) })
	}
	asking.Wait()
	for d, err := range errs {
		if err != nil {
			missing = append(missing, d)
		}
	}
	if len(missing) == len(databases) {
		return nil, task.Errorf(task.ReasonDatabaseUnavailable, "no database answers; try again").CausedBy(store.Distinct(errs[:]...))
	}
	return missing, nil
}

// Active returns up to limit tenants that any process has had figures of since an instant. It asks the databases
// of the intervals since then.
func (s *Store) Active(ctx context.Context, from task.Instant, limit int) (map[int32]bool, error) {
	var lists [task.Databases][]int32
	_, err := s.each(ctx, databasesOf(from, task.At(time.Now())), func(ctx context.Context, d int) error {
		rows, err := sql.FiguresActive.Query(ctx, s.cluster.Pool(d), int64(from), limit)
		if err != nil {
			return err
		}
		lists[d], err = pgx.CollectRows(rows, pgx.RowTo[int32])
		return err
	})
	active := map[int32]bool{}
	for _, list := range lists {
		for _, tenant := range list {
			if len(active) < limit {
				active[tenant] = true
			}
		}
	}
	return active, err
}

// Purge deletes a bounded number of the rows of database d that are no longer shown. It returns
// how many it deleted and whether there may be more. It is safe to call concurrently.
func (s *Store) Purge(ctx context.Context, d int) (n int, more bool, err error) {
	if err := sql.FiguresPurge.QueryRow(ctx, s.cluster.Pool(d), keep.Milliseconds(), purgeAtOnce).Scan(&n); err != nil {
		return 0, false, fmt.Errorf("purge figures: %w", err)
	}
	return n, n >= purgeAtOnce, nil
}
