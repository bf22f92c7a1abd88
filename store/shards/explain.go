package shards

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/shards/dead"
	"github.com/perceptor/perceptor/store/shards/history"
	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

const (
	// explainedRuns is the most run rows of a task that are explained, the oldest first.
	explainedRuns = 10
	// explainedEvents is the number of latest events that are searched for errors.
	explainedEvents = 50
	// explainedDead is the number of a task's last runs that are searched for the dead run.
	explainedDead = 100
	// brokenFor is how long a topic counts as broken after its last row was deferred.
	brokenFor = time.Minute
)

// Explain returns the reasons why a task has not fired, and up to n of its next instants.
// If the task is unknown, or belongs to another tenant, the reason says so. The
// data in the task's database is read in one snapshot; the use of rates and caps, which
// other databases may store, is read after that.
func (s *Store) Explain(ctx context.Context, tenant int32, id task.ID, n int) (task.Explanation, error) {
	unknown := task.Explanation{Reasons: []task.Reason{{Why: task.WhyUnknown, Text: "there is no such task; finished ones are forgotten after their retention"}}}
	if !id.Valid() {
		return unknown, nil
	}
	e := &explained{}
	err := s.db.InSnapshot(ctx, id.Shard().Database(), func(tx pgx.Tx) error { return s.readExplained(ctx, tx, tenant, id, e) })
	switch {
	case err != nil && task.CodeOf(err) == task.NotFound:
		unknown.Now = e.c.Now
		return unknown, nil
	case err != nil:
		return task.Explanation{}, kernel.Unavailable(err)
	}
	s.machines.SetCalendar(&e.t.Row)
	out := task.Explanation{Task: e.t, Now: e.c.Now}
	if e.t.State.Final() {
		out.Reasons = []task.Reason{e.t.WhyEnded(e.dead)}
		return out, nil
	}
	if e.t.State == task.Scheduled && e.t.DueAt <= e.c.Now {
		if err := s.explainWaiting(ctx, e.k.Task, e.c); err != nil {
			return task.Explanation{}, kernel.Unavailable(err)
		}
	}
	out.Reasons, out.Next = e.k.Explain(e.c), e.k.Task.NextInstants(e.c.Now, n)
	if len(out.Reasons) == 0 {
		out.Reasons = []task.Reason{{Why: task.WhyWaitingForResult, Text: "its open runs await their results"}}
	}
	return out, nil
}

// explained is the data of an explanation.
type explained struct {
	c    *task.Circumstances
	t    *task.Snapshot
	k    *task.Machine // set for a task that has not ended
	dead *task.DeadRun // the last dead run of a FAILED task, or nil
}

// readExplained reads the data in the task's database.
func (s *Store) readExplained(ctx context.Context, tx pgx.Tx, tenant int32, id task.ID, e *explained) (err error) {
	if e.c, err = circumstances(ctx, tx, tenant, id); err != nil {
		return err
	}
	if err := s.db.Failpoint("explain", kernel.BetweenReads, id.Shard().Database()); err != nil {
		return err
	}
	if e.t, err = getIn(ctx, tx, tenant, id); err != nil {
		return err
	}
	if e.t.State.Final() {
		e.dead, err = lastDead(ctx, tx, e.t)
		return err
	}
	e.k = &task.Machine{Task: &e.t.Row, Was: e.t.State}
	return explainRuns(ctx, tx, e.k, e.c)
}

// circumstances reads the state outside the task's rows on which the task depends.
func circumstances(ctx context.Context, tx pgx.Tx, tenant int32, id task.ID) (*task.Circumstances, error) {
	c := &task.Circumstances{Errors: map[int64]string{}, HandedBack: map[int64]int32{}}
	var rates *task.Rates
	var oldest, broken *int64
	var near bool
	err := sql.Circumstances.QueryRow(ctx, tx, int16(id.Shard()), tenant, int64(id), brokenFor.Milliseconds()).
		Scan(&c.Now, &c.Owner, &c.Epoch, &c.OwnedSince, &oldest, &rates, &broken, &near, &c.Unpublished)
	if err != nil {
		return nil, err
	}
	c.OldestDue, c.Broken, c.Far = kernel.InstantOr(oldest, task.Never), kernel.InstantOr(broken, 0), !near
	if rates != nil {
		c.Rates = *rates
	}
	return c, nil
}

// explainRuns adds the oldest run rows of a task, and their events in the history.
func explainRuns(ctx context.Context, q kernel.Querier, k *task.Machine, c *task.Circumstances) error {
	t := k.Task
	if t.OpenCount() == 0 {
		return nil
	}
	if t.OpenRows > 0 {
		rows, err := sql.RunRows.Query(ctx, q, int16(t.ID.Shard()), t.Tenant, int64(t.ID), explainedRuns)
		if err != nil {
			return err
		}
		list, err := kernel.CollectRows(rows)
		if err != nil {
			return err
		}
		k.Runs = map[int64]*task.Row{}
		for _, r := range list {
			k.Runs[r.Run] = r
		}
	}
	events, err := history.Read(ctx, q, t.Tenant, t.ID, task.NewestEvent, explainedEvents)
	if err != nil {
		return err
	}
	for _, e := range events {
		if _, known := c.Errors[e.Seq]; !known && e.Event == task.EventFailed {
			c.Errors[e.Seq] = e.Detail
		}
		if e.Event == task.EventHandedBack {
			c.HandedBack[e.Seq] = max(c.HandedBack[e.Seq], e.Attempt)
		}
	}
	return nil
}

// explainWaiting finds out whether a due task waits for tokens of its tenant, or for the
// concurrency cap of its kind.
func (s *Store) explainWaiting(ctx context.Context, t *task.Row, c *task.Circumstances) error {
	if c.Rates.DispatchRate > 0 {
		err := sql.TokensUsed.QueryRow(ctx, s.db.Pool(kernel.Home(t.Tenant)), t.Tenant, claimTokens, c.Rates.DispatchRate, c.Rates.Burst()).Scan(&c.RateUsed)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
	}
	if c.Rates.KindCaps[t.Kind] == 0 {
		return nil
	}
	var sum atomic.Int64
	err := s.db.Each(ctx, func(ctx context.Context, d int) error {
		var n int64
		err := sql.CapOpen.QueryRow(ctx, s.db.Pool(d), t.Tenant, t.Kind).Scan(&n)
		sum.Add(n)
		return err
	})
	c.KindOpen = int(sum.Load())
	return err
}

// lastDead returns the last dead run of a FAILED task, or nil.
func lastDead(ctx context.Context, q kernel.Querier, t *task.Snapshot) (*task.DeadRun, error) {
	if t.State != task.Failed {
		return nil, nil
	}
	rows, err := sql.DeadWalk.Query(ctx, q, t.Tenant, int64(t.ID), max(0, t.Seq-explainedDead), explainedDead)
	if err != nil {
		return nil, err
	}
	list, err := dead.Collect(rows)
	var last *task.DeadRun
	for _, d := range list {
		if d.RunID.Task == t.ID {
			last = &d.DeadRun
		}
	}
	return last, err
}

// queueTrouble records for [Store.Explain] that rows of tenants were deferred because
// their topics accept no records.
func queueTrouble(b *pgx.Batch, tenants []int32) {
	sql.TroubleNote.Queue(b, tenants, brokenFor.Milliseconds())
}

// NoteTopicFailures records for [Store.Explain] that the topics of these tenants, in ascending
// order, accept no records, so that their rows of database d are not claimed.
func (s *Store) NoteTopicFailures(ctx context.Context, d int, tenants []int32) error {
	_, err := sql.TroubleNote.Exec(ctx, s.db.Pool(d), tenants, brokenFor.Milliseconds())
	return err
}
