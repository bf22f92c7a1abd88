package virtualclock

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/perceptor/perceptor/internal/ctxtime"
	"github.com/perceptor/perceptor/store/clock"
	"github.com/perceptor/perceptor/task"
)

// move is a move of the clock in progress.
type move struct {
	c     *Clock
	o     Options
	to    task.Instant
	now   task.Instant
	began time.Time
	fired int64
	// quiet says that a look has found nothing left to do. Databases are read one
	// by one, so only a second look that finds nothing proves that all are settled.
	quiet bool
	// visited is the last instant counted in done.Visited.
	visited task.Instant
	done    Moved
}

// advance settles at each instant and goes to the next.
func (m *move) advance(ctx context.Context) error {
	defer m.c.moved() // parts without due work must learn the new time too
	moved := false    // one step at least, so that repeated short calls make progress
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

// jump moves the clock to the end in one step.
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

// visit counts the current instant if due, the next due instant that was known
// before the clock moved, has come. A look after the move may find nothing, because
// a dispatcher may have claimed the rows already.
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

// Waits of a move.
const (
	// firstLook is the pause between the first two looks. It grows to lastLook.
	firstLook = time.Millisecond
	lastLook  = 10 * time.Millisecond
	// remindEvery is the least time between two reminders of the same database.
	remindEvery = 50 * time.Millisecond
	// settles times Settle is how long an instant with progress may take. After
	// that, runs are assumed to cause new runs without end.
	settles = 6
	// takenOff is how long a published claim may stay in the outbox.
	takenOff = 5 * time.Second
	// ownWork is how long work of the installation itself may take without
	// progress, even on a slow machine. Settle is for handlers.
	ownWork = 30 * time.Second
)

// settle waits until nothing is left to do at this instant, and returns the next
// instants at which there is something to do.
func (m *move) settle(ctx context.Context) (ahead, error) {
	w := &waiting{m: m, entered: time.Now(), progressed: time.Now()}
	pause := firstLook
	databases := allDatabases
	for {
		began := time.Now()
		views, err := m.c.look(ctx, databases)
		if err != nil {
			return ahead{}, err
		}
		w.look = max(w.look, time.Since(began))
		w.see(views)
		next := m.next(views)
		if len(databases) == task.Databases {
			w.seeWaiting(views, &next)
		}
		switch {
		case len(w.busy) == 0 && m.quiet && len(databases) == task.Databases:
			return next, nil
		case len(w.busy) == 0: // handlers may have added tasks in other databases
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
		if w.background { // the home databases of tenants, which grant tokens, may be others
			databases = allDatabases
		}
		if !ctxtime.Sleep(ctx, pause) {
			return ahead{}, ctx.Err()
		}
		pause = min(pause*3/2, lastLook)
	}
}

// ahead holds the next instants with work: due is when a row becomes due, promote
// is when a bucket of the far tier enters the horizon.
type ahead struct{ due, promote task.Instant }

// stop returns the earliest of the instants. The clock must not pass it.
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

// lookAll returns the pending work of all databases.
func (c *Clock) lookAll(ctx context.Context) ([]clock.View, error) { return c.look(ctx, allDatabases) }

// look reads the pending work of several databases concurrently.
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

// waiting is the state of the wait at one instant.
type waiting struct {
	m                   *move
	entered, progressed time.Time
	reminded            [task.Databases]time.Time
	fired               int64
	// look is the longest time that a look has taken.
	look time.Duration
	// background says that rows of background tenants are due. flows counts the
	// tenants that the move waits for, once in each database.
	background bool
	flows      int

	// busy holds the databases that the move waits for. The other fields are the
	// reasons: databases with due rows, databases with tasks to promote, claims in
	// the outbox, and open runs.
	busy                      []int
	due, promote, unpublished int
	open                      []clock.OpenRun
}

// see evaluates the pending work of several databases, and notes progress.
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

// tokenWait is the time without progress after which due rows are assumed to wait
// for their tenant's next token. Before that, a dispatcher may still have tokens. On a
// busy machine, where a look takes long, a dispatcher needs longer too: tokenLooks looks.
const (
	tokenWait  = 100 * time.Millisecond
	tokenLooks = 10
)

// seeWaiting evaluates the due rows of background tenants. The move waits for them
// while the tenant has a token. Otherwise the instant of the next token becomes a
// due instant.
func (w *waiting) seeWaiting(views []clock.View, next *ahead) {
	before := w.flows
	w.background, w.flows = false, 0
	defer func() {
		if w.flows != before {
			w.progressed = time.Now()
		}
	}()
	tokens := map[int32]task.Instant{}
	for i := range views {
		maps.Copy(tokens, views[i].Tokens)
	}
	for i := range views {
		v := &views[i]
		for tenant, due := range v.Waiting {
			if due > v.Now {
				next.due = min(next.due, due)
				continue
			}
			w.background = true
			if token := tokens[tenant]; token > v.Now && time.Since(w.progressed) >= max(tokenWait, tokenLooks*w.look) {
				next.due = min(next.due, token)
				continue
			}
			w.flows++
			w.m.visit(v.Now)
			w.remind(v.Database, true, false)
			if !slices.Contains(w.busy, v.Database) {
				w.busy = append(w.busy, v.Database)
			}
		}
	}
}

// seeOne reports whether the move must wait for a database, and reminds the parts
// that have work there.
func (w *waiting) seeOne(v *clock.View) bool {
	c := w.m.c
	if w.m.now < v.Now {
		w.m.now = v.Now // a running clock
	}
	promote := v.Level0 || v.Bucket != task.Never && v.Bucket < v.Now.Add(c.cfg.Horizon)
	due := v.Due <= v.Now
	if due {
		w.due++
		w.m.visit(v.Now)
	}
	if promote {
		w.promote++
	}
	// A claim that was in progress when the clock was set may put its records into
	// the delay queue, because it compares their due times with the old time.
	delayed := v.Outbox > 0 && time.Since(w.entered) >= remindEvery
	if due || promote || delayed {
		w.remind(v.Database, due || delayed, promote)
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

// over returns true if the wait was long enough and runs were left open. It returns
// an error if the caller does not allow that, or if work of the installation itself
// is unfinished.
func (w *waiting) over() (left bool, err error) {
	o := &w.m.o
	idle, all := time.Since(w.progressed), time.Since(w.entered)
	if idle < o.Settle && all >= max(settles*o.Settle, DefaultSettle) {
		return false, task.Errorf(task.ReasonClockStuck, "at %s runs have fired for %s without an end: does a handler ask to be called again at once?", w.m.now, all.Round(time.Second))
	}
	if err := w.stuck(idle); err != nil || w.due+w.promote > 0 || idle < o.Settle || len(w.open) == 0 {
		return false, err
	}
	if !o.LeaveOpen && w.unpublished > 0 && o.Settle >= takenOff {
		return false, task.Errorf(task.ReasonClockStuck, "at %s %d claims are still in the outbox after %s: does Kafka answer?", w.m.now, w.unpublished, o.Settle)
	}
	if !o.LeaveOpen {
		return false, task.Errorf(task.ReasonClockStuck, "at %s %s: is a listener running that has these kinds? A longer settle waits longer, leave_open continues without their results", w.m.now, openText(w.open, o.Settle))
	}
	for _, r := range w.open {
		if len(w.m.c.left) < maxLeft {
			w.m.c.left[openRun{r.RunID, r.Attempt}] = true
		}
	}
	w.m.done.Open = appendSome(w.m.done.Open, w.open)
	return true, nil
}

// stuck returns an error that names the work that the installation itself has not
// finished in time.
func (w *waiting) stuck(idle time.Duration) error {
	wait := max(w.m.o.Settle, ownWork)
	if idle < wait {
		return nil
	}
	at := w.m.now
	switch {
	case w.due > 0:
		return task.Errorf(task.ReasonClockStuck, "at %s rows of %d databases are due and were not claimed for %s: does a dispatcher own their shards, and does Kafka answer?", at, w.due, wait)
	case w.promote > 0:
		return task.Errorf(task.ReasonClockStuck, "at %s tasks of the far tier in %d databases were not promoted for %s: does a dispatcher own the chores?", at, w.promote, wait)
	case w.unpublished > 0:
		return task.Errorf(task.ReasonClockStuck, "at %s %d claims are still in the outbox after %s: does Kafka answer?", at, w.unpublished, wait)
	case w.flows > 0:
		return task.Errorf(task.ReasonClockStuck, "at %s runs of tenants with a rate or a cap are due and were not claimed for %s: is the cap of a kind full of runs that were left open?", at, wait)
	}
	return nil
}

const (
	maxLeft  = 100_000 // most runs in Clock.left
	maxNamed = 5       // most runs that an error names
	maxOpen  = 1000    // most runs in Moved.Open
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
