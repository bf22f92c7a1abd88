package shards

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/internal/ctxtime"
	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/store/shards/transition"
	"github.com/perceptor/perceptor/task"
)

const (
	// republishLook is the most rows that a step of a republication reads.
	republishLook = 1000
	// republishTries is how often a step tries rows that others have locked.
	republishTries = 20
)

// A Republication makes open runs of one database due again, step by step, beside everything
// else. It is not safe for concurrent use.
type Republication struct {
	store *Store
	d     int
	req   task.RepublishRequest
	// The position: rows of earlier shards, and those up to at, are done.
	shard task.Shard
	at    kernel.Key
}

// Republish begins a republication.
func (s *Store) Republish(d int, req task.RepublishRequest) *Republication {
	r := &Republication{store: s, d: d, req: req, shard: task.Shard(d * task.ShardsPerDatabase)}
	r.at.Tenant = req.Tenant
	return r
}

// Step handles the next rows. After an error it may be repeated.
func (r *Republication) Step(ctx context.Context) (out task.Republished, err error) {
	for try := 0; ; try++ {
		keys, last, err := r.walk(ctx)
		if err != nil {
			return out, fmt.Errorf("republish: %w", err)
		}
		runs, locked, err := r.handle(ctx, keys)
		if err != nil {
			return out, fmt.Errorf("republish: %w", err)
		}
		out.Runs += runs
		if locked == len(keys) || try == republishTries || !ctxtime.Sleep(ctx, 20*time.Millisecond) {
			out.Busy = len(keys) - locked
			out.Done = r.advance(last)
			return out, ctx.Err()
		}
	}
}

// walk returns the keys of the rows of a page that may be wanted, and the last key of the
// page, or nil at the end of the shard.
func (r *Republication) walk(ctx context.Context) (keys []kernel.Key, last *kernel.Key, err error) {
	to := r.req.Tenant
	if to == 0 {
		to = math.MaxInt32
	}
	rows, err := sql.RepublishWalk.Query(ctx, r.store.db.Pool(r.d), int16(r.shard), r.at.Tenant, int64(r.at.ID), r.at.Run, to, republishLook)
	if err != nil {
		return nil, nil, err
	}
	var tenant int32
	var id, run int64
	var wanted bool
	n := 0
	_, err = pgx.ForEachRow(rows, []any{&tenant, &id, &run, &wanted}, func() error {
		n++
		k := kernel.KeyOf(tenant, task.ID(id), run)
		if wanted {
			keys = append(keys, k)
		}
		last = &k
		return nil
	})
	if n < republishLook {
		last = nil
	}
	return keys, last, err
}

// advance moves behind a page and reports whether that was the last one.
func (r *Republication) advance(last *kernel.Key) (done bool) {
	if last != nil {
		r.at = *last
		return false
	}
	r.shard++
	r.at = kernel.Key{Tenant: r.req.Tenant}
	return r.shard.Database() != r.d
}

// handle makes the wanted runs among rows due. locked is the number of rows that it could
// lock.
func (r *Republication) handle(ctx context.Context, keys []kernel.Key) (runs, locked int, err error) {
	if len(keys) == 0 {
		return 0, 0, nil
	}
	due := task.Never
	err = r.store.db.InTx(ctx, r.d, "republish", func(tx pgx.Tx) error {
		runs, locked, due = 0, 0, task.Never
		now, err := kernel.Clock(ctx, tx)
		if err != nil {
			return err
		}
		machines, n, err := r.lock(ctx, tx, keys)
		if err != nil {
			return err
		}
		locked = n
		for _, k := range machines {
			runs += k.Republish(r.req.Since, now)
		}
		if r.req.DryRun || runs == 0 {
			return kernel.ErrNothing
		}
		due, err = transition.Write(ctx, tx, machines, now, r.store.machines.NewEffects())
		return err
	})
	if err != nil {
		return 0, 0, err
	}
	r.store.db.TellDue(r.d, due)
	return runs, locked, nil
}

// lock locks rows with the rows of their tasks. n counts the rows among keys that it has
// locked.
func (r *Republication) lock(ctx context.Context, tx pgx.Tx, keys []kernel.Key) (machines []*task.Machine, n int, err error) {
	all := make([]kernel.Key, 0, 2*len(keys))
	for _, k := range keys {
		all = append(all, k, k.Task())
	}
	found, err := r.store.machines.Lock(ctx, tx, all)
	if err != nil {
		return nil, 0, err
	}
	for _, k := range keys {
		machine := found[k.Task()]
		if machine != nil && machine.Task != nil && (k.Run == 0 || machine.Runs[k.Run] != nil) {
			n++
		}
	}
	for _, machine := range found {
		if machine.Task != nil {
			machines = append(machines, machine)
		}
	}
	return machines, n, nil
}
