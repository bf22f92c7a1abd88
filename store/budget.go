package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ErrNoConnection is the error of a call that has waited in vain for a connection, since all
// that this process may open to the server were in use.
var ErrNoConnection = errors.New("all connections of this process to the server are in use")

const (
	// placeWait is how long a call waits for a connection at most, if its own deadline is not earlier.
	placeWait = 10 * time.Second
	// lookEvery is how often waiting calls look for connections that were closed by others.
	lookEvery = 50 * time.Millisecond
	// spareAfter is how long a connection is idle before the pool of another database may take
	// its place although it has one of its own.
	spareAfter = 2 * time.Second
	// closeWait is how long a connection that ends keeps its place at most. Until the server has ended the session, too, it
	// is one of those that the server counts, and a server that hangs would refuse those that are too many. But if
	// the server is gone without a word, its places are needed for connections to the next primary.
	closeWait = 3 * time.Second
)

// A budget bounds the connections of this process to one server, over the pools of its
// databases. Each pool alone is bounded, too, but the sum over 16 of them is more than a server
// with its default settings admits.
//
// A call that needs a connection takes one that is idle in its pool. Otherwise the pool grows
// while fewer than limit are open. When all are open, the pool takes the place of an idle
// connection of another one, which is closed: at once if it has none itself, otherwise only
// that of one that nobody has used for spareAfter. A busy pool thereby gets more places than
// one that is asked now and then, and no two pools take places from each other in turn. A call
// that finds no place waits, first come first served.
//
// The budget is asked through the tracers of the pools, which pgx calls before it gives out a
// connection and before it takes one back. When a database moves to another server, its pool
// moves to the budget of that.
type budget struct {
	address string

	mu    *sync.Mutex // of all budgets
	limit int
	pools []*pooled
	// queue has the calls that wait, in the order in which they came.
	queue []*waiter
	// closing counts connections that are being closed, since their places are taken.
	closing int
}

// budgets has the budget of each server, by its address.
type budgets struct {
	first int // limit of a new one

	mu  sync.Mutex
	all map[string]*budget
}

func newBudgets(first int) *budgets { return &budgets{first: first, all: map[string]*budget{}} }

// move makes a pool a part of the budget of a server, with the calls that wait for it. It
// makes the budget if there is none.
func (s *budgets) move(p *pooled, server string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	to := s.all[server]
	if to == nil {
		to = &budget{address: server, mu: &s.mu, limit: s.first}
		s.all[server] = to
	}
	if from := p.budget; from != nil {
		from.pools = slices.DeleteFunc(from.pools, func(other *pooled) bool { return other == p })
		for _, w := range from.queue {
			if w.p == p {
				to.queue = append(to.queue, w)
			}
		}
		from.queue = slices.DeleteFunc(from.queue, func(w *waiter) bool { return w.p == p })
	}
	p.budget = to
	to.pools = append(to.pools, p)
}

// of returns the budget of a server, which has pools.
func (s *budgets) of(server string) *budget {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[server]
}

// servers returns the addresses of the servers that have pools.
func (s *budgets) servers() (all []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for server, b := range s.all {
		if len(b.pools) > 0 {
			all = append(all, server)
		}
	}
	slices.Sort(all)
	return all
}

// pooled is a pool within a budget.
type pooled struct {
	pool *pgxpool.Pool
	most int

	mu     *sync.Mutex // of all budgets
	budget *budget
	// held counts calls that have a connection, or that may take or open one.
	held int
	// used is when the last connection was given back.
	used time.Time
}

// A waiter is a call that waits for a connection.
type waiter struct {
	p       *pooled
	granted chan struct{}
}

// open returns how many connections the pool has or will have.
func (p *pooled) open() int { return max(int(p.pool.Stat().TotalConns()), p.held) }

// setLimit changes the limit. Idle connections above it are closed now, others when they are
// idle and another call looks for a place.
func (b *budget) setLimit(limit int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.limit = limit
	for over := b.total() - limit; over > 0 && b.evict(nil); over-- {
	}
	b.settle()
}

// total returns how many connections are open or will be. The caller holds mu.
func (b *budget) total() int {
	sum := b.closing
	for _, p := range b.pools {
		sum += p.open()
	}
	return sum
}

// enter returns when a call may take a connection of the pool, or open one.
func (p *pooled) enter(ctx context.Context) error {
	p.mu.Lock()
	b := p.budget
	waits := slices.ContainsFunc(b.queue, func(w *waiter) bool { return w.p == p })
	if !waits && b.grant(p, len(b.queue) == 0) {
		p.mu.Unlock()
		return nil
	}
	w := &waiter{p: p, granted: make(chan struct{})}
	b.queue = append(b.queue, w)
	p.mu.Unlock()
	return w.wait(ctx)
}

func (w *waiter) wait(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	late := time.NewTimer(placeWait)
	defer late.Stop()
	for {
		select {
		case <-w.granted:
			return nil
		case <-ctx.Done():
			w.leave()
			return ctx.Err()
		case <-late.C:
			return fmt.Errorf("%s: %w: none became free within %s", w.leave(), ErrNoConnection, placeWait)
		case <-tick.C:
			w.p.mu.Lock()
			w.p.budget.settle()
			w.p.mu.Unlock()
		}
	}
}

// leave ends the waiting of a call, which may have been granted a connection meanwhile. It
// returns the address of the server.
func (w *waiter) leave() (server string) {
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	b := w.p.budget
	if i := slices.Index(b.queue, w); i >= 0 {
		b.queue = slices.Delete(b.queue, i, i+1)
	} else {
		w.p.release()
	}
	return b.address
}

// leave says that a call needs its connection no more, or has got none.
func (p *pooled) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.release()
}

// release does so. The caller holds mu.
func (p *pooled) release() {
	p.held--
	p.used = time.Now()
	p.budget.settle()
}

// settle grants what can be granted to waiting calls. The caller holds mu.
func (b *budget) settle() {
	mayGrow, kept := true, b.queue[:0]
	for _, w := range b.queue {
		if b.grant(w.p, mayGrow) {
			close(w.granted)
			continue
		}
		// The first call that needs a place has the first place that becomes free.
		mayGrow = mayGrow && w.p.held >= w.p.most
		kept = append(kept, w)
	}
	clear(b.queue[len(kept):])
	b.queue = kept
}

// grant reports whether a call may have a connection of the pool now, and counts it. If a
// place must be made for it, grant begins to make one. The caller holds mu.
func (b *budget) grant(p *pooled, mayGrow bool) bool {
	switch {
	case p.held >= p.most:
		return false
	case p.held < int(p.pool.Stat().TotalConns()): // one is idle, or has been ending for closeWait
	case !mayGrow:
		return false
	case b.total() < b.limit:
	default:
		if b.closing < max(1, len(b.queue)) {
			b.evict(p)
		}
		return false
	}
	p.held++
	return true
}

// evict begins to close the connection that has been idle for the longest time, so that the
// pool whom may open one. It returns false if there is none. whom is nil if there are too many.
// The caller holds mu.
func (b *budget) evict(whom *pooled) bool {
	var victim *pooled
	for _, v := range b.pools {
		if v == whom || int(v.pool.Stat().TotalConns()) <= v.held {
			continue
		}
		if whom != nil && whom.held > 0 && time.Since(v.used) < spareAfter {
			continue
		}
		if victim == nil || v.used.Before(victim.used) {
			victim = v
		}
	}
	if victim == nil {
		return false
	}
	victim.held++
	b.closing++
	go b.end(victim)
	return true
}

// inside marks the context of a call of the budget itself.
type inside struct{}

// end takes an idle connection out of a pool and closes it. evict has counted it.
func (b *budget) end(p *pooled) {
	ctx, cancel := context.WithTimeout(context.WithValue(context.Background(), inside{}, true), closeWait)
	defer cancel()
	var conn *pgx.Conn
	if taken, err := p.pool.Acquire(ctx); err == nil {
		conn = taken.Hijack()
	}
	b.mu.Lock()
	p.held--
	b.mu.Unlock()
	if conn != nil {
		quit(ctx, conn)
	}
	b.mu.Lock()
	b.closing--
	b.settle()
	b.mu.Unlock()
}

// quit ends a session, and waits until the server has ended it, too, or ctx ends.
func quit(ctx context.Context, conn *pgx.Conn) {
	h, err := conn.PgConn().Hijack()
	if err != nil {
		_ = conn.Close(ctx) // the server notices in any case
		return
	}
	defer h.Conn.Close() //nolint:errcheck // nothing depends on it
	if until, ok := ctx.Deadline(); ok {
		_ = h.Conn.SetDeadline(until)
	}
	h.Frontend.Send(&pgproto3.Terminate{})
	if h.Frontend.Flush() == nil {
		_, _ = io.Copy(io.Discard, h.Conn)
	}
}

// A gate is the tracer of a pool within a budget.
type gate struct{ p *pooled }

// noPlace is the context of a call that has got no place. It has ended with the reason.
type noPlace struct {
	context.Context
	err error
}

// Err implements [context.Context].
func (n noPlace) Err() error { return n.err }

// Done implements [context.Context].
func (n noPlace) Done() <-chan struct{} { return ended }

var ended = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// TraceAcquireStart waits for a place.
func (g gate) TraceAcquireStart(ctx context.Context, _ *pgxpool.Pool, _ pgxpool.TraceAcquireStartData) context.Context {
	if ctx.Value(inside{}) != nil {
		return ctx
	}
	if err := g.p.enter(ctx); err != nil {
		return noPlace{ctx, err}
	}
	return ctx
}

func (g gate) TraceAcquireEnd(ctx context.Context, _ *pgxpool.Pool, data pgxpool.TraceAcquireEndData) {
	if _, refused := ctx.(noPlace); data.Err != nil && !refused && ctx.Value(inside{}) == nil {
		g.p.leave()
	}
}

// TraceRelease gives the place back, at once if the pool keeps the connection.
func (g gate) TraceRelease(_ *pgxpool.Pool, data pgxpool.TraceReleaseData) {
	if conn := data.Conn.PgConn(); conn.IsClosed() || conn.IsBusy() || conn.TxStatus() != idle {
		conn.CustomData()[leavingKey] = true
		go g.p.leaveAfter(conn)
		return
	}
	g.p.leave()
}

// leavingKey is under which a connection has that leaveAfter waits for its end.
const leavingKey = "leaving"

// closes is told of each connection that the pool is about to close. One whose call was ended, such as a ping that
// had no answer, has its place until it has ended.
func (p *pooled) closes(conn *pgx.Conn) {
	if pc := conn.PgConn(); pc.IsClosed() && pc.CustomData()[leavingKey] == nil {
		p.mu.Lock()
		p.held++
		p.mu.Unlock()
		go p.leaveAfter(pc)
	}
}

// leaveAfter gives a place back when the server has ended the session, or after closeWait.
func (p *pooled) leaveAfter(conn *pgconn.PgConn) {
	late := time.NewTimer(closeWait)
	defer late.Stop()
	select {
	case <-conn.CleanupDone():
	case <-late.C:
	}
	p.leave()
}

// TraceQueryStart does nothing; pgx wants it of a tracer.
func (g gate) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}

func (g gate) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// A watchedGate is the tracer of a pool within a budget, on a server that is watched. A call
// that waits for a place ends when the server stalls.
type watchedGate struct {
	tracer
	gate gate
}

func (t watchedGate) TraceAcquireStart(ctx context.Context, pool *pgxpool.Pool, data pgxpool.TraceAcquireStartData) context.Context {
	return t.gate.TraceAcquireStart(t.tracer.TraceAcquireStart(ctx, pool, data), pool, data)
}

func (t watchedGate) TraceAcquireEnd(ctx context.Context, pool *pgxpool.Pool, data pgxpool.TraceAcquireEndData) {
	t.gate.TraceAcquireEnd(ctx, pool, data)
	if n, refused := ctx.(noPlace); refused {
		ctx = n.Context
	}
	t.tracer.TraceAcquireEnd(ctx, pool, data)
}

func (t watchedGate) TraceRelease(pool *pgxpool.Pool, data pgxpool.TraceReleaseData) {
	t.gate.TraceRelease(pool, data)
}
