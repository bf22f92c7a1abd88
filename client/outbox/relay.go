package outbox

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/perceptor/perceptor/internal/ctxtime"
)

// Relay moves the operations of an outbox to Perceptor. Several relays of one outbox share the work; each
// can take over that of the others.
type Relay struct {
	cfg  RelayConfig
	sql  *statements
	id   string
	gate *gate
	// failpoint, if set, is called before each step; tests end a relay with it.
	failpoint func(step string) error

	// announced wakes the poll loop. listening says that commits are heard of.
	announced chan struct{}
	listening atomic.Bool

	mu     sync.Mutex
	leased map[int16]time.Time // until when a part is ours, by the local monotonic clock
	movers map[int16]*mover
	share  int
	busyAt time.Time
	logged map[string]time.Time // when a failure of a step was logged
	silent map[string]int       // failures since then
}

// NewRelay returns a relay. It checks cfg and makes no call.
func NewRelay(cfg RelayConfig) (*Relay, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	r := &Relay{
		cfg: cfg, sql: statementsOf(cfg.Schema), id: rand.Text(),
		announced: make(chan struct{}, 1),
		leased:    map[int16]time.Time{}, movers: map[int16]*mover{}, share: parts, logged: map[string]time.Time{}, silent: map[string]int{},
	}
	r.gate = newGate(r.probe, r.cfg.Log)
	return r, nil
}

// Run moves operations until ctx ends. Then it finishes what it has sent, gives its parts up, and
// returns nil. It returns an error if the outbox's tables are missing or too old; everything
// else is tried again, with growing delays.
func (r *Relay) Run(ctx context.Context) error {
	pool, err := pgxpool.NewWithConfig(ctx, r.connections())
	if err != nil {
		return fmt.Errorf("outbox: connect: %w", err)
	}
	defer pool.Close()
	if err := r.checkInstalled(ctx, pool); err != nil || ctx.Err() != nil {
		return err
	}
	var work sync.WaitGroup
	work.Go(func() { r.gate.run(ctx) })
	work.Go(func() { r.pollLoop(ctx, pool) })
	if r.cfg.Listen {
		work.Go(func() { r.listenLoop(ctx, pool) })
	}
	r.leaseLoop(ctx, pool)
	work.Wait()
	return nil
}

// connections returns the configuration of the pool.
func (r *Relay) connections() *pgxpool.Config {
	cfg := r.cfg.Postgres.Copy()
	cfg.MaxConns, cfg.MinConns = parts+2, 0 // a connection that listens is none of them
	after := cfg.AfterConnect
	cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		if after != nil {
			if err := after(ctx, conn); err != nil {
				return err
			}
		}
		_, err := r.sql.settings.Exec(ctx, conn)
		return err
	}
	return cfg
}

// checkInstalled waits until the database answers and checks the outbox's version.
func (r *Relay) checkInstalled(ctx context.Context, pool *pgxpool.Pool) error {
	for tries := 1; ctx.Err() == nil; tries++ {
		version, err := query(ctx, func(ctx context.Context) (version int, err error) {
			return version, r.sql.installed.QueryRow(ctx, pool).Scan(&version)
		})
		switch {
		case err == nil && version < installedIs, undefined(err):
			return fmt.Errorf("outbox: the schema %s has version %d, and this program needs %d: call outbox.Migrate, or execute what `perceptorctl relay schema` prints", r.cfg.Schema, version, installedIs)
		case err == nil:
			return nil
		case refusedForGood(err):
			return fmt.Errorf("outbox: read the version of the schema %s: %w", r.cfg.Schema, err)
		}
		r.failed(stepLease, err)
		ctxtime.Sleep(ctx, backoff(tries, r.cfg.Lease))
	}
	return nil
}

// leaseLoop renews the leases and starts and stops the movers of parts, until ctx ends.
func (r *Relay) leaseLoop(ctx context.Context, pool *pgxpool.Pool) {
	every := r.cfg.Lease / 5
	tick := time.NewTicker(every)
	defer tick.Stop()
	var movers sync.WaitGroup
	for ctx.Err() == nil {
		r.renew(ctx, pool, &movers)
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
	r.drop(r.held()...)
	movers.Wait()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveLimit)
	defer cancel()
	if _, err := r.sql.leave.Exec(ctx, pool, r.id); err != nil {
		r.failed(stepLease, err)
	}
}

// renew prolongs the leases. It first stops the movers of parts beyond the share.
func (r *Relay) renew(ctx context.Context, pool *pgxpool.Pool, movers *sync.WaitGroup) {
	extra := r.beyondShare()
	r.drop(extra...)
	asked := time.Now()
	type answer struct {
		share int64
		parts []int16
	}
	got, err := query(ctx, func(ctx context.Context) (a answer, err error) {
		if err := r.fail(stepLease); err != nil {
			return a, err
		}
		return a, r.sql.renew.QueryRow(ctx, pool, r.id, r.cfg.Name, r.cfg.Lease.Milliseconds(), extra).Scan(&a.share, &a.parts)
	})
	if err != nil {
		r.failed(stepLease, err)
		r.drop(r.expired()...)
		return
	}
	until := asked.Add(r.cfg.Lease - r.cfg.Lease/10)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.share = int(got.share)
	for _, p := range r.heldLocked() {
		if !slices.Contains(got.parts, p) {
			r.cfg.Log.Info("part of the outbox was taken over", "part", p)
			r.dropLocked(p)
			delete(r.leased, p)
		}
	}
	for _, p := range got.parts {
		r.leased[p] = until
		if r.movers[p] == nil {
			m := newMover(ctx, r, pool, p)
			r.movers[p] = m
			movers.Go(m.run)
		}
	}
}

func (r *Relay) held() []int16 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.heldLocked()
}

func (r *Relay) heldLocked() []int16 {
	list := make([]int16, 0, parts)
	for p := range r.movers {
		list = append(list, p)
	}
	slices.Sort(list)
	return list
}

// beyondShare returns the parts that other relays should have.
func (r *Relay) beyondShare() []int16 {
	r.mu.Lock()
	defer r.mu.Unlock()
	held := r.heldLocked()
	return held[min(r.share, len(held)):]
}

// expired returns the parts whose leases have ended without a renewal.
func (r *Relay) expired() (list []int16) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for p, until := range r.leased {
		if time.Now().After(until) {
			list = append(list, p)
		}
	}
	return list
}

// drop stops the movers of parts and waits for them.
func (r *Relay) drop(list ...int16) {
	var stopped []*mover
	r.mu.Lock()
	for _, p := range list {
		if m := r.movers[p]; m != nil {
			stopped = append(stopped, m)
		}
		r.dropLocked(p)
	}
	r.mu.Unlock()
	for _, m := range stopped {
		<-m.done
	}
}

func (r *Relay) dropLocked(p int16) {
	if m := r.movers[p]; m != nil {
		m.stop()
	}
	delete(r.movers, p)
}

// holds reports whether a part is surely ours at this moment.
func (r *Relay) holds(p int16) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return time.Now().Before(r.leased[p])
}

// pollLoop wakes the movers of parts that have new rows.
func (r *Relay) pollLoop(ctx context.Context, pool *pgxpool.Pool) {
	for r.untilPoll(ctx) {
		c := r.waiting()
		if len(c.parts) == 0 {
			continue
		}
		found, err := query(ctx, func(ctx context.Context) ([]int16, error) {
			rows, err := r.sql.pending.Query(ctx, pool, c.parts, c.lows, c.seen, c.upto)
			if err != nil {
				return nil, err
			}
			return pgx.CollectRows(rows, pgx.RowTo[int16])
		})
		if err != nil {
			r.failed(stepPoll, err)
			ctxtime.Sleep(ctx, time.Second)
			continue
		}
		r.wake(found)
	}
}

// untilPoll waits for the next poll: after a distance, or as soon as commits were announced, but not at once after the last
// one, so that a poll finds the rows of many commits. It returns false if ctx ends.
func (r *Relay) untilPoll(ctx context.Context) bool {
	if r.listening.Load() && !ctxtime.Sleep(ctx, listenGap) {
		return false
	}
	t := time.NewTimer(r.pollEvery())
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
	case <-r.announced:
	}
	return true
}

func (r *Relay) pollEvery() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.cfg.Poll > 0:
		return r.cfg.Poll
	case r.listening.Load():
		return pollListening
	case time.Since(r.busyAt) < busyFor:
		return pollBusy
	}
	return pollIdle
}

// cursors are the cursors of several parts.
type cursors struct {
	parts      []int16
	lows       []int64
	seen, upto []string
}

// waiting returns the cursors of the movers that wait for rows.
func (r *Relay) waiting() (c cursors) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range r.heldLocked() {
		if at := r.movers[p].idle.Load(); at != nil {
			c.parts, c.lows = append(c.parts, p), append(c.lows, at.low)
			c.seen, c.upto = append(c.seen, at.seen), append(c.upto, at.upto)
		}
	}
	return c
}

func (r *Relay) wake(list []int16) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range list {
		r.busyAt = time.Now()
		if m := r.movers[p]; m != nil {
			select {
			case m.woken <- struct{}{}:
			default:
			}
		}
	}
}

func (r *Relay) fail(step string) error {
	if r.failpoint == nil {
		return nil
	}
	return r.failpoint(step)
}

// logEvery is how often the failure of a step is logged.
const logEvery = 10 * time.Second

// failed tells that a step failed and is tried again.
func (r *Relay) failed(step string, err error) {
	if errors.Is(err, context.Canceled) || errors.Is(err, errLost) {
		return
	}
	if r.cfg.Events.Failed != nil {
		r.cfg.Events.Failed(step, err)
	}
	r.mu.Lock()
	n, due := r.silent[step], time.Since(r.logged[step]) >= logEvery
	if r.silent[step] = n + 1; due {
		r.silent[step], r.logged[step] = 0, time.Now()
	}
	r.mu.Unlock()
	if due {
		r.cfg.Log.Warn("a step of the outbox relay failed and is tried again", "step", step, "suppressed", n, "err", err)
	}
}
