package scenario

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/perceptor/perceptor/loadtest/check"
	"github.com/perceptor/perceptor/task"
)

// Report is what a run found. Rates, lateness and processor time are those of
// the measured window; violations those of the whole run.
type Report struct {
	Stack   string  `json:"stack"`
	Type    string  `json:"type"`
	Rate    float64 `json:"rate"`
	WindowS float64 `json:"window_s"`

	AddsPerS      float64 `json:"adds_per_s"`
	FiresPerS     float64 `json:"fires_per_s"`
	CallbacksPerS float64 `json:"callbacks_per_s"`
	ResultsPerS   float64 `json:"results_per_s"`
	CyclesPerS    float64 `json:"cycles_per_s"`

	// LatenessMs is from scheduled_at to the first call of a handler.
	LatenessMs Quantiles `json:"lateness_ms"`
	// LatenessByType is the same for each type that there was.
	LatenessByType map[string]Quantiles `json:"lateness_ms_by_type"`
	// AddMs is from sending an add to its answer.
	AddMs Quantiles `json:"add_ms"`

	CPUs          map[string]float64 `json:"cpu_s"`
	CPUUsPerCycle map[string]float64 `json:"cpu_us_per_cycle"`

	Violations map[check.Kind]int64 `json:"violations"`
	Examples   []check.Violation    `json:"examples,omitempty"`

	// Totals of the whole run.
	Tasks          int64 `json:"tasks"`
	Runs           int64 `json:"runs"`
	Callbacks      int64 `json:"callbacks"`
	Missed         int64 `json:"missed"`
	AddsUnanswered int64 `json:"adds_unanswered"`
	AddsRefused    int64 `json:"adds_refused"`
	// AddsBehindMs is how far the adder fell behind its clock at worst.
	AddsBehindMs float64 `json:"adds_behind_ms"`

	Disturbances []DisturbanceReport `json:"disturbances,omitempty"`
	// TakeoverMs is the longest of the disturbances; absent when there was none.
	TakeoverMs *float64 `json:"takeover_ms,omitempty"`

	Series []SecondReport `json:"series"`

	// Complete is false when the run was interrupted: then nothing counts as lost.
	Complete    bool              `json:"complete"`
	Seed        uint64            `json:"seed"`
	Begin       time.Time         `json:"begin"`
	Machine     Machine           `json:"machine"`
	Versions    map[string]string `json:"versions"`
	Commit      string            `json:"commit"`
	CommandLine string            `json:"command_line"`
}

// Quantiles of a distribution, in milliseconds.
type Quantiles struct {
	P50  float64 `json:"p50"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
	Max  float64 `json:"max"`
}

// DisturbanceReport is what came of a disturbance. Times are counted from its begin.
type DisturbanceReport struct {
	What string  `json:"what"`
	Part string  `json:"part"`
	AtS  float64 `json:"at_s"`
	// TookMs is how long it took: until the part was gone, or served again.
	TookMs float64 `json:"took_ms"`
	Shards int     `json:"shards,omitempty"`
	// TakeoverMs is when the last of the part's shards had a new owner.
	TakeoverMs *float64 `json:"takeover_ms,omitempty"`
	// CaughtUpMs is when everything that had become due meanwhile had been called.
	CaughtUpMs *float64 `json:"caught_up_ms,omitempty"`
}

// SecondReport is one second of the run; the measured window begins at 0.
type SecondReport struct {
	S         int     `json:"s"`
	Adds      int64   `json:"adds"`
	Callbacks int64   `json:"callbacks"`
	Results   int64   `json:"results"`
	LatestMs  float64 `json:"latest_ms"`
}

// Machine is what the run was on.
type Machine struct {
	Cores    int     `json:"cores"`
	MemoryGB float64 `json:"memory_gb"`
	OS       string  `json:"os"`
	Arch     string  `json:"arch"`
}

// Broken is the number of violations.
func (rep *Report) Broken() int64 {
	var n int64
	for _, k := range rep.Violations {
		n += k
	}
	return n
}

// report puts everything together.
func (r *runner) report(res check.Result) *Report {
	f, seconds := res.Figures, r.For.Seconds()
	rep := &Report{
		Stack: r.Stack, Type: r.Type, Rate: r.Rate, WindowS: seconds,
		AddsPerS: round(float64(f.Window.Adds) / seconds), FiresPerS: round(float64(f.Window.Fires) / seconds),
		CallbacksPerS: round(float64(f.Window.Callbacks) / seconds), ResultsPerS: round(float64(f.Window.Results) / seconds),
		CyclesPerS: round(float64(f.Window.Cycles) / seconds),
		LatenessMs: quantiles(f.Lateness), AddMs: quantiles(f.AddTime),
		LatenessByType: map[string]Quantiles{},
		CPUs:           map[string]float64{}, CPUUsPerCycle: map[string]float64{},
		Violations: res.Violations, Examples: res.Examples,
		Tasks: f.Tasks, Runs: f.Runs, Callbacks: f.Callbacks, Missed: f.Missed,
		AddsUnanswered: f.NotKnown, AddsRefused: f.Refused, AddsBehindMs: milliseconds(r.adder.Behind()),
		Series: series(f), Complete: !r.quiet.IsZero() && r.final, Seed: r.Seed, Begin: r.begin.UTC(),
		Machine: machine(), Versions: r.versions(), Commit: commit(), CommandLine: strings.Join(r.CommandLine, " "),
	}
	for t, h := range f.LatenessOf {
		rep.LatenessByType[strings.ToLower(t.String())] = quantiles(h)
	}
	rep.cost(r.cpu, f.Window.Cycles)
	for i, d := range r.disturbed {
		rep.disturbance(d, r.from, f.CaughtUp[i])
	}
	return rep
}

func (rep *Report) cost(cpu map[string]time.Duration, cycles int64) {
	total := 0.0
	for name, used := range cpu {
		rep.CPUs[name] = round(used.Seconds())
		total += used.Seconds()
		if cycles > 0 {
			rep.CPUUsPerCycle[name] = round(used.Seconds() * 1e6 / float64(cycles))
		}
	}
	if cycles > 0 && len(cpu) > 0 {
		rep.CPUUsPerCycle["total"] = round(total * 1e6 / float64(cycles))
	}
}

func (rep *Report) disturbance(d *disturbed, from time.Time, caughtUp check.Micros) {
	dr := DisturbanceReport{
		What: d.Disturbance.String(), Part: d.part, AtS: round(d.at.Sub(from).Seconds()),
		TookMs: milliseconds(d.took), Shards: d.shards,
	}
	if !d.taken.IsZero() {
		ms := milliseconds(d.taken.Sub(d.at))
		dr.TakeoverMs = &ms
		if rep.TakeoverMs == nil || *rep.TakeoverMs < ms {
			rep.TakeoverMs = &ms
		}
	}
	if caughtUp != 0 {
		ms := milliseconds(caughtUp.Sub(check.At(d.at)))
		dr.CaughtUpMs = &ms
	}
	rep.Disturbances = append(rep.Disturbances, dr)
}

func (r *runner) versions() map[string]string {
	v := map[string]string{"go": runtime.Version()}
	for name, version := range r.stack.Versions {
		v[name] = version
	}
	return v
}

func series(f check.Figures) []SecondReport {
	var out []SecondReport
	for i, s := range f.Seconds {
		at := check.Micros(i) * check.Micros(time.Second/time.Microsecond)
		out = append(out, SecondReport{
			S: int((f.SeriesFrom + at - f.From()) / check.Micros(time.Second/time.Microsecond)), Adds: s.Adds,
			Callbacks: s.Callbacks, Results: s.Results, LatestMs: round(float64(s.LatestMicros) / 1000),
		})
	}
	return out
}

func quantiles(h *hdrhistogram.Histogram) Quantiles {
	q := func(p float64) float64 { return round(float64(h.ValueAtQuantile(p)) / 1000) }
	return Quantiles{P50: q(50), P99: q(99), P999: q(99.9), Max: round(float64(h.Max()) / 1000)}
}

func milliseconds(d time.Duration) float64 { return round(d.Seconds() * 1000) }

// round keeps two digits after the point.
func round(x float64) float64 { return math.Round(x*100) / 100 }

func machine() Machine {
	return Machine{Cores: runtime.NumCPU(), MemoryGB: memoryGB(), OS: runtime.GOOS, Arch: runtime.GOARCH}
}

// memoryGB reads the machine's memory; 0 where that is not known.
func memoryGB() float64 {
	file, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		var kb float64
		if n, _ := fmt.Sscanf(lines.Text(), "MemTotal: %f kB", &kb); n == 1 {
			return round(kb / (1 << 20))
		}
	}
	return 0
}

// commit names what was built; "-dirty" when the tree has changes.
func commit() string {
	out, err := exec.Command("git", "rev-parse", "--short=12", "HEAD").Output()
	if err != nil {
		return "unknown"
	}
	id := strings.TrimSpace(string(out))
	if changes, err := exec.Command("git", "status", "--porcelain", "--untracked-files=no").Output(); err != nil || len(changes) > 0 {
		id += "-dirty"
	}
	return id
}

// WriteJSON writes the report for programs.
func (rep *Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(rep)
}

// WriteTable writes the report for people.
func (rep *Report) WriteTable(w io.Writer) error {
	var b strings.Builder
	row := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "  %-22s %s\n", name, fmt.Sprintf(format, args...))
	}
	fmt.Fprintf(&b, "\n%s on the %s stack, %.0f cycles/s asked for, %.0f s measured (seed %d)\n", rep.Type, rep.Stack, rep.Rate, rep.WindowS, rep.Seed)
	row("cycles/s", "%.0f", rep.CyclesPerS)
	row("adds/s", "%.0f   (%d not answered, %d refused, up to %.0f ms behind the clock)", rep.AddsPerS, rep.AddsUnanswered, rep.AddsRefused, rep.AddsBehindMs)
	row("fires/s", "%.0f   (%d instants missed)", rep.FiresPerS, rep.Missed)
	row("callbacks/s", "%.0f   (%d of %d were repeats)", rep.CallbacksPerS, rep.Callbacks-rep.Runs, rep.Callbacks)
	row("results/s", "%.0f", rep.ResultsPerS)
	row("lateness ms", "%s", rep.LatenessMs)
	for _, t := range task.Types {
		name := strings.ToLower(t.String())
		if q, ok := rep.LatenessByType[name]; ok && len(rep.LatenessByType) > 1 {
			row("  "+name, "%s", q)
		}
	}
	row("add ms", "%s", rep.AddMs)
	rep.writeCPU(&b, row)
	for _, d := range rep.Disturbances {
		row(d.What, "%s", d.summary())
	}
	row("violations", "%s", rep.violations())
	for _, v := range rep.Examples {
		fmt.Fprintf(&b, "    %s\n", v)
	}
	if !rep.Complete {
		b.WriteString("  The run was not completed: nothing was counted as lost.\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (rep *Report) writeCPU(b *strings.Builder, row func(string, string, ...any)) {
	names := make([]string, 0, len(rep.CPUs))
	total := 0.0
	for name, used := range rep.CPUs {
		names = append(names, name)
		total += used
	}
	slices.SortFunc(names, func(x, y string) int { return int(1000 * (rep.CPUs[y] - rep.CPUs[x])) })
	row("processor time", "%.1f s, %.2f cores, %.0f µs per cycle", total, total/rep.WindowS, rep.CPUUsPerCycle["total"])
	for _, name := range names {
		fmt.Fprintf(b, "    %-20s %7.1f s %6.0f µs per cycle\n", name, rep.CPUs[name], rep.CPUUsPerCycle[name])
	}
}

func (rep *Report) violations() string {
	parts := make([]string, len(check.Kinds))
	for i, k := range check.Kinds {
		parts[i] = fmt.Sprintf("%s %d", k, rep.Violations[k])
	}
	return fmt.Sprintf("%d   (%s)", rep.Broken(), strings.Join(parts, ", "))
}

// String returns one line for people.
func (q Quantiles) String() string {
	return fmt.Sprintf("p50 %.1f   p99 %.1f   p99.9 %.1f   max %.1f", q.P50, q.P99, q.P999, q.Max)
}

func (d DisturbanceReport) summary() string {
	s := fmt.Sprintf("%s, took %.0f ms", d.Part, d.TookMs)
	if d.TakeoverMs != nil {
		s += fmt.Sprintf(", %d shards taken over after %.0f ms", d.Shards, *d.TakeoverMs)
	}
	if d.CaughtUpMs != nil {
		s += fmt.Sprintf(", caught up after %.0f ms", *d.CaughtUpMs)
	}
	return s
}
