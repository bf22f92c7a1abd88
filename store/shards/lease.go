package shards

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// held is a call of a holder about one attempt: a start, a heartbeat, or a hand-back.
type held struct {
	tenant int32
	holder task.Holder
	task.Attempt
	version int32 // version of the holder's terms; starts return newer terms
	step    func(k *task.Machine, a task.Attempt, h task.Holder, now task.Instant) task.Reply
	event   task.Event // history event of an accepted call
	// timeline is that of the event.
	timeline *task.Timeline
}

func (e *held) entry() entry {
	return entry{tenant: e.tenant, attempt: e.Attempt, event: e.event, timeline: e.timeline, apply: func(k *task.Machine, now task.Instant) task.Reply {
		reply := e.step(k, e.Attempt, e.holder, now)
		if reply.Code == task.Accepted {
			reply.Terms = k.Newer(e.Seq, e.version)
		}
		return reply
	}}
}

// Start acquires the leases of BLOCKING runs, and answers each attempt in order. The reply
// to an accepted one has the task's terms if they are newer than the holder's.
func (s *Store) Start(ctx context.Context, tenant int32, h task.Holder, as []task.Seen) ([]task.Reply, error) {
	in := make([]held, len(as))
	for i, a := range as {
		in[i] = held{tenant: tenant, holder: h, Attempt: a.Attempt, version: a.Version, step: (*task.Machine).Start}
	}
	return spread(ctx, tenant, in, (*held).id, func(d int) *kernel.Batcher[held, task.Reply] { return s.dbs[d].starts })
}

// Heartbeat extends the deadlines of attempts that are being executed.
func (s *Store) Heartbeat(ctx context.Context, tenant int32, h task.Holder, as []task.Attempt) ([]task.Reply, error) {
	return spread(ctx, tenant, holds(tenant, h, as, (*task.Machine).Heartbeat), (*held).id, func(d int) *kernel.Batcher[held, task.Reply] { return s.dbs[d].beats })
}

// HandBack returns runs that their listener cannot handle. timelines are those of the
// attempts, or nil.
func (s *Store) HandBack(ctx context.Context, tenant int32, h task.Holder, as []task.Attempt, timelines []*task.Timeline) ([]task.Reply, error) {
	return spread(ctx, tenant, handBacks(tenant, h, as, timelines), (*held).id, func(d int) *kernel.Batcher[held, task.Reply] { return s.dbs[d].beats })
}

func (e *held) id() task.ID { return e.Task }

func holds(tenant int32, h task.Holder, as []task.Attempt, step func(*task.Machine, task.Attempt, task.Holder, task.Instant) task.Reply) []held {
	out := make([]held, len(as))
	for i, a := range as {
		out[i] = held{tenant: tenant, holder: h, Attempt: a, step: step}
	}
	return out
}

func handBacks(tenant int32, h task.Holder, as []task.Attempt, timelines []*task.Timeline) []held {
	out := holds(tenant, h, as, (*task.Machine).HandBack)
	for i := range out {
		if out[i].event = task.EventHandedBack; i < len(timelines) {
			out[i].timeline = timelines[i]
		}
	}
	return out
}

// doBeats applies a group of heartbeats and hand-backs of one database.
func (s *Store) doBeats(ctx context.Context, d int, in []held) []task.Reply {
	entries := make([]entry, len(in))
	for i := range in {
		entries[i] = in[i].entry()
	}
	return s.apply(ctx, d, entries)
}

// doStarts applies a group of starts of one database.
func (s *Store) doStarts(ctx context.Context, d int, in []held) []task.Reply {
	first := firstOfTask(len(in), func(i int) kernel.Key { return kernel.KeyOf(in[i].tenant, in[i].Task, 0) })
	return s.decideBoth(ctx, d, len(in), first, func(i int) entry { return in[i].entry() },
		func(replies []task.Reply) error { return s.startPlain(ctx, d, in, first, replies) })
}

func (s *Store) startPlain(ctx context.Context, d int, in []held, first []int, replies []task.Reply) error {
	n := len(first)
	shards, tenants, attempts := make([]int16, n), make([]int32, n), make([]int32, n)
	ids, seqs, holders := make([]int64, n), make([]int64, n), make([]int64, n)
	for j, i := range first {
		e := &in[i]
		shards[j], tenants[j], ids[j] = int16(e.Task.Shard()), e.tenant, int64(e.Task)
		seqs[j], attempts[j], holders[j] = e.Seq, e.Attempt.Attempt, int64(e.holder)
	}
	var newer []task.Seen
	var at []int
	err := s.db.InTx(ctx, d, "start", func(tx pgx.Tx) error {
		b := &pgx.Batch{}
		sql.StartRuns.Queue(b, shards, tenants, ids, seqs, attempts, holders).Query(func(rows pgx.Rows) error {
			var n, left int64
			var version int32
			_, err := pgx.ForEachRow(rows, []any{&n, &left, &version}, func() error {
				i := first[n-1]
				replies[i] = task.Reply{Code: task.Accepted, Lease: time.Duration(left) * time.Millisecond}
				if e := &in[i]; e.version != 0 && e.version < version {
					newer, at = append(newer, task.Seen{Attempt: e.Attempt, Version: e.version}), append(at, i)
				}
				return nil
			})
			return err
		})
		return kernel.SendLast(ctx, tx, b)
	})
	if err != nil || len(newer) == 0 {
		return err
	}
	return s.addTerms(ctx, d, in, newer, at, replies)
}

// addTerms adds the terms of tasks that were edited since their records were made to the
// replies at the given indexes.
func (s *Store) addTerms(ctx context.Context, d int, in []held, newer []task.Seen, at []int, replies []task.Reply) error {
	list := make([]check, len(newer))
	for i, a := range newer {
		list[i] = check{tenant: in[at[i]].tenant, Seen: a}
	}
	found, err := readChecks(ctx, s.db.Pool(d), list)
	if err != nil {
		return err // the leases are committed; a repeated start gets the answer
	}
	for i, r := range found {
		replies[at[i]].Terms = r.Terms
	}
	return nil
}
