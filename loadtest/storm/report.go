package storm

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/perceptor/perceptor/loadtest/check"
	"github.com/perceptor/perceptor/loadtest/harness"
)

// Report is the result of a storm.
type Report struct {
	harness.Header
	harness.NoPicture
	harness.Findings
	// Plan is the plan of faults, Faults are those that happened.
	Plan   []Planned     `json:"plan"`
	Faults []FaultReport `json:"faults"`
	// ToldLost is the number of tasks whose acknowledged changes were lost, as the databases
	// tell, by a fail-over or a restore that may lose them. Nothing else may be lost.
	ToldLost int `json:"told_lost"`
	// Wrong are faults of other kinds than violations: a fault without an effect, a program
	// that ended by itself, a bulk operation that missed tasks, an impossible answer.
	Wrong []string `json:"wrong,omitempty"`
	// Plant is the falsification, nil if there was none.
	Plant *PlantReport `json:"plant,omitempty"`

	// Totals of all tenants.
	Tasks          int64 `json:"tasks"`
	Runs           int64 `json:"runs"`
	Callbacks      int64 `json:"callbacks"`
	Silent         int64 `json:"silent"`
	AddsUnanswered int64 `json:"adds_unanswered"`
	Bulks          int   `json:"bulk_operations"`
	// Complete is false if the storm was interrupted. Then no run counts as lost.
	Complete bool `json:"complete"`
}

// FaultReport is a fault that happened.
type FaultReport struct {
	Name string `json:"name"`
	Part string `json:"part"`
	// AtS is the time from the begin of the load, LastsS the time until the fault was
	// healed, RecoveredMs the time from then until every shard had an owner.
	AtS         float64 `json:"at_s"`
	LastsS      float64 `json:"lasts_s"`
	RecoveredMs float64 `json:"recovered_ms"`
	// Effect is what proves that the fault had an effect. It is empty if nothing does.
	Effect string `json:"effect"`
	// TakeoverMs is the time from the begin of the fault until other parts had taken over.
	TakeoverMs *float64 `json:"takeover_ms,omitempty"`
	// LateP99Ms and LateMaxMs are the lateness of the runs that were due from the begin of
	// the fault until 3 s after the recovery.
	LateP99Ms float64 `json:"late_p99_ms"`
	LateMaxMs float64 `json:"late_max_ms"`
}

// PlantReport says whether a falsification was found.
type PlantReport struct {
	Name    string `json:"name"`
	Planted bool   `json:"planted"`
	Found   bool   `json:"found"`
}

// aftermath is the time after a recovery whose lateness counts for the fault.
const aftermath = 3 * time.Second

func faultReport(h *happening, from time.Time, figures []check.Figures) FaultReport {
	rep := FaultReport{
		Name: h.Name, Part: h.Part, AtS: harness.Round(h.at.Sub(from).Seconds()), LastsS: harness.Round(h.healed.Sub(h.at).Seconds()),
		Effect: strings.Join(h.effects, "; "),
	}
	if h.takeover > 0 {
		rep.TakeoverMs = new(harness.Milliseconds(h.takeover))
	}
	end := h.healed
	if !h.recovered.IsZero() {
		rep.RecoveredMs, end = harness.Milliseconds(h.recovered.Sub(h.healed)), h.recovered
	}
	var late check.Spread
	latest := int64(0)
	for i := range figures {
		f := &figures[i]
		for j := range f.Seconds {
			if at := f.SecondAt(j); at >= check.At(h.at.Add(-time.Second)) && at <= check.At(end.Add(aftermath)) {
				late.Merge(f.Seconds[j].Lateness)
				latest = max(latest, f.Seconds[j].LatestMicros)
			}
		}
	}
	rep.LateP99Ms, rep.LateMaxMs = harness.Milliseconds(late.Quantile(0.99)), harness.Round(float64(latest)/1000)
	return rep
}

// add adds the result of one tenant.
func (rep *Report) add(l *load, res check.Result) {
	for kind, n := range res.Violations {
		rep.Violations[kind] += n
	}
	rep.Examples = append(rep.Examples, res.Examples...)
	f := res.Figures
	rep.Tasks, rep.Runs, rep.Callbacks = rep.Tasks+f.Tasks, rep.Runs+f.Runs, rep.Callbacks+f.Callbacks
	rep.Silent, rep.AddsUnanswered = rep.Silent+f.Silent, rep.AddsUnanswered+f.NotKnown
	rep.Bulks += l.bulk.done
	rep.blame(l.bulk.faults)
}

// blame adds what else was wrong, and the faults without an effect.
func (rep *Report) blame(errs []error) {
	for _, err := range errs {
		if err != nil {
			rep.Wrong = append(rep.Wrong, err.Error())
		}
	}
}

// Verdict implements [harness.Report].
func (rep *Report) Verdict() error {
	faults := append(rep.Broke(), rep.Wrong...)
	for _, f := range rep.Faults {
		if f.Effect == "" {
			faults = append(faults, fmt.Sprintf("%s of %s at %.0f s had no effect", f.Name, f.Part, f.AtS))
		}
	}
	if rep.Plant != nil && !rep.Plant.Found {
		faults = append(faults, fmt.Sprintf("the planted fault %s was not found", rep.Plant.Name))
	}
	return harness.Verdict(faults)
}

// Table implements [harness.Report].
func (rep *Report) Table(t *harness.Table) {
	t.Line("\nstorm: seed %d, %d faults, %d tasks, %d runs, %d calls, %d of them silent, %d bulk operations",
		rep.Seed, len(rep.Faults), rep.Tasks, rep.Runs, rep.Callbacks, rep.Silent, rep.Bulks)
	for _, f := range rep.Faults {
		took := ""
		if f.TakeoverMs != nil {
			took = fmt.Sprintf(", taken over after %.0f ms", *f.TakeoverMs)
		}
		t.Row(fmt.Sprintf("%.0f s %s", f.AtS, f.Name), "%s for %.1f s, recovered after %.0f ms%s, late p99 %.0f ms, max %.0f ms: %s",
			f.Part, f.LastsS, f.RecoveredMs, took, f.LateP99Ms, f.LateMaxMs, cmpEffect(f.Effect))
	}
	t.Row("told lost", "%d", rep.ToldLost)
	t.Findings(&rep.Findings)
	for _, wrong := range rep.Wrong {
		t.Line("    %s", wrong)
	}
	if rep.Plant != nil {
		t.Row("planted "+rep.Plant.Name, "found: %v", rep.Plant.Found)
	}
	if !rep.Complete {
		t.Line("  The storm was not completed, so no run counts as lost.")
	}
}

func cmpEffect(effect string) string {
	if effect == "" {
		return "NO EFFECT"
	}
	return effect
}

func plantNames() []string { return slices.Sorted(maps.Keys(plants)) }
