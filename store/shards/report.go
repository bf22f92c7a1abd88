package shards

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/shards/history"
	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/store/statement"
	"github.com/perceptor/perceptor/task"
)

// reported is one result that is being applied.
type reported struct {
	tenant      int32
	paramsBytes int
	task.Report
}

// plain reports whether SQL may decide the result.
func (r *reported) plain() bool { return r.Outcome == task.Success && r.Patch == nil }

func (r *reported) entry() entry {
	event, detail := task.EventSucceeded, r.Error
	switch r.Outcome {
	case task.Fail:
		event = task.EventFailed
	case task.Snooze:
		event, detail = task.EventSnoozed, r.After.String()
	}
	return entry{tenant: r.tenant, attempt: r.Attempt, event: event, detail: detail, timeline: r.Timeline, apply: func(k *task.Machine, now task.Instant) task.Reply {
		reply := k.Report(r.Report, now, jitter(), mergeParams(r.paramsBytes))
		reply.Type = k.Task.Type
		return reply
	}}
}

// Report applies results of one tenant and answers each, in order. paramsBytes is the
// tenant's limit for the params after a patch.
func (s *Store) Report(ctx context.Context, tenant int32, paramsBytes int, results []task.Report) ([]task.Reply, error) {
	in, capped := make([]reported, len(results)), false
	for i, r := range results {
		capped = capped || r.Capped
		in[i] = reported{tenant: tenant, paramsBytes: paramsBytes, Report: r}
		if len(r.Error) > task.MaxErrorBytes {
			in[i].Error = kernel.Truncate(r.Error, task.MaxErrorBytes)
		}
	}
	return spread(ctx, tenant, in, func(r *reported) task.ID { return r.Task }, func(d int) *kernel.Batcher[reported, task.Reply] {
		if capped {
			return s.dbs[d].cappedReports
		}
		return s.dbs[d].reports
	})
}

// spread sends entries to the batchers of their databases and returns the answers in the
// order of the entries. Entries of a database that did not answer are answered with
// Retry. Spread does not wait for a server that hangs. It returns an error only if no
// database answered, for other reasons than that.
func spread[E any](ctx context.Context, tenant int32, in []E, id func(*E) task.ID, to func(d int) *kernel.Batcher[E, task.Reply]) ([]task.Reply, error) {
	var parts [task.Databases][]int
	for i := range in {
		d := id(&in[i]).Shard().Database()
		parts[d] = append(parts[d], i)
	}
	replies := make([]task.Reply, len(in))
	type answer struct {
		d       int
		replies []task.Reply
		err     error
	}
	answers := make(chan answer, task.Databases)
	asked := 0
	for d, part := range parts {
		if len(part) == 0 {
			continue
		}
		asked++
		entries := make([]E, len(part))
		for j, i := range part {
			entries[j] = in[i]
		}
		go func() {
			r, err := to(d).Call(ctx, tenant, entries)
			answers <- answer{d, r, err}
		}()
	}
	var errs []error
	for range asked {
		a := <-answers
		for j, i := range parts[a.d] {
			if a.err != nil {
				replies[i] = task.Reply{Code: task.Retry}
			} else {
				replies[i] = a.replies[j]
			}
		}
		if a.err != nil && !kernel.Stalled(a.err) {
			errs = append(errs, a.err)
		}
	}
	if len(errs) == asked && asked > 0 {
		return nil, errors.Join(errs...)
	}
	return replies, nil
}

// doReports applies a group of results of one database. SQL decides a plain result if it
// is the first of its task.
func (s *Store) doReports(ctx context.Context, d int, in []reported) []task.Reply {
	plain := slices.DeleteFunc(firstOfTask(len(in), func(i int) kernel.Key { return kernel.KeyOf(in[i].tenant, in[i].Task, 0) }),
		func(i int) bool { return !in[i].plain() })
	var now task.Instant // of the database, at the time at
	var at time.Time
	replies := s.decideBoth(ctx, d, len(in), plain, func(i int) entry { return in[i].entry() }, func(replies []task.Reply) (err error) {
		now, err = s.reportPlain(ctx, d, in, plain, replies)
		at = time.Now()
		return err
	})
	s.lags.note(in, replies, now, at)
	return replies
}

// reportPlain applies results by SQL. It answers those that matched a row. A first run is
// probably that of a ONE_SHOT task, and ends its task; after a later run its task
// probably goes on. So each result goes first to the statement that will probably match,
// and to the other one only if it did not. A row that is looked up without a match
// costs 4 µs, a statement 0.3 ms. Then the history gets the events that the tenants' policies
// want, which are none while nothing is slow. reportPlain returns what the database's clock showed, or 0.
func (s *Store) reportPlain(ctx context.Context, d int, in []reported, plain []int, replies []task.Reply) (now task.Instant, err error) {
	if len(plain) == 0 {
		return 0, nil
	}
	due := task.Never
	err = s.db.InTx(ctx, d, "report", func(tx pgx.Tx) error {
		r := reporting{tx: tx, in: in, replies: replies, due: task.Never}
		firsts, laters := divide(plain, func(i int) bool { return in[i].Seq == 1 })
		if err := r.try(ctx, sql.ReportEnd, firsts, sql.ReportGoOn, laters); err != nil {
			return err
		}
		if err := r.try(ctx, sql.ReportGoOn, r.unanswered(firsts), sql.ReportEnd, r.unanswered(laters)); err != nil {
			return err
		}
		due = r.due
		now = r.now
		return r.record(ctx, history.Policies(s.cfg.History).Recorder(""), plain)
	})
	if err == nil {
		s.db.TellDue(d, due)
	}
	return now, err
}

// divide splits a list in two, in order, by first.
func divide(list []int, first func(int) bool) (yes, no []int) {
	for _, i := range list {
		if first(i) {
			yes = append(yes, i)
		} else {
			no = append(no, i)
		}
	}
	return yes, no
}

// reporting is one transaction of reportPlain.
type reporting struct {
	tx      pgx.Tx
	in      []reported
	replies []task.Reply
	due     task.Instant // the earliest due instant that was written
	now     task.Instant // of the results
}

// record inserts the events that the history keeps of the accepted results.
func (r *reporting) record(ctx context.Context, events history.Recorder, plain []int) error {
	for _, i := range plain {
		if r.replies[i].Code == task.Accepted {
			events.Succeeded(r.in[i].tenant, r.in[i].Attempt, r.in[i].Timeline, r.now)
		}
	}
	b := &pgx.Batch{}
	if events.Queue(b, r.now); b.Len() == 0 {
		return nil
	}
	return r.tx.SendBatch(ctx, b).Close()
}

// try passes two lists of results to two statements, in one round trip.
func (r *reporting) try(ctx context.Context, one *statement.Statement, a []int, other *statement.Statement, b []int) error {
	batch := &pgx.Batch{}
	r.queue(batch, one, a)
	r.queue(batch, other, b)
	if batch.Len() == 0 {
		return nil
	}
	return r.tx.SendBatch(ctx, batch).Close()
}

func (r *reporting) queue(b *pgx.Batch, statement *statement.Statement, list []int) {
	if len(list) == 0 {
		return
	}
	statement.Queue(b, reportArgs(r.in, list)...).Query(func(rows pgx.Rows) error {
		var n int64
		var at *int64
		var of task.Type
		_, err := pgx.ForEachRow(rows, []any{&n, &at, &of, &r.now}, func() error {
			r.replies[list[n-1]] = task.Reply{Code: task.Accepted, Type: of}
			r.due = min(r.due, kernel.InstantOr(at, task.Never))
			return nil
		})
		return err
	})
}

func (r *reporting) unanswered(list []int) []int {
	return slices.DeleteFunc(list, func(i int) bool { return r.replies[i].Code != 0 })
}

func reportArgs(in []reported, plain []int) []any {
	n := len(plain)
	shards, tenants, attempts := make([]int16, n), make([]int32, n), make([]int32, n)
	ids, seqs, holders := make([]int64, n), make([]int64, n), make([]int64, n)
	nexts, stops := make([]*int64, n), make([]bool, n)
	for j, i := range plain {
		r := &in[i]
		shards[j], tenants[j], ids[j] = int16(r.Task.Shard()), r.tenant, int64(r.Task)
		seqs[j], attempts[j], holders[j] = r.Seq, r.Attempt.Attempt, int64(r.Holder)
		nexts[j], stops[j] = kernel.Nullable(r.Next), r.Stop
	}
	return []any{shards, tenants, ids, seqs, attempts, holders, nexts, stops}
}
