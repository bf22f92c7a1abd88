package shards

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/task"
)

// The race of all actors that move, change, read and fire far tasks. Steps fail before
// and after their commits, owners are replaced at any moment, and the clock advances by
// hours within seconds. The test judges from outside: by ids, by acknowledged changes and
// by published runs.
type farRace struct {
	*bundle
	seed  uint64
	order atomic.Int64 // orders acknowledgements and the beginnings of claims
	quiet atomic.Bool  // no failpoint fires
	// The number of answered changes, and how long to wait for more.
	answeredEdits, answeredTriggers atomic.Int64
	exports                         atomic.Int64 // that have ended
	until                           time.Time

	mu    sync.Mutex
	r     *rand.Rand
	tasks []*racer
	byID  map[task.ID]*racer
	fails []string
}

// racer is the test's knowledge of one task.
type racer struct {
	id        task.ID
	begin     task.Instant
	interval  time.Duration // 0: ONE_SHOT
	runs      int           // how many are to be
	fired     map[int64]int64
	cancelled int64 // when the cancel was acknowledged; 0: it was not
	tried     bool  // a cancel was begun
	paused    int64 // when the pause was acknowledged; 0: not, or resumed
	edits           // in far_race_change_test.go
}

// mostRacers is the most tasks.
const mostRacers = 8000

var errFailpoint = errors.New("failpoint")

func (f *farRace) random(n int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.r.IntN(n)
}

func (f *farRace) fail(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.fails) < 10 {
		f.fails = append(f.fails, fmt.Sprintf(format, args...))
	}
}

// pick returns any task, or nil if there is none.
func (f *farRace) pick() *racer {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.tasks) == 0 {
		return nil
	}
	return f.tasks[f.r.IntN(len(f.tasks))]
}

// failpoint makes steps of movers and callers fail. Adds, claims and reports have
// tests of their own.
func (f *farRace) failpoint(point string, _ int) error {
	switch point {
	case "add:" + kernel.BeforeCommit, "add:" + kernel.AfterCommit, "claim:" + kernel.BeforeCommit, "claim:" + kernel.AfterCommit:
		return nil
	}
	if !f.quiet.Load() && f.random(20) == 0 {
		return errFailpoint
	}
	return nil
}

func (f *farRace) now() task.Instant {
	var now int64
	if err := f.db.Pool(f.d).QueryRow(context.Background(), `SELECT now FROM test_clock`).Scan(&now); err != nil {
		f.fail("clock: %v", err)
	}
	return task.Instant(now)
}

func (f *farRace) clock() {
	_, err := f.db.Pool(f.d).Exec(context.Background(), `UPDATE test_clock SET now = now + $1`, 1000+f.random(90_000))
	if err != nil {
		f.fail("clock: %v", err)
	}
}

// adder adds a request with tasks near and far.
func (f *farRace) adder() {
	f.mu.Lock()
	if len(f.tasks) > mostRacers {
		f.mu.Unlock()
		return
	}
	n := 1 + f.r.IntN(3)
	if f.r.IntN(8) == 0 {
		n = 200
	}
	key := f.requestID()
	f.mu.Unlock()
	now := f.now()
	specs := make([]task.Spec, n)
	news := make([]*racer, n)
	for i := range specs {
		spans := []int{5, 30, 120, 600, 60 * 24 * 3}
		at := now.Add(time.Duration(f.random(spans[f.random(len(spans))]*60_000)) * time.Millisecond)
		news[i] = &racer{begin: at, runs: 1, fired: map[int64]int64{}, edits: edits{typ: task.OneShot, opened: map[int64]string{}}}
		typ := task.OneShot
		if f.random(4) == 0 {
			typ, news[i].interval, news[i].runs = task.Blocking, 3*time.Hour, 2
			if f.random(2) == 0 {
				typ = task.NonBlocking
			}
		}
		news[i].typ = typ
		specs[i] = f.spec(typ, func(s *task.Spec) {
			s.Begin, s.AckTimeout, s.GiveUpAfter, s.Retention = at, 24*time.Hour, 30*24*time.Hour, 80*24*time.Hour
			if typ != task.OneShot {
				s.Interval, s.MaxCount = 3*time.Hour, 2
			}
		})
	}
	a := &adding{req: task.AddRequest{Tenant: f.tenant, RequestID: key, Specs: specs}, key: key, home: placeOf(f.tenant, key)}
	if err := f.dbs[f.d].doAdds(context.Background(), []*adding{a})[0]; err != nil {
		if !kernel.LockConflict(err) {
			f.fail("add: %v", err)
		}
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, item := range a.result.Items {
		news[i].id = item.ID
		f.tasks = append(f.tasks, news[i])
		if r := f.byID[item.ID]; r != nil { // it has fired already
			news[i].fired = r.fired
		}
		f.byID[item.ID] = news[i]
	}
}

// allowed reports whether a caller may get this error.
func allowed(err error) bool {
	return errors.Is(err, errFailpoint) || task.CodeOf(err) == task.Unavailable
}

func (f *farRace) canceller() {
	t := f.pick()
	if t == nil {
		return
	}
	f.mu.Lock()
	t.tried = true
	f.mu.Unlock()
	switch got, err := f.Cancel(context.Background(), f.tenant, t.id); {
	case err == nil && got.State.Final():
		f.mu.Lock()
		if t.cancelled == 0 {
			t.cancelled = f.order.Add(1)
		}
		f.mu.Unlock()
	case err == nil:
		f.fail("task %d is %s after its cancel", t.id, got.State)
	case !allowed(err):
		f.fail("cancel of %d: %v", t.id, err)
	}
}

// pauser pauses a task and resumes it after some other steps.
func (f *farRace) pauser() {
	t := f.pick()
	if t == nil {
		return
	}
	f.mu.Lock()
	mine := t.paused == 0
	t.paused = -1 // somebody is at it
	f.mu.Unlock()
	if !mine {
		return
	}
	_, err := f.Pause(context.Background(), f.tenant, t.id)
	if err == nil {
		f.mu.Lock()
		t.paused = f.order.Add(1)
		f.mu.Unlock()
		for range f.random(5) {
			f.getter()
		}
		f.mu.Lock()
		t.paused = -1
		f.mu.Unlock()
	} else if !allowed(err) && task.CodeOf(err) != task.FailedPrecondition {
		f.fail("pause of %d: %v", t.id, err)
	}
	for { // also after an unknown outcome
		_, err := f.Resume(context.Background(), f.tenant, t.id)
		if err == nil || task.CodeOf(err) == task.FailedPrecondition {
			break
		}
		if !allowed(err) {
			f.fail("resume of %d: %v", t.id, err)
			break
		}
	}
	f.mu.Lock()
	t.paused = 0
	f.mu.Unlock()
}

// getter reads a task. All tasks are retained after their end, so all are found.
func (f *farRace) getter() {
	t := f.pick()
	if t == nil {
		return
	}
	f.mu.Lock()
	cancelled, version := t.cancelled != 0, t.version
	begins := []task.Instant{t.begin, t.next}
	f.mu.Unlock()
	got, err := f.Get(context.Background(), f.tenant, t.id)
	f.mu.Lock()
	begins = append(begins, t.begin, t.next) // it may have been moved meanwhile
	f.mu.Unlock()
	switch {
	case err != nil && !allowed(err):
		f.fail("get of %d: %v", t.id, err)
	case err == nil && !slices.Contains(begins, got.Begin):
		f.fail("task %d begins at %s, it was to begin at one of %v", t.id, got.Begin, begins)
	case err == nil && got.Version < version:
		f.fail("task %d has version %d after %d was answered", t.id, got.Version, version)
	case err == nil && cancelled && !got.State.Final():
		f.fail("task %d is %s after its cancel was acknowledged", t.id, got.State)
	}
}

// mover compacts while it owns the chores, or a while longer.
func (f *farRace) mover(s *Store) {
	owned, err := s.Acquire(context.Background(), f.d, []task.Shard{task.ChoresShard(f.d)}, task.Owner{Name: "mover"})
	if err != nil {
		if !allowed(err) {
			f.fail("acquire: %v", err)
		}
		return
	}
	for range 1 + f.random(40) {
		lost, err := f.moverStep(s, owned[0])
		if err != nil && !allowed(err) && !kernel.LockConflict(err) {
			f.fail("mover: %v", err)
		}
		if lost && f.random(3) > 0 {
			return
		}
	}
}

func (f *farRace) moverStep(s *Store, own task.Ownership) (lost bool, err error) {
	var c task.Compaction
	switch kind := f.random(7); kind {
	case 5:
		c, err = s.Demote(context.Background(), f.d, own, 0)
	case 6:
		_, err = s.PurgeLocator(context.Background(), f.d, own, 100)
	default:
		kinds := []task.CompactionKind{task.CompactPromote, task.CompactPromote, task.CompactLevel0, task.CompactSplit, task.CompactMerge}
		c, err = s.Compact(context.Background(), task.CompactionRequest{Database: f.d, Own: own, Kind: kinds[kind], MaxTasks: 100 + f.random(5000)})
	}
	for _, d := range c.Damaged {
		f.fail("pack %d was set aside: %s", d.Pack, d.Reason)
	}
	return c.Lost, err
}

// claimer claims due tasks and reports their results.
func (f *farRace) claimer() int {
	form := []task.ClaimForm{task.RangeForm, task.CappedForm}[f.random(2)]
	began := f.order.Add(1)
	c, err := f.Claim(context.Background(), task.ClaimRequest{Database: f.d, Owned: f.owned, Form: form, MaxRows: 2000})
	if err != nil {
		if !kernel.LockConflict(err) {
			f.fail("claim: %v", err)
		}
		return 0
	}
	for i := range c.Publications {
		f.published(&c.Publications[i], began)
	}
	f.reportAll(c.Publications)
	return c.Rows
}

func (f *farRace) published(p *task.Publication, began int64) {
	f.mu.Lock()
	t := f.byID[p.Task]
	if t == nil { // its add is about to be acknowledged
		t = &racer{id: p.Task, begin: p.ScheduledAt, runs: 2, fired: map[int64]int64{}}
		f.byID[p.Task] = t
	}
	again, cancelled, paused := t.fired[p.Seq] != 0, t.cancelled, t.paused
	t.fired[p.Seq] = began
	begins, triggered := []task.Instant{t.begin, t.next}, t.isTriggered(p.Seq)
	fault := t.terms(p, began)
	f.mu.Unlock()
	if fault != "" {
		f.fail("run %s: %s", p.RunID(), fault)
	}
	switch {
	case again && p.Attempt == 1:
		f.fail("run %s was claimed twice", p.RunID())
	case cancelled != 0 && began > cancelled && p.Attempt == 1:
		f.fail("run %s was claimed after the cancel was acknowledged", p.RunID())
	case paused > 0 && began > paused && p.Attempt == 1 && !triggered:
		f.fail("run %s was claimed after the pause was acknowledged", p.RunID())
	case p.ScheduledAt > p.ClaimedAt:
		f.fail("run %s was claimed at %s, before %s", p.RunID(), p.ClaimedAt, p.ScheduledAt)
	case p.Seq == 1 && !triggered && !slices.Contains(begins, p.ScheduledAt):
		f.fail("run %s was scheduled at %s, not at one of %v", p.RunID(), p.ScheduledAt, begins)
	}
}

// reportAll reports the results of runs and repeats those whose rows are locked.
func (f *farRace) reportAll(pubs []task.Publication) {
	for tries := 0; len(pubs) > 0; tries++ {
		var starts []task.Attempt
		results := make([]task.Report, len(pubs))
		for i, p := range pubs {
			results[i] = success(p.Task, p.Seq, p.Attempt, 7)
			if p.Type == task.Blocking {
				starts = append(starts, results[i].Attempt)
			}
		}
		f.start(7, starts...)
		var again []task.Publication
		for i, code := range f.bundle.report(results...) {
			switch code {
			case task.Accepted, task.Finished, task.Already:
			case task.Retry, task.Superseded: // locked; or its start was
				again = append(again, pubs[i])
			default:
				f.fail("report of %s: %s", pubs[i].RunID(), code)
			}
		}
		if pubs = again; tries > 100 {
			f.fail("report of %s was never taken", pubs[0].RunID())
			return
		}
	}
}

// TestNothingIsLostDoubledOrRevivedWhileTasksMove runs all actors concurrently.
func TestNothingIsLostDoubledOrRevivedWhileTasksMove(t *testing.T) {
	f := &farRace{seed: uint64(time.Now().UnixNano()), byID: map[task.ID]*racer{}}
	f.r = rand.New(rand.NewPCG(f.seed, 1))
	t.Logf("seed %d", f.seed)
	f.quiet.Store(true)
	f.bundle = setup(t, func(c *Config) { c.Failpoint = f.failpoint })
	f.quiet.Store(false)
	lasts := 12 * time.Second
	if testing.Short() {
		lasts = 4 * time.Second
	}
	f.until = time.Now().Add(time.Minute)
	ctx, cancel := context.WithTimeout(t.Context(), lasts)
	defer cancel()
	var g errgroup.Group
	for _, actor := range []func(){
		f.clock, f.adder, f.canceller, f.pauser, f.pauser, f.getter, f.editor, f.editor, f.trigger, f.exporter, func() { f.mover(f.Store) }, func() { f.mover(New(f.db.Cluster, f.cfg)) }, // as in two processes
		func() { f.claimer() },
	} {
		g.Go(func() error {
			for ctx.Err() == nil || !f.enough() && t.Context().Err() == nil {
				actor()
				time.Sleep(time.Duration(f.random(3000)) * time.Microsecond)
			}
			return nil
		})
	}
	_ = g.Wait()
	f.settle()
	f.judge()
}

// settle waits until every task has ended.
func (f *farRace) settle() {
	f.quiet.Store(true)
	own := f.chores()
	f.setClock(f.now())
	for range 1000 {
		f.advance(time.Hour)
		for _, kind := range []task.CompactionKind{task.CompactLevel0, task.CompactPromote} {
			f.compact(own, kind)
		}
		for f.claimer() > 0 {
		}
		if f.t.Context().Err() != nil {
			return
		}
		if f.count(`SELECT (SELECT count(*) FROM task) + (SELECT count(*) FROM far_pack) + (SELECT count(*) FROM far_level0)`) == 0 {
			return
		}
	}
	f.fail("tasks are left: %d rows, %d arrivals, %d packs", f.count(`SELECT count(*) FROM task`), f.count(`SELECT count(*) FROM far_level0`), f.count(`SELECT count(*) FROM far_pack`))
}

func (f *farRace) judge() {
	fired, cancelled := 0, 0
	f.judgeChanges()
	for _, t := range f.tasks {
		switch {
		case t.cancelled != 0:
			cancelled++
		case t.tried: // its cancel has failed, with whatever outcome
		case len(t.fired) != t.runs:
			f.fail("task %d, begins %s, fired %d of %d runs", t.id, t.begin, len(t.fired), t.runs)
		}
		fired += len(t.fired)
	}
	if n := f.count(`SELECT count(*) FROM task_done`); n != len(f.tasks) {
		f.fail("%d tasks have ended, %d were added", n, len(f.tasks))
	}
	if n := f.count(`SELECT count(*) FROM far_tombstone`); n != 0 {
		f.fail("%d overrides are left", n)
	}
	f.t.Logf("%d tasks, %d runs fired, %d cancelled, %d exports", len(f.tasks), fired, cancelled, f.exports.Load())
	if len(f.tasks) < 100 || fired < 50 || f.exports.Load() < 2 {
		f.fail("hardly anything has happened")
	}
	for _, s := range f.fails {
		f.t.Error(s)
	}
}
