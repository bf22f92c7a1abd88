package shards

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/internal/ctxtime"
	"github.com/perceptor/perceptor/store/shards/far"
	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/store/shards/transition"
	"github.com/perceptor/perceptor/task"
)

// errSlowSteps is why a group of several tenants is tried again in parts: one of them has tasks whose steps take long.
var errSlowSteps = errors.New("the steps of its tasks take too long for one transaction")

// busyFor is how long entries are retried while other transactions have locked their rows.
const busyFor = 2 * time.Second

// entry is a call of a listener about an attempt, to be applied by the state machine.
type entry struct {
	tenant  int32
	attempt task.Attempt
	apply   func(k *task.Machine, now task.Instant) task.Reply
	// event is the history event of the run if the entry is accepted; 0 means no event.
	event    task.Event
	detail   string
	timeline *task.Timeline
}

// applyTo takes the step, and records its effects in the effects.
func (e *entry) applyTo(k *task.Machine, now task.Instant, l *transition.Effects) task.Reply {
	if e.event == 0 || e.event != task.EventSucceeded && !l.Wants(e.tenant, e.event) {
		return e.apply(k, now)
	}
	scheduled := k.ScheduledAt(e.attempt.Seq)
	reply := e.apply(k, now)
	switch {
	case reply.Code != task.Accepted:
	case e.event == task.EventSucceeded:
		l.Succeeded(e.tenant, e.attempt, e.timeline, now)
	default:
		l.Note(e.tenant, e.attempt, e.event, scheduled, e.detail, e.timeline)
	}
	return reply
}

func (e *entry) taskKey() kernel.Key { return kernel.KeyOf(e.tenant, e.attempt.Task, 0) }
func (e *entry) runKey() kernel.Key  { return kernel.KeyOf(e.tenant, e.attempt.Task, e.attempt.Seq) }

// apply applies entries of one database through the state machine, in order, and answers
// each. Entries whose rows are locked are retried for busyFor and then answered with
// Retry.
func (s *Store) apply(ctx context.Context, d int, entries []entry) []task.Reply {
	replies := make([]task.Reply, len(entries))
	pending := make([]int, len(entries))
	for i := range entries {
		pending[i] = i
	}
	deadline := time.Now().Add(busyFor)
	for pause := 5 * time.Millisecond; len(pending) > 0; pause *= 2 {
		var err error
		if pending, err = s.applyOnce(ctx, d, entries, pending, replies); err != nil && !kernel.LockConflict(err) {
			if parts := byTenant(entries, pending); len(parts) > 1 && !kernel.NoAnswer(err) {
				s.applyParts(ctx, d, entries, parts, replies)
				return replies
			}
			s.db.Log.Warn("results were not applied; listeners send them again", "database", d, "entries", len(pending), "err", err)
			break
		}
		if len(pending) == 0 || time.Now().Add(pause).After(deadline) || !ctxtime.Sleep(ctx, pause) {
			break
		}
	}
	for _, i := range pending {
		replies[i] = task.Reply{Code: task.Retry}
	}
	return replies
}

// byTenant divides the entries with the indexes list by their tenants.
func byTenant(entries []entry, list []int) map[int32][]int {
	parts := map[int32][]int{}
	for _, i := range list {
		parts[entries[i].tenant] = append(parts[entries[i].tenant], i)
	}
	return parts
}

// applyParts applies the entries of a group that has failed by tenant, so that entries of one
// cannot fail those of others.
func (s *Store) applyParts(ctx context.Context, d int, entries []entry, parts map[int32][]int, replies []task.Reply) {
	for _, part := range parts {
		own := make([]entry, len(part))
		for j, i := range part {
			own[j] = entries[i]
		}
		for j, r := range s.apply(ctx, d, own) {
			replies[part[j]] = r
		}
	}
}

// decideBoth answers n entries of one database. First bySQL answers the entries with the
// indexes plain for which it finds a row. Then the state machine answers all others, in
// their order, and says why there was no row.
func (s *Store) decideBoth(ctx context.Context, d, n int, plain []int, at func(i int) entry, bySQL func(replies []task.Reply) error) []task.Reply {
	replies := make([]task.Reply, n)
	if len(plain) > 0 {
		if err := bySQL(replies); err != nil {
			clear(replies) // assume that nothing was committed; the entries are applied one by one
			if !kernel.LockConflict(err) {
				s.db.Log.Warn("results were not applied as one group; applying them one by one", "database", d, "entries", len(plain), "err", err)
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

// firstOfTask returns the indexes of the entries, of n, that are the first of their task,
// in the order of the tasks' keys.
func firstOfTask(n int, of func(i int) kernel.Key) []int {
	seen := map[kernel.Key]bool{}
	var out []int
	for i := range n {
		if k := of(i); !seen[k] {
			seen[k] = true
			out = append(out, i)
		}
	}
	slices.SortFunc(out, func(a, b int) int { return kernel.CompareKeys(of(a), of(b)) })
	return out
}

// applyOnce is one transaction of apply over the entries with the indexes pending. It
// returns the indexes that are still pending; after an error that is all of them.
func (s *Store) applyOnce(ctx context.Context, d int, entries []entry, pending []int, replies []task.Reply) ([]int, error) {
	var busy []int
	var dead []task.DeadRun
	due := task.Never
	l := s.machines.NewEffects()
	err := s.db.InTx(ctx, d, "apply", func(tx pgx.Tx) error {
		now, err := kernel.Clock(ctx, tx)
		if err != nil {
			return err
		}
		var keys []kernel.Key
		for _, i := range pending {
			keys = append(keys, entries[i].taskKey(), entries[i].runKey())
		}
		machines, _, err := s.machines.LockSome(ctx, tx, keys)
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
		var touched transition.Touched
		began := time.Now()
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
			case len(touched.Machines) > 0 && s.machines.Over(began):
				if len(byTenant(entries, pending)) > 1 {
					return errSlowSteps
				}
				busy = append(busy, i)
			default:
				replies[i] = e.applyTo(machine, now, l)
				touched.Add(machine)
			}
		}
		if err := unchanged(far); err != nil {
			return err
		}
		dead = touched.Dead()
		due, err = transition.WriteLast(ctx, tx, touched.Machines, now, l)
		return err
	})
	if err != nil {
		return pending, err
	}
	s.db.TellDue(d, due)
	s.machines.TellMissed(l.Missed)
	if s.cfg.Died != nil && len(dead) > 0 {
		s.cfg.Died(dead)
	}
	return busy, nil
}

// whyAbsent returns, for each pending entry whose rows were not all locked, the reason:
// Retry (another transaction has locked a row), Finished or Unknown. Entries whose rows
// are locked are not in the map.
func whyAbsent(ctx context.Context, tx pgx.Tx, entries []entry, pending []int, machines map[kernel.Key]*task.Machine) (map[int]task.Code, error) {
	out := map[int]task.Code{}
	var look []kernel.Key
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

// finished returns the keys of tasks that have ended and are retained.
func finished(ctx context.Context, q kernel.Querier, keys []kernel.Key) (map[kernel.Key]bool, error) {
	var tenants []int32
	var ids []int64
	for _, k := range keys {
		tenants = append(tenants, k.Tenant)
		ids = append(ids, int64(k.ID))
	}
	rows, err := sql.DoneStates.Query(ctx, q, tenants, ids)
	if err != nil {
		return nil, err
	}
	out := map[kernel.Key]bool{}
	var tenant int32
	var id int64
	_, err = pgx.ForEachRow(rows, []any{&tenant, &id}, func() error {
		out[kernel.KeyOf(tenant, task.ID(id), 0)] = true
		return nil
	})
	return out, err
}

// jitter returns the random number of a backoff.
func jitter() float64 { return rand.Float64() }

// packedMachines adds the packed rows of tasks that are not in the near tier to machines,
// so that the state machine can answer, and also returns them. It removes the entries of
// these tasks from absent. Entries of tasks that are moving between tiers are to be
// retried.
func packedMachines(ctx context.Context, q kernel.Querier, entries []entry, absent map[int]task.Code, machines map[kernel.Key]*task.Machine) (map[kernel.Key]*task.Machine, error) {
	var keys []kernel.Key
	for i, code := range absent {
		if code == task.Unknown {
			keys = append(keys, entries[i].taskKey())
		}
	}
	if len(keys) == 0 {
		return nil, nil
	}
	far, moved, err := far.Machines(ctx, q, keys)
	if err != nil {
		return nil, err
	}
	for i, code := range absent {
		k := entries[i].taskKey()
		switch {
		case code != task.Unknown:
		case far[k] != nil:
			machines[k] = far[k]
			delete(absent, i)
		case moved[k]:
			absent[i] = task.Retry
		}
	}
	return far, nil
}

// unchanged returns an error if a step has changed a packed task. A packed task has no
// open run, so a step has nothing to start, extend or close.
func unchanged(far map[kernel.Key]*task.Machine) error {
	for _, k := range far {
		if k.Task.Change != task.Kept || len(k.Runs) > 0 || len(k.Dead) > 0 {
			return fmt.Errorf("a step has changed task %d, which is packed", k.Task.ID)
		}
	}
	return nil
}
