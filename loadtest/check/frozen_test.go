package check

import (
	"testing"
	"time"

	"github.com/perceptor/perceptor/task"
)

func TestAHandlerOfASuspendedListenerOverlapsNothing(t *testing.T) {
	at := task.Instant(1_800_000_000_000)
	begin := Of(at)
	chain := Task{
		ID: 1000, Add: &Add{Number: 1, ID: 1000, Answer: Acknowledged, Type: task.Blocking, Begin: at, End: task.Never, Interval: time.Minute, MaxCount: 1},
		Executions: []Execution{
			{Number: 1, ID: 1000, Seq: 1, Attempt: 1, Listener: 1, ScheduledAt: at, Start: begin, End: begin.Add(9 * time.Second), Outcome: task.Success},
			{Number: 1, ID: 1000, Seq: 1, Attempt: 2, Listener: 2, ScheduledAt: at, Start: begin.Add(5 * time.Second), End: begin.Add(6 * time.Second), Outcome: task.Success},
		},
	}
	for name, c := range map[string]struct {
		frozen map[uint16][]Span
		want   int64
	}{
		"not suspended":               {nil, 1},
		"suspended":                   {map[uint16][]Span{1: {{begin.Add(time.Second), begin.Add(8 * time.Second)}}}, 0},
		"suspended after the overlap": {map[uint16][]Span{1: {{begin.Add(7 * time.Second), begin.Add(8 * time.Second)}}}, 1},
	} {
		k := New(Config{Frozen: c.frozen})
		k.Task(chain)
		if got := k.Result().Violations[Overlap]; got != c.want {
			t.Errorf("%s: %d overlaps, want %d", name, got, c.want)
		}
	}
}
