package scenario

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/perceptor/perceptor/loadtest/check"
	"github.com/perceptor/perceptor/loadtest/harness"
)

// fifths is the number of parts of the window that are compared with each other.
const fifths = check.Slices

// sampleWait bounds the time of one sample.
const sampleWait = 5 * time.Second

// Sample is one sample of the server.
type Sample struct {
	// S is the time since the begin of the window, in seconds.
	S float64 `json:"s"`
	// Sizes are the sizes of the tables by kind, absent unless requested.
	Sizes map[string]harness.Size `json:"sizes,omitempty"`
	// OldestSnapshot is the age of the oldest snapshot, in transactions.
	OldestSnapshot int64 `json:"oldest_snapshot_age,omitempty"`
	// WALBytes is the number of WAL bytes since the first sample.
	WALBytes int64 `json:"wal_bytes,omitempty"`
}

// Fifth is a fifth of the window.
type Fifth struct {
	FromS      float64            `json:"from_s"`
	ToS        float64            `json:"to_s"`
	CyclesPerS float64            `json:"cycles_per_s"`
	UsPerCycle map[string]float64 `json:"cpu_us_per_cycle"`
}

// window takes samples while the load runs.
type window struct {
	meter *harness.Meter
	dsns  []string // of all servers; empty if they cannot be queried
	sizes bool
	// statements says that the server counts them.
	statements bool
	db         harness.Servers
	taken      []sample
	// sessions and memory are those at the end of the window, memory by process in bytes.
	sessions int64
	memory   map[string]int64
}

type sample struct {
	at       time.Time
	boundary bool // of a fifth
	cpu      map[string]time.Duration
	wal      int64 // negative if not known
	commits  int64
	sizes    map[string]harness.Size
	snapshot int64
	// statements are those of the first and the last sample.
	statements harness.StatementCounts
}

// instants returns the boundaries of the fifths and, between them, every multiple of every.
func instants(from, to time.Time, every time.Duration) (at []time.Time, boundary []bool) {
	fifth := to.Sub(from) / fifths
	for i := range fifths {
		begin := from.Add(time.Duration(i) * fifth)
		at, boundary = append(at, begin), append(boundary, true)
		for d := every; every > 0 && d <= fifth-every/2; d += every {
			at, boundary = append(at, begin.Add(d)), append(boundary, false)
		}
	}
	return append(at, to), append(boundary, true)
}

// watch takes all samples. It returns early when ctx ends.
func (w *window) watch(ctx context.Context, from, to time.Time, every time.Duration) {
	defer w.hangUp()
	at, boundary := instants(from, to, every)
	for i := range at {
		if harness.SleepUntil(ctx, at[i]) != nil {
			return
		}
		s := sample{at: time.Now(), boundary: boundary[i], cpu: w.meter.Sample(), wal: -1}
		w.ask(ctx, &s, i == 0 || i == len(at)-1)
		w.taken = append(w.taken, s)
	}
	w.memory = w.meter.MemoryByName() // after the last sample, because it takes some time
}

// ask queries the servers for s, which is at an end of the window or within it. If one
// does not answer, ask drops the connections and leaves s incomplete.
func (w *window) ask(ctx context.Context, s *sample, end bool) {
	if len(w.dsns) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, sampleWait)
	defer cancel()
	var err error
	if w.db == nil {
		if w.db, err = harness.DialAll(ctx, w.dsns); err != nil {
			return
		}
	}
	var wal int64
	if wal, err = w.db.WAL(ctx); err == nil {
		s.wal = wal
		s.snapshot, err = w.db.OldestSnapshot(ctx)
	}
	if err == nil && w.sizes {
		s.sizes, err = w.db.Sizes(ctx)
	}
	if err == nil && end {
		s.commits, err = w.db.Commits(ctx)
	}
	if err == nil && end {
		w.sessions, err = w.db.Sessions(ctx)
	}
	if err == nil && end && w.statements {
		s.statements, err = w.db.Statements(ctx)
	}
	if err != nil { // the server may answer the next sample
		w.hangUp()
	}
}

func (w *window) hangUp() {
	if w.db != nil {
		w.db.Close()
		w.db = nil
	}
}

// complete reports whether the whole window was watched.
func (w *window) complete() bool {
	n := 0
	for _, s := range w.taken {
		if s.boundary {
			n++
		}
	}
	return n == fifths+1
}

// cpu returns the processor time of the window, or nil if the window was not completed.
func (w *window) cpu() map[string]time.Duration {
	if !w.complete() {
		return nil
	}
	return harness.Used(w.taken[0].cpu, w.taken[len(w.taken)-1].cpu)
}

// wal returns the WAL bytes written in the window, or false if they are not known.
func (w *window) wal() (int64, bool) {
	if !w.complete() {
		return 0, false
	}
	first, last := w.taken[0].wal, w.taken[len(w.taken)-1].wal
	return last - first, first >= 0 && last >= first
}

// commitsPerSecond returns the commits of all servers within the window, or 0 if they are not known.
func (w *window) commitsPerSecond() float64 {
	if !w.complete() {
		return 0
	}
	first, last := w.taken[0], w.taken[len(w.taken)-1]
	return harness.Round(float64(max(0, last.commits-first.commits)) / last.at.Sub(first.at).Seconds())
}

// memoryMiB returns the memory by process at the end of the window.
func (w *window) memoryMiB() map[string]float64 {
	all := map[string]float64{}
	for name, bytes := range w.memory {
		all[name] = harness.MiB(bytes)
	}
	return all
}

// executed returns what the server executed within the window, if it counts that.
func (w *window) executed() []harness.Statement {
	if !w.complete() {
		return nil
	}
	first, last := w.taken[0], w.taken[len(w.taken)-1]
	if first.statements == nil || last.statements == nil {
		return nil
	}
	return last.statements.Since(first.statements, last.at.Sub(first.at))
}

func (w *window) report(from time.Time) []Sample {
	var out []Sample
	for _, s := range w.taken {
		r := Sample{S: harness.Round(s.at.Sub(from).Seconds()), Sizes: s.sizes, OldestSnapshot: s.snapshot}
		if s.wal >= 0 && w.taken[0].wal >= 0 {
			r.WALBytes = s.wal - w.taken[0].wal
		}
		out = append(out, r)
	}
	return out
}

func (r *runner) fifths(f check.Figures) []Fifth {
	if !r.window.complete() {
		return nil
	}
	bounds := slices.DeleteFunc(slices.Clone(r.window.taken), func(s sample) bool { return !s.boundary })
	out := make([]Fifth, fifths)
	for i := range out {
		a, b := bounds[i], bounds[i+1]
		done := r.done(f.Slices[i])
		length := r.For.Seconds() / fifths
		out[i] = Fifth{
			FromS: harness.Round(float64(i) * length), ToS: harness.Round(float64(i+1) * length),
			CyclesPerS: harness.Round(float64(done) / length),
			UsPerCycle: harness.NewCPU(harness.Used(a.cpu, b.cpu), done).UsPerCycle,
		}
	}
	return out
}

// Limits of the changes in a flat soak.
const (
	maxSlowdown = 0.03
	maxCostlier = 0.10
	maxGrowth   = 0.05
	freeGrowth  = 16 << 20 // bytes, allowed for every size
)

// Rule describes the rule of [Judge].
const Rule = "flat means: throughput of the last two fifths is at most 3 % below, and processor time per cycle at most 10 % above, that of the " +
	"first two; and over the last three fifths the trend of each table's heap, indexes and out-of-line data is at most 5 % of its size " +
	"or 16 MiB, whichever is more. Tables whose rows stay for a day or longer (request keys, finished tasks, history) are shown, not judged."

// lasting are the kinds of tables whose rows stay longer than a run.
var lasting = []string{"task_key", "task_done", "dead_run", "run_event"}

// Verdict says whether speed and sizes stay the same.
type Verdict struct {
	Flat bool   `json:"flat"`
	Rule string `json:"rule"`
	// Faults describe the figures that are not flat.
	Faults []string `json:"faults,omitempty"`
	// ThroughputChange and CPUChange are shares: 0.01 is 1 % more at the end.
	ThroughputChange float64 `json:"throughput_change"`
	CPUChange        float64 `json:"cpu_change"`
	// Growth is the trend of the last three fifths by table and part.
	Growth []Growth `json:"growth"`
	// OldestSnapshot is the largest age of a snapshot, in transactions.
	OldestSnapshot int64 `json:"oldest_snapshot_age"`
}

// Growth is the trend of one relation kind.
type Growth struct {
	Relation     string  `json:"relation"` // such as "task indexes"
	MiB          float64 `json:"mib"`      // at the end
	MiBPerMinute float64 `json:"mib_per_minute"`
	Judged       bool    `json:"judged"`
}

// Judge decides whether a run was flat. It is a pure function.
func Judge(parts []Fifth, samples []Sample) Verdict {
	v := Verdict{Rule: Rule}
	fault := func(format string, args ...any) { v.Faults = append(v.Faults, fmt.Sprintf(format, args...)) }
	if len(parts) != fifths {
		fault("the run was not completed")
		return v
	}
	mean := func(of func(Fifth) float64, i int) float64 { return (of(parts[i]) + of(parts[i+1])) / 2 }
	// A share of nothing is no number, which a report could not hold.
	change := func(what string, of func(Fifth) float64) float64 {
		before := mean(of, 0)
		if before == 0 {
			fault("the first two fifths have no %s", what)
			return 0
		}
		return harness.Round(100*(mean(of, fifths-2)/before-1)) / 100
	}
	v.ThroughputChange = change("throughput", func(f Fifth) float64 { return f.CyclesPerS })
	v.CPUChange = change("processor time per cycle", func(f Fifth) float64 { return f.UsPerCycle["total"] })
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
		fault("the last three fifths have %d samples of the table sizes, want 3 with one of them in the last fifth", n)
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
				Relation: kind + " " + part.name, MiB: harness.MiB(part.of(last.Sizes[kind])), MiBPerMinute: harness.MiB(60 * perSecond),
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

// slope returns the slope per second of the least-squares line through the samples.
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
