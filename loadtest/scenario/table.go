package scenario

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/perceptor/perceptor/loadtest/check"
	"github.com/perceptor/perceptor/task"
)

// table collects lines for people.
type table struct{ strings.Builder }

func (t *table) row(name, format string, args ...any) {
	fmt.Fprintf(t, "  %-22s %s\n", name, fmt.Sprintf(format, args...))
}

// WriteTable writes the report for people.
func (rep *Report) WriteTable(w io.Writer) error {
	var t table
	unit := "cycle"
	if rep.TasksPerS != nil {
		unit = "add"
	}
	fmt.Fprintf(&t, "\n%s: %s on the %s stack, %.0f %ss/s asked for, %.0f s measured (seed %d)\n",
		rep.Command, rep.Type, rep.Stack, rep.Rate, unit, rep.WindowS, rep.Seed)
	if rep.TasksPerS == nil {
		rep.writeRates(&t)
	} else {
		rep.writeAdds(&t)
	}
	t.row("add ms", "%s", rep.AddMs)
	t.WriteString(rep.CPU.Table(unit, time.Duration(rep.WindowS*float64(time.Second))))
	if rep.WALBytesPerFire != nil {
		t.row("WAL", "%.0f bytes per fire", *rep.WALBytesPerFire)
	}
	if rep.RatioToFloor != nil {
		t.row("floor", "%.0f cycles/s by bare SQL on the same server: ratio %.2f", *rep.FloorCyclesPerS, *rep.RatioToFloor)
		t.row("", "%s", rep.Floor.Summary())
	}
	for _, d := range rep.Disturbances {
		t.row(d.What, "%s", d.summary())
	}
	if rep.Soak != nil {
		rep.writeSoak(&t)
	}
	t.row("violations", "%s", rep.violations())
	for _, v := range rep.Examples {
		fmt.Fprintf(&t, "    %s\n", v)
	}
	if !rep.Complete {
		t.WriteString("  The run was not completed: nothing was counted as lost.\n")
	}
	_, err := io.WriteString(w, t.String())
	return err
}

func (rep *Report) writeRates(t *table) {
	t.row("cycles/s", "%.0f", rep.CyclesPerS)
	rep.writeAdds(t)
	t.row("fires/s", "%.0f   (%d instants missed)", rep.FiresPerS, rep.Missed)
	t.row("callbacks/s", "%.0f   (%d of %d were repeats)", rep.CallbacksPerS, rep.Callbacks-rep.Runs, rep.Callbacks)
	t.row("results/s", "%.0f", rep.ResultsPerS)
	t.row("lateness ms", "%s", rep.LatenessMs)
	for _, typ := range task.Types {
		name := strings.ToLower(typ.String())
		if q, ok := rep.LatenessByType[name]; ok && len(rep.LatenessByType) > 1 {
			t.row("  "+name, "%s", q)
		}
	}
}

func (rep *Report) writeAdds(t *table) {
	t.row("adds/s", "%.0f   (%d not answered, %d refused, up to %.0f ms behind the clock)", rep.AddsPerS, rep.AddsUnanswered, rep.AddsRefused, rep.AddsBehindMs)
}

func (rep *Report) violations() string {
	parts := make([]string, len(check.Kinds))
	for i, k := range check.Kinds {
		parts[i] = fmt.Sprintf("%s %d", k, rep.Violations[k])
	}
	return fmt.Sprintf("%d   (%s)", rep.Broken(), strings.Join(parts, ", "))
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
