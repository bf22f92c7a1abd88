package midnight

import (
	"math"
	"testing"
	"time"

	"github.com/perceptor/perceptor/loadtest/check"
	"github.com/perceptor/perceptor/task"
)

// spread returns a tally of n tasks that are spread over the window by their ids. A share
// late of the tasks is called a tenth of the window late.
func spread(n int64, window time.Duration, late float64) *tally {
	at := task.Instant(1_800_000_000_000)
	t := &tally{tasks: n, at: check.Of(at), parts: partition(n, window)}
	for i := int64(1); i <= n; i++ {
		due := at.Add(task.SpreadOf(task.ID(512*i), window))
		first := check.Of(due)
		if float64(i) <= late*float64(n) {
			first = first.Add(window / 10)
		}
		t.fired(&check.Add{Number: i}, due, first)
	}
	return t
}

func TestCallsSpreadByTheirIdsAreFlat(t *testing.T) {
	calls := spread(200_000, 10*time.Minute, 0)
	if f := judgeParts(calls.parts); !f.Flat || f.Fires == 0 {
		t.Errorf("flatness = %+v, want flat with a deviation above 0", f)
	}
	if n := len(calls.parts); n != 20 {
		t.Errorf("%d parts, want 20 with 10,000 calls each", n)
	}
}

func TestCallsThatPileUpAreNotFlat(t *testing.T) {
	if f := judgeParts(spread(200_000, 10*time.Minute, 0.5).parts); f.Flat || f.Scheduled > maxDeviation {
		t.Errorf("flatness = %+v, want flat scheduled instants and calls that are not flat", f)
	}
	if f := judgeParts(partition(200_000, time.Minute)); f.Flat {
		t.Error("a window without calls is judged as flat")
	}
}

func TestLatenessThatFallsIsSteady(t *testing.T) {
	nan := math.NaN()
	for _, test := range []struct {
		name    string
		medians []float64
		steady  bool
	}{
		{"falls", []float64{18, 20, 15, nan, 10, 10.5, 4, 0.1, 0.1}, true},
		{"hardly late", []float64{0.01, 0.2, 0.01}, true},
		{"rises again", []float64{20, 10, 13, 4, 0.1}, false},
		{"stays", []float64{20, 20, 20}, false},
		{"grows", []float64{1, 2, 3}, false},
		{"no value", []float64{nan, nan}, false},
		{"no second", nil, false},
	} {
		if f := judgeFall(test.medians); f.Steady != test.steady {
			t.Errorf("%s: fall = %+v, want steady = %t", test.name, f, test.steady)
		}
	}
}

func TestTheReportNamesEveryFault(t *testing.T) {
	good := func() *Report {
		return &Report{
			Flatness: &Flatness{Flat: true}, Fall: &Fall{Steady: true}, LargestClaim: 5000, Cap: 5000, Complete: true,
			Memory: map[string]Memory{"taskd-1": {Peak: 100, Bound: 100}}, names: []string{"taskd-1"},
		}
	}
	if f := good().Faults(); len(f) != 0 {
		t.Errorf("faults of a good report = %v, want none", f)
	}
	for name, spoil := range map[string]func(*Report){
		"not flat":   func(r *Report) { r.Flatness.Flat = false },
		"not steady": func(r *Report) { r.Fall.Steady = false },
		"over cap":   func(r *Report) { r.LargestClaim++ },
		"memory":     func(r *Report) { r.Memory["taskd-1"] = Memory{Peak: 101, Bound: 100} },
		"no memory":  func(r *Report) { r.Memory["taskd-1"] = Memory{Bound: 100} },
		"incomplete": func(r *Report) { r.Complete = false },
		"violation":  func(r *Report) { r.Violations = map[check.Kind]int64{check.Lost: 1} },
	} {
		r := good()
		spoil(r)
		if f := r.Faults(); len(f) != 1 {
			t.Errorf("%s: faults = %v, want one", name, f)
		}
	}
}
