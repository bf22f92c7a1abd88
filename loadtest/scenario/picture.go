package scenario

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/perceptor/perceptor/loadtest/chart"
)

// Chart draws throughput and lateness over time, and what was sampled.
func (rep *Report) Chart() *chart.Chart {
	c := &chart.Chart{
		Title:  fmt.Sprintf("%s: %s, %.0f/s asked for", rep.Command, rep.Type, rep.Rate),
		XLabel: "seconds since the begin of the measured window",
		Subtitle: fmt.Sprintf("%d cores, PostgreSQL %s, Kafka %s, commit %s, %s, seed %d",
			rep.Machine.Cores, rep.Versions["postgres"], rep.Versions["kafka"], rep.Commit, rep.Begin.Format("2006-01-02 15:04 UTC"), rep.Seed),
		Panels: []chart.Panel{rep.throughput()},
		Spans:  []chart.Span{{Name: "measured", From: 0, To: rep.WindowS}},
	}
	if rep.TasksPerS == nil {
		c.Panels = append(c.Panels, rep.latenessPanel())
	}
	if len(rep.Fifths) > 0 {
		c.Panels = append(c.Panels, rep.processor())
	}
	if sizes := rep.sizesPanel(); len(sizes.Lines) > 0 {
		c.Panels = append(c.Panels, sizes)
	}
	return c
}

func (rep *Report) throughput() chart.Panel {
	adds, cycles := chart.Line{Name: "adds"}, chart.Line{Name: "cycles", Filled: true}
	for _, s := range rep.busy() {
		x := float64(s.S)
		adds.Add(x, float64(s.Adds))
		cycles.Add(x, float64(s.Cycles))
	}
	p := chart.Panel{Title: "throughput, per second", Lines: []chart.Line{cycles, adds}}
	if rep.TasksPerS != nil {
		adds.Filled = true
		p.Lines = []chart.Line{adds}
	}
	p.Limits = []chart.Limit{{Name: "asked for", Y: rep.Rate}}
	return p
}

// busy returns the series from the first second on in which something happened.
func (rep *Report) busy() []SecondReport {
	for i, s := range rep.Series {
		if s.Adds > 0 || s.Callbacks > 0 {
			return rep.Series[i:]
		}
	}
	return nil
}

func (rep *Report) latenessPanel() chart.Panel {
	lines := []chart.Line{{Name: "p50"}, {Name: "p99"}, {Name: "max"}}
	for _, s := range rep.busy() {
		for i, y := range []float64{s.P50Ms, s.P99Ms, s.LatestMs} {
			if y == 0 {
				y = math.NaN()
			}
			lines[i].Add(float64(s.S), y)
		}
	}
	return chart.Panel{Title: "lateness of the runs due in each second, ms", Log: true, Lines: lines}
}

// processor draws the cost of a cycle by fifths of the window, as steps.
func (rep *Report) processor() chart.Panel {
	p := chart.Panel{Title: "processor time by fifths of the window, µs per cycle"}
	names := slices.Collect(maps.Keys(rep.UsPerCycle))
	slices.SortFunc(names, func(a, b string) int { return int(math.Copysign(1, rep.UsPerCycle[b]-rep.UsPerCycle[a])) })
	for _, name := range names[:min(6, len(names))] {
		l := chart.Line{Name: name}
		for _, f := range rep.Fifths {
			l.Add(f.FromS, f.UsPerCycle[name])
			l.Add(f.ToS, f.UsPerCycle[name])
		}
		p.Lines = append(p.Lines, l)
	}
	return p
}

func (rep *Report) sizesPanel() chart.Panel {
	lines := map[string]*chart.Line{}
	for _, s := range rep.Samples {
		for kind, size := range s.Sizes {
			for part, bytes := range map[string]int64{"heap": size.Heap, "indexes": size.Indexes} {
				name := kind + " " + part
				if lines[name] == nil {
					lines[name] = &chart.Line{Name: name, Dashed: part != "heap"}
				}
				lines[name].Add(s.S, mib(float64(bytes)))
			}
		}
	}
	p := chart.Panel{Title: "tables on disk, MiB"}
	for _, name := range slices.Sorted(maps.Keys(lines)) {
		if l := lines[name]; slices.Max(l.Y) >= 4 {
			p.Lines = append(p.Lines, *l)
		}
	}
	return p
}
