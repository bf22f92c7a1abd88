package scenario

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perceptor/perceptor/loadtest/harness"
)

// thirtyMinutes returns the measurements of a run of thirty minutes. Its figures are
// functions of the share of the run that has passed, 0 to 1.
func thirtyMinutes(throughput, cpu, heap func(x float64) float64) ([]Fifth, []Sample) {
	const length = 1800.0
	var parts []Fifth
	for i := range fifths {
		x := (float64(i) + 0.5) / fifths
		parts = append(parts, Fifth{
			FromS: length / fifths * float64(i), ToS: length / fifths * float64(i+1),
			CyclesPerS: throughput(x), UsPerCycle: map[string]float64{"total": cpu(x)},
		})
	}
	var samples []Sample
	for s := 0.0; s <= length; s += 10 {
		wave := 1 + 0.1*math.Sin(s/20) // vacuum comes and goes
		samples = append(samples, Sample{S: s, OldestSnapshot: int64(s), Sizes: map[string]harness.Size{
			"task": {Heap: int64(wave * heap(s/length)), Indexes: 100 << 20}, "task_key": {Heap: int64(s * (1 << 20))},
		}})
	}
	return parts, samples
}

func always(v float64) func(float64) float64 { return func(float64) float64 { return v } }

func TestARunThatStaysAsItIsIsFlat(t *testing.T) {
	for name, heap := range map[string]func(float64) float64{
		"steady":                 always(500 << 20),
		"grows until it is warm": func(x float64) float64 { return (500 << 20) * min(1, 3*x) },
	} {
		v := Judge(thirtyMinutes(always(20_000), always(80), heap))
		if !v.Flat {
			t.Errorf("%s: faults = %v, want none", name, v.Faults)
		}
		if i := slices.IndexFunc(v.Growth, func(g Growth) bool { return g.Relation == "task_key heap" }); i < 0 || v.Growth[i].MiBPerMinute != 60 || v.Growth[i].Judged {
			t.Errorf("%s: growth = %+v, want task_key heap with 60 MiB a minute, not judged", name, v.Growth)
		}
		if v.OldestSnapshot != 1800 {
			t.Errorf("%s: wrong OldestSnapshot %d", name, v.OldestSnapshot)
		}
	}
}

func TestARunThatDecaysIsNotFlat(t *testing.T) {
	for want, f := range map[string]struct{ throughput, cpu, heap func(float64) float64 }{
		"throughput":     {func(x float64) float64 { return 20_000 * (1 - x/10) }, always(80), always(1 << 29)},
		"processor time": {always(20_000), func(x float64) float64 { return 80 * (1 + x/4) }, always(1 << 29)},
		// A share of nothing is no number; a report cannot hold one.
		"have no throughput":     {func(x float64) float64 { return 20_000 * math.Trunc(2*x) }, always(80), always(1 << 29)},
		"have no processor time": {always(20_000), func(x float64) float64 { return 80 * math.Trunc(2*x) }, always(1 << 29)},
		"task heap":              {always(20_000), always(80), func(x float64) float64 { return (1 + x) * (1 << 29) }},
	} {
		v := Judge(thirtyMinutes(f.throughput, f.cpu, f.heap))
		if v.Flat || len(v.Faults) != 1 || !strings.Contains(v.Faults[0], want) {
			t.Errorf("%s: Flat = %v, Faults = %v, want one fault about it", want, v.Flat, v.Faults)
		}
	}
}

func TestARunThatWasCutShortIsNotFlat(t *testing.T) {
	parts, samples := thirtyMinutes(always(20_000), always(80), always(1<<29))
	if v := Judge(nil, samples); v.Flat {
		t.Error("a run without fifths is flat")
	}
	if v := Judge(parts, samples[:100]); v.Flat {
		t.Error("a run without samples at the end is flat")
	}
}

func TestSamplesAreTakenAtTheFifthsAndBetweenThem(t *testing.T) {
	from := time.Unix(1_800_000_000, 0)
	at, boundary := instants(from, from.Add(100*time.Second), 7*time.Second)
	n := 0
	for i := range at {
		if boundary[i] {
			if want := from.Add(time.Duration(n) * 20 * time.Second); !at[i].Equal(want) {
				t.Errorf("boundary %d = %v, want %v", n, at[i], want)
			}
			n++
		}
		if i > 0 && !at[i].After(at[i-1]) {
			t.Errorf("sample %d is at %v, its predecessor at %v", i, at[i], at[i-1])
		}
	}
	if n != fifths+1 || len(at) != fifths*3+1 {
		t.Errorf("wrong number of samples: %d boundaries and %d samples", n, len(at))
	}
}

func TestAFloorStandsBesideTheFigures(t *testing.T) {
	rep := &Report{CyclesPerS: 18_000, CPU: harness.CPU{UsPerCycle: map[string]float64{"total": 90}}}
	rep.compareToFloor(aFloor(40_000, 30, 60_000))
	if *rep.RatioToFloor != 0.45 || *rep.FloorCyclesPerS != 40_000 || *rep.RatioToShortFloor != 0.3 || *rep.CPURatioToFloor != 0.33 {
		t.Errorf("wrong ratios: floor %v, short floor %v, CPU %v", *rep.RatioToFloor, *rep.RatioToShortFloor, *rep.CPURatioToFloor)
	}
	var text strings.Builder
	if err := harness.WriteTable(&text, rep); err != nil || !strings.Contains(text.String(), "ratio 0.45") {
		t.Errorf("the table does not contain \"ratio 0.45\": %v\n%s", err, text.String())
	}
}
