package shards

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// check is a query about one attempt.
type check struct {
	tenant int32
	task.Seen
}

// Check returns which attempts are still to be handled, with the task's terms if those in
// the record are out of date. It locks and changes nothing.
func (s *Store) Check(ctx context.Context, tenant int32, as []task.Seen) ([]task.Reply, error) {
	in := make([]check, len(as))
	for i, a := range as {
		in[i] = check{tenant: tenant, Seen: a}
	}
	return spread(ctx, tenant, in, func(c *check) task.ID { return c.Task }, func(d int) *kernel.Batcher[check, task.Reply] { return s.dbs[d].checks })
}

// doChecks answers a group of checks of one database.
func (s *Store) doChecks(ctx context.Context, d int, in []check) []task.Reply {
	ctx, cancel := context.WithTimeout(ctx, s.db.StatementTimeout())
	defer cancel()
	replies, err := readChecks(ctx, s.db.Pool(d), in)
	if err == nil {
		err = whyGone(ctx, s.db.Pool(d), in, replies)
	}
	if err != nil {
		s.db.Log.Warn("runs were not checked; listeners ask again", "database", d, "entries", len(in), "err", err)
		replies = make([]task.Reply, len(in))
		for i := range replies {
			replies[i].Code = task.Retry
		}
	}
	return replies
}

// whyGone answers checks of attempts whose task has no row in the near tier. A task with
// an open run has such a row, so the run is closed.
func whyGone(ctx context.Context, q kernel.Querier, in []check, replies []task.Reply) error {
	var gone []kernel.Key
	for i, r := range replies {
		if r.Code == 0 {
			gone = append(gone, kernel.KeyOf(in[i].tenant, in[i].Task, 0))
		}
	}
	if len(gone) == 0 {
		return nil
	}
	done, err := finished(ctx, q, gone)
	if err != nil {
		return err
	}
	for i := range replies {
		if replies[i].Code == 0 {
			replies[i].Code = task.Unknown
			if done[kernel.KeyOf(in[i].tenant, in[i].Task, 0)] {
				replies[i].Code = task.Finished
			}
		}
	}
	return nil
}

// readChecks looks up attempts, all in one snapshot. It sets no code for attempts whose
// task has no row.
func readChecks(ctx context.Context, q kernel.Querier, in []check) ([]task.Reply, error) {
	n := len(in)
	shards, tenants, versions := make([]int16, n), make([]int32, n), make([]int32, n)
	ids, seqs := make([]int64, n), make([]int64, n)
	for i := range in {
		c := &in[i]
		shards[i], tenants[i], versions[i] = int16(c.Task.Shard()), c.tenant, c.Version
		ids[i], seqs[i] = int64(c.Task), c.Seq
	}
	rows, err := sql.CheckRuns.Query(ctx, q, shards, tenants, ids, seqs, versions)
	if err != nil {
		return nil, err
	}
	replies := make([]task.Reply, n)
	var at, seq, bits int64
	var typ, state int16
	var openRows, attempt, version int32
	var out bool
	var runAttempt *int32
	var runOut *bool
	var kind string
	var params []byte
	_, err = pgx.ForEachRow(rows, []any{&at, &typ, &state, &seq, &bits, &openRows, &attempt, &out, &runAttempt, &runOut, &version, &kind, &params}, func() error {
		c := &in[at-1]
		t := &task.Row{Type: task.Type(typ), State: task.State(state), Seq: seq, OpenRuns: uint64(bits), OpenRows: openRows, Attempt: attempt, Out: out}
		k := &task.Machine{Task: t}
		if runAttempt != nil {
			k.Runs = map[int64]*task.Row{c.Seq: {Run: c.Seq, Type: t.Type, State: task.Running, Attempt: *runAttempt, Out: *runOut}}
		}
		r := task.Reply{Code: k.Check(c.Attempt)}
		if r.Code == task.Accepted && version > 0 {
			r.Terms = &task.RunTerms{Version: version, Kind: kind, Params: params}
		}
		replies[at-1] = r
		return nil
	})
	return replies, err
}
