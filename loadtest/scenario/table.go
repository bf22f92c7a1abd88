package scenario

import (
	"fmt"
	"strings"
	"time"

	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/task"
)

// Table implements [harness.Report].
func (rep *Report) Table(t *harness.Table) {
	unit := "cycle"
	if rep.TasksPerS != nil {
		unit = "add"
	}
	t.Line("\n%s: %s on the %s stack, %.0f %ss/s asked for, %.0f s measured (seed %d)",
		rep.Command, rep.Type, rep.Stack, rep.Rate, unit, rep.WindowS, rep.Seed)
	if rep.TasksPerS == nil {
		rep.writeRates(t)
	} else {
		rep.writeAdds(t)
	}
	t.Row("add ms", "%s", rep.AddMs)
	t.WriteString(rep.CPU.Table(unit, time.Duration(rep.WindowS*float64(time.Second))))
	if rep.WALBytesPerFire != nil {
		t.Row("WAL", "%.0f bytes per fire", *rep.WALBytesPerFire)
	}
	if rep.RatioToFloor != nil {
		t.Row("floor", "%.0f cycles/s by bare SQL on the same server: ratio %.2f", *rep.FloorCyclesPerS, *rep.RatioToFloor)
		t.Row("", "%s", rep.Floor.Summary())
	}
	for _, d := range rep.Disturbances {
		t.Row(d.What, "%s", d.summary())
	}
	if rep.Soak != nil {
		rep.writeSoak(t)
	}
	t.Findings(&rep.Findings)
	if !rep.Complete {
		t.Line("  The run was not completed: nothing was counted as lost.")
	}
}

func (rep *Report) writeRates(t *harness.Table) {
	t.Row("cycles/s", "%.0f", rep.CyclesPerS)
	rep.writeAdds(t)
	t.Row("fires/s", "%.0f   (%d instants missed)", rep.FiresPerS, rep.Missed)
	t.Row("callbacks/s", "%.0f   (%d of %d were repeats)", rep.CallbacksPerS, rep.Callbacks-rep.Runs, rep.Callbacks)
	t.Row("results/s", "%.0f", rep.ResultsPerS)
	t.Row("lateness ms", "%s", rep.LatenessMs)
	for _, typ := range task.Types {
		name := strings.ToLower(typ.String())
		if q, ok := rep.LatenessByType[name]; ok && len(rep.LatenessByType) > 1 {
			t.Row("  "+name, "%s", q)
		}
	}
}

func (rep *Report) writeAdds(t *harness.Table) {
	t.Row("adds/s", "%.0f   (%d not answered, %d refused, up to %.0f ms behind the clock)", rep.AddsPerS, rep.AddsUnanswered, rep.AddsRefused, rep.AddsBehindMs)
}

func (d DisturbanceReport) summary() string {
	s := fmt.Sprintf("%s, took %.0f ms", d.Part, d.TookMs)
	if d.TakeoverMs != nil {
		s += fmt.Sprintf(", %d shards taken over after %.0f ms", d.Shards, *d.TakeoverMs)
	}
	if d.CaughtUpMs != nil {
		s += fmt.Sprintf(", caught up after %.0f ms", *d.CaughtUpMs)
	}
	return s
}
