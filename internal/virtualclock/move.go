package virtualclock

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/perceptor/perceptor/store/clock"
	"github.com/perceptor/perceptor/task"
)

// move is one that is under way.
type move struct {
	c     *Clock
	o     Options
	to    task.Instant
	now   task.Instant
	began time.Time
	fired int64
	// quiet: a look has seen that nothing was left to do. Only a look that begins
	// after that can find nothing in all databases and be right.
	quiet bool
	// visited is the last instant that was counted.
	visited task.Instant
	done    Moved
}

// advance settles at each instant and goes to the next.
func (m *move) advance(ctx context.Context) error {
	defer m.c.moved() // also those who had nothing due
	moved := false    // by one step at least, so that whoever calls again gets on
	for {
		next, err := m.settle(ctx)
		if err != nil {
			return err
		}
		if m.now >= m.to {
			m.done.Reached = true
			return nil
		}
		if moved && m.o.For > 0 && time.Since(m.began) >= m.o.For {
			return nil
		}
		moved = true
		if err := m.set(ctx, min(next.stop(), m.to)); err != nil {
			return err
		}
		m.visit(next.due)
	}
}

// jump goes to the end at once.
func (m *move) jump(ctx context.Context) error {
	defer m.c.moved()
	views, err := m.c.lookAll(ctx)
	if err != nil {
		return err
	}
	if err := m.set(ctx, m.to); err != nil {
		return err
	}
	m.visit(m.next(views).due)
	if _, err := m.settle(ctx); err != nil {
		return err
	}
	m.done.Reached = true
	return nil
}

// visit notes that something is due at this instant, by what was known before the
// clock came here: a dispatcher may be quicker than the next look.
func (m *move) visit(due task.Instant) {
	done := &m.done
	if due > m.now || m.visited == m.now && done.Visited > 0 {
		return
	}
	m.visited = m.now
	if done.Visited++; len(done.Instants) < maxInstants {
		done.Instants = append(done.Instants, m.now)
	}
}

func (m *move) set(ctx context.Context, to task.Instant) error {
	s, err := m.c.cfg.Databases.Move(ctx, to)
	if err != nil {
		return explain(err)
	}
	m.now = s.Now
	return nil
}

// Distances of two looks, and of two reminders of the same part.
const (
	firstLook   = time.Millisecond
	lastLook    = 10 * time.Millisecond
	remindEvery = 50 * time.Millisecond
	// settles is how many times Settle an instant may take with progress: more
	// means that runs come for ever.
	settles = 6
	// takenOff is how long a claim may stay in the outbox when it is published.
	takenOff = 5 * time.Second
	// ownWork is how long what the installation does by itself may take without
	// progress, on a slow machine, too; Settle is for handlers.
	ownWork = 30 * time.Second
)

// settle waits until nothing is left to do at this instant, and returns the one
// at which something is to do next.
func (m *move) settle(ctx context.Context) (ahead, error) {
	w := &waiting{m: m, entered: time.Now(), progressed: time.Now()}
	pause := firstLook
	databases := allDatabases
	for {
		views, err := m.c.look(ctx, databases)
		if err != nil {
			return ahead{}, err
		}
		w.see(views)
		next := m.next(views)
		if len(databases) == task.Databases {
			w.seeWaiting(views, &next)
		}
		switch {
		case len(w.busy) == 0 && m.quiet && len(databases) == task.Databases:
			return next, nil
		case len(w.busy) == 0: // handlers may have added something elsewhere
			databases, m.quiet = allDatabases, true
			continue
		}
		left, err := w.over()
		if err != nil {
			return ahead{}, err
		}
		if databases = w.busy; left {
			databases = allDatabases
			continue
		}
		if w.apart { // where turns are given out is another database
			databases = allDatabases
		}
		if !sleep(ctx, pause) {
			return ahead{}, ctx.Err()
		}
		pause = min(pause*3/2, lastLook)
	}
}

// ahead is when something is to do next: a row is due, or a bucket of the far tier
// begins within the horizon.
type ahead struct{ due, promote task.Instant }

// stop is where the clock must not go by.
func (a ahead) stop() task.Instant { return min(a.due, a.promote) }

func (m *move) next(views []clock.View) ahead {
	next := ahead{task.Never, task.Never}
	for i := range views {
		v := &views[i]
		if v.Due > m.now {
			next.due = min(next.due, v.Due)
		}
		if v.Bucket != task.Never {
			next.promote = min(next.promote, max(v.Bucket.Add(-m.c.cfg.Horizon)+1, m.now+1))
		}
	}
	return next
}

var allDatabases = func() (all []int) {
	for d := range task.Databases {
		all = append(all, d)
	}
	return all
}()

// lookAll looks at every database.
func (c *Clock) lookAll(ctx context.Context) ([]clock.View, error) { return c.look(ctx, allDatabases) }

// look looks at several databases concurrently.
func (c *Clock) look(ctx context.Context, databases []int) ([]clock.View, error) {
	views, errs := make([]clock.View, len(databases)), make([]error, len(databases))
	var looking sync.WaitGroup
	for i, d := range databases {
		looking.Go(func() {
			views[i], errs[i] = c.cfg.Databases.Look(ctx, d)
		})
	}
	looking.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, explain(err)
		}
	}
	return views, nil
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// waiting is the wait at one instant.
type waiting struct {
	m                   *move
	entered, progressed time.Time
	reminded            [task.Databases]time.Time
	fired               int64
	// apart: rows of tenants that are held apart are due; held counts those tenants
	// that are waited for, database by database.
	apart bool
	held  int

	// busy are the databases that are waited for, and why: rows are due, tasks of
	// the far tier are to be promoted, claims are not published, runs are open.
	busy                      []int
	due, promote, unpublished int
	open                      []clock.OpenRun
}

// see handles the pending work of a database.
func (w *waiting) see(views []clock.View) {
	before := len(w.open) + w.due + w.promote
	w.busy, w.open, w.due, w.promote, w.unpublished = nil, nil, 0, 0, 0
	for i := range views {
		if w.seeOne(&views[i]) {
			w.busy = append(w.busy, views[i].Database)
		}
	}
	fired := w.m.c.fired()
	if fired != w.fired || len(w.open)+w.due+w.promote != before {
		w.fired, w.progressed = fired, time.Now()
	}
}

// turnWait is how long nothing must have happened before rows that are due wait
// for their tenant's next turn: a dispatcher may have some turns at hand.
const turnWait = 100 * time.Millisecond

// seeWaiting looks at the tenants that are held apart. What is due of them has to be
// waited for while there is a turn for it, else it is when the clock shows that.
func (w *waiting) seeWaiting(views []clock.View, next *ahead) {
	before := w.held
	w.apart, w.held = false, 0
	defer func() {
		if w.held != before {
			w.progressed = time.Now()
		}
	}()
	turns := map[int32]task.Instant{}
	for i := range views {
		maps.Copy(turns, views[i].Turns)
	}
	for i := range views {
		v := &views[i]
		for tenant, due := range v.Waiting {
			if due > v.Now {
				next.due = min(next.due, due)
				continue
			}
			w.apart = true
			if turn := turns[tenant]; turn > v.Now && time.Since(w.progressed) >= turnWait {
				next.due = min(next.due, turn)
				continue
			}
			w.held++
			w.m.visit(v.Now)
			w.remind(v.Database, true, false)
			if !slices.Contains(w.busy, v.Database) {
				w.busy = append(w.busy, v.Database)
			}
		}
	}
}

// seeOne says whether a database has to be waited for, and tells those who have
// to do something there.
func (w *waiting) seeOne(v *clock.View) bool {
	c := w.m.c
	if w.m.now < v.Now {
		w.m.now = v.Now // a clock that goes
	}
	promote := v.Arrivals || v.Bucket != task.Never && v.Bucket < v.Now.Add(c.cfg.Horizon)
	due := v.Due <= v.Now
	if due {
		w.due++
		w.m.visit(v.Now)
	}
	if promote {
		w.promote++
	}
	// A claim that was under way when the clock was set may take its records for
	// claimed ahead, and hold them.
	held := v.Outbox > 0 && time.Since(w.entered) >= remindEvery
	if due || promote || held {
		w.remind(v.Database, due || held, promote)
	}
	w.unpublished += v.Outbox
	if w.m.o.NoWait {
		return due || promote || v.Outbox > 0
	}
	n := len(w.open)
	for _, o := range v.Open {
		if !w.m.o.LeaveOpen || !c.left[openRun{o.RunID, o.Attempt}] {
			w.open = append(w.open, o)
		}
	}
	return due || promote || len(w.open) > n
}

func (w *waiting) remind(d int, due, promote bool) {
	if time.Since(w.reminded[d]) < remindEvery {
		return
	}
	w.reminded[d] = time.Now()
	for _, p := range w.m.c.cfg.Parts {
		if due {
			p.ClockMoved(d)
		}
		if promote {
			p.Promote(d)
		}
	}
}

// over reports whether runs were left open, because the wait has been long enough.
// It is an error when that is not wanted, or when more than runs are waited for.
func (w *waiting) over() (left bool, err error) {
	o := &w.m.o
	idle, all := time.Since(w.progressed), time.Since(w.entered)
	if idle < o.Settle && all >= max(settles*o.Settle, DefaultSettle) {
		return false, task.Errorf(task.ReasonClockStuck, "at %s runs have come for %s and there is no end: does a handler ask to be called again at once?", w.m.now, all.Round(time.Second))
	}
	if err := w.stuck(idle); err != nil || w.due+w.promote > 0 || idle < o.Settle || len(w.open) == 0 {
		return false, err
	}
	if !o.LeaveOpen && w.unpublished > 0 && o.Settle >= takenOff {
		return false, task.Errorf(task.ReasonClockStuck, "at %s %d claims are not known to be published after %s: does Kafka answer?", w.m.now, w.unpublished, o.Settle)
	}
	if !o.LeaveOpen {
		return false, task.Errorf(task.ReasonClockStuck, "at %s %s: is a listener running that has these kinds? A longer settle waits longer, leave_open goes on without their results", w.m.now, openText(w.open, o.Settle))
	}
	for _, r := range w.open {
		if len(w.m.c.left) < maxLeft {
			w.m.c.left[openRun{r.RunID, r.Attempt}] = true
		}
	}
	w.m.done.Open = appendSome(w.m.done.Open, w.open)
	return true, nil
}

// stuck returns the work that the installation itself does not finish.
func (w *waiting) stuck(idle time.Duration) error {
	wait := max(w.m.o.Settle, ownWork)
	if idle < wait {
		return nil
	}
	at := w.m.now
	switch {
	case w.due > 0:
		return task.Errorf(task.ReasonClockStuck, "at %s rows of %d databases are due and nobody has claimed them for %s: does a dispatcher own their shards, and does Kafka answer?", at, w.due, wait)
	case w.promote > 0:
		return task.Errorf(task.ReasonClockStuck, "at %s tasks of the far tier in %d databases wait for their promotion for %s: does a dispatcher own the chores?", at, w.promote, wait)
	case w.unpublished > 0:
		return task.Errorf(task.ReasonClockStuck, "at %s %d claims are not known to be published after %s: does Kafka answer?", at, w.unpublished, wait)
	case w.held > 0:
		return task.Errorf(task.ReasonClockStuck, "at %s runs of tenants with a rate or a cap are due and nobody has claimed them for %s: is the cap of a kind full of runs that were left open?", at, wait)
	}
	return nil
}

const (
	maxLeft  = 100_000 // runs that are remembered as left open
	maxNamed = 5       // runs that an error names
	maxOpen  = 1000    // runs that an answer names
)

func appendSome(list, more []clock.OpenRun) []clock.OpenRun {
	return append(list, more[:min(len(more), max(0, maxOpen-len(list)))]...)
}

// openText names some of the runs.
func openText(open []clock.OpenRun, settle time.Duration) string {
	names := make([]string, 0, maxNamed)
	for _, r := range open[:min(len(open), maxNamed)] {
		names = append(names, r.String())
	}
	text := strings.Join(names, "; ")
	if n := len(open) - maxNamed; n > 0 {
		text += fmt.Sprintf("; and %d more", n)
	}
	if len(open) == 1 {
		return fmt.Sprintf("a run has no result after %s: %s", settle, text)
	}
	return fmt.Sprintf("%d runs have no result after %s: %s", len(open), settle, text)
}
