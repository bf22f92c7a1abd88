package assign

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perceptor/perceptor/internal/ctxtime"
)

// ErrMoved is the error of an Acquire for a place that is no longer in force.
var ErrMoved = errors.New("assign: members meet elsewhere now")

const (
	// followEvery is how often a follower asks which place is in force.
	followEvery = time.Second
	// followAfter is the time from a change until all followers go to the new place: by then all
	// of them have heard of it, so the first plan there is for all.
	followAfter = 2 * followEvery
	// firstAnswer bounds the wait for the first answer. After that the place of the configuration
	// counts.
	firstAnswer = 10 * time.Second
	// leaveAfter bounds how long a member stays in the old place while items move.
	leaveAfter = 30 * time.Second
)

// An Authority says in which place members meet.
type Authority struct {
	// Place is a name; empty: the place of the configuration.
	Place string
	// Version differs after each change. 0: it was never changed.
	Version int64
	// Age is the time since the last change, by the clock of those who keep it.
	Age time.Duration
}

// A FollowConfig describes a [Follower].
type FollowConfig struct {
	// Ask returns the place that is in force.
	Ask func(ctx context.Context) (Authority, error)
	// Places make the members for each place, by its name. Their workers must be fenced.
	Places map[string]func(Worker) (Assigner, error)
	// Default is the place that is in force if nobody has said another.
	Default string
	// Items are those of the members.
	Items []Item
	Log   *slog.Logger
}

// A Follower is the [Assigner] of a process whose members may meet in one of several
// places, such as ZooKeeper and a database, and move to another place while they work.
//
// When another place comes into force, every follower registers there, at about the same time,
// and stays a member of the old one. The leader of the new place plans. An item is acquired
// there without waiting for a release in the old place: its epoch rises, so that its
// former owner has lost it. An item that stays in the process changes the place only. When a
// follower has its share in the new place, it leaves the old one and releases the rest. So items
// are owned all the time, and by the fence never twice.
//
// Every Acquire asks first which place is in force, and fails with [ErrMoved] in another. So
// whoever has not noticed the move cannot take items back. If nobody answers, the
// last answer counts.
type Follower struct {
	FollowConfig
	worker  Worker
	running atomic.Bool
	groups  map[int]*sync.Mutex // a call for a group at a time, from whatever place

	mu        sync.Mutex
	active    *part // whose state is shown
	leaving   *part // in the old place; nil: none
	authority Authority
	asked     time.Time     // when it was asked for
	holder    map[int]*part // that has acquired an item
}

// A part is the member in one place, and its worker.
type part struct {
	Assigner
	f     *Follower
	place string
	since time.Time
	stop  context.CancelFunc
	ended chan error
}

// NewFollower returns a follower that is not running.
func NewFollower(c FollowConfig, w Worker) (*Follower, error) {
	if c.Places[c.Default] == nil {
		return nil, fmt.Errorf("assign: Default: %q: is not among the places", c.Default)
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	f := &Follower{FollowConfig: c, worker: w, groups: map[int]*sync.Mutex{}, holder: map[int]*part{}}
	for _, it := range c.Items {
		if f.groups[it.Group] == nil {
			f.groups[it.Group] = &sync.Mutex{}
		}
	}
	var err error
	f.active, err = f.part(c.Default) // so that there is a state to show
	return f, err
}

func (f *Follower) part(place string) (*part, error) {
	p := &part{f: f, place: place, ended: make(chan error, 1)}
	var err error
	p.Assigner, err = f.Places[place](p)
	return p, err
}

// Lost implements [Assigner].
func (f *Follower) Lost(ids ...int) {
	f.mu.Lock()
	for _, id := range ids {
		delete(f.holder, id)
	}
	active, leaving := f.active, f.leaving
	f.mu.Unlock()
	active.Lost(ids...)
	if leaving != nil {
		leaving.Lost(ids...)
	}
}

// Snapshot implements [Assigner]. It is the state in the place that is in force.
func (f *Follower) Snapshot() Snapshot {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.active.Snapshot()
}

// Place returns the place of this process.
func (f *Follower) Place() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.active.place
}

// Run implements [Assigner].
func (f *Follower) Run(ctx context.Context) error {
	if !f.running.CompareAndSwap(false, true) {
		return ErrRunning
	}
	if err := f.begin(ctx); err != nil {
		return err
	}
	for pace := ctxtime.NewPace(); ; {
		wait := f.follow(ctx)
		select {
		case <-ctx.Done():
			return f.end()
		case err := <-f.active.ended:
			f.active.ended <- err
			return errors.Join(err, f.end())
		case <-time.After(pace.Wait(wait)):
		}
	}
}

// begin starts the member in the place that is in force.
func (f *Follower) begin(ctx context.Context) error {
	for began := time.Now(); ; {
		err := f.ask(ctx)
		if err == nil || ctx.Err() != nil {
			break
		}
		if time.Since(began) > firstAnswer {
			f.Log.Warn("assign: it is not known where members meet; using the configuration", "place", f.Default, "err", err)
			break
		}
		sleepUntil(ctx, followEvery/4)
	}
	place := f.inForce()
	if f.Places[place] == nil {
		return fmt.Errorf("assign: members meet in %s, for which this process is not configured", place)
	}
	if place != f.active.place {
		p, err := f.part(place)
		if err != nil {
			return err
		}
		f.mu.Lock()
		f.active = p
		f.mu.Unlock()
	}
	f.active.start(ctx)
	return nil
}

func sleepUntil(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func (p *part) start(ctx context.Context) {
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	p.stop, p.since = stop, time.Now()
	p.f.Log.Info("assign: members meet", "place", p.place)
	go func() { p.ended <- p.Run(run) }()
}

// ask updates what is known of the place in force.
func (f *Follower) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, followEvery)
	defer cancel()
	asked := time.Now()
	a, err := f.Ask(ctx)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if asked.After(f.asked) { // not overtaken by a later question
		f.authority, f.asked = a, asked
	}
	return nil
}

func (f *Follower) inForce() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.authority.Place == "" {
		return f.Default
	}
	return f.authority.Place
}

// follow goes to another place and leaves the old one when it is time. It returns when to look
// again.
func (f *Follower) follow(ctx context.Context) (wait time.Duration) {
	f.leaveOld()
	if err := f.ask(ctx); err != nil {
		f.Log.Debug("assign: it is not known where members meet", "err", err)
		return followEvery
	}
	place := f.inForce()
	f.mu.Lock()
	age := f.authority.Age
	f.mu.Unlock()
	switch {
	case f.leaving != nil && place == f.leaving.place:
		f.goBack()
		return followEvery / 10
	case place == f.active.place || f.leaving != nil:
		return followEvery
	case f.Places[place] == nil:
		f.Log.Error("assign: members meet where this process cannot; it keeps its items and acquires none", "place", place)
		return followEvery
	case age < followAfter:
		return min(followAfter-age, followEvery)
	}
	p, err := f.part(place)
	if err != nil {
		f.Log.Error("assign: cannot go where members meet", "place", place, "err", err)
		return followEvery
	}
	p.start(ctx)
	f.mu.Lock()
	f.active, f.leaving = p, f.active
	f.mu.Unlock()
	return followEvery / 10
}

// goBack returns to the place that this process has not left yet. The items that were acquired
// in the other place are lost there, so that they are acquired again.
func (f *Follower) goBack() {
	f.mu.Lock()
	f.active, f.leaving = f.leaving, f.active
	f.active.since = time.Now()
	var ids []int
	for id, p := range f.holder {
		if p == f.leaving {
			ids = append(ids, id)
		}
	}
	active := f.active
	f.mu.Unlock()
	active.Lost(ids...)
}

// leaveOld leaves the old place when this process has its share in the new one.
func (f *Follower) leaveOld() {
	old := f.leaving
	if old == nil || !f.active.settled() && time.Since(f.active.since) < leaveAfter {
		return
	}
	f.Log.Info("assign: leaving the place where members met before", "place", old.place)
	if err := old.finish(); err != nil {
		f.Log.Warn("assign: the old place was left in disorder", "place", old.place, "err", err)
	}
	f.mu.Lock()
	f.leaving = nil
	f.mu.Unlock()
}

// settled reports whether there is a plan for the members that are listed, and this process has
// all items for which the plan names it. (An old plan may name members of an earlier time.)
func (p *part) settled() bool {
	s := p.Snapshot()
	if !s.Registered || s.Generation == 0 {
		return false
	}
	listed := map[string]bool{}
	for _, m := range s.Members {
		listed[m.ID] = true
	}
	for _, it := range s.Items {
		planned := it.Requested == "" && it.Without != "" || listed[it.Requested]
		if !planned || it.Requested == s.Self && it.Phase != Owned {
			return false
		}
	}
	return true
}

func (p *part) finish() error {
	p.stop()
	return <-p.ended
}

// end leaves all places.
func (f *Follower) end() error {
	var old error
	if f.leaving != nil {
		old = f.leaving.finish()
	}
	return errors.Join(old, f.active.finish())
}

// Acquire implements [Worker].
func (p *part) Acquire(ctx context.Context, items []Item) error {
	f := p.f
	group := f.groups[items[0].Group]
	group.Lock()
	defer group.Unlock()
	_ = f.ask(ctx) // without an answer the last one counts
	if place := f.inForce(); place != p.place {
		return fmt.Errorf("%w: in %s", ErrMoved, place)
	}
	err := f.worker.Acquire(ctx, items)
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, it := range items {
		if delete(f.holder, it.ID); err == nil {
			f.holder[it.ID] = p
		}
	}
	return err
}

// Release implements [Worker]. Items that were acquired in another place are not released.
func (p *part) Release(ctx context.Context, items []Item) error {
	f := p.f
	group := f.groups[items[0].Group]
	group.Lock()
	defer group.Unlock()
	var held []Item
	f.mu.Lock()
	for _, it := range items {
		if f.holder[it.ID] == p {
			held = append(held, it)
		}
	}
	f.mu.Unlock()
	if len(held) == 0 {
		return nil
	}
	if err := f.worker.Release(ctx, held); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, it := range held {
		delete(f.holder, it.ID)
	}
	return nil
}
