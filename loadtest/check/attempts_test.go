package check

import (
	"testing"
	"time"

	"github.com/perceptor/perceptor/task"
)

// failing returns the history of a one-shot whose attempts end as the letters of script
// say: f fails, z snoozes, p fails permanently, s succeeds.
func failing(seed uint64, script string) *Task {
	t := newTeller(seed)
	a := t.add(task.OneShot, 1)
	a.MaxAttempts = 3
	d := &Task{Add: a, ID: a.ID, Final: &Final{
		ID: a.ID, Number: a.Number, Type: a.Type, State: task.Failed, Begin: a.Begin, End: a.End, MaxCount: 1, Runs: 1,
	}}
	start := Of(a.Begin).Add(t.upTo(20 * time.Millisecond))
	for i, letter := range script {
		e := Execution{
			Number: a.Number, ID: a.ID, Seq: 1, Attempt: int32(i + 1), ScheduledAt: a.Begin,
			Start: start, End: start.Add(t.upTo(10 * time.Millisecond)), Outcome: task.Fail, After: time.Second,
		}
		switch letter {
		case 'z':
			e.Outcome, e.After = task.Snooze, 2*time.Second
		case 'p':
			e.Permanent = true
		case 's':
			e.Outcome, d.Final.State = task.Success, task.Completed
		}
		t.execute(d, e, task.Accepted)
		start = e.End.Add(e.After + t.upTo(50*time.Millisecond))
	}
	return d
}

func TestRunsThatFailAsTheyShouldHaveNoViolation(t *testing.T) {
	for _, script := range []string{"s", "fs", "ffs", "fff", "zs", "zzzzs", "fzfs", "p", "fp", "zzp", "fzff"} {
		for seed := range uint64(50) {
			if r := examine(config(), failing(seed, script)); r.Total() != 0 {
				t.Errorf("script %s, seed %d: found %v, want no violation", script, seed, r.Examples)
			}
		}
	}
}

func TestEveryFaultOfAttemptsIsFound(t *testing.T) {
	for _, f := range []struct {
		name, script string
		kind         Kind
		change       func(*Task)
	}{
		{"one attempt too many", "ffff", OverCount, func(*Task) {}},
		{"an attempt after a permanent failure", "pf", DuplicateResult, func(*Task) {}},
		{"a handler is called long after the death", "pzs", Stale, func(*Task) {}},
		{"a snooze spends an attempt", "zff", Lost, func(*Task) {}},
		{"a run is given up too soon", "ff", Lost, func(*Task) {}},
		{"a run is never given up", "fff", Lost, func(d *Task) { d.Final.State = task.Running }},
		{"a retry comes too soon", "fs", Early, func(d *Task) { d.Executions[1].Start = d.Executions[0].End.Add(300 * time.Millisecond) }},
		{"a snoozed run comes too soon", "zs", Early, func(d *Task) { d.Executions[1].Start = d.Executions[0].End.Add(time.Second) }},
		{"a snoozed run never comes again", "z", Lost, func(d *Task) { d.Final.State = task.Running }},
		{"a permanent failure is retried until it succeeds", "ps", DuplicateResult, func(d *Task) {}},
	} {
		t.Run(f.name, func(t *testing.T) {
			for seed := range uint64(20) {
				d := failing(seed, f.script)
				f.change(d)
				if r := examine(config(), d); r.Violations[f.kind] == 0 {
					t.Fatalf("seed %d: found %v, want a violation of kind %s", seed, r.Examples, f.kind)
				}
			}
		})
	}
}
