package scenario

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/perceptor/perceptor/loadtest/harness"
)

// What a soak may change by and still be flat.
const (
	maxSlowdown = 0.03
	maxCostlier = 0.10
	maxGrowth   = 0.05
	freeGrowth  = 16 << 20 // bytes, whatever the size
)

// Rule says in words what [Judge] does.
const Rule = "flat means: throughput of the last two fifths is at most 3 % below, and processor time per cycle at most 10 % above, that of the " +
	"first two; and over the last three fifths the trend of each table's heap, indexes and out-of-line data is at most 5 % of its size " +
	"or 16 MiB, whichever is more. Tables whose rows stay for a day or longer (request keys, finished tasks, history) are shown, not judged."

// lasting are the kinds of tables whose rows stay longer than a run.
var lasting = []string{"task_key", "task_done", "dead_run", "run_event"}

// Verdict says whether speed and sizes stay what they are.
type Verdict struct {
	Flat bool   `json:"flat"`
	Rule string `json:"rule"`
	// Faults say what is not flat.
	Faults []string `json:"faults,omitempty"`
	// ThroughputChange and CPUChange are shares: 0.01 is 1 % more at the end.
	ThroughputChange float64 `json:"throughput_change"`
	CPUChange        float64 `json:"cpu_change"`
	// Growth is the trend of the last three fifths by table and part.
	Growth []Growth `json:"growth"`
	// OldestSnapshot is the largest age that was seen, in transactions.
	OldestSnapshot int64 `json:"oldest_snapshot_age"`
}

// Growth is the trend of one relation kind.
type Growth struct {
	Relation     string  `json:"relation"` // such as "task indexes"
	MiB          float64 `json:"mib"`      // at the end
	MiBPerMinute float64 `json:"mib_per_minute"`
	Judged       bool    `json:"judged"`
}

// Judge says whether a run was flat. It is pure.
func Judge(parts []Fifth, samples []Sample) Verdict {
	v := Verdict{Rule: Rule}
	fault := func(format string, args ...any) { v.Faults = append(v.Faults, fmt.Sprintf(format, args...)) }
	if len(parts) != fifths {
		fault("the run was not completed")
		return v
	}
	mean := func(of func(Fifth) float64, i int) float64 { return (of(parts[i]) + of(parts[i+1])) / 2 }
	change := func(of func(Fifth) float64) float64 {
		return harness.Round(100*(mean(of, fifths-2)/mean(of, 0)-1)) / 100
	}
	v.ThroughputChange = change(func(f Fifth) float64 { return f.CyclesPerS })
	v.CPUChange = change(func(f Fifth) float64 { return f.UsPerCycle["total"] })
	if !(v.ThroughputChange >= -maxSlowdown) {
		fault("throughput changed by %+.1f %%", 100*v.ThroughputChange)
	}
	if !(v.CPUChange <= maxCostlier) {
		fault("processor time per cycle changed by %+.1f %%", 100*v.CPUChange)
	}
	for _, s := range samples {
		v.OldestSnapshot = max(v.OldestSnapshot, s.OldestSnapshot)
	}
	late := slices.DeleteFunc(slices.Clone(samples), func(s Sample) bool { return s.S < parts[2].FromS || s.Sizes == nil })
	if n := len(late); n < 3 || late[n-1].S < parts[fifths-1].FromS {
		fault("there are %d looks at the sizes of tables in the last three fifths: want 3, one of them in the last", n)
	} else {
		v.judgeSizes(late, fault)
	}
	v.Flat = len(v.Faults) == 0
	return v
}

func (v *Verdict) judgeSizes(samples []Sample, fault func(string, ...any)) {
	first, last := samples[0], samples[len(samples)-1]
	for _, kind := range slices.Sorted(maps.Keys(last.Sizes)) {
		for _, part := range []struct {
			name string
			of   func(harness.Size) int64
		}{
			{"heap", func(s harness.Size) int64 { return s.Heap }},
			{"indexes", func(s harness.Size) int64 { return s.Indexes }},
			{"toast", func(s harness.Size) int64 { return s.Toast }},
		} {
			perSecond := slope(samples, func(s Sample) float64 { return float64(part.of(s.Sizes[kind])) })
			g := Growth{
				Relation: kind + " " + part.name, MiB: mib(float64(part.of(last.Sizes[kind]))), MiBPerMinute: mib(60 * perSecond),
				Judged: !slices.ContainsFunc(lasting, func(p string) bool { return strings.HasPrefix(kind, p) }),
			}
			v.Growth = append(v.Growth, g)
			grown := perSecond * (last.S - first.S)
			if allowed := max(maxGrowth*float64(part.of(first.Sizes[kind])), freeGrowth); g.Judged && grown > allowed {
				fault("%s grow by %.2f MiB a minute, to %.0f MiB", g.Relation, g.MiBPerMinute, g.MiB)
			}
		}
	}
}

// slope is that of the least-squares line through the samples, per second.
func slope(samples []Sample, of func(Sample) float64) float64 {
	var x, y float64
	for _, s := range samples {
		x += s.S
		y += of(s)
	}
	n := float64(len(samples))
	x, y = x/n, y/n
	var xy, xx float64
	for _, s := range samples {
		xy += (s.S - x) * (of(s) - y)
		xx += (s.S - x) * (s.S - x)
	}
	if xx == 0 {
		return 0
	}
	return xy / xx
}

func mib(bytes float64) float64 { return harness.Round(bytes / (1 << 20)) }

func (rep *Report) writeSoak(t *harness.Table) {
	v := rep.Soak
	for _, f := range rep.Fifths {
		t.Row(fmt.Sprintf("  %.0f s to %.0f s", f.FromS, f.ToS), "%.0f cycles/s, %.1f µs per cycle", f.CyclesPerS, f.UsPerCycle["total"])
	}
	for _, g := range v.Growth {
		if g.MiB < 1 && g.MiBPerMinute == 0 {
			continue
		}
		judged := ""
		if !g.Judged {
			judged = "   (not judged)"
		}
		t.Row("  "+g.Relation, "%.1f MiB, %+.2f MiB a minute%s", g.MiB, g.MiBPerMinute, judged)
	}
	t.Row("oldest snapshot", "%d transactions", v.OldestSnapshot)
	verdict := "flat"
	if !v.Flat {
		verdict = "NOT flat: " + strings.Join(v.Faults, "; ")
	}
	t.Row("verdict", "%s", verdict)
	t.Row("", "%s", v.Rule)
}
