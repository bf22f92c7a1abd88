package check

import (
	"testing"

	"github.com/perceptor/perceptor/task"
)

func TestAddsAreWhatIsScheduledRunningFinishedAndPurged(t *testing.T) {
	before := task.Counts{Added: 10, PurgedCompleted: 10}
	good := task.Counts{Added: 13, Scheduled: 1, Running: 1, Completed: 0, PurgedCompleted: 10, PurgedFailed: 1}
	for _, test := range []struct {
		name  string
		after task.Counts
		kind  Kind
	}{
		{"kept", good, ""},
		{"a task is in no state", good.Plus(task.Counts{Scheduled: -1}), Mismatch},
		{"an add is lost", good.Plus(task.Counts{Added: -2, Scheduled: -1, Running: -1}), Lost},
		{"an add is stored twice", good.Plus(task.Counts{Added: 2, Scheduled: 2}), Phantom},
	} {
		c, tell := New(config()), newTeller(1)
		for range 2 {
			c.Task(*tell.typical(task.OneShot))
		}
		lost := tell.add(task.OneShot, 1)
		lost.Answer = NotKnown
		c.Task(Task{Add: lost})
		c.Balance(before, test.after)
		r := c.Result()
		if test.kind == "" && r.Total() != 0 || test.kind != "" && (r.Violations[test.kind] != 1 || r.Total() != 1) {
			t.Errorf("%s: found %v, want kind %q alone", test.name, r.Examples, test.kind)
		}
	}
}
