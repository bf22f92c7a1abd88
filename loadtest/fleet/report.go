package fleet

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/perceptor/perceptor/loadtest/check"
	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/scenario"
)

// Report has the figures of every size. Those of rates, lateness and processor time are of the
// measured window, violations those of the whole run.
type Report struct {
	harness.Header
	harness.NoPicture
	harness.Findings
	Rate        float64 `json:"rate"`
	WindowS     float64 `json:"window_s"`
	Type        string  `json:"type"`
	Cron        float64 `json:"cron"`
	ParamsBytes int     `json:"params_bytes"`
	Replicated  bool    `json:"replicated"`
	// LinkMs is the latency of every link in each direction.
	LinkMs float64      `json:"link_ms"`
	Limit  float64      `json:"limit"`
	Sizes  []SizeReport `json:"sizes"`
}

// SizeReport has the figures of one size.
type SizeReport struct {
	Size
	CyclesPerS     float64                      `json:"cycles_per_s"`
	LatenessMs     harness.Quantiles            `json:"lateness_ms"`
	LatenessByType map[string]harness.Quantiles `json:"lateness_ms_by_type"`
	AddMs          harness.Quantiles            `json:"add_ms"`
	// CPU is the processor time by kind of process.
	harness.CPU
	// Cost is the processor time of a cycle without this program, which adds the tasks, delays the
	// links, and measures, in microseconds.
	Cost float64 `json:"cost_us_per_cycle"`
	// Ratio is Cost divided by that of the first size.
	Ratio float64 `json:"ratio_to_first"`
	// RatioToFewest is the same with the fewest PostgreSQL servers and as many dispatchers in the
	// place of the first size. It is absent if this is that size.
	RatioToFewest float64 `json:"ratio_to_fewest_servers,omitempty"`
	// Sessions and CommitsPerS are those of all PostgreSQL servers.
	Sessions    int64   `json:"postgres_sessions"`
	CommitsPerS float64 `json:"commits_per_s"`
	// WALBytesPerFire is the write-ahead log of all servers for a fired run.
	WALBytesPerFire float64 `json:"wal_bytes_per_fire"`
	// MemoryMiB is the memory by kind of process; Processes is how many there are.
	MemoryMiB map[string]float64 `json:"memory_mib"`
	Processes map[string]int     `json:"processes"`
	Tasks     int64              `json:"tasks"`
	// Complete says that the load was not interrupted and everything was done.
	Complete   bool                `json:"complete"`
	Statements []harness.Statement `json:"statements,omitempty"`
}

// own is the kind of this process.
const own = "loadtest"

// kindOf returns the kind of a process: its name without a number.
func kindOf(process string) string {
	kind, _, _ := strings.Cut(process, "-")
	return kind
}

// byKind adds up figures of processes by kind.
func byKind(all map[string]float64) map[string]float64 {
	sum := map[string]float64{}
	for name, x := range all {
		kind := kindOf(name)
		sum[kind] = harness.Round(sum[kind] + x)
	}
	return sum
}

// add adds the figures of a size.
func (r *Report) add(size Size, m *scenario.Report) {
	maps.Copy(r.Versions, m.Versions)
	s := SizeReport{
		Size: size, CyclesPerS: m.CyclesPerS, LatenessMs: m.LatenessMs, LatenessByType: m.LatenessByType, AddMs: m.AddMs,
		CPU:      harness.CPU{Seconds: byKind(m.Seconds), UsPerCycle: byKind(m.UsPerCycle)},
		Sessions: m.Sessions, CommitsPerS: m.CommitsPerS, MemoryMiB: byKind(m.MemoryMiB), Processes: map[string]int{},
		Tasks: m.Tasks, Complete: m.Complete, Statements: m.Statements,
	}
	for name := range m.MemoryMiB {
		s.Processes[kindOf(name)]++
	}
	s.Cost = harness.Round(s.UsPerCycle["total"] - s.UsPerCycle[own])
	if m.WALBytesPerFire != nil {
		s.WALBytesPerFire = *m.WALBytesPerFire
	}
	r.Sizes = append(r.Sizes, s)
	r.compare()
	r.merge(&m.Findings)
}

// compare sets the ratios of all sizes.
func (r *Report) compare() {
	for i := range r.Sizes {
		s := &r.Sizes[i]
		s.Ratio, s.RatioToFewest = s.ratioTo(&r.Sizes[0]), 0
		if fewest := r.fewest(s.Dispatchers); fewest.Size != s.Size {
			s.RatioToFewest = s.ratioTo(fewest)
		}
	}
}

// fewest returns the size with the fewest servers of those with the given dispatchers.
func (r *Report) fewest(dispatchers int) (least *SizeReport) {
	for i := range r.Sizes {
		s := &r.Sizes[i]
		if s.Dispatchers == dispatchers && (least == nil || s.Servers < least.Servers) {
			least = s
		}
	}
	return least
}

func (s *SizeReport) ratioTo(other *SizeReport) float64 {
	if other.Cost == 0 {
		return 0
	}
	return harness.Round(s.Cost / other.Cost)
}

// merge adds findings.
func (r *Report) merge(f *harness.Findings) {
	if r.Violations == nil {
		r.Violations = map[check.Kind]int64{}
	}
	for kind, n := range f.Violations {
		r.Violations[kind] += n
	}
	r.Examples = append(r.Examples, f.Examples...)
}

// Verdict implements [harness.Report].
func (r *Report) Verdict() error {
	faults := r.Broke()
	for i := range r.Sizes {
		s := &r.Sizes[i]
		if s.RatioToFewest > r.Limit {
			faults = append(faults, fmt.Sprintf("a cycle with %d PostgreSQL servers costs %.2f times that with %d, above %v",
				s.Servers, s.RatioToFewest, r.fewest(s.Dispatchers).Servers, r.Limit))
		}
		if !s.Complete {
			faults = append(faults, fmt.Sprintf("%s: not everything was done in time", s.Size))
		}
	}
	return harness.Verdict(faults)
}

// Table implements [harness.Report].
func (r *Report) Table(t *harness.Table) {
	t.Line("\nfleet: %s of %d bytes, %.0f cycles/s requested, %.0f s measured for each size (seed %d)", r.Type, r.ParamsBytes, r.Rate, r.WindowS, r.Seed)
	if r.Replicated {
		t.Line("  three brokers, three ZooKeepers, a synchronous standby of every PostgreSQL server")
	}
	if r.LinkMs > 0 {
		t.Line("  %.2f ms on every link in each direction", r.LinkMs)
	}
	kinds := r.kinds()
	t.Line("  %8s %8s %6s %7s %7s %7s %8s %8s %7s%s", "size", "cycles/s", "ratio", "p50 ms", "p99 ms", "add p99", "sessions", "commits", "us", columns(kinds))
	for i := range r.Sizes {
		s := &r.Sizes[i]
		t.Line("  %8s %8.0f %6.2f %7.1f %7.1f %7.1f %8d %8.0f %7.1f%s", s.Size, s.CyclesPerS, s.Ratio, s.LatenessMs.P50, s.LatenessMs.P99, s.AddMs.P99,
			s.Sessions, s.CommitsPerS, s.Cost, values(kinds, s.UsPerCycle))
	}
	t.Line("  memory, MiB of all processes of a kind")
	for i := range r.Sizes {
		s := &r.Sizes[i]
		t.Line("  %8s %61s%s", s.Size, "", values(kinds, s.MemoryMiB))
	}
	for i := range r.Sizes {
		if s := &r.Sizes[i]; len(s.Statements) > 0 {
			t.Row(s.Size.String(), "statements in the window of %s", time.Duration(r.WindowS*float64(time.Second)))
			t.Statements(s.Statements)
		}
	}
	t.Findings(&r.Findings)
}

// kinds returns the kinds of processes of all sizes.
func (r *Report) kinds() []string {
	all := map[string]bool{}
	for i := range r.Sizes {
		for kind := range r.Sizes[i].Seconds {
			all[kind] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

func columns(kinds []string) string {
	var b strings.Builder
	for _, kind := range kinds {
		fmt.Fprintf(&b, " %10s", kind)
	}
	return b.String()
}

func values(kinds []string, of map[string]float64) string {
	var b strings.Builder
	for _, kind := range kinds {
		fmt.Fprintf(&b, " %10.1f", of[kind])
	}
	return b.String()
}
