package abuse

import (
	"fmt"

	"github.com/perceptor/perceptor/loadtest/harness"
)

// Report is the result of a run.
type Report struct {
	harness.Header
	harness.NoPicture
	Rate    float64   `json:"victim_rate"`
	PhaseS  float64   `json:"phase_s"`
	Attacks []*Attack `json:"attacks"`
	// Lost is the number of acknowledged tasks of the victim that were never called.
	Lost int `json:"lost"`
}

// Attack has what the victim felt of one attack: the 99th percentiles of the time of its adds
// and of the lateness of its runs, in milliseconds.
type Attack struct {
	Name       string  `json:"name"`
	AddBefore  float64 `json:"add_p99_ms_before"`
	AddDuring  float64 `json:"add_p99_ms_during"`
	LateBefore float64 `json:"late_p99_ms_before"`
	LateDuring float64 `json:"late_p99_ms_during"`
	// PoliteAdd and PoliteLate are the figures beside a tenant that uses as much processor
	// time for ordinary adds.
	PoliteAdd  float64 `json:"polite_add_p99_ms"`
	PoliteLate float64 `json:"polite_late_p99_ms"`
	// AddMedian and LateMedian are the medians during the attack, in milliseconds.
	AddMedian  float64 `json:"add_p50_ms_during"`
	LateMedian float64 `json:"late_p50_ms_during"`
	// Errors are the victim's adds that failed, or took longer than --add-limit.
	Errors int `json:"victim_errors"`
	// Cores is the processor time of all processes per second of the attack.
	Cores float64 `json:"cores"`
	// PoliteCores is the same beside the polite tenant.
	PoliteCores float64 `json:"polite_cores"`
	// Grown is by how much the memory of taskd has grown, in MB.
	Grown   float64 `json:"taskd_grown_mb"`
	Samples int     `json:"samples"`
	// Starved is set if the victim did not recover after the attack.
	Starved bool `json:"starved,omitempty"`
	// Undefended has the figures of the same attack on programs without defences.
	Undefended *Undefended `json:"undefended,omitempty"`
}

// Undefended has what the victim feels of an attack without defences.
type Undefended struct {
	AddBefore  float64 `json:"add_p99_ms_before"`
	AddDuring  float64 `json:"add_p99_ms_during"`
	LateBefore float64 `json:"late_p99_ms_before"`
	LateDuring float64 `json:"late_p99_ms_during"`
	Errors     int     `json:"victim_errors"`
	Grown      float64 `json:"taskd_grown_mb"`
}

// grownMost is by how much an attack may make the memory of taskd grow, in MB.
const grownMost = 512

// bound is the 99th percentile that is allowed during an attack: twice that before, or beside a
// polite tenant if that is higher, and 20 ms.
func bound(before, polite float64) float64 { return 2*max(before, polite) + 20 }

// Works reports whether the attack harms the victim.
func (u *Undefended) Works() bool {
	return u.Errors > 0 || u.Grown > grownMost || u.AddDuring > bound(u.AddBefore, 0) || u.LateDuring > bound(u.LateBefore, 0)
}

// Faults returns what the victim felt too much of.
func (a *Attack) Faults() (faults []string) {
	if limit := bound(a.AddBefore, a.PoliteAdd); a.AddDuring > limit {
		faults = append(faults, fmt.Sprintf("%s: p99 of adds %.0f ms, above %.0f ms", a.Name, a.AddDuring, limit))
	}
	if limit := bound(a.LateBefore, a.PoliteLate); a.LateDuring > limit {
		faults = append(faults, fmt.Sprintf("%s: p99 of lateness %.0f ms, above %.0f ms", a.Name, a.LateDuring, limit))
	}
	if a.Errors > 0 {
		faults = append(faults, fmt.Sprintf("%s: %d failed adds", a.Name, a.Errors))
	}
	if a.Starved {
		faults = append(faults, a.Name+": the victim has not recovered after it")
	}
	if a.Grown > grownMost {
		faults = append(faults, fmt.Sprintf("%s: the memory of taskd has grown by %.0f MB", a.Name, a.Grown))
	}
	if a.Undefended != nil && !a.Undefended.Works() {
		faults = append(faults, a.Name+": does no harm without defences, so it proves nothing")
	}
	return faults
}

// Table implements [harness.Report].
func (rep *Report) Table(t *harness.Table) {
	t.Line("\nattacks of one tenant, seen by another with %.0f tasks per second; p99 in ms (seed %d)", rep.Rate, rep.Seed)
	for _, a := range rep.Attacks {
		t.Row(a.Name, "add %6.1f before %7.1f during %7.1f polite   late %6.1f before %7.1f during %7.1f polite   %d errors   %.1f cores (polite %.1f)   %.0f MB",
			a.AddBefore, a.AddDuring, a.PoliteAdd, a.LateBefore, a.LateDuring, a.PoliteLate, a.Errors, a.Cores, a.PoliteCores, a.Grown)
		if u := a.Undefended; u != nil {
			t.Row("  without defences", "add %6.1f before %7.1f during                  late %6.1f before %7.1f during                  %d errors   %.0f MB",
				u.AddBefore, u.AddDuring, u.LateBefore, u.LateDuring, u.Errors, u.Grown)
		}
	}
	t.Row("lost", "%d", rep.Lost)
}

// Verdict implements [harness.Report].
func (rep *Report) Verdict() error {
	var faults []string
	for _, a := range rep.Attacks {
		faults = append(faults, a.Faults()...)
	}
	if rep.Lost > 0 {
		faults = append(faults, fmt.Sprintf("lost %d", rep.Lost))
	}
	return harness.Verdict(faults)
}
