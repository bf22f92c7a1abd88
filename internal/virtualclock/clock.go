package virtualclock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/clock"
	"github.com/perceptor/perceptor/task"
)

// Databases are where the clock is.
type Databases interface {
	Read(ctx context.Context) (clock.State, error)
	// Move sets the clock of all databases, never back.
	Move(ctx context.Context, to task.Instant) (clock.State, error)
	// Look returns the pending work of a database.
	Look(ctx context.Context, database int) (clock.View, error)
}

// Over are the databases of a cluster.
func Over(c *store.Cluster) Databases { return over{c} }

type over struct{ *store.Cluster }

func (o over) Read(ctx context.Context) (clock.State, error) { return clock.Read(ctx, o.Cluster) }

func (o over) Move(ctx context.Context, to task.Instant) (clock.State, error) {
	return clock.Move(ctx, o.Cluster, to)
}

func (o over) Look(ctx context.Context, d int) (clock.View, error) {
	return clock.Look(ctx, o.Cluster, d)
}

// Part is a process that lives by the clock, such as a dispatcher. Its methods
// must not block.
type Part interface {
	// ClockMoved: what was known of the database's clock is void, or something is
	// due there that should have been published.
	ClockMoved(database int)
	// Promote: tasks of the far tier are to be moved into the near tier now.
	Promote(database int)
	// Fired counts deliveries that Kafka has acknowledged.
	Fired() int64
}

// Config of a [Clock].
type Config struct {
	Databases Databases
	// Horizon is that of the far tier: how far ahead of the clock tasks are
	// promoted. Default, also below 0: 10 min.
	Horizon time.Duration
	// Parts are called when the clock moves.
	Parts []Part
}

// Clock moves the clock of one installation. Its methods may be called
// concurrently; moves come one after the other.
type Clock struct {
	cfg Config
	// moving is locked by the current move.
	moving chan struct{}
	// left are runs that earlier moves have left open.
	left map[openRun]bool
}

// openRun names a delivery that awaits its result.
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
	// Settle bounds the wait at one instant, counted from the last progress.
	// Default: 10 s.
	Settle time.Duration
	// LeaveOpen: runs that are open when Settle has passed are left open; they
	// are in [Moved].Open, and not waited for again before their next attempt.
	LeaveOpen bool
	// NoWait: wait until due runs are published, but not for their results.
	NoWait bool
	// For bounds the move: after so long it ends at the instant it is at. 0: no
	// bound.
	For time.Duration
}

// DefaultSettle and MaxSettle are those of [Options].
const (
	DefaultSettle = 10 * time.Second
	MaxSettle     = time.Minute
	// MaxAdvance bounds one move.
	MaxAdvance = 3660 * 24 * time.Hour
	// maxInstants bounds those that are listed.
	maxInstants = 1000
)

// Moved is the result of a move.
type Moved struct {
	// Now is the time of the clock; Reached: it is the requested one.
	Now     task.Instant
	Reached bool
	// Visited counts the instants at which something was due, Instants are the
	// first 1000 of them.
	Visited  int
	Instants []task.Instant
	// Fired counts the deliveries meanwhile.
	Fired int64
	// Open are runs that were left open.
	Open []clock.OpenRun
}

// Now returns the time of the clock.
func (c *Clock) Now(ctx context.Context) (clock.State, error) {
	s, err := c.cfg.Databases.Read(ctx)
	return s, explain(err)
}

// Next returns the instant at which something is due next, and when something
// must be promoted: for people. [task.Never]: nothing is due.
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
			if unknown = unknown || v.Arrivals; v.Arrivals {
				c.promote(v.Database)
			}
		}
		if !unknown || time.Since(began) > nextWait || !sleep(ctx, lastLook) {
			return next, ctx.Err()
		}
	}
}

// nextWait is how long recently added tasks may take to leave level 0.
const nextWait = 5 * time.Second

func (c *Clock) promote(database int) {
	for _, p := range c.cfg.Parts {
		p.Promote(database)
	}
}

// Advance moves the clock to an instant, step by step. Errors are of package task:
// [task.InvalidArgument] where the instant has passed or is too far away,
// [task.FailedPrecondition] where something does not settle.
func (c *Clock) Advance(ctx context.Context, to task.Instant, o Options) (Moved, error) {
	return c.move(ctx, to, o, false)
}

// AdvanceBy moves the clock on by a distance.
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

// Jump moves the clock to an instant at once, and settles there.
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

// moved calls all parts.
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

// explain gives an error of the databases its code.
func explain(err error) error {
	var known *task.Error
	switch {
	case err == nil || errors.As(err, &known):
		return err
	case errors.Is(err, clock.ErrReal):
		return task.Errorf(task.ReasonNoVirtualClock, "this installation runs by the real clock, which nobody can move")
	}
	return task.Errorf(task.ReasonClockUnavailable, "the virtual clock does not answer").CausedBy(err)
}
