package check

import (
	"testing"
	"time"

	"github.com/perceptor/perceptor/task"
)

const ackTimeout = 5 * time.Second

// deaths returns a configuration in which listener 3 died two seconds after the begin of d.
func deaths(d *Task) Config {
	cfg := config()
	cfg.Deaths = map[uint16]Micros{3: Of(d.Add.Begin).Add(2 * time.Second)}
	cfg.AckTimeout, cfg.Redelivery = ackTimeout, 20*time.Second
	return cfg
}

// silenced returns the history of a task whose first run was with listener 3 when that
// listener died, and was then handled again by another listener after its ack_timeout.
func silenced(seed uint64, typ task.Type) *Task {
	t := newTeller(seed)
	t.calm = true
	a := t.add(typ, 1)
	a.MaxAttempts = 1
	d := &Task{Add: a, ID: a.ID, Final: &Final{
		ID: a.ID, Number: a.Number, Type: a.Type, State: task.Completed, Begin: a.Begin, End: a.End, Interval: a.Interval, MaxCount: 1, Runs: 1,
	}}
	e := Execution{
		Number: a.Number, ID: a.ID, Seq: 1, Attempt: 1, Listener: 3, ScheduledAt: a.Begin,
		Start: Of(a.Begin).Add(time.Second + t.upTo(900*time.Millisecond)), Unfinished: true,
	}
	if typ == task.Blocking {
		d.Replies = append(d.Replies, Reply{ID: a.ID, Seq: 1, Attempt: 1, Listener: 3, Call: Start, Code: task.Accepted, Answered: e.Start})
	}
	d.Executions = append(d.Executions, e)
	e.Attempt, e.Listener, e.Unfinished, e.Outcome = 2, 1, false, task.Success
	e.Start = Of(a.Begin).Add(ackTimeout + t.upTo(10*time.Second))
	e.End = e.Start.Add(t.upTo(10 * time.Millisecond))
	t.execute(d, e, task.Accepted)
	return d
}

func TestSilenceThatIsAnsweredAsItShouldBeHasNoViolation(t *testing.T) {
	for name, change := range map[string]func(*Task){
		"as generated": func(*Task) {},
		"a complete record beside the record of the begin": func(d *Task) {
			begun := d.Executions[1]
			begun.Unfinished, begun.End = true, begun.Start
			d.Executions = append(d.Executions, begun)
		},
	} {
		for _, typ := range task.Types {
			for seed := range uint64(50) {
				d := silenced(seed, typ)
				change(d)
				r := examine(deaths(d), d)
				if r.Total() != 0 || r.Figures.Silent != 1 {
					t.Errorf("%s, %s, seed %d: %d silent calls, found %v", name, typ, seed, r.Figures.Silent, r.Examples)
				}
			}
		}
	}
}

func TestAResultWhoseAnswerDiedWithItsListenerMayHaveBeenTaken(t *testing.T) {
	d := silenced(1, task.OneShot)
	d.Executions, d.Replies = d.Executions[:1], nil
	e := &d.Executions[0]
	e.Unfinished, e.Outcome, e.End = false, task.Success, e.Start.Add(time.Millisecond)
	if r := examine(deaths(d), d); r.Total() != 0 {
		t.Error(r.Examples)
	}
	if r := examine(config(), d); r.Violations[Lost] != 1 {
		t.Errorf("with the listener alive, found %v, want a lost result", r.Examples)
	}
}

func TestEveryFaultOfSilenceIsFound(t *testing.T) {
	for _, f := range []struct {
		name   string
		typ    task.Type
		kind   Kind
		change func(*Task)
	}{
		{"the run is not called again", task.NonBlocking, Lost, func(d *Task) { d.Executions, d.Replies = d.Executions[:1], nil }},
		{"the run is called again late", task.OneShot, Late, func(d *Task) {
			e := &d.Executions[1]
			e.Start, e.End = e.Start.Add(30*time.Second), e.End.Add(30*time.Second)
			d.Replies[0].Answered = e.End.Add(time.Millisecond)
		}},
		{"the run is called again before its ack_timeout is over", task.OneShot, Early, func(d *Task) { d.Executions[1].Start = Of(d.Add.Begin).Add(3 * time.Second) }},
		{"another listener gets the lease before the first one is dead", task.Blocking, Overlap, func(d *Task) { d.Executions[1].Start = Of(d.Add.Begin).Add(1900 * time.Millisecond) }},
		{"silence spends an attempt", task.OneShot, Lost, func(d *Task) {
			d.Executions, d.Replies, d.Final.State = d.Executions[:1], nil, task.Failed
		}},
		{"a handler never ends although its listener is alive", task.OneShot, Mismatch, func(d *Task) { d.Executions[0].Listener = 2 }},
	} {
		t.Run(f.name, func(t *testing.T) {
			for seed := range uint64(20) {
				d := silenced(seed, f.typ)
				cfg := deaths(d)
				f.change(d)
				if r := examine(cfg, d); r.Violations[f.kind] == 0 {
					t.Fatalf("seed %d: found %v, want a violation of kind %s", seed, r.Examples, f.kind)
				}
			}
		})
	}
}
