package shards

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

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
	t, err := getIn(ctx, s.cluster.Pool(id.Shard().Database()), tenant, id)
	if err != nil {
		return nil, unavailable(err)
	}
	return t, nil
}

// getIn is Get through q; in a snapshot a task does not move.
func getIn(ctx context.Context, q querier, tenant int32, id task.ID) (*task.Snapshot, error) {
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
		gone, err := f.fill(ctx, q, false)
		if err != nil {
			return nil, err
		}
		if !gone {
			return &task.Snapshot{Row: *f.row(), FinishedAt: task.Never}, nil
		}
	}
	return nil, task.Errorf(task.ReasonTaskBusy, "task %d is on the move; try again", id)
}

// readAgain bounds how often a task is looked for that moves between the moment
// it is found in a pack and the moment its params are fetched.
const readAgain = 8

// readTask finds a task in one snapshot: the task as its callers may see it, or
// where it is packed, or neither.
func readTask(ctx context.Context, q querier, tenant int32, id task.ID) (*task.Snapshot, *farTask, error) {
	rows, err := q.Query(ctx, sql.Get("TaskRead"), int16(id.Shard()), tenant, int64(id))
	if err != nil {
		return nil, nil, err
	}
	defer rows.Close()
	var copies []farCopy
	for rows.Next() {
		var scan rowScan
		var finished *int64
		var c farCopy
		if err := rows.Scan(scan.targets(&finished, &c.pack, &c.damaged, &c.keys)...); err != nil {
			return nil, nil, err
		}
		if c.pack == 0 {
			return snapshot(&scan, finished), nil, nil
		}
		copies = append(copies, c)
	}
	if err := rows.Err(); err != nil {
		return nil, nil, err
	}
	f, err := findFar(copies, tenant, id)
	return nil, f, err
}

func snapshot(scan *rowScan, finished *int64) *task.Snapshot {
	return &task.Snapshot{Row: *scan.row(), FinishedAt: instantOr(finished, task.Never)}
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
		if err != nil && !lockConflict(err) {
			return nil, unavailable(err)
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
		if time.Now().After(deadline) || !sleep(ctx, 20*time.Millisecond) {
			return nil, task.Errorf(task.ReasonTaskBusy, "task %d is busy; try again", id)
		}
	}
}

// tryMachine takes the step if the task's row exists and nobody else has it, or the
// task is packed and can be recalled.
func (s *Store) tryMachine(ctx context.Context, tenant int32, id task.ID, step stepOn) (out *task.Snapshot, changed bool, err error) {
	d := id.Shard().Database()
	due := task.Never
	var l *ledger
	err = s.inTx(ctx, d, step.name, func(tx pgx.Tx) error {
		l = s.newLedger()
		now, err := clock(ctx, tx)
		if err != nil {
			return err
		}
		k := keyOf(tenant, id, 0)
		machines, err := s.lockMachines(ctx, tx, []key{k})
		if err != nil {
			return err
		}
		machine := machines[k]
		if machine == nil {
			if machine, err = recallMachine(ctx, tx, tenant, id, now); machine == nil && err == nil {
				err = errNothing
			}
			if err != nil {
				return err
			}
			machine.CatchUpInterval = s.cfg.CatchUpInterval
			s.setCalendar(machine.Task)
		}
		if changed, err = step.take(tx, machine, now); err != nil {
			return err
		}
		out = &task.Snapshot{Row: *machine.Task, FinishedAt: task.Never}
		if machine.Task.State.Final() {
			out.FinishedAt = now
		}
		var b *pgx.Batch
		b, due = kinBatch([]*task.Machine{machine}, now, l)
		if step.also != nil {
			step.also(b)
		}
		if b.Len() == 0 {
			return errNothing
		}
		return sendLast(ctx, tx, b)
	})
	if err != nil {
		return nil, false, err
	}
	s.due(d, due)
	s.missed(l.missed)
	return out, changed, nil
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
		err := s.inSnapshot(ctx, d, func(tx pgx.Tx) error {
			err := tx.QueryRow(ctx, sql.Get("Census"), tenant).Scan(&c.Scheduled, &c.Running, &c.RunRows, &c.Finished, &c.Dead)
			if err != nil {
				return err
			}
			return countPacks(ctx, s, tx, d, tenant, func(_ cellKey, n int64) { c.Scheduled += n })
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
