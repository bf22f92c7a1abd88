package shards

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/task"
)

// busyFor is how long rows that somebody else has locked are tried again.
const busyFor = 2 * time.Second

// lockMachines locks the rows of keys and returns them by the key of their task.
// Rows that somebody else has locked are missing, as are rows that do not exist.
func (s *Store) lockMachines(ctx context.Context, tx pgx.Tx, keys []key) (map[key]*task.Machine, error) {
	rows, err := tx.Query(ctx, sql.Get("KinLock"), keyArgs(uniqueKeys(keys))...)
	if err != nil {
		return nil, err
	}
	list, err := collectRows(rows)
	if err != nil {
		return nil, err
	}
	machines := map[key]*task.Machine{}
	for _, r := range list {
		k := rowKey(r).task()
		machine := machines[k]
		if machine == nil {
			machine = &task.Machine{Runs: map[int64]*task.Row{}, CatchUpInterval: s.cfg.CatchUpInterval}
			machines[k] = machine
		}
		if r.Run == 0 {
			s.setCalendar(r)
			machine.Task, machine.Was = r, r.State
		} else {
			machine.Runs[r.Run] = r
		}
	}
	return machines, nil
}

// living reports whether the row of a task was locked, and no step has ended the
// task since.
func living(k *task.Machine) bool { return k != nil && k.Task != nil && k.Task.Change != task.Removed }

// kinList collects the machines that steps have touched, each once, in order.
type kinList struct {
	machines []*task.Machine
	seen     map[*task.Machine]bool
}

func (l *kinList) add(k *task.Machine) {
	if l.seen == nil {
		l.seen = map[*task.Machine]bool{}
	}
	if !l.seen[k] {
		l.seen[k] = true
		l.machines = append(l.machines, k)
	}
}

// dead returns the runs that the steps gave up.
func (l *kinList) dead() []task.DeadRun {
	var out []task.DeadRun
	for _, k := range l.machines {
		out = append(out, k.Dead...)
	}
	return out
}

// writeMachines carries out what steps did to rows, with what that means for the
// ledger, in one round trip. It returns the earliest due instant that was written.
func writeMachines(ctx context.Context, tx pgx.Tx, machines []*task.Machine, now task.Instant, l *ledger) (task.Instant, error) {
	b, due := kinBatch(machines, now, l)
	if b.Len() == 0 {
		return due, nil
	}
	return due, tx.SendBatch(ctx, b).Close()
}

// writeKinsLast is writeMachines as the last thing that a step does.
func writeKinsLast(ctx context.Context, tx pgx.Tx, machines []*task.Machine, now task.Instant, l *ledger) (task.Instant, error) {
	b, due := kinBatch(machines, now, l)
	if b.Len() == 0 {
		return due, nil
	}
	return due, sendLast(ctx, tx, b)
}

func kinBatch(machines []*task.Machine, now task.Instant, l *ledger) (*pgx.Batch, task.Instant) {
	b := &pgx.Batch{}
	due := queueMachines(b, machines, now, l)
	l.queue(b, now)
	return b, due
}

// queueMachines adds what steps did to rows to a batch, and to the ledger.
func queueMachines(b *pgx.Batch, machines []*task.Machine, now task.Instant, l *ledger) task.Instant {
	return queueRows(b, machines, now, l, func(r *task.Row) { queueRow(b, r) })
}

// queueClaimed is queueMachines for the steps of a claim: all rows that they changed
// are written by one statement.
func queueClaimed(b *pgx.Batch, machines []*task.Machine, now task.Instant, l *ledger) task.Instant {
	var u rowUpdates
	due := queueRows(b, machines, now, l, func(r *task.Row) {
		if r.Change == task.Changed {
			u.add(r)
		} else {
			queueRow(b, r)
		}
	})
	u.queue(b)
	return due
}

// queueRows gives each row that was changed, but for those of ended tasks, to
// write, and returns the earliest due instant of them.
func queueRows(b *pgx.Batch, machines []*task.Machine, now task.Instant, l *ledger, write func(r *task.Row)) task.Instant {
	due := task.Never
	for _, k := range machines {
		l.machine(k)
		queueDead(b, k)
		if k.Task.Change == task.Removed {
			queueFinish(b, k.Task, now)
			continue
		}
		for _, r := range k.Runs {
			if r.Change == task.Kept {
				continue
			}
			write(r)
			if r.Change != task.Removed {
				due = min(due, r.DueAt)
			}
		}
		if k.Task.Change != task.Kept {
			write(k.Task)
			due = min(due, k.Task.DueAt)
		}
		if k.Edited {
			queueEdit(b, k)
		}
	}
	return due
}

// rowUpdates are rows column by column, for RowsUpdate.
type rowUpdates struct {
	keys                                  []key
	dues, firstClaims, holders            []*int64
	scheduleds, anchors, seqs, bits, miss []int64
	openRows, attempts, failures          []int32
	states                                []int16
	outs                                  []bool
}

func (u *rowUpdates) add(r *task.Row) {
	u.keys = append(u.keys, rowKey(r))
	u.dues, u.firstClaims, u.holders = append(u.dues, nullable(r.DueAt)), append(u.firstClaims, orNull(int64(r.FirstClaimAt))), append(u.holders, orNull(int64(r.Holder)))
	u.scheduleds, u.anchors, u.seqs = append(u.scheduleds, int64(r.ScheduledAt)), append(u.anchors, int64(r.Anchor)), append(u.seqs, r.Seq)
	u.bits, u.miss = append(u.bits, int64(r.OpenRuns)), append(u.miss, r.Missed)
	u.openRows, u.attempts, u.failures = append(u.openRows, r.OpenRows), append(u.attempts, r.Attempt), append(u.failures, failures(r))
	u.states, u.outs = append(u.states, int16(r.State)), append(u.outs, r.Out)
}

func (u *rowUpdates) queue(b *pgx.Batch) {
	if len(u.keys) == 0 {
		return
	}
	b.Queue(sql.Get("RowsUpdate"), append(keyArgs(u.keys), u.dues, u.scheduleds, u.anchors, u.seqs, u.bits, u.openRows,
		u.attempts, u.failures, u.firstClaims, u.holders, u.miss, u.states, u.outs)...)
}

func queueDead(b *pgx.Batch, k *task.Machine) {
	for _, dead := range k.Dead {
		params := k.Task.Params
		if r := k.Runs[dead.RunID.Seq]; r != nil {
			params = r.Params
		}
		b.Queue(sql.Get("DeadInsert"), dead.Tenant, int64(dead.RunID.Task), dead.RunID.Seq, int64(dead.ScheduledAt),
			dead.Attempt, int16(dead.Reason), dead.Kind, dead.Error, params, int64(dead.DiedAt), int16(k.Task.Type), task.Seal(&k.Task.Terms, &k.Task.Origin),
			k.Task.GiveUpAfter.Milliseconds(), max(0, k.Task.Retention.Milliseconds()), int32(k.Task.AckTimeout.Milliseconds()),
			int32(k.Task.Retry.InitialBackoff.Milliseconds()), int32(k.Task.Retry.MaxBackoff.Milliseconds()),
			int16(k.Task.Retry.MaxAttempts), hundredths(k.Task.Retry.Multiplier), hundredths(k.Task.Retry.Jitter))
	}
}

func queueFinish(b *pgx.Batch, t *task.Row, now task.Instant) {
	b.Queue(sql.Get("TaskFinish"), int16(t.ID.Shard()), t.Tenant, int64(t.ID), int16(t.State), t.Seq, t.Missed, t.Version,
		notNil(t.Params), int64(now))
}

func queueRow(b *pgx.Batch, r *task.Row) {
	shard, id := int16(r.ID.Shard()), int64(r.ID)
	switch r.Change {
	case task.Added:
		b.Queue(sql.Get("RowAdd"), shard, r.Tenant, id, r.Run, nullable(r.DueAt), int64(r.ScheduledAt), r.Attempt, failures(r),
			orNull(int64(r.FirstClaimAt)), r.Version, r.Out, notNil(r.Params))
	case task.Changed:
		b.Queue(sql.Get("RowUpdate"), shard, r.Tenant, id, r.Run, nullable(r.DueAt), int64(r.ScheduledAt), int64(r.Anchor),
			r.Seq, int64(r.OpenRuns), r.OpenRows, r.Attempt, failures(r), orNull(int64(r.FirstClaimAt)), orNull(int64(r.Holder)),
			r.Missed, r.Version, int16(r.State), r.Paused, r.Out, notNil(r.Params))
	case task.Removed:
		b.Queue(sql.Get("RowRemove"), shard, r.Tenant, id, r.Run)
	}
}

// queueEdit writes the terms of a task into its row and all its run rows, those
// included that the same batch has made before.
func queueEdit(b *pgx.Batch, k *task.Machine) {
	t := k.Task
	var params []byte // NULL: as they are
	if k.EditedParams {
		params = notNil(t.Params)
	}
	b.Queue(sql.Get("RowEdit"), int16(t.ID.Shard()), t.Tenant, int64(t.ID), t.Kind, int64(t.Begin), nullable(t.End),
		orNull(t.Interval.Milliseconds()), orNull(t.MaxCount), int32(t.AckTimeout.Milliseconds()), t.GiveUpAfter.Milliseconds(),
		max(0, t.Retention.Milliseconds()), int32(t.Retry.InitialBackoff.Milliseconds()), int32(t.Retry.MaxBackoff.Milliseconds()),
		int16(t.Retry.MaxAttempts), hundredths(t.Retry.Multiplier), hundredths(t.Retry.Jitter), t.StopOnFailure,
		t.Modeled(), task.Seal(&t.Terms, &t.Origin), t.Version, params)
}

// entry is something that a listener said about an attempt, on its way through
// the state machine.
type entry struct {
	tenant  int32
	attempt task.Attempt
	apply   func(k *task.Machine, now task.Instant) task.Reply
	// event is what happens to the run when the entry is accepted; 0: nothing
	// worth telling.
	event  task.Event
	detail string
}

// take makes the step, and notes in the ledger what came of it.
func (e *entry) take(k *task.Machine, now task.Instant, l *ledger) task.Reply {
	if e.event == 0 || !l.wants(e.tenant, e.event) {
		return e.apply(k, now)
	}
	scheduled := k.ScheduledAt(e.attempt.Seq)
	reply := e.apply(k, now)
	if reply.Code == task.Accepted {
		l.note(e.tenant, e.attempt, e.event, scheduled, e.detail)
	}
	return reply
}

func (e *entry) taskKey() key { return keyOf(e.tenant, e.attempt.Task, 0) }
func (e *entry) runKey() key  { return keyOf(e.tenant, e.attempt.Task, e.attempt.Seq) }

// apply takes entries of one database through the state machine, in order, and
// answers each. Entries whose rows are locked are tried again for busyFor and
// then answered with Retry.
func (s *Store) apply(ctx context.Context, d int, entries []entry) []task.Reply {
	replies := make([]task.Reply, len(entries))
	pending := make([]int, len(entries))
	for i := range entries {
		pending[i] = i
	}
	deadline := time.Now().Add(busyFor)
	for pause := 5 * time.Millisecond; len(pending) > 0; pause *= 2 {
		var err error
		if pending, err = s.applyOnce(ctx, d, entries, pending, replies); err != nil && !lockConflict(err) {
			s.cfg.Log.Warn("results were not applied; listeners send them again", "database", d, "entries", len(pending), "err", err)
			break
		}
		if len(pending) == 0 || time.Now().Add(pause).After(deadline) || !sleep(ctx, pause) {
			break
		}
	}
	for _, i := range pending {
		replies[i] = task.Reply{Code: task.Retry}
	}
	return replies
}

// sleep returns false when ctx ends first. It does not wait for what has passed.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// decideBoth answers n entries of one database: first bySQL answers those of the
// indexes plain that it finds a row for; then, in their order, the state machine
// answers all others, and says why there was no row.
func (s *Store) decideBoth(ctx context.Context, d, n int, plain []int, at func(i int) entry, bySQL func(replies []task.Reply) error) []task.Reply {
	replies := make([]task.Reply, n)
	if len(plain) > 0 {
		if err := bySQL(replies); err != nil {
			clear(replies) // nothing of it was committed, as far as we know
			if !lockConflict(err) {
				s.cfg.Log.Warn("results were not applied as one group; applying them one by one", "database", d, "entries", len(plain), "err", err)
			}
		}
	}
	var rest []int
	var entries []entry
	for i := range n {
		if replies[i].Code == 0 {
			rest = append(rest, i)
			entries = append(entries, at(i))
		}
	}
	for j, r := range s.apply(ctx, d, entries) {
		replies[rest[j]] = r
	}
	return replies
}

// firstOfTask returns the indexes of those of n entries that are the first of
// their task, in the order of the tasks' keys.
func firstOfTask(n int, of func(i int) key) []int {
	seen := map[key]bool{}
	var out []int
	for i := range n {
		if k := of(i); !seen[k] {
			seen[k] = true
			out = append(out, i)
		}
	}
	slices.SortFunc(out, func(a, b int) int { return compareKeys(of(a), of(b)) })
	return out
}

// applyOnce is one transaction of apply over the entries whose indexes are
// pending. It returns those that are still pending; after an error all are.
func (s *Store) applyOnce(ctx context.Context, d int, entries []entry, pending []int, replies []task.Reply) ([]int, error) {
	var busy []int
	var dead []task.DeadRun
	due := task.Never
	err := s.inTx(ctx, d, "apply", func(tx pgx.Tx) error {
		now, err := clock(ctx, tx)
		if err != nil {
			return err
		}
		var keys []key
		for _, i := range pending {
			keys = append(keys, entries[i].taskKey(), entries[i].runKey())
		}
		machines, err := s.lockMachines(ctx, tx, keys)
		if err != nil {
			return err
		}
		absent, err := whyAbsent(ctx, tx, entries, pending, machines)
		if err != nil {
			return err
		}
		far, err := packedMachines(ctx, tx, entries, absent, machines)
		if err != nil {
			return err
		}
		var touched kinList
		l := s.newLedger()
		for _, i := range pending {
			e := &entries[i]
			machine := machines[e.taskKey()]
			switch code := absent[i]; {
			case code == task.Retry:
				busy = append(busy, i)
			case code != 0:
				replies[i] = task.Reply{Code: code}
			case machine.Task.Change == task.Removed:
				replies[i] = task.Reply{Code: task.Finished}
			default:
				replies[i] = e.take(machine, now, l)
				touched.add(machine)
			}
		}
		if err := unchanged(far); err != nil {
			return err
		}
		dead = touched.dead()
		due, err = writeKinsLast(ctx, tx, touched.machines, now, l)
		return err
	})
	if err != nil {
		return pending, err
	}
	s.due(d, due)
	if s.cfg.Died != nil && len(dead) > 0 {
		s.cfg.Died(dead)
	}
	return busy, nil
}

// whyAbsent says about each pending entry whose rows were not all locked why that
// is: Retry (somebody else has one), Finished or Unknown. Entries that can go on
// are not in the map.
func whyAbsent(ctx context.Context, tx pgx.Tx, entries []entry, pending []int, machines map[key]*task.Machine) (map[int]task.Code, error) {
	out := map[int]task.Code{}
	var look []key
	for _, i := range pending {
		e := &entries[i]
		machine := machines[e.taskKey()]
		switch {
		case machine == nil || machine.Task == nil:
			look = append(look, e.taskKey())
			out[i] = task.Unknown
		case machine.Task.OpenRows > 0 && machine.Runs[e.attempt.Seq] == nil:
			look = append(look, e.runKey())
		}
	}
	if len(look) == 0 {
		return out, nil
	}
	locked, err := readRows(ctx, tx, look)
	if err != nil {
		return nil, err
	}
	done, err := finished(ctx, tx, look)
	if err != nil {
		return nil, err
	}
	for _, i := range pending {
		e := &entries[i]
		machine := machines[e.taskKey()]
		present := machine != nil && machine.Task != nil
		switch {
		case !present && locked[e.taskKey()] != nil, present && machine.Runs[e.attempt.Seq] == nil && locked[e.runKey()] != nil:
			out[i] = task.Retry
		case !present && done[e.taskKey()]:
			out[i] = task.Finished
		}
	}
	return out, nil
}

// finished tells which tasks have ended and are still known.
func finished(ctx context.Context, q querier, keys []key) (map[key]bool, error) {
	var tenants []int32
	var ids []int64
	for _, k := range keys {
		tenants = append(tenants, k.tenant)
		ids = append(ids, int64(k.id))
	}
	rows, err := q.Query(ctx, sql.Get("DoneStates"), tenants, ids)
	if err != nil {
		return nil, err
	}
	out := map[key]bool{}
	var tenant int32
	var id int64
	_, err = pgx.ForEachRow(rows, []any{&tenant, &id}, func() error {
		out[keyOf(tenant, task.ID(id), 0)] = true
		return nil
	})
	return out, err
}

// jitter draws the random number of a backoff.
func jitter() float64 { return rand.Float64() }
