package check

import (
	"testing"
	"time"

	"github.com/perceptor/perceptor/task"
)

// A clock that goes back after a run schedules the next one before it.
func TestRunsFollowEachOtherExceptForAClockThatWentBack(t *testing.T) {
	for _, c := range []struct {
		skew time.Duration
		want int64
	}{{0, 1}, {3 * time.Second, 0}} {
		teller := newTeller(1)
		teller.calm = true
		d := teller.story(teller.add(task.Blocking, 2))
		second := &d.Executions[len(d.Executions)-1]
		second.ScheduledAt = d.Executions[0].ScheduledAt - 500
		checker := New(config())
		k := &checking{Checker: checker, Task: *d}
		k.gather()
		checker.skew = c.skew
		k.numbers()
		if got := checker.Result().Violations[Mismatch]; got != c.want {
			t.Errorf("a clock that was wrong by %v: %d violations, want %d", c.skew, got, c.want)
		}
	}
}
