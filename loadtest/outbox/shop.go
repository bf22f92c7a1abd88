package outbox

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/client/outbox"
	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/store/statement"
)

// shop is the service. What its tables say is what its transactions have done, and so what the
// installation must have: added has the tasks without keys, life the tasks with keys, drawn their triggers.
type shop struct {
	pool    *pgxpool.Pool
	options *Options
	seen    *observed

	next                         atomic.Int64
	commits, rollbacks, failures atomic.Int64
	behind                       atomic.Int64 // transactions that had no free connection
}

//go:embed shop.sql
var files embed.FS

var (
	set          = statement.MustLoad(files, nil)
	createTables = set.Get("CreateTables")
	insertAdded  = set.Get("InsertAdded")
	insertCells  = set.Get("InsertCells")
	lockCell     = set.Get("LockCell")
	nextCell     = set.Get("NextCell")
	insertLife   = set.Get("InsertLife")
	changeLife   = set.Get("ChangeLife")
	triggerLife  = set.Get("TriggerLife")
	endLife      = set.Get("EndLife")
	countLeft    = set.Get("CountLeft")
	countTables  = set.Get("CountTables")
	listAdded    = set.Get("ListAdded")
	listLives    = set.Get("ListLives")
	listDrawn    = set.Get("ListDrawn")
)

const transactLimit = 10 * time.Second

// withQuery returns a connection string to which parameters can be appended.
func withQuery(dsn string) string {
	if strings.Contains(dsn, "?") {
		return dsn
	}
	return dsn + "?"
}

func cellKey(id, gen int) string { return fmt.Sprintf("cell-%d-%d", id, gen) }

// cellTask is a task that has no run but those that are triggered.
func cellTask(id, gen int) client.Task {
	return client.Task{
		Kind: kind, Type: client.NonBlocking, Interval: time.Hour, Begin: time.Now().Add(10 * time.Hour),
		IdempotencyKey: cellKey(id, gen), Params: map[string]string{"key": cellKey(id, gen), "v": "0"},
	}
}

func (s *shop) prepare(ctx context.Context) error {
	if _, err := createTables.Exec(ctx, s.pool); err != nil {
		return fmt.Errorf("create the service's tables: %w", err)
	}
	if s.options.Keyed == 0 {
		return nil
	}
	return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		_, err := insertCells.Exec(ctx, tx, s.options.Cells)
		for id := range s.options.Cells {
			_, failed := insertLife.Exec(ctx, tx, cellKey(id, 0))
			err = errors.Join(err, failed, outbox.AddTask(ctx, tx, cellTask(id, 0)))
		}
		return err
	})
}

// load makes transactions at the rate until ctx ends.
func (s *shop) load(ctx context.Context) {
	turns := make(chan struct{}, int(s.options.Rate)+1)
	var writers sync.WaitGroup
	for range s.options.Writers {
		writers.Go(func() {
			for range turns {
				s.transact()
			}
		})
	}
	began, made := time.Now(), 0
	for harness.Sleep(ctx, time.Millisecond) == nil {
		for due := int(time.Since(began).Seconds() * s.options.Rate); made < due; made++ {
			select {
			case turns <- struct{}{}:
			default:
				s.behind.Add(1)
			}
		}
	}
	close(turns)
	writers.Wait()
}

var errRollback = errors.New("rolled back on purpose")

// transact makes one transaction.
func (s *shop) transact() {
	ctx, cancel := context.WithTimeout(context.Background(), transactLimit)
	defer cancel()
	var numbers []int64
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) (err error) {
		if rand.Float64() < s.options.Keyed {
			err = s.change(ctx, tx)
		} else {
			numbers, err = s.add(ctx, tx)
		}
		if err == nil && rand.Float64() < s.options.Rollbacks {
			err = errRollback
		}
		return err
	})
	switch {
	case err == nil:
		s.commits.Add(1)
		s.seen.committed(numbers, time.Now())
	case errors.Is(err, errRollback):
		s.rollbacks.Add(1)
	default: // the database was killed, or does not answer; its tables know what has happened
		s.failures.Add(1)
	}
}

// add adds tasks without keys.
func (s *shop) add(ctx context.Context, tx pgx.Tx) ([]int64, error) {
	numbers, tasks := make([]int64, s.options.Adds), make([]client.Task, s.options.Adds)
	for i := range tasks {
		numbers[i] = s.next.Add(1)
		tasks[i] = client.Task{Kind: kind, Type: client.OneShot, Params: map[string]string{"n": fmt.Sprint(numbers[i])}}
		if s.options.Delay > 0 {
			tasks[i].Begin = time.Now().Add(s.options.Delay)
		}
	}
	if _, err := insertAdded.Exec(ctx, tx, numbers); err != nil {
		return nil, err
	}
	if len(tasks) == 1 {
		return numbers, outbox.AddTask(ctx, tx, tasks[0])
	}
	return numbers, outbox.AddTasks(ctx, tx, tasks)
}

// change changes, triggers or replaces a task with a key.
func (s *shop) change(ctx context.Context, tx pgx.Tx) error {
	id, gen := rand.IntN(s.options.Cells), 0
	if err := lockCell.QueryRow(ctx, tx, id).Scan(&gen); err != nil {
		return err
	}
	key := cellKey(id, gen)
	switch draw := rand.Float64(); {
	case draw < 0.45:
		var v int
		if err := changeLife.QueryRow(ctx, tx, key).Scan(&v); err != nil {
			return err
		}
		return outbox.UpdateTask(ctx, tx, outbox.ByKey(key), client.Task{Params: map[string]string{"key": key, "v": fmt.Sprint(v)}})
	case draw < 0.85:
		_, err := triggerLife.Exec(ctx, tx, key)
		return errors.Join(err, outbox.TriggerTask(ctx, tx, outbox.ByKey(key)))
	}
	for _, change := range []*statement.Statement{endLife, insertLife} {
		if _, err := change.Exec(ctx, tx, key); err != nil {
			return err
		}
		key = cellKey(id, gen+1)
	}
	if _, err := nextCell.Exec(ctx, tx, id); err != nil {
		return err
	}
	return errors.Join(outbox.CancelTask(ctx, tx, outbox.ByKey(cellKey(id, gen))), outbox.AddTask(ctx, tx, cellTask(id, gen+1)))
}

// left returns how many operations are in the outbox, up to 1,000.
func (s *shop) left(ctx context.Context) (n int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, transactLimit)
	defer cancel()
	return n, countLeft.QueryRow(ctx, s.pool).Scan(&n)
}

// tables are the counts of the service's tables.
type tables struct{ added, triggers, lives, refused int64 }

func (s *shop) counts(ctx context.Context) (t tables, err error) {
	ctx, cancel := context.WithTimeout(ctx, transactLimit)
	defer cancel()
	return t, countTables.QueryRow(ctx, s.pool).Scan(&t.added, &t.triggers, &t.lives, &t.refused)
}
