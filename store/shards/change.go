package shards

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/internal/ctxtime"
	"github.com/perceptor/perceptor/store/shards/far"
	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/store/shards/transition"
	"github.com/perceptor/perceptor/task"
)

// change is a step that a caller requests for a task. It may refuse with an error.
type change func(k *task.Machine, now task.Instant) error

// Cancel ends a task and returns it. It does not change a finished task.
func (s *Store) Cancel(ctx context.Context, tenant int32, id task.ID) (*task.Snapshot, error) {
	return s.withMachine(ctx, tenant, id, "cancel", func(k *task.Machine, _ task.Instant) error { k.Cancel(); return nil }, nil)
}

// Pause stops claims of new runs of a task, and returns the task.
func (s *Store) Pause(ctx context.Context, tenant int32, id task.ID) (*task.Snapshot, error) {
	return s.onMachine(ctx, tenant, id, stepOn{
		name: "pause", change: func(k *task.Machine, now task.Instant) error { k.Pause(now); return nil }, ended: errEnded,
		also: func(b *pgx.Batch) { sql.BulkExempt.Queue(b, tenant, int64(id)) },
	})
}

// Resume ends the pause of a task, and returns the task.
func (s *Store) Resume(ctx context.Context, tenant int32, id task.ID) (*task.Snapshot, error) {
	return s.withMachine(ctx, tenant, id, "resume", func(k *task.Machine, now task.Instant) error { k.Resume(now); return nil }, errEnded)
}

func errEnded(t *task.Snapshot) error {
	return task.Errorf(task.ReasonTaskFinished, "task %d has been %s since %s", t.ID, t.State, t.FinishedAt)
}

// withMachine applies a step to a task under the lock of its row. A task that has ended is
// returned unchanged, or refused by ended. A locked row is waited for, up to busyFor.
func (s *Store) withMachine(ctx context.Context, tenant int32, id task.ID, step string, f change, ended func(*task.Snapshot) error) (*task.Snapshot, error) {
	return s.onMachine(ctx, tenant, id, stepOn{name: step, change: f, ended: ended})
}

// stepOn is a step on one task, with the other work of its transaction.
type stepOn struct {
	name   string
	change change
	ended  func(*task.Snapshot) error
	// before, if set, is called once the task's row is locked; it returns true if the
	// step is not needed.
	before func(tx pgx.Tx) (done bool, err error)
	// also, if set, adds statements to those that write the step.
	also func(b *pgx.Batch)
}

// onMachine is withMachine for steps with other work in their transaction.
func (s *Store) onMachine(ctx context.Context, tenant int32, id task.ID, step stepOn) (*task.Snapshot, error) {
	if !id.Valid() {
		return nil, notFound(id)
	}
	deadline := time.Now().Add(busyFor)
	for {
		done, changed, err := s.tryMachine(ctx, tenant, id, step)
		if err != nil && !kernel.LockConflict(err) {
			return nil, kernel.Unavailable(kernel.Damaged(id, err))
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
		if time.Now().After(deadline) || !ctxtime.Sleep(ctx, 20*time.Millisecond) {
			return nil, task.Errorf(task.ReasonTaskBusy, "task %d is busy; try again", id)
		}
	}
}

// tryMachine applies the step if the task's row exists and can be locked at once, or if
// the task is packed and can be recalled.
func (s *Store) tryMachine(ctx context.Context, tenant int32, id task.ID, step stepOn) (out *task.Snapshot, changed bool, err error) {
	d := id.Shard().Database()
	ctx, leave, err := s.dbs[d].enter(ctx, tenant)
	if err != nil {
		return nil, false, err
	}
	defer leave()
	due := task.Never
	var l *transition.Effects
	err = s.db.InTx(ctx, d, step.name, func(tx pgx.Tx) error {
		l = s.machines.NewEffects()
		now, err := kernel.Clock(ctx, tx)
		if err != nil {
			return err
		}
		machine, err := s.lockOrRecall(ctx, tx, tenant, id, now)
		if err != nil {
			return err
		}
		if changed, err = step.applyTo(tx, machine, now); err != nil {
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

// lockOrRecall locks the row of a task, or moves the task out of its pack. It returns
// [kernel.ErrNothing] if neither is possible now.
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

// applyTo takes the step on a locked row. It reports whether the task is now in the state
// that the step requests.
func (step *stepOn) applyTo(tx pgx.Tx, k *task.Machine, now task.Instant) (bool, error) {
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

// Update sets the terms of a task by an edit, and returns the task.
func (s *Store) Update(ctx context.Context, tenant int32, id task.ID, e task.Edit) (*task.Snapshot, error) {
	if err := s.machines.SetEditCalendar(&e, tenant, id); err != nil {
		return nil, err
	}
	return s.withMachine(ctx, tenant, id, "update", func(k *task.Machine, now task.Instant) error { return k.Edit(&e, now) }, errEnded)
}

// Trigger opens a run of a task now, and returns its number. A non-empty requestID makes
// the call safe to repeat: the second call returns the first one's run, even if the task
// has ended since.
func (s *Store) Trigger(ctx context.Context, tenant int32, id task.ID, requestID string) (seq int64, replayed bool, err error) {
	if !id.Valid() {
		return 0, false, notFound(id)
	}
	key := triggerKey(id, requestID)
	step := stepOn{
		name: "trigger",
		before: func(tx pgx.Tx) (done bool, err error) {
			replayed = false
			if key != "" {
				seq, replayed, err = readTrigger(ctx, tx, tenant, id, key)
			}
			return replayed, err
		},
		change: func(k *task.Machine, now task.Instant) (err error) { seq, err = k.Trigger(now); return err },
		ended:  errEnded,
	}
	if key != "" {
		step.also = func(b *pgx.Batch) {
			sql.KeyInsert.Queue(b, []int16{int16(id.Shard())}, []int32{tenant}, []string{key}, []int64{seq}, []int32{1},
				[][]byte{{}}, s.cfg.KeyLifetime.Milliseconds())
		}
	}
	_, err = s.onMachine(ctx, tenant, id, step)
	if err != nil && key != "" && !replayed {
		// The task may have ended after the first call.
		if first, known, readErr := readTrigger(ctx, s.db.Pool(id.Shard().Database()), tenant, id, key); readErr == nil && known {
			return first, true, nil
		}
	}
	return seq, replayed, err
}

// triggerKey returns the key under which a trigger is stored; "" without a requestID.
func triggerKey(id task.ID, requestID string) string {
	if requestID == "" {
		return ""
	}
	return kernel.TriggerPrefix + id.String() + ":" + requestID
}

// Triggered returns the run that an earlier [Store.Trigger] with the requestID has opened, if
// there was one.
func (s *Store) Triggered(ctx context.Context, tenant int32, id task.ID, requestID string) (seq int64, known bool, err error) {
	key := triggerKey(id, requestID)
	if key == "" || !id.Valid() {
		return 0, false, nil
	}
	seq, known, err = readTrigger(ctx, s.db.Pool(id.Shard().Database()), tenant, id, key)
	if err != nil {
		err = kernel.Unavailable(err)
	}
	return seq, known, err
}

// readTrigger returns the run that a trigger with this key has opened.
func readTrigger(ctx context.Context, q kernel.Querier, tenant int32, id task.ID, key string) (seq int64, known bool, err error) {
	rows, err := sql.KeyRead.Query(ctx, q, int16(id.Shard()), tenant, key)
	if err != nil {
		return 0, false, err
	}
	seq, err = pgx.CollectOneRow(rows, func(row pgx.CollectableRow) (seq int64, err error) {
		return seq, row.Scan(&seq, nil, nil, nil)
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, false, nil
	}
	return seq, err == nil, err
}
