package shards

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/shards/counters"
	"github.com/perceptor/perceptor/store/shards/far"
	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/store/shards/transition"
	"github.com/perceptor/perceptor/task"
)

// notFound answers for unknown tasks and for those of other tenants alike.
func notFound(id task.ID) error {
	return task.Errorf(task.ReasonTaskNotFound, "there is no task %d", id)
}

// Get returns a task, living or retained.
func (s *Store) Get(ctx context.Context, tenant int32, id task.ID) (*task.Snapshot, error) {
	if !id.Valid() {
		return nil, notFound(id)
	}
	t, err := getIn(ctx, s.db.Pool(id.Shard().Database()), tenant, id)
	if err != nil {
		return nil, kernel.Unavailable(err)
	}
	return t, nil
}

// getIn is Get through q; in a snapshot a task does not move.
func getIn(ctx context.Context, q kernel.Querier, tenant int32, id task.ID) (*task.Snapshot, error) {
	for range readAgain {
		out, f, err := readTask(ctx, q, tenant, id)
		switch {
		case err != nil:
			return nil, err
		case out != nil:
			return out, nil
		case f == nil:
			return nil, notFound(id)
		}
		gone, err := f.Fill(ctx, q, false)
		if err != nil {
			return nil, err
		}
		if !gone {
			return &task.Snapshot{Row: *f.Row(), FinishedAt: task.Never}, nil
		}
	}
	return nil, task.Errorf(task.ReasonTaskBusy, "task %d is on the move; try again", id)
}

// readAgain bounds how often a task is looked for that moves between the moment
// it is found in a pack and the moment its params are fetched.
const readAgain = 8

// readTask finds a task in one snapshot: the task as its callers may see it, or
// where it is packed, or neither.
func readTask(ctx context.Context, q kernel.Querier, tenant int32, id task.ID) (*task.Snapshot, *far.Task, error) {
	rows, err := q.Query(ctx, sql.Get("TaskRead"), int16(id.Shard()), tenant, int64(id))
	if err != nil {
		return nil, nil, err
	}
	defer rows.Close()
	var copies []far.Copy
	for rows.Next() {
		var scan kernel.RowScan
		var finished *int64
		var c far.Copy
		if err := rows.Scan(scan.Targets(&finished, &c.Pack, &c.Damaged, &c.Keys)...); err != nil {
			return nil, nil, err
		}
		if c.Pack == 0 {
			return scan.Snapshot(finished), nil, nil
		}
		copies = append(copies, c)
	}
	if err := rows.Err(); err != nil {
		return nil, nil, err
	}
	f, err := far.Find(copies, tenant, id)
	return nil, f, err
}

// change is a step that a caller makes a task take. It may refuse with an error.
type change func(k *task.Machine, now task.Instant) error

// Cancel ends a task and returns it; a finished one stays as it is.
func (s *Store) Cancel(ctx context.Context, tenant int32, id task.ID) (*task.Snapshot, error) {
	return s.withMachine(ctx, tenant, id, "cancel", func(k *task.Machine, _ task.Instant) error { k.Cancel(); return nil }, nil)
}

// Pause lets no new run of a task be claimed, and returns the task.
func (s *Store) Pause(ctx context.Context, tenant int32, id task.ID) (*task.Snapshot, error) {
	return s.withMachine(ctx, tenant, id, "pause", func(k *task.Machine, _ task.Instant) error { k.Pause(); return nil }, errEnded)
}

// Resume lets a paused task go on, and returns it.
func (s *Store) Resume(ctx context.Context, tenant int32, id task.ID) (*task.Snapshot, error) {
	return s.withMachine(ctx, tenant, id, "resume", func(k *task.Machine, now task.Instant) error { k.Resume(now); return nil }, errEnded)
}

func errEnded(t *task.Snapshot) error {
	return task.Errorf(task.ReasonTaskFinished, "task %d has ended: it is %s since %s", t.ID, t.State, t.FinishedAt)
}

// withMachine makes a task take a step under its row's lock. A task that has ended
// is returned as it is, or refused by ended. A locked row is waited for, for up
// to busyFor.
func (s *Store) withMachine(ctx context.Context, tenant int32, id task.ID, step string, f change, ended func(*task.Snapshot) error) (*task.Snapshot, error) {
	return s.onMachine(ctx, tenant, id, stepOn{name: step, change: f, ended: ended})
}

// stepOn is a step on one task, with what belongs to its transaction.
type stepOn struct {
	name   string
	change change
	ended  func(*task.Snapshot) error
	// before is asked once the task's row is locked, if it is set; done: the step
	// need not be made.
	before func(tx pgx.Tx) (done bool, err error)
	// also adds statements to those that write the step, if it is set.
	also func(b *pgx.Batch)
}

// onMachine is withMachine for steps that do more.
func (s *Store) onMachine(ctx context.Context, tenant int32, id task.ID, step stepOn) (*task.Snapshot, error) {
	if !id.Valid() {
		return nil, notFound(id)
	}
	deadline := time.Now().Add(busyFor)
	for {
		done, changed, err := s.tryMachine(ctx, tenant, id, step)
		if err != nil && !kernel.LockConflict(err) {
			return nil, kernel.Unavailable(err)
		}
		if changed {
			return done, nil
		}
		now, err := s.Get(ctx, tenant, id)
		if err != nil {
			return nil, err
		}
		if now.State.Final() {
			if step.ended != nil {
				return nil, step.ended(now)
			}
			return now, nil
		}
		if time.Now().After(deadline) || !kernel.Sleep(ctx, 20*time.Millisecond) {
			return nil, task.Errorf(task.ReasonTaskBusy, "task %d is busy; try again", id)
		}
	}
}

// tryMachine takes the step if the task's row exists and nobody else has it, or the
// task is packed and can be recalled.
func (s *Store) tryMachine(ctx context.Context, tenant int32, id task.ID, step stepOn) (out *task.Snapshot, changed bool, err error) {
	d := id.Shard().Database()
	due := task.Never
	var l *transition.Ledger
	err = s.db.InTx(ctx, d, step.name, func(tx pgx.Tx) error {
		l = s.machines.NewLedger()
		now, err := kernel.Clock(ctx, tx)
		if err != nil {
			return err
		}
		machine, err := s.lockOrRecall(ctx, tx, tenant, id, now)
		if err != nil {
			return err
		}
		if changed, err = step.take(tx, machine, now); err != nil {
			return err
		}
		out = &task.Snapshot{Row: *machine.Task, FinishedAt: task.Never}
		if machine.Task.State.Final() {
			out.FinishedAt = now
		}
		var b *pgx.Batch
		b, due = transition.Batch([]*task.Machine{machine}, now, l)
		if step.also != nil {
			step.also(b)
		}
		if b.Len() == 0 {
			return kernel.ErrNothing
		}
		return kernel.SendLast(ctx, tx, b)
	})
	if err != nil {
		return nil, false, err
	}
	s.db.TellDue(d, due)
	s.machines.TellMissed(l.Missed)
	return out, changed, nil
}

// lockOrRecall locks the row of a task, or moves the task out of its pack. The error is
// [kernel.ErrNothing] where neither can be done now.
func (s *Store) lockOrRecall(ctx context.Context, tx pgx.Tx, tenant int32, id task.ID, now task.Instant) (*task.Machine, error) {
	k := kernel.KeyOf(tenant, id, 0)
	machines, err := s.machines.Lock(ctx, tx, []kernel.Key{k})
	if err != nil {
		return nil, err
	}
	if machine := machines[k]; machine != nil {
		return machine, nil
	}
	row, err := far.Recall(ctx, tx, tenant, id, now)
	if err != nil {
		return nil, err
	}
	if row == nil {
		return nil, kernel.ErrNothing
	}
	s.machines.SetCalendar(row)
	return s.machines.New(row), nil
}

// take makes the step on a locked row. It reports whether the task is as the step
// wants it.
func (step *stepOn) take(tx pgx.Tx, k *task.Machine, now task.Instant) (bool, error) {
	if step.before != nil {
		if done, err := step.before(tx); done || err != nil {
			if done {
				step.also = nil
			}
			return done, err
		}
	}
	if err := step.change(k, now); err != nil {
		return false, err
	}
	return true, nil
}

// Census is the exact number of rows of a tenant, over all databases.
type Census struct {
	Scheduled, Running, RunRows, Finished, Dead int64
}

// Census counts a tenant's tasks and rows, wherever they are. It reads every row
// and the keys of every pack: for checks and small installations only. Each
// database is read in one snapshot, and one after another, so the sum is not one
// instant.
func (s *Store) Census(ctx context.Context, tenant int32) (Census, error) {
	var sum Census
	for d := range task.Databases {
		var c Census
		err := s.db.InSnapshot(ctx, d, func(tx pgx.Tx) error {
			err := tx.QueryRow(ctx, sql.Get("Census"), tenant).Scan(&c.Scheduled, &c.Running, &c.RunRows, &c.Finished, &c.Dead)
			if err != nil {
				return err
			}
			return far.Each(ctx, tx, tenant, 0, task.Never, false, func(*task.Row) { c.Scheduled++ })
		})
		if err != nil {
			return Census{}, fmt.Errorf("count rows of database %d: %w", d, err)
		}
		sum.Scheduled += c.Scheduled
		sum.Running += c.Running
		sum.RunRows += c.RunRows
		sum.Finished += c.Finished
		sum.Dead += c.Dead
	}
	return sum, nil
}

// countPacked adds what packs hold of a tenant (0: of all). All of it is SCHEDULED.
func countPacked(ctx context.Context, tx pgx.Tx, tenant int32, add func(counters.Key, int64)) error {
	return far.Each(ctx, tx, tenant, 0, task.Never, false, func(r *task.Row) {
		add(counters.Key{Tenant: r.Tenant, Type: r.Type, Cell: counters.Cell(r.State)}, 1)
	})
}
