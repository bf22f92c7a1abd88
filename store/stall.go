package store

import (
	"context"
	_ "embed"
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/perceptor/perceptor/store/place"
)

// ErrStalled is the error of a call that was not begun because its server hangs.
var ErrStalled = errors.New("the PostgreSQL server does not answer")

const (
	// suspectAfter is how long a call may be unanswered before its server is probed.
	suspectAfter = 200 * time.Millisecond
	// probeWait is how long a probe may be unanswered after that of another server was answered
	// before the server counts as stalled. If the other one took longer, it is as long as that.
	probeWait = 200 * time.Millisecond
	// compared is how many other servers are asked.
	compared = 3
	// probeLimit bounds a probe of a stalled server. The next one uses a new connection, or waits on for one that is
	// being opened, which is bounded by openLimit.
	probeLimit = 5 * time.Second
	openLimit  = time.Minute
)

//go:embed probe.sql
var probeSQL string

// A watch notices that a PostgreSQL server hangs: it keeps its connections and answers
// nothing, or it executes statements and commits nothing. It is a failure detector with
// active probes. While a call is unanswered for longer than suspectAfter, the watch commits a
// tiny transaction on a connection of its own, and asks other servers the same. If another
// one answers and this one does not, not even after twice that time, the server is stalled:
// its pools give out no connection, so callers learn at once what they would otherwise wait
// for. Probes continue, and the first answer ends the stall, even if it is an error. A server
// that answers in time costs no probe.
//
// While no other server answers, it is this process or the network that is slow, or there is
// nobody to protect: then calls wait until their own deadlines. Without the comparison a busy
// machine would take all servers for stalled, refuse all calls, and get busier by their
// repetitions.
//
// A wrong suspicion of a slow server costs its callers a repeated call. A long statement on
// a server that answers costs a few probes every suspectAfter.
type watch struct {
	// probe sends a probe and returns when it is answered.
	probe func(context.Context) error
	// changed is called when a stall begins or ends.
	changed func(stalled bool)
	// over is closed when the cluster is closed.
	over chan struct{}
	once sync.Once

	mu sync.Mutex
	// waiting has, by connection or call, when the call began that waits for the server.
	waiting map[any]time.Time
	// hooks are called when a stall begins, by call.
	hooks map[any]func()
	// armed is set while a timer or a probe is about to look at the waiting calls.
	armed bool
	// stalled is closed while the server is stalled.
	stalled chan struct{}
	// others are the watches of the other servers.
	others []*watch
}

func newWatch(probe func(context.Context) error, changed func(stalled bool)) *watch {
	return &watch{
		probe: probe, changed: changed, over: make(chan struct{}),
		waiting: map[any]time.Time{}, hooks: map[any]func(){}, stalled: make(chan struct{}),
	}
}

// begin records a call that waits for the server.
func (w *watch) begin(key any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting[key] = time.Now()
	if !w.armed && !isClosed(w.over) {
		w.armed = true
		time.AfterFunc(suspectAfter, w.look)
	}
}

// end records that the call has ended.
func (w *watch) end(key any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.waiting, key)
	delete(w.hooks, key)
}

// whenStalled calls f if the server stalls before the end of the call, or is stalled.
func (w *watch) whenStalled(key any, f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if isClosed(w.stalled) {
		f()
		return
	}
	w.hooks[key] = f
}

// state returns a channel that is closed while the server is stalled.
func (w *watch) state() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stalled
}

// set begins or ends a stall.
func (w *watch) set(stalled bool) {
	w.mu.Lock()
	if stalled {
		close(w.stalled)
		for _, f := range w.hooks {
			f()
		}
		clear(w.hooks)
	} else {
		w.stalled = make(chan struct{})
	}
	w.mu.Unlock()
	w.changed(stalled)
}

// look probes the server if a call waits for too long, and arms the watch again if any call
// waits.
func (w *watch) look() {
	wait, waiting := w.next()
	switch {
	case !waiting:
		return
	case wait <= 0:
		w.check()
		wait = suspectAfter
	}
	time.AfterFunc(wait, w.look)
}

// next returns when to probe. It disarms the watch and returns false if no call waits.
func (w *watch) next() (wait time.Duration, waiting bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.armed = len(w.waiting) > 0 && !isClosed(w.over); !w.armed {
		return 0, false
	}
	now, longest := time.Now(), time.Duration(0)
	for _, began := range w.waiting {
		longest = max(longest, now.Sub(began))
	}
	return suspectAfter - longest, true
}

// check probes the server. If the server is stalled, check returns when it answers again.
func (w *watch) check() {
	began := time.Now()
	answered, other := w.ask(), w.askOthers()
	select {
	case <-answered: // or not before probeLimit
		return
	case <-other:
	}
	select {
	case <-answered:
		return
	case <-time.After(max(probeWait, time.Since(began))):
	}
	w.set(true)
	for !<-answered {
		answered = w.ask()
	}
	w.set(false)
}

// askOthers probes other servers that are not stalled. The channel receives when one answers.
func (w *watch) askOthers() <-chan struct{} {
	w.mu.Lock()
	others := slices.Clone(w.others)
	w.mu.Unlock()
	rand.Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
	first, asked := make(chan struct{}, compared), 0
	for _, o := range others {
		if asked == compared || isClosed(o.state()) {
			continue
		}
		asked++
		answered := o.ask()
		go func() {
			if <-answered {
				first <- struct{}{}
			}
		}()
	}
	return first
}

// ask sends a probe. The channel receives whether it was answered before probeLimit.
func (w *watch) ask() <-chan bool {
	answered := make(chan bool, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), probeLimit)
		defer cancel()
		ended := make(chan struct{})
		defer close(ended)
		go func() {
			select {
			case <-w.over:
				cancel()
			case <-ended:
			}
		}()
		err := w.probe(ctx)
		answered <- ctx.Err() == nil && !silent(err) || isClosed(w.over)
	}()
	return answered
}

// silent reports whether err says that nobody has answered in time. A limit may also be that of the connection string.
func silent(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) || pgconn.Timeout(err)
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// A prober sends the probes of a server.
type prober struct {
	login       *login
	address     place.Address
	application string

	mu      sync.Mutex // held during a probe
	conn    *pgx.Conn  // nil: not connected
	opening *opening   // nil: no connection is being opened
}

// opening is a connection that is being opened. It outlasts the probe that has begun it, because the first of several
// addresses of a server may take all the time of a probe and be that of a machine that is gone. Each address has its own
// limit, that of the connection string.
type opening struct {
	cancel context.CancelFunc
	done   chan struct{}
	conn   *pgx.Conn // both are set when done is closed
	err    error
}

func (p *prober) probe(ctx context.Context) (err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn == nil {
		if err := p.connect(ctx); err != nil {
			return err
		}
	}
	if _, err = p.conn.Exec(ctx, probeSQL, pgx.QueryExecModeSimpleProtocol); err != nil {
		p.disconnect()
	}
	return err
}

// connect waits for a connection. p.mu is held.
func (p *prober) connect(ctx context.Context) error {
	if p.opening == nil {
		config, err := p.login.at(p.address)
		if err != nil {
			return err
		}
		p.opening = open(config.Copy(), p.application)
	}
	select {
	case <-p.opening.done:
	case <-ctx.Done():
		return ctx.Err()
	}
	o := p.opening
	o.cancel()
	p.opening, p.conn = nil, o.conn
	return o.err
}

// open begins to open a connection.
func open(config *pgx.ConnConfig, application string) *opening {
	config.RuntimeParams["application_name"] = application
	ctx, cancel := context.WithTimeout(context.Background(), openLimit)
	o := &opening{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(o.done)
		o.conn, o.err = pgx.ConnectConfig(ctx, config)
	}()
	return o
}

// close closes the connection.
func (p *prober) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.disconnect()
}

// disconnect closes the connection, and that which is being opened. p.mu is held.
func (p *prober) disconnect() {
	if o := p.opening; o != nil {
		o.cancel()
		<-o.done
		p.opening, p.conn = nil, o.conn
	}
	if p.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = p.conn.Close(ctx)
	p.conn = nil
}

// A tracer passes the calls of one pool to the watch of its server. When the server stalls it
// ends the calls that acquire a connection, and statements outside of transactions. A
// transaction goes on: its caller may need its outcome.
type tracer struct {
	c *Cluster
	d int
}

// watchKey is under which a connection has the watch of its server.
const watchKey = "watch"

// watchOf returns the watch of a connection, or one that is given while the connection is
// being made.
func watchOf(conn *pgx.Conn, otherwise *watch) *watch {
	if w, ok := conn.PgConn().CustomData()[watchKey].(*watch); ok {
		return w
	}
	return otherwise
}

func (t tracer) of(conn *pgx.Conn) *watch { return watchOf(conn, t.c.watch(t.d)) }

var (
	_ pgx.QueryTracer       = tracer{}
	_ pgx.BatchTracer       = tracer{}
	_ pgx.CopyFromTracer    = tracer{}
	_ pgxpool.AcquireTracer = tracer{}
)

// untilStalled is the context of a call that ends when the server stalls.
type untilStalled struct {
	context.Context
	cancel context.CancelCauseFunc
	watch  *watch
}

// Err implements [context.Context].
func (u *untilStalled) Err() error {
	err := u.Context.Err()
	if err != nil && errors.Is(context.Cause(u.Context), ErrStalled) {
		return ErrStalled
	}
	return err
}

// bound returns the context of a call. If key is nil, the context itself is the key of the
// hook that ends it.
func bound(ctx context.Context, w *watch, key any) *untilStalled {
	u := &untilStalled{watch: w}
	u.Context, u.cancel = context.WithCancelCause(ctx)
	if key == nil {
		key = u
		w.begin(u)
	}
	w.whenStalled(key, func() { u.cancel(ErrStalled) })
	return u
}

func (t tracer) TraceAcquireStart(ctx context.Context, _ *pgxpool.Pool, _ pgxpool.TraceAcquireStartData) context.Context {
	return bound(ctx, t.c.watch(t.d), nil)
}

func (t tracer) TraceAcquireEnd(ctx context.Context, _ *pgxpool.Pool, _ pgxpool.TraceAcquireEndData) {
	if u, ok := ctx.(*untilStalled); ok {
		u.watch.end(u)
		u.cancel(nil)
	}
}

func (t tracer) TraceQueryStart(ctx context.Context, conn *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	w := t.of(conn)
	w.begin(conn)
	if conn.PgConn().TxStatus() != idle {
		return ctx
	}
	return bound(ctx, w, conn)
}

// idle is the status of a connection outside of transactions.
const idle = 'I'

func (t tracer) TraceQueryEnd(ctx context.Context, conn *pgx.Conn, _ pgx.TraceQueryEndData) {
	t.of(conn).end(conn)
	if u, ok := ctx.(*untilStalled); ok {
		u.cancel(nil)
	}
}

func (t tracer) TraceBatchStart(ctx context.Context, conn *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	t.of(conn).begin(conn)
	return ctx
}

func (t tracer) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

func (t tracer) TraceBatchEnd(_ context.Context, conn *pgx.Conn, _ pgx.TraceBatchEndData) {
	t.of(conn).end(conn)
}

func (t tracer) TraceCopyFromStart(ctx context.Context, conn *pgx.Conn, _ pgx.TraceCopyFromStartData) context.Context {
	t.of(conn).begin(conn)
	return ctx
}

func (t tracer) TraceCopyFromEnd(_ context.Context, conn *pgx.Conn, _ pgx.TraceCopyFromEndData) {
	t.of(conn).end(conn)
}

// Stalled returns a channel that is closed while the server of database d hangs.
func (c *Cluster) Stalled(d int) <-chan struct{} { return c.watch(d).state() }

// UntilStalled returns a context that also ends when the server of database d stalls. It is
// for calls whose callers can do without an answer: a statement that is under way when it
// ends may still be executed. The caller must call cancel.
func (c *Cluster) UntilStalled(ctx context.Context, d int) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	w, key := c.watch(d), new(byte)
	w.whenStalled(key, cancel)
	return ctx, func() { w.end(key); cancel() }
}

// OnStall makes f receive the begin and the end of each stall of a server, with the address
// of one of its databases. It must be called before the first query, and f must not block.
func (c *Cluster) OnStall(f func(address string, stalled bool)) { c.onStall = f }

// watches has the watch of each server, by its address.
type watches struct {
	mu      sync.Mutex
	all     map[string]*watch
	probers []*prober
	closed  bool
}

// watch returns the watch of the server of database d.
func (c *Cluster) watch(d int) *watch { return c.watched[d].Load() }

// watchServer finds the watch of the server to which database d has moved, or where it begins.
// It makes one if there is none.
func (c *Cluster) watchServer(d int) {
	login, to, server := c.placed[d].leads()
	c.watches.mu.Lock()
	defer c.watches.mu.Unlock()
	if w := c.watches.all[server]; w != nil {
		c.watched[d].Store(w)
		return
	}
	p := &prober{login: login, address: to, application: c.application}
	w, address := newWatch(p.probe, nil), c.Address(d)
	w.changed = func(stalled bool) {
		if c.onStall != nil {
			c.onStall(address, stalled)
		}
	}
	c.watches.add(server, w, p)
	c.watched[d].Store(w)
}

// add tells the other watches of a new one, and it of them. s.mu is held.
func (s *watches) add(server string, w *watch, p *prober) {
	for _, other := range s.all {
		other.mu.Lock()
		other.others = append(other.others, w)
		other.mu.Unlock()
		w.others = append(w.others, other)
	}
	if s.all == nil {
		s.all = map[string]*watch{}
	}
	s.all[server], s.probers = w, append(s.probers, p)
	if s.closed {
		w.once.Do(func() { close(w.over) })
	}
}

// close ends all probes.
func (s *watches) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, w := range s.all {
		w.once.Do(func() { close(w.over) })
	}
	for _, p := range s.probers {
		p.close()
	}
}
