package check

import (
	"testing"
	"time"

	"github.com/perceptor/perceptor/task"
)

func TestWhatDatabasesHaveLostIsExcusedAndNothingElse(t *testing.T) {
	at := task.Instant(1_800_000_000_000)
	add := func(id task.ID) *Add {
		return &Add{Number: int64(id), ID: id, Answer: Acknowledged, Type: task.OneShot, Begin: at, End: task.Never, MaxCount: 1, Retained: true}
	}
	called := func(id task.ID, number int64, start Micros) []Execution {
		return []Execution{{Number: number, ID: id, Seq: 1, Attempt: 1, ScheduledAt: at, Start: start, End: start + 1, Outcome: task.Success}}
	}
	told := &Told{Tasks: map[task.ID]bool{1000: true, 2000: false}, Numbers: map[int64]bool{1000: true}}
	for name, c := range map[string]struct {
		task Task
		want Kind // "": no violation
	}{
		"a lost task":                          {Task{ID: 1000, Add: add(1000)}, ""},
		"a lost task, called before":           {Task{ID: 1000, Add: add(1000), Executions: called(1000, 1000, Of(at))}, ""},
		"a lost task, added again by its key":  {Task{ID: 3000, Executions: called(3000, 1000, Of(at))}, ""},
		"another task of nobody":               {Task{ID: 3000, Executions: called(3000, 7, Of(at))}, Phantom},
		"an id that was given to another task": {Task{ID: 1000, Add: add(1000), Executions: called(1000, 7, Of(at))}, Phantom},
		"a task with a lost result vanished":   {Task{ID: 2000, Add: add(2000)}, Lost},
		"called early":                         {Task{ID: 1000, Add: add(1000), Executions: called(1000, 1000, Of(at)-1e6)}, Early},
		"a task that was not lost":             {Task{ID: 4000, Add: add(4000)}, Lost},
	} {
		k := New(Config{Finals: true, Quiet: Of(at).Add(time.Hour), Told: told})
		k.Task(c.task)
		got := k.Result()
		if c.want == "" && got.Total() > 0 || c.want != "" && got.Violations[c.want] == 0 {
			t.Errorf("%s: violations %v, want one of kind %q", name, got.Examples, c.want)
		}
	}
}
