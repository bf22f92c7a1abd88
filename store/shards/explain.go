package shards

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/task"
)

const (
	// explainedRuns is how many run rows of a task are explained, the oldest first.
	explainedRuns = 10
	// explainedEvents is how far back the history is looked at for errors.
	explainedEvents = 50
	// explainedDead is among how many of a task's last runs the dead one is looked for.
	explainedDead = 100
	// brokenFor is how long a topic counts as broken after its last row was put off.
	brokenFor = time.Minute
)

// Explain says what holds a task back, and returns up to n of its next instants.
// Without a task (unknown, or of another tenant) it answers that.
func (s *Store) Explain(ctx context.Context, tenant int32, id task.ID, n int) (task.Explanation, error) {
	unknown := task.Explanation{Reasons: []task.Reason{{Why: task.WhyUnknown, Text: "there is no such task; finished ones are forgotten after their retention"}}}
	if !id.Valid() {
		return unknown, nil
	}
	c, err := s.circumstances(ctx, tenant, id)
	if err != nil {
		return task.Explanation{}, unavailable(err)
	}
	unknown.Now = c.Now
	t, err := s.Get(ctx, tenant, id)
	switch {
	case err != nil && task.CodeOf(err) == task.NotFound:
		return unknown, nil
	case err != nil:
		return task.Explanation{}, err
	}
	out := task.Explanation{Task: t, Now: c.Now}
	if t.State.Final() {
		dead, err := s.lastDead(ctx, t)
		if err != nil {
			return task.Explanation{}, unavailable(err)
		}
		s.setCalendar(&t.Row)
		out.Reasons = []task.Reason{t.WhyEnded(dead)}
		return out, nil
	}
	k := &task.Kin{Task: &t.Row, Was: t.State}
	if err := s.explainRuns(ctx, k, c); err != nil {
		return task.Explanation{}, unavailable(err)
	}
	if t.State == task.Scheduled && t.DueAt <= c.Now {
		if err := s.explainTurns(ctx, k.Task, c); err != nil {
			return task.Explanation{}, unavailable(err)
		}
	}
	s.setCalendar(k.Task)
	out.Reasons, out.Next = k.Explain(c), k.Task.NextInstants(c.Now, n)
	if len(out.Reasons) == 0 {
		out.Reasons = []task.Reason{{Why: task.WhyWaitingForResult, Text: "its open runs await their results"}}
	}
	return out, nil
}

// circumstances reads what a task depends on beside itself.
func (s *Store) circumstances(ctx context.Context, tenant int32, id task.ID) (*task.Circumstances, error) {
	c := &task.Circumstances{Errors: map[int64]string{}, HandedBack: map[int64]int32{}}
	var rates *task.Rates
	var oldest, broken *int64
	var near bool
	err := s.cluster.Pool(id.Shard().Database()).QueryRow(ctx, sql.Get("Circumstances"), int16(id.Shard()), tenant, int64(id), brokenFor.Milliseconds()).
		Scan(&c.Now, &c.Owner, &c.Epoch, &c.OwnedSince, &oldest, &rates, &broken, &near)
	if err != nil {
		return nil, err
	}
	c.OldestDue, c.Broken, c.Far = instantOr(oldest, task.Never), instantOr(broken, 0), !near
	if rates != nil {
		c.Rates = *rates
	}
	return c, nil
}

// explainRuns adds the oldest run rows of a task, and what its history knows of them.
func (s *Store) explainRuns(ctx context.Context, k *task.Kin, c *task.Circumstances) error {
	t := k.Task
	if t.OpenCount() == 0 {
		return nil
	}
	pool := s.cluster.Pool(t.ID.Shard().Database())
	if t.OpenRows > 0 {
		rows, err := pool.Query(ctx, sql.Get("RunRows"), int16(t.ID.Shard()), t.Tenant, int64(t.ID), explainedRuns)
		if err != nil {
			return err
		}
		list, err := collectRows(rows)
		if err != nil {
			return err
		}
		k.Runs = map[int64]*task.Row{}
		for _, r := range list {
			k.Runs[r.Run] = r
		}
	}
	events, err := s.History(ctx, t.Tenant, t.ID, task.NewestEvent, explainedEvents)
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

// explainTurns finds out whether a task that is due waits for its tenant's turn, or
// for a place of its kind.
func (s *Store) explainTurns(ctx context.Context, t *task.Row, c *task.Circumstances) error {
	if c.Rates.DispatchRate > 0 {
		err := s.cluster.Pool(home(t.Tenant)).QueryRow(ctx, sql.Get("TurnsUsed"), t.Tenant, claimTurns.number, c.Rates.DispatchRate, c.Rates.Burst()).Scan(&c.RateUsed)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
	}
	if c.Rates.KindCaps[t.Kind] == 0 {
		return nil
	}
	var sum atomic.Int64
	err := s.cluster.Each(ctx, func(ctx context.Context, d int) error {
		var n int64
		err := s.cluster.Pool(d).QueryRow(ctx, sql.Get("CapOpen"), t.Tenant, t.Kind).Scan(&n)
		sum.Add(n)
		return err
	})
	c.KindOpen = int(sum.Load())
	return err
}

// lastDead returns the last run of a FAILED task that was given up, or nil.
func (s *Store) lastDead(ctx context.Context, t *task.Snapshot) (*task.DeadRun, error) {
	if t.State != task.Failed {
		return nil, nil
	}
	list, err := s.lookDead(ctx, t.ID.Shard().Database(), "DeadWalk", t.Tenant, int64(t.ID), max(0, t.Seq-explainedDead), explainedDead)
	var last *task.DeadRun
	for _, d := range list {
		if d.RunID.Task == t.ID {
			last = &d.DeadRun
		}
	}
	return last, err
}

// queueTrouble notes that rows of tenants were put off because their topics take
// no records, for [Store.Explain].
func queueTrouble(b *pgx.Batch, tenants []int32) {
	b.Queue(sql.Get("TroubleNote"), tenants, brokenFor.Milliseconds())
}
