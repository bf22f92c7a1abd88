package check

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"github.com/perceptor/perceptor/task"
)

// life returns the history of a NON_BLOCKING task with an interval of a second that its
// callers change. Each change is made at a time after the task's begin.
func (t *teller) life(changes map[time.Duration]Op) *Task {
	a := t.add(task.NonBlocking, 0)
	a.End = a.Begin + 30_000
	l := &life{teller: t, d: &Task{Add: a, ID: a.ID}, next: a.Begin, now: a.Begin, step: 1000, version: 1}
	l.d.Final = &Final{ID: a.ID, Number: a.Number, Type: a.Type, Begin: a.Begin, End: a.End, State: task.Completed}
	type event struct {
		at task.Instant
		op Op
	}
	var events []event
	for after, op := range changes {
		events = append(events, event{a.Begin.Add(after), op})
	}
	slices.SortFunc(events, func(a, b event) int { return cmp.Compare(a.at, b.at) })
	for l.d.Final.State != task.Cancelled {
		claim := max(l.next, l.now) + task.Instant(t.IntN(50))
		if len(events) > 0 && (l.paused || events[0].at <= claim) {
			l.now = max(l.now, events[0].at)
			l.apply(events[0].op)
			events = events[1:]
			continue
		}
		if l.next >= a.End {
			break
		}
		l.fire(claim)
	}
	f := l.d.Final
	f.Version, f.Mark, f.Interval = l.version, l.mark, time.Duration(l.step)*time.Millisecond
	return l.d
}

// life is a model of the system that produces a history.
type life struct {
	*teller
	d         *Task
	next, now task.Instant
	step      task.Instant
	version   int32
	mark      int64
	paused    bool
}

func (l *life) apply(op Op) {
	op.ID, op.Known, op.Sent, op.Answered = l.d.ID, true, Of(l.now-2), Of(l.now+2)
	l.version++
	switch op.Change {
	case Edit:
		if op.Mark != 0 {
			l.mark = op.Mark
		}
		if op.Interval != 0 {
			l.step = task.Instant(op.Interval.Milliseconds())
			if l.next > l.now {
				l.next = l.now + l.step
			}
		}
	case Pause:
		l.paused = true
	case Resume:
		l.paused = false
	case Cancel:
		l.d.Final.State = task.Cancelled
	case Trigger:
		l.version--
		op.Seq = l.d.Final.Runs + 1
		l.run(l.now, l.now, 0)
	}
	op.Version = l.version
	l.d.Ops = append(l.d.Ops, op)
}

func (l *life) fire(claim task.Instant) {
	at := l.next
	n := max(1, (claim-at+l.step-1)/l.step)
	missed := min(int64(n-1), int64((l.d.Add.End-1-at)/l.step))
	l.next, l.now = at+n*l.step, claim
	l.d.Final.Missed += missed
	l.run(at, claim, missed)
}

func (l *life) run(at, claim task.Instant, missed int64) {
	l.d.Final.Runs++
	from := len(l.d.Executions)
	l.deliver(l.d, l.d.Final.Runs, at, Of(claim), missed)
	for i := from; i < len(l.d.Executions); i++ {
		l.d.Executions[i].Version, l.d.Executions[i].Mark = l.version, l.mark
	}
}

// lives are combinations of changes.
var lives = map[string]map[time.Duration]Op{
	"marked": {
		3 * time.Second: {Change: Edit, Mark: 1}, 3100 * time.Millisecond: {Change: Edit, Mark: 2}, 11 * time.Second: {Change: Edit, Mark: 3},
	},
	"rescheduled": {
		3300 * time.Millisecond: {Change: Edit, Interval: 2 * time.Second, Mark: 1}, 12 * time.Second: {Change: Edit, Interval: 500 * time.Millisecond},
		12100 * time.Millisecond: {Change: Edit, Interval: 1500 * time.Millisecond}, 20 * time.Second: {Change: Edit, Mark: 7},
	},
	"paused":    {4200 * time.Millisecond: {Change: Pause}, 9700 * time.Millisecond: {Change: Resume}, 15 * time.Second: {Change: Pause}, 16 * time.Second: {Change: Resume}},
	"triggered": {4200 * time.Millisecond: {Change: Trigger, Request: 1}, 4300 * time.Millisecond: {Change: Trigger, Request: 2}, 9300 * time.Millisecond: {Change: Trigger, Request: 3}},
	"cancelled": {2500 * time.Millisecond: {Change: Trigger, Request: 1}, 14300 * time.Millisecond: {Change: Cancel}},
	"unchanged": {},
}

func TestALifeThatFollowsItsChangesHasNoViolation(t *testing.T) {
	for name, changes := range lives {
		for seed := range uint64(30) {
			if r := examine(config(), newTeller(seed).life(changes)); r.Total() != 0 {
				t.Errorf("%s, seed %d: found %v, want no violation", name, seed, r.Examples)
			}
		}
	}
}

// lastOf returns the last execution.
func lastOf(d *Task) *Execution {
	last := &d.Executions[0]
	for i := range d.Executions {
		if d.Executions[i].Start > last.Start {
			last = &d.Executions[i]
		}
	}
	return last
}

var changeFaults = []struct {
	name, life string
	kind       Kind
	change     func(*Task)
}{
	{"a handler begins long after the cancel", "cancelled", Stale, func(d *Task) {
		e := lastOf(d)
		e.Start, e.End = e.Start.Add(5*time.Second), e.End.Add(5*time.Second)
	}},
	{"a cancelled task stays scheduled", "cancelled", Mismatch, func(d *Task) { d.Final.State = task.Scheduled }},
	{"a cancelled task is completed", "cancelled", Mismatch, func(d *Task) { d.Final.State = task.Completed }},
	{"a run before the cancel is lost", "cancelled", Lost, func(d *Task) { dropRun(2)(d) }},
	{"a run is lost long before the cancel", "cancelled", Lost, func(d *Task) { removeRun(d, 2); removeRun(d, 2) }},
	{"a run begins while the task is paused", "paused", Stale, func(d *Task) {
		for i := range d.Executions {
			if e := &d.Executions[i]; e.ScheduledAt == d.Add.Begin+5000 {
				e.ScheduledAt += 3000
				e.Start, e.End = Of(e.ScheduledAt), Of(e.ScheduledAt+1)
			}
		}
	}},
	{"a version is forgotten", "marked", Stale, everyExecution(20, func(e *Execution) { e.Version, e.Mark = 2, 1 })},
	{"a version goes back between attempts", "marked", Stale, func(d *Task) {
		e := *lastOf(d)
		e.Start, e.End, e.Attempt, e.Version, e.Mark = e.End.Add(time.Second), e.End.Add(2*time.Second), e.Attempt+1, 3, 2
		newTeller(1).execute(d, e, task.Already)
	}},
	{"params are those of another version", "marked", Mismatch, everyExecution(20, func(e *Execution) { e.Mark = 2 })},
	{"params were never set", "marked", Mismatch, everyExecution(6, func(e *Execution) { e.Mark = 0 })},
	{"an edit is forgotten by the API", "marked", Mismatch, func(d *Task) { d.Final.Mark = 1 }},
	{"a new interval is forgotten by the API", "rescheduled", Mismatch, func(d *Task) { d.Final.Interval = time.Second }},
	{"an old grid stays in use", "rescheduled", OutOfBounds, everyExecution(7, func(e *Execution) {
		e.ScheduledAt += 700
		e.Start, e.End = e.Start.Add(700*time.Millisecond), e.End.Add(700*time.Millisecond)
	})},
	{"runs stop after an edit", "rescheduled", Lost, func(d *Task) {
		for d.Final.Runs > 8 {
			removeRun(d, d.Final.Runs)
		}
	}},
	{"runs are skipped after an edit", "rescheduled", Lost, func(d *Task) { removeRun(d, 6); removeRun(d, 6) }},
	{"two edits get one version", "marked", Mismatch, func(d *Task) {
		op := d.Ops[1]
		op.Mark = 9
		d.Ops = append(d.Ops, op)
	}},
	{"a trigger is never called", "triggered", Lost, func(d *Task) { dropRun(d.Ops[1].Seq)(d) }},
	{"a trigger runs at another time", "triggered", OutOfBounds, func(d *Task) {
		everyExecution(d.Ops[2].Seq, func(e *Execution) { e.ScheduledAt -= 300 })(d)
	}},
	{"a trigger is answered with two runs", "triggered", OverCount, func(d *Task) { d.Ops[1].Request = d.Ops[0].Request }},
	{"two triggers are answered with one run", "triggered", OverCount, func(d *Task) { d.Ops[1].Seq = d.Ops[0].Seq }},
	{"a trigger disturbs the schedule", "triggered", Lost, func(d *Task) {
		seq := d.Ops[2].Seq // the run after it is skipped
		removeRun(d, seq+1)
	}},
	{"a run is triggered without a request", "triggered", OutOfBounds, func(d *Task) { d.Ops = d.Ops[:2] }},
}

func TestEveryFaultOfAChangeIsFound(t *testing.T) {
	for _, f := range changeFaults {
		t.Run(f.name, func(t *testing.T) {
			for seed := range uint64(20) {
				tell := newTeller(seed)
				tell.calm = true
				planted := tell.life(lives[f.life])
				f.change(planted)
				if r := examine(config(), planted); r.Violations[f.kind] == 0 {
					t.Fatalf("seed %d: found %v, want a violation of kind %s", seed, r.Examples, f.kind)
				}
			}
		})
	}
}

func TestAHandlerMayBeginAsLongAfterACancelAsIsPromised(t *testing.T) {
	for after, want := range map[time.Duration]int64{
		DefaultWindow + DefaultSlack - time.Millisecond: 0,
		DefaultWindow + DefaultSlack + time.Millisecond: 1,
	} {
		tell := newTeller(1)
		tell.calm = true
		d := tell.life(lives["cancelled"])
		answered := d.Ops[len(d.Ops)-1].Answered
		e := lastOf(d)
		e.Start, e.End = answered.Add(after), answered.Add(after+time.Millisecond)
		if r := examine(config(), d); r.Violations[Stale] != want {
			t.Errorf("handler that begins %v after the cancel: found %v", after, r.Examples)
		}
	}
}

func TestATriggerOfUnknownOutcomeMayHaveOneRun(t *testing.T) {
	d := newTeller(3).life(lives["triggered"])
	d.Ops[0].Known, d.Ops[0].Seq = false, 0
	if r := examine(config(), d); r.Total() != 0 {
		t.Error(r.Examples)
	}
	d.Ops[1].Known, d.Ops[1].Sent = false, d.Ops[1].Sent.Add(5*time.Second) // the run is older than the request
	if r := examine(config(), d); r.Violations[OutOfBounds] == 0 {
		t.Errorf("found %v, want a run without a trigger", r.Examples)
	}
}

func TestAddsOfOneKeyHaveOneID(t *testing.T) {
	tell := newTeller(1)
	one := tell.typical(task.OneShot)
	one.Add.Key = true
	if r := examine(config(), one, one); r.Total() != 0 {
		t.Error(r.Examples)
	}
	two := tell.typical(task.OneShot)
	two.Add.Key, two.Add.Number, two.Final.Number = true, one.Add.Number, one.Add.Number
	for i := range two.Executions {
		two.Executions[i].Number = one.Add.Number
	}
	if r := examine(config(), one, two); r.Violations[OverCount] != 1 {
		t.Errorf("found %v, want a violation for one key with two ids", r.Examples)
	}
}

func TestATaskThatBeginsAtOnceBeginsWhenItIsAdded(t *testing.T) {
	tell := newTeller(1)
	d := tell.typical(task.OneShot)
	d.Add.Now, d.Add.Sent, d.Add.Answered = true, Of(d.Add.Begin-5), Of(d.Add.Begin+5)
	d.Add.Begin = 0
	if r := examine(config(), d); r.Total() != 0 {
		t.Error(r.Examples)
	}
	d.Add.Sent, d.Add.Answered = d.Add.Sent.Add(time.Second), d.Add.Answered.Add(time.Second)
	if r := examine(config(), d); r.Violations[OutOfBounds] != 1 {
		t.Errorf("found %v, want a violation for a task that begins too soon", r.Examples)
	}
}

func TestARepeatedTriggerIsTheSameRun(t *testing.T) {
	d := newTeller(5).life(lives["triggered"])
	again := d.Ops[0]
	again.Sent, again.Answered = again.Sent.Add(3*time.Second), again.Answered.Add(3*time.Second)
	d.Ops = append(d.Ops, again)
	if r := examine(config(), d); r.Total() != 0 {
		t.Error(r.Examples)
	}
}
