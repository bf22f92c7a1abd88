package virtualclock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/perceptor/perceptor/internal/ctxtime"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/clock"
	"github.com/perceptor/perceptor/task"
)

// Databases gives access to the clock and the pending work in the databases.
type Databases interface {
	Read(ctx context.Context) (clock.State, error)
	// Move sets the clock of all databases. It never sets a clock back.
	Move(ctx context.Context, to task.Instant) (clock.State, error)
	// Look returns the pending work of a database.
	Look(ctx context.Context, database int) (clock.View, error)
}

// Over returns the databases of a cluster.
func Over(c *store.Cluster) Databases { return over{c} }

type over struct{ *store.Cluster }

func (o over) Read(ctx context.Context) (clock.State, error) { return clock.Read(ctx, o.Cluster) }

func (o over) Move(ctx context.Context, to task.Instant) (clock.State, error) {
	return clock.Move(ctx, o.Cluster, to)
}

func (o over) Look(ctx context.Context, d int) (clock.View, error) {
	return clock.Look(ctx, o.Cluster, d)
}

// Part is a process that works by the clock, such as a dispatcher. Its methods
// must not block.
type Part interface {
	// ClockMoved is called when the database's clock has moved, and again as long
	// as due work there is not published. The part must read the clock again.
	ClockMoved(database int)
	// Promote is called when tasks of the far tier must be moved into the near
	// tier now.
	Promote(database int)
	// Fired returns the number of deliveries that Kafka has acknowledged.
	Fired() int64
}

// Config of a [Clock].
type Config struct {
	Databases Databases
	// Horizon is the horizon of the far tier: how far ahead of the clock tasks
	// are promoted. Defaults to 10 min; values below 0 also mean the default.
	Horizon time.Duration
	// Parts are called when the clock moves.
	Parts []Part
}

// Clock moves the clock of one installation. Its methods may be called
// concurrently. Moves run one after the other.
type Clock struct {
	cfg Config
	// moving is locked by the current move.
	moving chan struct{}
	// left holds the runs that earlier moves have left open.
	left map[openRun]bool
}

// openRun identifies a delivery that has no result yet.
type openRun struct {
	task.RunID
	attempt int32
}

// New returns a clock.
func New(cfg Config) *Clock {
	if cfg.Horizon <= 0 {
		cfg.Horizon = 10 * time.Minute
	}
	return &Clock{cfg: cfg, moving: make(chan struct{}, 1), left: map[openRun]bool{}}
}

// Options configure how a move treats runs without a result.
type Options struct {
	// Settle is how long the move waits at one instant without progress.
	// Defaults to 10 s.
	Settle time.Duration
	// LeaveOpen says that the move leaves runs open that have no result after
	// Settle. They are listed in [Moved].Open. Moves wait for them again only at
	// their next attempt.
	LeaveOpen bool
	// NoWait says that the move waits for the publication of due runs, but not
	// for their results.
	NoWait bool
	// For bounds the duration of the move. When it has passed, the move ends at
	// the instant that it has reached. 0 means no bound.
	For time.Duration
}

// Bounds of [Options] and of one move.
const (
	DefaultSettle = 10 * time.Second
	MaxSettle     = time.Minute
	// MaxAdvance bounds one move.
	MaxAdvance = 3660 * 24 * time.Hour
	// maxInstants bounds the length of [Moved].Instants.
	maxInstants = 1000
)

// Moved is the result of a move.
type Moved struct {
	// Now is the time of the clock. Reached says that it is the requested time.
	Now     task.Instant
	Reached bool
	// Visited counts the instants at which something was due. Instants holds the
	// first 1000 of them.
	Visited  int
	Instants []task.Instant
	// Fired counts the deliveries during the move.
	Fired int64
	// Open holds the runs that were left open, at most 1000.
	Open []clock.OpenRun
}

// Now returns the time of the clock.
func (c *Clock) Now(ctx context.Context) (clock.State, error) {
	s, err := c.cfg.Databases.Read(ctx)
	return s, explain(err)
}

// Next returns the next instant at which something is due, or [task.Never] if
// nothing is. It is for display only, since the instant may change at any time.
func (c *Clock) Next(ctx context.Context) (task.Instant, error) {
	for began := time.Now(); ; {
		views, err := c.lookAll(ctx)
		if err != nil {
			return 0, err
		}
		next, unknown := task.Never, false
		for i := range views {
			v := &views[i]
			next = min(next, v.Due, v.Bucket)
			for _, due := range v.Waiting {
				next = min(next, due)
			}
			if unknown = unknown || v.Level0; v.Level0 {
				c.promote(v.Database)
			}
		}
		if !unknown || time.Since(began) > nextWait || !ctxtime.Sleep(ctx, lastLook) {
			return next, ctx.Err()
		}
	}
}

// nextWait is how long Next waits for recently added tasks to leave level 0.
const nextWait = 5 * time.Second

func (c *Clock) promote(database int) {
	for _, p := range c.cfg.Parts {
		p.Promote(database)
	}
}

// Advance moves the clock to an instant, step by step. It returns an error with
// code [task.InvalidArgument] if the instant has passed or is too far away, and
// one with code [task.FailedPrecondition] if the installation does not settle.
func (c *Clock) Advance(ctx context.Context, to task.Instant, o Options) (Moved, error) {
	return c.move(ctx, to, o, false)
}

// AdvanceBy advances the clock by d.
func (c *Clock) AdvanceBy(ctx context.Context, d time.Duration, o Options) (Moved, error) {
	s, err := c.Now(ctx)
	if err != nil {
		return Moved{}, err
	}
	if d < 0 {
		return Moved{Now: s.Now}, invalid("duration", "%s is negative: the clock only goes forward", d)
	}
	return c.move(ctx, s.Now.Add(d), o, false)
}

// Jump moves the clock to an instant in one step, and settles there.
func (c *Clock) Jump(ctx context.Context, to task.Instant, o Options) (Moved, error) {
	return c.move(ctx, to, o, true)
}

func (c *Clock) move(ctx context.Context, to task.Instant, o Options, jump bool) (Moved, error) {
	if o.Settle == 0 {
		o.Settle = DefaultSettle
	}
	if o.Settle < 0 || o.Settle > MaxSettle {
		return Moved{}, invalid("settle", "%s is not between 0 and %s", o.Settle, MaxSettle)
	}
	select {
	case c.moving <- struct{}{}:
		defer func() { <-c.moving }()
	case <-ctx.Done():
		return Moved{}, ctx.Err()
	}
	s, err := c.Now(ctx)
	if err != nil {
		return Moved{}, err
	}
	switch {
	case to < s.Now:
		return Moved{Now: s.Now}, invalid("time", "%s has passed: the clock shows %s and only goes forward", to, s.Now)
	case to > s.Now.Add(MaxAdvance) || to >= task.LastInstant:
		return Moved{Now: s.Now}, invalid("time", "%s is too far: the clock shows %s and goes at most %d days at once", to, s.Now, MaxAdvance/(24*time.Hour))
	}
	m := &move{c: c, o: o, to: to, now: s.Now, began: time.Now(), fired: c.fired()}
	if jump {
		err = m.jump(ctx)
	} else {
		err = m.advance(ctx)
	}
	m.done.Now, m.done.Fired = m.now, c.fired()-m.fired
	return m.done, err
}

func (c *Clock) fired() (n int64) {
	for _, p := range c.cfg.Parts {
		n += p.Fired()
	}
	return n
}

// moved calls ClockMoved of all parts for all databases.
func (c *Clock) moved() {
	for d := range task.Databases {
		for _, p := range c.cfg.Parts {
			p.ClockMoved(d)
		}
	}
}

func invalid(field, format string, args ...any) error {
	fault := task.Fault{Field: field, Message: fmt.Sprintf(format, args...)}
	return &task.Error{Code: task.InvalidArgument, Message: "the clock cannot be moved", Faults: []task.Fault{fault}}
}

// explain returns err with a code for the caller.
func explain(err error) error {
	var known *task.Error
	switch {
	case err == nil || errors.As(err, &known):
		return err
	case errors.Is(err, clock.ErrReal):
		return task.Errorf(task.ReasonNoVirtualClock, "this installation runs by the real clock, which cannot be moved")
	}
	return task.Errorf(task.ReasonClockUnavailable, "the virtual clock does not answer").CausedBy(err)
}
