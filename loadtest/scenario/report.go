package scenario

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/perceptor/perceptor/internal/chart"
	"github.com/perceptor/perceptor/loadtest/check"
	"github.com/perceptor/perceptor/loadtest/floor"
	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/task"
)

// Report is the result of a run. Rates, lateness and processor time are those of the
// measured window, violations those of the whole run.
type Report struct {
	harness.Header
	Stack   string  `json:"stack"`
	Type    string  `json:"type"`
	Rate    float64 `json:"rate"`
	WindowS float64 `json:"window_s"`
	// Keyed says that each one-shot was sent in a request of its own.
	Keyed bool `json:"keyed"`
	// Delay is the time from sending a one-shot to its begin.
	Delay string `json:"delay"`

	AddsPerS      float64 `json:"adds_per_s"`
	FiresPerS     float64 `json:"fires_per_s"`
	CallbacksPerS float64 `json:"callbacks_per_s"`
	ResultsPerS   float64 `json:"results_per_s"`
	CyclesPerS    float64 `json:"cycles_per_s"`
	// TasksPerS is AddsPerS, set only for runs that do nothing but add.
	TasksPerS *float64 `json:"tasks_per_s,omitempty"`

	// LatenessMs is the time from scheduled_at to the first call of a handler.
	LatenessMs harness.Quantiles `json:"lateness_ms"`
	// LatenessByType is the lateness by task type, for the types that have runs.
	LatenessByType map[string]harness.Quantiles `json:"lateness_ms_by_type"`
	// AddMs is the time from sending an add to its answer.
	AddMs harness.Quantiles `json:"add_ms"`

	// CPU is the processor time of the window. In a run without fires, a cycle is an add.
	harness.CPU
	// WALBytesPerFire is the number of WAL bytes that the server wrote per fired run.
	WALBytesPerFire *float64 `json:"wal_bytes_per_fire,omitempty"`

	// CommitsPerS and Sessions are those of all PostgreSQL servers, absent if they are not known.
	CommitsPerS float64 `json:"commits_per_s,omitempty"`
	Sessions    int64   `json:"postgres_sessions,omitempty"`
	// MemoryMiB is the memory by process at the end of the window. What a server and its children
	// share counts once.
	MemoryMiB map[string]float64 `json:"memory_mib,omitempty"`

	// Floor is the floor measured on the same server just before the load. FloorCyclesPerS
	// is its speed. RatioToFloor is CyclesPerS divided by that.
	Floor           *floor.Report `json:"floor,omitempty"`
	FloorCyclesPerS *float64      `json:"floor_cycles_per_s,omitempty"`
	RatioToFloor    *float64      `json:"ratio_to_floor,omitempty"`
	// CPURatioToFloor compares processor time per cycle instead of cycles per second. It
	// remains comparable on a machine with other users.
	CPURatioToFloor *float64 `json:"cpu_ratio_to_floor,omitempty"`
	// RatioToShortFloor is the ratio to the form of the floor without a purge, which is the
	// least work for tasks without retention.
	RatioToShortFloor *float64 `json:"ratio_to_short_floor,omitempty"`

	harness.Findings

	// Totals of the whole run.
	Tasks     int64 `json:"tasks"`
	Runs      int64 `json:"runs"`
	Callbacks int64 `json:"callbacks"`
	Missed    int64 `json:"missed"`
	// Silent is the number of calls that ended with the death of their listener.
	Silent         int64 `json:"silent,omitempty"`
	AddsUnanswered int64 `json:"adds_unanswered"`
	AddsRefused    int64 `json:"adds_refused"`
	// AddsBehindMs is the largest delay of the adder behind its clock.
	AddsBehindMs float64 `json:"adds_behind_ms"`

	Disturbances []DisturbanceReport `json:"disturbances,omitempty"`
	// TakeoverMs is the longest take-over after a disturbance, absent if there was none.
	TakeoverMs *float64 `json:"takeover_ms,omitempty"`

	Series []SecondReport `json:"series"`
	// Fifths are the fifths of the window, Samples the samples of the server.
	Fifths  []Fifth  `json:"fifths,omitempty"`
	Samples []Sample `json:"samples,omitempty"`
	// Soak says whether the system keeps its speed and size. It is nil unless the run is a soak.
	Soak *Verdict `json:"soak,omitempty"`

	// Statements are what PostgreSQL executed in the window, if it was to count that.
	Statements []harness.Statement `json:"statements,omitempty"`
	// Profiles have the shares of packages, or of threads, in the processor time of each process.
	// Those of listeners are of their whole lives.
	Profiles map[string][]harness.Share `json:"profiles,omitempty"`

	// Complete is false if the run was interrupted. Then no run counts as lost.
	Complete bool `json:"complete"`
}

// DisturbanceReport is the outcome of a disturbance. Times are counted from its begin.
type DisturbanceReport struct {
	What string  `json:"what"`
	Part string  `json:"part"`
	AtS  float64 `json:"at_s"`
	// TookMs is the time until the part was gone or served again.
	TookMs float64 `json:"took_ms"`
	Shards int     `json:"shards,omitempty"`
	// TakeoverMs is when the last of the part's shards had a new owner.
	TakeoverMs *float64 `json:"takeover_ms,omitempty"`
	// PauseMs is how long calls waited for a database that was moved.
	PauseMs *float64 `json:"pause_ms,omitempty"`
	// CaughtUpMs is when everything that had become due meanwhile had been called.
	CaughtUpMs *float64 `json:"caught_up_ms,omitempty"`
}

// SecondReport is one second of the run. The measured window begins at second 0. Lateness
// is that of the runs scheduled in the second.
type SecondReport struct {
	S         int     `json:"s"`
	Adds      int64   `json:"adds"`
	Callbacks int64   `json:"callbacks"`
	Results   int64   `json:"results"`
	Cycles    int64   `json:"cycles"`
	P50Ms     float64 `json:"p50_ms"`
	P99Ms     float64 `json:"p99_ms"`
	LatestMs  float64 `json:"latest_ms"`
}

// ErrNotFlat is the verdict of a soak whose speed or size changed too much.
var ErrNotFlat = errors.New("the system did not keep its speed and size")

// Verdict implements [harness.Report].
func (rep *Report) Verdict() error {
	if err := rep.Findings.Verdict(); err != nil {
		return err
	}
	if rep.Soak != nil && !rep.Soak.Flat {
		return ErrNotFlat
	}
	return nil
}

func (r *runner) report(res check.Result) *Report {
	f, seconds := res.Figures, max(0, r.to.Sub(r.from).Seconds())
	perSecond := func(n int64) float64 { return harness.Round(float64(n) / max(seconds, 1e-3)) }
	rep := &Report{
		Header: r.header, Stack: r.Stack, Type: r.Type, Rate: r.Rate, WindowS: harness.Round(seconds), Keyed: r.Keyed, Delay: r.plan.Delay.String(),
		AddsPerS: perSecond(f.Window.Adds), FiresPerS: perSecond(f.Window.Fires), CallbacksPerS: perSecond(f.Window.Callbacks),
		ResultsPerS: perSecond(f.Window.Results), CyclesPerS: perSecond(f.Window.Cycles),
		LatenessMs: harness.QuantilesOf(f.Lateness), AddMs: harness.QuantilesOf(f.AddTime),
		LatenessByType: map[string]harness.Quantiles{}, CPU: harness.NewCPU(r.window.cpu(), r.done(f.Window)),
		Findings: harness.FindingsOf(res),
		Tasks:    f.Tasks, Runs: f.Runs, Callbacks: f.Callbacks, Missed: f.Missed, Silent: f.Silent,
		AddsUnanswered: f.NotKnown, AddsRefused: f.Refused, AddsBehindMs: harness.Milliseconds(r.adder.Behind()),
		Series: series(f), Fifths: r.fifths(f), Samples: r.window.report(r.from), Statements: r.window.executed(), Profiles: r.profiles,
		CommitsPerS: r.window.commitsPerSecond(), Sessions: r.window.sessions, MemoryMiB: r.window.memoryMiB(), Complete: !r.quiet.IsZero() && r.final,
	}
	for t, h := range f.LatenessOf {
		rep.LatenessByType[strings.ToLower(t.String())] = harness.QuantilesOf(h)
	}
	for i, d := range r.disturbed {
		rep.disturbance(d, r.from, f.CaughtUp[i])
	}
	if r.AddOnly {
		rep.TasksPerS = &rep.AddsPerS
	}
	if wal, ok := r.window.wal(); ok && f.Window.Fires > 0 {
		rep.WALBytesPerFire = new(harness.Round(float64(wal) / float64(f.Window.Fires)))
	}
	rep.compareToFloor(r.floor)
	if r.Soak {
		rep.Soak = new(Judge(rep.Fifths, rep.Samples))
	}
	return rep
}

// compareToFloor sets the fields that compare the figures with the floor.
func (rep *Report) compareToFloor(f *floor.Report) {
	if f == nil {
		return
	}
	rep.Floor, rep.FloorCyclesPerS, rep.RatioToFloor = f, &f.CyclesPerS, new(harness.Round(rep.CyclesPerS/f.CyclesPerS))
	if total := rep.UsPerCycle["total"]; total > 0 {
		rep.CPURatioToFloor = new(harness.Round(f.Max.UsPerCycle["total"] / total))
	}
	if f.Short != nil {
		rep.RatioToShortFloor = new(harness.Round(rep.CyclesPerS / f.Short.CyclesPerS))
	}
}

// done returns the number of completed units of the experiment: cycles, fires or adds.
func (r *runner) done(c check.Counts) int64 {
	if r.AddOnly {
		return c.Adds
	}
	return c.Cycles
}

func (rep *Report) disturbance(d *disturbed, from time.Time, caughtUp check.Micros) {
	dr := DisturbanceReport{
		What: d.Disturbance.String(), Part: d.part, AtS: harness.Round(d.at.Sub(from).Seconds()),
		TookMs: harness.Milliseconds(d.took), Shards: d.shards,
	}
	if !d.taken.IsZero() {
		dr.TakeoverMs = new(harness.Milliseconds(d.taken.Sub(d.at)))
		if rep.TakeoverMs == nil || *rep.TakeoverMs < *dr.TakeoverMs {
			rep.TakeoverMs = dr.TakeoverMs
		}
	}
	if d.pause > 0 {
		dr.PauseMs = new(harness.Milliseconds(d.pause))
	}
	if caughtUp != 0 {
		dr.CaughtUpMs = new(harness.Milliseconds(caughtUp.Sub(check.At(d.at))))
	}
	rep.Disturbances = append(rep.Disturbances, dr)
}

func series(f check.Figures) []SecondReport {
	var out []SecondReport
	for i, s := range f.Seconds {
		at := check.Micros(i) * check.Micros(time.Second/time.Microsecond)
		out = append(out, SecondReport{
			S: int((f.SeriesFrom + at - f.From()) / check.Micros(time.Second/time.Microsecond)), Adds: s.Adds,
			Callbacks: s.Callbacks, Results: s.Results, Cycles: s.Cycles,
			P50Ms: harness.Milliseconds(s.Lateness.Quantile(0.5)), P99Ms: harness.Milliseconds(s.Lateness.Quantile(0.99)),
			LatestMs: harness.Round(float64(s.LatestMicros) / 1000),
		})
	}
	return out
}

// Table implements [harness.Report].
func (rep *Report) Table(t *harness.Table) {
	unit := "cycle"
	if rep.TasksPerS != nil {
		unit = "add"
	}
	t.Line("\n%s: %s on the %s stack, %.0f %ss/s requested, %.0f s measured (seed %d)",
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
	if rep.Sessions > 0 {
		t.Row("PostgreSQL", "%.0f commits/s, %d sessions", rep.CommitsPerS, rep.Sessions)
	}
	t.Statements(rep.Statements)
	t.Shares(rep.Profiles)
	if rep.RatioToFloor != nil {
		t.Row("floor", "%.0f cycles/s with plain SQL on the same server: ratio %.2f", *rep.FloorCyclesPerS, *rep.RatioToFloor)
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
		t.Line("  The run was not completed, so no run counts as lost.")
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
	if d.PauseMs != nil {
		s += fmt.Sprintf(", calls waited for %.0f ms", *d.PauseMs)
	}
	if d.TakeoverMs != nil {
		s += fmt.Sprintf(", %d shards taken over after %.0f ms", d.Shards, *d.TakeoverMs)
	}
	if d.CaughtUpMs != nil {
		s += fmt.Sprintf(", caught up after %.0f ms", *d.CaughtUpMs)
	}
	return s
}

// Chart draws throughput and lateness over time, and the samples.
func (rep *Report) Chart() *chart.Chart {
	c := &chart.Chart{
		Title:  fmt.Sprintf("%s: %s, %.0f/s requested", rep.Command, rep.Type, rep.Rate),
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
	p.Limits = []chart.Limit{{Name: "requested", Y: rep.Rate}}
	return p
}

// busy returns the series from the first second with activity on.
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

// processor draws the processor time per cycle by fifths of the window, as steps.
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
				lines[name].Add(s.S, harness.MiB(bytes))
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
