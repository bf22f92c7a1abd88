package client

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/perceptor/perceptor/task"
)

// world is one run with the service's rules (refRun), one partition, and two
// listener processes, one of which owns the partition. Random steps produce all
// failures: lost answers, RETRY, rebalances, crashes, missing results, repeated
// and late records, hand-backs, and fail-overs that lose commits.
type world struct {
	t         *rapid.T
	run       *refRun
	past      []refRun // states of the run that a fail-over may bring back
	failovers int
	claims    task.Instant // the clock: how often the run was claimed
	log       []delivery   // the record at each offset
	committed int64
	procs     [2]*proc
	owner     int
	holders   uint64
	executed  map[int32]bool // attempts whose handler has ended in any process
	accepted  int            // accepted FAILs that were checked
	busy      bool           // listeners may put runs off
}

// delivery is a record of the run.
type delivery struct {
	attempt int32
	claimed task.Instant // 0: the record was published again after a take-over
}

// proc is a listener process from its start to its end.
type proc struct {
	table   *table
	holder  uint64
	handles bool
	on      *tracker
	next    int64
	todo    []action
	ended   map[int32]int
}

func (w *world) newProc(handles bool) *proc {
	w.holders++
	return &proc{table: newTable(8), holder: w.holders, handles: handles, ended: map[int32]int{}}
}

// assign gives the partition to a process, which reads on from the committed
// offset.
func (w *world) assign(owner int) {
	if t := w.procs[w.owner].on; t != nil {
		t.over = true
	}
	w.owner = owner
	p := w.procs[owner]
	p.on, p.next = newTracker(0, w.committed), w.committed
}

// do queues the actions to perform, and commits the offsets that they name.
func (w *world) do(p *proc, acts []action) {
	for _, a := range acts {
		switch a.verb {
		case doSkip:
		case doCommit:
			a.rec.at.tracker.done(a.rec.at.offset)
		default:
			p.todo = append(p.todo, a)
		}
	}
	if o := w.procs[w.owner]; p == o {
		if offset, ok := p.on.prefix(); ok {
			w.committed, p.on.committed = offset, offset
		}
	}
	w.check()
}

// check verifies the invariants.
func (w *world) check() {
	r := w.run
	if r.final == 0 && !r.row && r.attempt > 0 && w.failovers == 0 {
		found := false
		for _, d := range w.log[w.committed:] {
			found = found || d.attempt == 1
		}
		if !found {
			w.t.Fatalf("the run is lost: it has no row, and offset %d of %v is committed", w.committed, w.log)
		}
	}
	for _, attempt := range r.fails[w.accepted:] {
		if !w.executed[attempt] {
			w.t.Fatalf("FAIL of attempt %d was accepted, but no process executed it", attempt)
		}
	}
	w.accepted = len(r.fails)
	if r.final == task.Accepted && len(w.executed) == 0 {
		w.t.Fatal("SUCCESS was accepted, but no process executed the run")
	}
	for _, p := range w.procs {
		for attempt, n := range p.ended {
			if n > 1 && w.failovers == 0 {
				w.t.Fatalf("one process executed attempt %d %d times", attempt, n)
			}
		}
	}
}

func (w *world) fetch() bool {
	p := w.procs[w.owner]
	if p.next >= int64(len(w.log)) {
		return false
	}
	offset := p.next
	p.next++
	d := w.log[offset]
	pub := task.Publication{Task: task.NewID(1, 1), Seq: 1, Attempt: d.attempt, Type: w.run.typ, ClaimedAt: d.claimed}
	w.do(p, p.table.arrive(nil, &arrival{pub: pub, handled: p.handles, at: p.on.add(offset)}))
	return true
}

// fate is the outcome of a call to the service.
type fate int

const (
	answered fate = iota
	lost          // the service applied the call, but the answer was lost
	busy          // RETRY
)

// perform performs the i-th pending action of a process.
func (w *world) perform(p *proc, i int, f fate, res task.Result) {
	a := p.todo[i]
	call := func(judge func() task.Code, answer func(task.Code) []action) {
		if f == busy {
			p.todo = append(p.todo[:i:i], p.todo[i+1:]...)
			w.do(p, answer(task.Retry))
			return
		}
		w.past = append(w.past, *w.run)
		code := judge()
		if f == lost {
			w.check()
			return // it is repeated
		}
		p.todo = append(p.todo[:i:i], p.todo[i+1:]...)
		w.do(p, answer(code))
	}
	attempt := a.rec.pub.Attempt
	switch a.verb {
	case doStart:
		call(func() task.Code {
			if a.rec.pub.Type != task.Blocking {
				return w.run.check(attempt)
			}
			return w.run.start(attempt, p.holder)
		},
			func(c task.Code) []action { return p.table.startAnswered(nil, a.entry, c) })
	case doReport:
		call(func() task.Code { return w.run.report(attempt, p.holder, a.res) },
			func(c task.Code) []action { return p.table.reportAnswered(nil, a.entry, c, "") })
	case doHandBack:
		call(func() task.Code { return w.run.handBack(attempt, p.holder) },
			func(c task.Code) []action { return p.table.handBackAnswered(nil, a.entry, c) })
	case doQueue:
		p.todo = append(p.todo[:i:i], p.todo[i+1:]...)
		if w.busy && rapid.IntRange(0, 3).Draw(w.t, "put off") == 0 {
			w.do(p, p.table.putOff(nil, a.entry, 1))
			return
		}
		w.do(p, p.table.begin(nil, a.entry))
	case doExecute:
		p.todo = append(p.todo[:i:i], p.todo[i+1:]...)
		p.ended[attempt]++
		w.executed[attempt] = true
		w.do(p, p.table.handlerEnded(nil, a.entry, attempt, res))
	}
}

// beat sends a heartbeat for all executions of a process.
func (w *world) beat(p *proc) {
	for _, a := range p.todo {
		if a.verb == doExecute && w.run.beat(a.rec.pub.Attempt, p.holder) == task.Accepted {
			w.do(p, p.table.heartbeatAccepted(nil, a.entry, a.rec.pub.Attempt))
			return
		}
	}
}

// step performs one random step.
func (w *world) step() {
	p := w.procs[rapid.IntRange(0, 1).Draw(w.t, "process")]
	switch rapid.SampledFrom([]string{"fetch", "fetch", "perform", "perform", "perform", "perform", "beat", "redeliver", "repeat", "rebalance", "crash", "fail over"}).Draw(w.t, "step") {
	case "fetch":
		w.fetch()
	case "perform":
		if len(p.todo) > 0 {
			i := rapid.IntRange(0, len(p.todo)-1).Draw(w.t, "which")
			f := rapid.SampledFrom([]fate{answered, answered, answered, lost, busy}).Draw(w.t, "fate")
			w.perform(p, i, f, rapid.SampledFrom(results).Draw(w.t, "result"))
		}
	case "beat":
		w.beat(p)
	case "redeliver":
		w.redeliver()
	case "repeat":
		if len(w.log) < 30 {
			d := rapid.SampledFrom(w.log).Draw(w.t, "record")
			if rapid.Bool().Draw(w.t, "by another dispatcher") {
				d.claimed = 0
			}
			w.log = append(w.log, d)
		}
	case "fail over":
		w.failOver()
	case "rebalance":
		w.assign(rapid.IntRange(0, 1).Draw(w.t, "owner"))
	case "crash":
		for i := range w.procs {
			if w.procs[i] == p {
				w.procs[i] = w.newProc(p.handles)
				if w.owner == i {
					w.assign(rapid.IntRange(0, 1).Draw(w.t, "owner"))
				}
			}
		}
	}
}

func (w *world) redeliver() bool { return len(w.log) < 30 && w.deliver() }

// deliver claims the run, if it can be claimed. After a fail-over the open bit of a
// NON_BLOCKING run may be back although its record was consumed; then its silence
// makes its row.
func (w *world) deliver() bool {
	if w.failovers > 0 && w.run.attempt > 0 {
		w.run.row = true
	}
	attempt := w.run.deliver()
	if attempt == 0 {
		return false
	}
	w.claims++
	w.log = append(w.log, delivery{attempt, w.claims})
	return true
}

// failOver brings back an earlier state of the run, or the one before its claim.
func (w *world) failOver() {
	before := append([]refRun{{typ: w.run.typ, max: w.run.max}}, w.past...)
	*w.run = rapid.SampledFrom(before).Draw(w.t, "state")
	w.run.fails = slices.Clone(w.run.fails)
	w.past, w.failovers = nil, w.failovers+1
	w.accepted = min(w.accepted, len(w.run.fails))
}

// quiet completes all pending actions without faults.
func (w *world) quiet() {
	for again := true; again; {
		again = w.fetch()
		for _, p := range w.procs {
			for len(p.todo) > 0 {
				w.perform(p, 0, answered, task.Result{Outcome: task.Success})
				again = true
			}
		}
	}
}

func TestNoHistoryLosesARun(t *testing.T) {
	for i := range 20 { // more histories than the default number of checks
		t.Run(fmt.Sprint(i), rapid.MakeCheck(history))
	}
}

func history(r *rapid.T) {
	typ := rapid.SampledFrom(task.Types).Draw(r, "type")
	w := &world{t: r, run: &refRun{typ: typ, max: 3}, executed: map[int32]bool{}, busy: true}
	w.deliver()
	w.procs[0], w.procs[1] = w.newProc(true), w.newProc(rapid.Bool().Draw(r, "both have the handler"))
	w.assign(0)
	for range rapid.IntRange(0, 60).Draw(r, "steps") {
		w.step()
	}
	// From here on there are no faults, and a listener with the handler has the
	// partition. A few redeliveries must be enough.
	w.busy = false
	w.assign(0)
	w.quiet()
	for n := 0; w.run.final == 0; n++ {
		if n == 3 || !w.deliver() {
			r.Fatalf("the run is not over after %d redeliveries: %+v, log %v", n, *w.run, w.log)
		}
		w.quiet()
	}
	w.atRest()
}

// atRest checks that no state is left over.
func (w *world) atRest() {
	if w.committed != int64(len(w.log)) {
		w.t.Fatalf("the committed offset stays at %d of %d", w.committed, len(w.log))
	}
	for i, p := range w.procs {
		if len(p.table.active) != 0 || p.table.pending != 0 || p.table.begun != 0 {
			w.t.Fatalf("process %d keeps %s", i, describe(p.table))
		}
	}
}

func describe(t *table) string {
	return fmt.Sprintf("%d active, %d pending, %d begun", len(t.active), t.pending, t.begun)
}

// results are what handlers end with, the more frequent ones more often.
var results = []task.Result{
	{Outcome: task.Success}, {Outcome: task.Success}, {Outcome: task.Success}, {Outcome: task.Fail}, {Outcome: task.Fail},
	{Outcome: task.Snooze, After: 1}, {Outcome: task.Fail, Permanent: true},
}
