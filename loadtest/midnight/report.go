package midnight

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/perceptor/perceptor/internal/chart"
	"github.com/perceptor/perceptor/loadtest/check"
	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/task"
)

// Report is the result of a run. Seconds count from the instant.
type Report struct {
	harness.Header
	Tasks   int64   `json:"tasks"`
	SpreadS float64 `json:"spread_s"`
	Cron    bool    `json:"cron"`
	BesideS float64 `json:"beside_per_s"`
	// FiredInS is the time from the instant to the first call of the last task of the
	// burst, in seconds. FiresPer is the number of tasks divided by it.
	FiredInS float64 `json:"fired_in_s"`
	FiresPer float64 `json:"fires_per_s"`

	Parts    []Part    `json:"parts,omitempty"`
	Flatness *Flatness `json:"flatness,omitempty"`

	// LargestClaim is in rows, as the dispatchers report it. Cap is its bound.
	LargestClaim int64             `json:"largest_claim_rows"`
	Cap          int64             `json:"cap_rows"`
	Memory       map[string]Memory `json:"memory"`
	Fall         *Fall             `json:"lateness_fall,omitempty"`

	// LatenessMs is the lateness of the burst, BesideMs that of the others.
	LatenessMs harness.Quantiles `json:"lateness_ms"`
	BesideMs   harness.Quantiles `json:"beside_lateness_ms"`
	Seconds    []SecondReport    `json:"series"`
	harness.Findings
	// Complete reports whether all tasks were called in time.
	Complete bool `json:"complete"`

	samples []memorySample
	names   []string
	at      time.Time
}

// SecondReport has the figures of one second after the instant.
type SecondReport struct {
	S int `json:"s"`
	// Fires is the number of calls of the burst. Left is the number of its tasks that were
	// due and not called at the end of the second.
	Fires int64 `json:"fires"`
	Left  int64 `json:"left"`
	// BesideS is the median lateness of the others that were due in the second, in seconds;
	// below 0: none were due.
	BesideS float64 `json:"beside_lateness_s"`
}

// Faults describes every broken rule.
func (rep *Report) Faults() []string {
	var faults []string
	fault := func(format string, args ...any) { faults = append(faults, fmt.Sprintf(format, args...)) }
	if f := rep.Flatness; f != nil && !f.Flat {
		fault("parts differ from the mean by up to %.1f %% of the calls and %.1f %% of the scheduled instants, more than %.0f %%", 100*f.Fires, 100*f.Scheduled, 100*maxDeviation)
	}
	if rep.LargestClaim > rep.Cap {
		fault("a claim moved %d rows, more than the cap of %d", rep.LargestClaim, rep.Cap)
	}
	for _, name := range rep.names {
		if m := rep.Memory[name]; !m.Bounded() {
			fault("%s had %.0f MiB of resident memory, more than the bound of %.0f MiB", name, m.Peak, m.Bound)
		}
	}
	if rep.Fall != nil && !rep.Fall.Steady {
		fault("lateness did not fall steadily: %s", strings.Join(rep.Fall.Faults, "; "))
	}
	if !rep.Complete {
		fault("not all tasks were called in time")
	}
	return append(faults, rep.Broke()...)
}

// Verdict implements [harness.Report].
func (rep *Report) Verdict() error { return harness.Verdict(rep.Faults()) }

// tally adds up the runs that the checker reports.
type tally struct {
	tasks   int64
	at      check.Micros
	parts   []Part
	seconds []second
	last    check.Micros
	late    check.Spread
	beside  check.Spread
	latest  [2]time.Duration // the largest lateness of the burst and of the others
}

type second struct {
	fires, due int64
	beside     *check.Spread
}

// second returns the second of an instant. Earlier instants count in the first second.
func (t *tally) second(m check.Micros) *second {
	i := max(0, int(m.Sub(t.at)/time.Second))
	for len(t.seconds) <= i {
		t.seconds = append(t.seconds, second{})
	}
	return &t.seconds[i]
}

// fired implements [check.Config.Fired].
func (t *tally) fired(a *check.Add, at task.Instant, first check.Micros) {
	due := check.Of(at)
	late := first.Sub(due)
	if a.Number > t.tasks {
		t.beside.Add(late)
		t.latest[1] = max(t.latest[1], late)
		if s := t.second(due); due >= t.at {
			if s.beside == nil {
				s.beside = &check.Spread{}
			}
			s.beside.Add(late)
		}
		return
	}
	t.late.Add(late)
	t.latest[0], t.last = max(t.latest[0], late), max(t.last, first)
	t.second(first).fires++
	t.second(due).due++
	if t.parts != nil {
		partAt(t.parts, due.Sub(t.at).Seconds()).Scheduled++
		partAt(t.parts, first.Sub(t.at).Seconds()).Fires++
	}
}

func (b *burst) report() (*Report, error) {
	b.Say("checking")
	t := &tally{tasks: b.Tasks, at: check.At(b.at)}
	if b.Spread > 0 {
		t.parts = partition(b.Tasks, b.Spread)
	}
	res, err := b.load.Check(b.at, b.at.Add(b.window()), t.fired)
	if err != nil {
		return nil, err
	}
	rep := &Report{
		Header: b.header, Tasks: b.Tasks, SpreadS: b.Spread.Seconds(), Cron: b.Cron, BesideS: b.Beside,
		LargestClaim: b.claimed, Cap: b.maxRows(), Memory: b.memory.report(), Findings: harness.FindingsOf(res),
		LatenessMs: quantiles(&t.late, t.latest[0]), BesideMs: quantiles(&t.beside, t.latest[1]), Complete: b.complete,
		samples: b.memory.samples, names: b.memory.names(), at: b.at,
	}
	if t.last > 0 {
		rep.FiredInS = harness.Round(t.last.Sub(t.at).Seconds())
		rep.FiresPer = harness.Round(float64(b.Tasks) / max(rep.FiredInS, 1e-3))
	}
	medians := rep.series(t)
	if b.Spread > 0 {
		rep.Parts, rep.Flatness = t.parts, new(judgeParts(t.parts))
	} else {
		rep.Fall = new(judgeFall(medians[:min(len(medians), int(b.window()/time.Second))]))
	}
	return rep, nil
}

// series sets the seconds and returns the others' median lateness in each, or NaN.
func (rep *Report) series(t *tally) (medians []float64) {
	var due, fired int64
	for i, s := range t.seconds {
		due, fired = due+s.due, fired+s.fires
		r, m := SecondReport{S: i, Fires: s.fires, Left: due - fired, BesideS: -1}, math.NaN()
		if s.beside != nil {
			m = s.beside.Quantile(0.5).Seconds()
			r.BesideS = math.Round(m*1000) / 1000
		}
		rep.Seconds, medians = append(rep.Seconds, r), append(medians, m)
	}
	return medians
}

func quantiles(s *check.Spread, most time.Duration) harness.Quantiles {
	q := func(share float64) float64 { return harness.Milliseconds(s.Quantile(share)) }
	return harness.Quantiles{P50: q(0.5), P99: q(0.99), P999: q(0.999), Max: harness.Milliseconds(most)}
}

// Table implements [harness.Report].
func (rep *Report) Table(t *harness.Table) {
	t.Line("\nmidnight: %d tasks due at %s, spread over %v, %.0f others per second (seed %d)",
		rep.Tasks, rep.at.UTC().Format(time.RFC3339), time.Duration(rep.SpreadS*float64(time.Second)), rep.BesideS, rep.Seed)
	t.Row("all called", "%.1f s after the instant, %.0f per second", rep.FiredInS, rep.FiresPer)
	t.Row("lateness ms", "%s", rep.LatenessMs)
	t.Row("  of the others", "%s", rep.BesideMs)
	if f := rep.Flatness; f != nil {
		t.Row("calls by parts", "%d parts of %.1f s differ from the mean by at most %.2f %%; scheduled instants by %.2f %%",
			len(rep.Parts), rep.Parts[0].ToS, 100*f.Fires, 100*f.Scheduled)
	}
	if f := rep.Fall; f != nil {
		t.Row("others' lateness", "falls from %.1f s (due %d s after the instant) to %.1f s and rises by at most %.1f s", f.PeakS, f.PeakAt, f.LastS, f.Rise)
		for i := 0; i < len(rep.Seconds); i += len(rep.Seconds)/12 + 1 {
			s := rep.Seconds[i]
			t.Row("", "%4d s: %7d called, %8d left, others %.1f s late", s.S, s.Fires, s.Left, max(0, s.BesideS))
		}
	}
	t.Row("largest claim", "%d rows with a cap of %d (perceptor_claim_rows_max of the dispatchers)", rep.LargestClaim, rep.Cap)
	for _, name := range rep.names {
		m := rep.Memory[name]
		t.Row("memory of "+name, "%.0f MiB before the burst, peak %.0f, bound %.0f", m.Before, m.Peak, m.Bound)
	}
	for _, f := range rep.Faults() {
		t.Row("BROKEN", "%s", f)
	}
	t.Examples(&rep.Findings)
	if len(rep.Faults()) == 0 {
		t.Row("verdict", "no rule broken, no violation of the contract")
	}
}

// Chart implements [harness.Report].
func (rep *Report) Chart() *chart.Chart {
	fires, left, late := chart.Line{Name: "called", Filled: true}, chart.Line{Name: "due and not called"}, chart.Line{Name: "median of the others"}
	for _, s := range rep.Seconds {
		x := float64(s.S)
		fires.Add(x, float64(s.Fires))
		left.Add(x, float64(s.Left))
		if s.BesideS >= 0 {
			late.Add(x, s.BesideS)
		}
	}
	calls := chart.Panel{Title: "calls of the burst, per second", Lines: []chart.Line{fires}}
	if rep.SpreadS > 0 {
		calls.Limits = []chart.Limit{{Name: "flat", Y: float64(rep.Tasks) / rep.SpreadS}}
	}
	return &chart.Chart{
		Title:    fmt.Sprintf("%d tasks due at one instant, spread over %v", rep.Tasks, time.Duration(rep.SpreadS*float64(time.Second))),
		Subtitle: fmt.Sprintf("%d cores, PostgreSQL %s, commit %s, largest claim %d rows", rep.Machine.Cores, rep.Versions["postgres"], rep.Commit, rep.LargestClaim),
		XLabel:   "seconds since the instant",
		Panels: []chart.Panel{
			calls,
			{Title: "due and not called", Lines: []chart.Line{left}},
			{Title: "lateness of others, by the second in which they were due, s", Lines: []chart.Line{late}},
			rep.memoryPanel(),
		},
	}
}

func (rep *Report) memoryPanel() chart.Panel {
	p := chart.Panel{Title: "resident memory, MiB"}
	for _, name := range rep.names {
		line := chart.Line{Name: name}
		for _, s := range rep.samples {
			line.Add(max(0, s.at.Sub(rep.at).Seconds()), harness.MiB(s.resident[name]))
		}
		p.Lines = append(p.Lines, line)
	}
	return p
}
