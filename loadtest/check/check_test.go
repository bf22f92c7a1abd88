package check

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perceptor/perceptor/task"
)

// t0 is the begin of the histories in these tests.
const t0 = task.Instant(1_800_000_000_000)

const quiet = t0 + 600_000

// config returns a configuration in which everything due before quiet must be done.
func config() Config {
	return Config{Quiet: Of(quiet), Finals: true, Replies: true, From: Of(t0), To: Of(quiet), Examples: 100}
}

// teller generates the history of a system that keeps its contract, with random delays,
// repeated deliveries, failures and missed instants.
type teller struct {
	*rand.Rand
	number int64
	calm   bool // no run is late, fails or is delivered twice
}

func newTeller(seed uint64) *teller { return &teller{Rand: rand.New(rand.NewPCG(seed, 1))} }

func (t *teller) add(typ task.Type, maxCount int64) *Add {
	t.number++
	a := &Add{
		Number: t.number, ID: task.ID(512*t.number + t.number%512), Answer: Acknowledged, Type: typ,
		Begin: t0 + task.Instant(t.IntN(5000)), End: task.Never, MaxCount: maxCount, Retained: true,
	}
	a.Sent = Of(t0 - 1000)
	a.Answered = a.Sent.Add(3 * time.Millisecond)
	if typ != task.OneShot {
		a.Interval = time.Second
	}
	return a
}

// deliver adds the callbacks and answers of one run. It returns when the result was
// accepted.
func (t *teller) deliver(d *Task, seq int64, at task.Instant, claimed Micros, missed int64) Micros {
	e := Execution{
		Number: d.Add.Number, ID: d.ID, Seq: seq, Attempt: 1, ScheduledAt: at, Missed: missed,
		Start: claimed.Add(t.upTo(20 * time.Millisecond)), Outcome: task.Success,
	}
	if !t.calm && t.IntN(10) == 0 { // the first attempt fails
		e.Outcome = task.Fail
		e.End = e.Start.Add(t.upTo(10 * time.Millisecond))
		t.execute(d, e, task.Accepted)
		e.Start, e.Attempt, e.Outcome = e.End.Add(time.Second), 2, task.Success
	}
	e.End = e.Start.Add(t.upTo(10 * time.Millisecond))
	t.execute(d, e, task.Accepted)
	accepted := e.End.Add(time.Millisecond)
	if d.Add.Type != task.Blocking && !t.calm && t.IntN(10) == 0 { // delivered again, to another listener
		e.Listener, e.Missed = 1, 0
		e.Start, e.End = e.End.Add(100*time.Millisecond), e.End.Add(110*time.Millisecond)
		t.execute(d, e, task.Already)
	}
	return accepted
}

func (t *teller) execute(d *Task, e Execution, code task.Code) {
	d.Executions = append(d.Executions, e)
	p := Reply{ID: e.ID, Seq: e.Seq, Attempt: e.Attempt, Listener: e.Listener}
	if d.Add.Type == task.Blocking {
		p.Call, p.Code, p.Answered = Start, task.Accepted, e.Start
		d.Replies = append(d.Replies, p)
	}
	p.Call, p.Code, p.Answered = Report, code, e.End.Add(3*time.Millisecond)
	d.Replies = append(d.Replies, p)
}

func (t *teller) upTo(d time.Duration) time.Duration { return time.Duration(t.Int64N(int64(d))) }

func (t *teller) story(a *Add) *Task {
	d := &Task{Add: a, ID: a.ID}
	f := &Final{
		ID: a.ID, Number: a.Number, Type: a.Type, State: task.Completed,
		Begin: a.Begin, End: a.End, Interval: a.Interval, MaxCount: a.MaxCount,
	}
	if a.Type == task.OneShot {
		f.MaxCount = 1
	}
	step := task.Instant(a.Interval.Milliseconds())
	for at := a.Begin; at < a.End && (f.MaxCount == 0 || f.Runs < f.MaxCount); {
		f.Runs++
		claimed := Of(at).Add(t.upTo(50 * time.Millisecond))
		var missed int64
		if a.Type == task.NonBlocking && f.Runs < f.MaxCount && t.IntN(6) == 0 { // some intervals late
			missed = t.Int64N(3)
			claimed = Of(at + task.Instant(missed)*step).Add(10 * time.Millisecond)
		}
		accepted := t.deliver(d, f.Runs, at, claimed, missed)
		f.Missed += missed
		at += step * task.Instant(1+missed)
		if a.Type == task.Blocking {
			at = task.Instant(accepted/1000) + step
		}
	}
	d.Final = f
	return d
}

func (t *teller) typical(typ task.Type) *Task {
	d := t.story(t.add(typ, int64(5)*min(1, int64(typ)-1)))
	return d
}

func examine(cfg Config, tasks ...*Task) Result {
	c := New(cfg)
	for _, d := range tasks {
		c.Task(*d)
	}
	return c.Result()
}

func TestAHistoryThatKeepsTheContractHasNoViolation(t *testing.T) {
	for seed := range uint64(300) {
		tell := newTeller(seed)
		var tasks []*Task
		for _, typ := range task.Types {
			bounded := tell.add(typ, 0)
			bounded.End = bounded.Begin + 5500
			unanswered := tell.add(typ, 3)
			if typ == task.OneShot {
				unanswered.MaxCount = 1
			}
			tasks = append(tasks, tell.typical(typ), tell.story(bounded), tell.story(unanswered))
			unanswered.Answer = NotKnown
			absent := tell.add(typ, 3)
			absent.Answer = NotKnown
			tasks = append(tasks, &Task{Add: absent, ID: absent.ID})
			forgotten := tell.typical(typ)
			forgotten.Add.Retained, forgotten.Final = false, nil
			tasks = append(tasks, forgotten)
		}
		r := examine(config(), tasks...)
		for _, v := range r.Examples {
			t.Errorf("seed %d: clean history has violation %v", seed, v)
		}
	}
}

// fault is a planted bug: change turns a clean history of one task into a wrong one.
type fault struct {
	name   string
	typ    task.Type
	kind   Kind
	change func(*Task)
}

func dropRun(seq int64) func(*Task) {
	return func(d *Task) {
		d.Executions = slices.DeleteFunc(d.Executions, func(e Execution) bool { return e.Seq == seq })
		d.Replies = slices.DeleteFunc(d.Replies, func(p Reply) bool { return p.Seq == seq })
	}
}

func everyExecution(seq int64, change func(*Execution)) func(*Task) {
	return func(d *Task) {
		for i := range d.Executions {
			if d.Executions[i].Seq == seq {
				change(&d.Executions[i])
			}
		}
	}
}

// accepted returns the answer that accepted the result of run seq.
func accepted(d *Task, seq int64) *Reply {
	for i := range d.Replies {
		p := &d.Replies[i]
		succeeded := slices.ContainsFunc(d.Executions, func(e Execution) bool {
			return e.Seq == seq && e.Attempt == p.Attempt && e.Outcome == task.Success
		})
		if p.Call == Report && p.Seq == seq && p.Code == task.Accepted && succeeded {
			return p
		}
	}
	return nil
}

// again returns a change that adds one more run, a copy of the last one, later by after.
func again(after time.Duration) func(*Task) {
	return func(d *Task) {
		last := d.Executions[len(d.Executions)-1]
		for _, e := range d.Executions {
			if e.Seq == last.Seq {
				last = e
			}
		}
		last.Seq++
		last.ScheduledAt = last.ScheduledAt.Add(after)
		last.Start, last.End = last.Start.Add(after), last.End.Add(after)
		newTeller(1).execute(d, last, task.Accepted)
		d.Final.Runs++
	}
}

var faults = []fault{
	{"an acknowledged one-shot is never called", task.OneShot, Lost, func(d *Task) { d.Executions, d.Replies, d.Final.Runs = nil, nil, 0 }},
	{"an acknowledged task is not in the database", task.OneShot, Lost, func(d *Task) { d.Executions, d.Replies, d.Final = nil, nil, nil }},
	{"an acknowledged recurring task is not in the database", task.NonBlocking, Lost, func(d *Task) { d.Executions, d.Replies, d.Final = nil, nil, nil }},
	{"a finished task is gone before its retention", task.Blocking, Lost, func(d *Task) { d.Final = nil }},
	{"one run of the grid is dropped", task.NonBlocking, Lost, dropRun(3)},
	{"the first run is dropped", task.NonBlocking, Lost, dropRun(1)},
	{"the last run is dropped", task.NonBlocking, Lost, dropRun(5)},
	{"the last run of a chain is dropped", task.Blocking, Lost, dropRun(5)},
	{"a run of a chain is dropped", task.Blocking, Lost, dropRun(2)},
	{"a result is never accepted", task.Blocking, Lost, func(d *Task) { accepted(d, 5).Code = task.Superseded }},
	{"a result is never answered", task.OneShot, Lost, func(d *Task) {
		d.Replies = nil
	}},
	{"a task is stuck in RUNNING", task.OneShot, Lost, func(d *Task) { d.Final.State, d.Final.Open = task.Running, 1 }},
	{"a chain stops before max_count", task.Blocking, Lost, func(d *Task) { dropRun(5)(d); d.Final.Runs, d.Final.State = 4, task.Scheduled }},
	{"a task ends before max_count", task.NonBlocking, Lost, func(d *Task) { dropRun(5)(d); d.Final.Runs = 4 }},
	{"an instant is skipped and not counted", task.NonBlocking, Lost, func(d *Task) {
		for i := range d.Executions {
			if e := &d.Executions[i]; e.Seq > 2 {
				e.ScheduledAt += 1000
				e.Start, e.End = e.Start.Add(time.Second), e.End.Add(time.Second)
			}
		}
	}},
	{"a run is skipped that is not yet due", task.NonBlocking, Lost, func(d *Task) {
		everyExecution(2, func(e *Execution) { e.Missed = 5 })(d)
		for i := range d.Executions {
			if e := &d.Executions[i]; e.Seq > 2 {
				e.ScheduledAt += 5000
				e.Start, e.End = e.Start.Add(5*time.Second), e.End.Add(5*time.Second)
			}
		}
		d.Final.Missed += 5
	}},
	{"a handler begins 50 ms early", task.OneShot, Early, everyExecution(1, func(e *Execution) { e.Start = Of(e.ScheduledAt).Add(-50 * time.Millisecond) })},
	{"a recurring handler begins 50 ms early", task.NonBlocking, Early, everyExecution(4, func(e *Execution) { e.Start = Of(e.ScheduledAt).Add(-50 * time.Millisecond) })},
	{"a chain counts its interval from the start", task.Blocking, Early, everyExecution(3, func(e *Execution) { e.ScheduledAt -= 500 })},
	{"a result is accepted twice", task.OneShot, DuplicateResult, func(d *Task) { d.Replies = append(d.Replies, *accepted(d, 1)) }},
	{"the results of two attempts are accepted", task.NonBlocking, DuplicateResult, func(d *Task) {
		p := *accepted(d, 2)
		p.Attempt++
		d.Replies = append(d.Replies, p)
	}},
	{"one failure is counted twice", task.NonBlocking, DuplicateResult, func(d *Task) {
		e := d.Executions[len(d.Executions)-1]
		e.Attempt, e.Outcome = 9, task.Fail
		newTeller(1).execute(d, e, task.Accepted)
		d.Replies = append(d.Replies, d.Replies[len(d.Replies)-1])
	}},
	{"a run is scheduled before begin", task.NonBlocking, OutOfBounds, everyExecution(1, func(e *Execution) { e.ScheduledAt -= 1000 })},
	{"a run is scheduled at end", task.NonBlocking, OutOfBounds, func(d *Task) {
		d.Add.End = d.Executions[len(d.Executions)-1].ScheduledAt
		d.Final.End = d.Add.End
	}},
	{"a run is off the grid", task.NonBlocking, OutOfBounds, everyExecution(3, func(e *Execution) { e.ScheduledAt += 7 })},
	{"a one-shot is scheduled after begin", task.OneShot, OutOfBounds, everyExecution(1, func(e *Execution) { e.ScheduledAt++ })},
	{"a chain drifts", task.Blocking, OutOfBounds, everyExecution(3, func(e *Execution) { e.ScheduledAt += 300 })},
	{"handlers of two runs overlap", task.Blocking, Overlap, everyExecution(2, func(e *Execution) { e.End = e.End.Add(3 * time.Second) })},
	{"handlers of two attempts overlap", task.Blocking, Overlap, func(d *Task) {
		e := d.Executions[len(d.Executions)-1]
		e.Attempt++
		e.Listener = 1
		d.Executions[len(d.Executions)-1].End = e.End.Add(50 * time.Millisecond)
		e.End = e.End.Add(50 * time.Millisecond)
		newTeller(1).execute(d, e, task.Superseded)
	}},
	{"a handler runs without a lease", task.Blocking, Overlap, func(d *Task) {
		d.Replies = slices.DeleteFunc(d.Replies, func(p Reply) bool { return p.Call == Start && p.Seq == 2 })
	}},
	{"two listeners get one lease", task.Blocking, Overlap, func(d *Task) {
		p := d.Replies[0]
		p.Listener = 1
		d.Replies = append(d.Replies, p)
	}},
	{"a task runs once more than max_count", task.NonBlocking, OverCount, again(time.Second)},
	{"a chain runs once more than max_count", task.Blocking, OverCount, again(1100 * time.Millisecond)},
	{"a one-shot runs twice", task.OneShot, OverCount, again(0)},
	{"an instant gets two runs", task.NonBlocking, OverCount, func(d *Task) {
		d.Add.MaxCount, d.Final.MaxCount = 6, 6
		again(0)(d)
	}},
	{"a redelivery has another instant", task.NonBlocking, Mismatch, func(d *Task) {
		e := d.Executions[0]
		e.ScheduledAt += 1000
		e.Start, e.End = e.Start.Add(time.Second), e.End.Add(time.Second)
		newTeller(1).execute(d, e, task.Already)
	}},
	{"a record counts a miss that fired", task.NonBlocking, Mismatch, func(d *Task) { d.Final.Missed++ }},
	{"the stored spec is not the one sent", task.Blocking, Mismatch, func(d *Task) { d.Final.Interval += time.Second }},
	{"a task is cancelled without a request", task.OneShot, Mismatch, func(d *Task) { d.Final.State = task.Cancelled }},
	{"the params are those of another task", task.OneShot, Phantom, everyExecution(1, func(e *Execution) { e.Number++ })},
	{"a refused task fires", task.OneShot, Phantom, func(d *Task) { d.Add.Answer = Refused }},
	{"a task that was not added fires", task.NonBlocking, Phantom, func(d *Task) { d.Add = nil }},
	{"a task that was not added is stored", task.NonBlocking, Phantom, func(d *Task) { d.Add, d.Executions, d.Replies = nil, nil, nil }},
}

func TestEveryPlantedFaultIsFound(t *testing.T) {
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			for seed := range uint64(20) {
				tell := newTeller(seed)
				planted := tell.typical(f.typ)
				f.change(planted)
				r := examine(config(), tell.typical(task.OneShot), planted, tell.typical(task.Blocking))
				if r.Violations[f.kind] == 0 {
					t.Fatalf("seed %d: found %v, want a violation of kind %s", seed, r.Examples, f.kind)
				}
				for _, v := range r.Examples {
					if v.Task != planted.ID {
						t.Errorf("seed %d: violation of a clean task: %v", seed, v)
					}
				}
			}
		})
	}
}

func TestEveryKindHasAPlantedFault(t *testing.T) {
	for _, k := range Kinds {
		planted := slices.ContainsFunc(faults, func(f fault) bool { return f.kind == k })
		for _, f := range seriesFaults {
			planted = planted || f.kind == k
		}
		for _, f := range changeFaults {
			planted = planted || f.kind == k
		}
		if !planted {
			t.Errorf("no fault plants %s", k)
		}
	}
}

func TestAnInterruptedRunCallsNothingLostThatMayStillCome(t *testing.T) {
	for _, f := range faults {
		if f.kind != Lost || strings.Contains(f.name, "skipped") {
			continue // a skipped instant does not come again
		}
		planted := newTeller(1).typical(f.typ)
		f.change(planted)
		planted.Final = nil
		cfg := config()
		cfg.Quiet, cfg.Finals = 0, false
		if r := examine(cfg, planted); r.Total() != 0 {
			t.Errorf("%s: found %v, want no violation", f.name, r.Examples)
		}
	}
}

func TestExamplesAreBoundedAndCountsAreNot(t *testing.T) {
	cfg := config()
	cfg.Examples = 2
	tell := newTeller(1)
	var tasks []*Task
	for range 7 {
		d := tell.typical(task.OneShot)
		d.Executions, d.Replies, d.Final = nil, nil, nil
		tasks = append(tasks, d)
	}
	r := examine(cfg, tasks...)
	if r.Violations[Lost] < 7 || len(r.Examples) != 2 {
		t.Errorf("%d violations with %d examples, want at least 7 with 2", r.Violations[Lost], len(r.Examples))
	}
}

func TestFiguresCountWithinTheWindow(t *testing.T) {
	add := &Add{Number: 1, ID: 513, Answer: Acknowledged, Type: task.OneShot, Begin: t0 + 2000, End: task.Never, MaxCount: 1, Sent: Of(t0), Answered: Of(t0 + 5)}
	d := &Task{Add: add, ID: add.ID}
	e := Execution{Number: 1, ID: 513, Seq: 1, Attempt: 1, ScheduledAt: t0 + 2000, Start: Of(t0 + 2030), End: Of(t0 + 2040), Outcome: task.Success}
	tell := newTeller(1)
	tell.execute(d, e, task.Accepted)
	e.Start, e.End, e.Attempt = Of(t0+9000), Of(t0+9001), 2
	tell.execute(d, e, task.Already)

	cfg := Config{From: Of(t0), To: Of(t0 + 5000), Spans: []Span{{Of(t0 + 1500), Of(t0 + 2500)}, {Of(t0 + 3000), Of(t0 + 4000)}}}
	f := examine(cfg, d).Figures
	if want := (Counts{Adds: 1, Fires: 1, Callbacks: 1, Results: 1, Cycles: 1}); f.Window != want {
		t.Errorf("window counts = %+v, want %+v", f.Window, want)
	}
	if got := fmt.Sprint(f.Runs, f.Callbacks, f.Tasks); got != "1 2 1" {
		t.Errorf("runs, callbacks, tasks = %s, want 1 2 1", got)
	}
	if got := f.Lateness.Max(); got < 29_900 || got > 30_100 {
		t.Errorf("lateness = %d µs, want 30,000", got)
	}
	if got := f.LatenessOf[task.OneShot].Max(); got != f.Lateness.Max() || len(f.LatenessOf) != 1 {
		t.Errorf("lateness of ONE_SHOT = %d µs among %d types, want the lateness of all runs and 1 type", got, len(f.LatenessOf))
	}
	if got := f.AddTime.Max(); got < 4_990 || got > 5_010 {
		t.Errorf("add time = %d µs, want 5,000", got)
	}
	if f.CaughtUp[0] != Of(t0+2030) || f.CaughtUp[1] != 0 {
		t.Errorf("CaughtUp = %v, want the start of the run and 0", f.CaughtUp)
	}
	if got := f.Seconds[seriesMargin+2]; got.Callbacks != 1 || got.LatestMicros != 30_000 {
		t.Errorf("second 2 = %+v, want one callback, 30,000 µs late", got)
	}
}
