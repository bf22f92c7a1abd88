package tenants

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/perceptor/perceptor/loadtest/check"
	"github.com/perceptor/perceptor/loadtest/harness"
)

// Report is the result of a run.
type Report struct {
	harness.Header
	harness.NoPicture
	Tenants int     `json:"tenants"`
	Rate    float64 `json:"rate"`
	Limit   int     `json:"dispatch_rate,omitempty"`
	Waiting int     `json:"waiting,omitempty"`
	// CreatedPerS is how many tenants with a token were created per second.
	CreatedPerS float64 `json:"created_per_s"`
	// Loads are the measured windows.
	Loads []Load `json:"loads,omitempty"`
	// Ratio is the installation's processor time per cycle with all tenants to that with one.
	// RatioOfAll includes the listeners and the adds.
	Ratio      float64 `json:"ratio_to_one,omitempty"`
	RatioOfAll float64 `json:"ratio_to_one_with_listeners,omitempty"`
	// LimitRatio is that of tenants with a dispatch rate to the same tenants without one, on
	// average before and after.
	LimitRatio float64 `json:"ratio_to_no_rate,omitempty"`
	// Sizes are the measurements without load.
	Sizes []Size `json:"sizes,omitempty"`
	harness.Findings
}

// Load is one window of load.
type Load struct {
	Name    string `json:"name"`
	Tenants int    `json:"tenants"`
	// JoinS is the time until all listeners were members of their groups.
	JoinS float64 `json:"join_s"`
	// StandingPercent is the share of one core by process with all listeners and no task.
	StandingPercent map[string]float64 `json:"standing_core_percent"`
	CyclesPerS      float64            `json:"cycles_per_s"`
	LatenessMs      harness.Quantiles  `json:"lateness_ms"`
	AddMs           harness.Quantiles  `json:"add_ms"`
	harness.CPU
	// InstallationUs is the processor time per cycle of all but the listeners and this program,
	// OwnUs that of taskd, the dispatchers and PostgreSQL.
	InstallationUs float64             `json:"installation_us_per_cycle"`
	OwnUs          float64             `json:"own_us_per_cycle"`
	WALPerCycle    float64             `json:"wal_bytes_per_fire"`
	Broken         int64               `json:"violations"`
	Statements     []harness.Statement `json:"statements,omitempty"`

	window float64 // s
}

// Size is the installation with a number of tenants that wait.
type Size struct {
	Tenants int `json:"tenants"`
	// TaskdReadyS and DispatcherReadyS are the longest times from the start of a process until
	// it is ready. OwnedS is that from the start of the first dispatcher until all shards have
	// an owner and all dispatchers have shards.
	TaskdReadyS      float64 `json:"taskd_ready_s"`
	DispatcherReadyS float64 `json:"dispatcher_ready_s"`
	OwnedS           float64 `json:"owned_s"`
	// CorePercent is the share of one core that the installation uses, by process.
	CorePercent float64            `json:"core_percent"`
	PercentBy   map[string]float64 `json:"core_percent_by_process"`
	WALBytesPS  float64            `json:"wal_bytes_per_s"`
	// MemoryMiB is the resident memory by process; of PostgreSQL's processes, which share
	// memory, the proportional part.
	MemoryMiB map[string]float64 `json:"memory_mib"`
	TakeoverS float64            `json:"takeover_s,omitempty"`
	// Lost is the number of waiting tasks that the API does not know any more.
	Lost int64 `json:"lost"`
}

// outside reports whether a process is not part of the installation: a listener or this program.
func outside(process string) bool {
	return process == "loadtest" || strings.HasPrefix(process, "listener-")
}

// broker reports whether a process is one that the project does not contain.
func broker(process string) bool {
	return strings.HasPrefix(process, "kafka") || strings.HasPrefix(process, "zookeeper")
}

// percents returns the share of one core by process.
func percents(u harness.Usage) map[string]float64 {
	all := map[string]float64{}
	for name, used := range u.CPU {
		all[name] = harness.Round(100 * used.Seconds() / max(u.Took.Seconds(), 1e-9))
	}
	return all
}

// measured sets the figures of the window.
func (l *Load) measured(u harness.Usage, res check.Result) {
	f := &res.Figures
	l.window = u.Took.Seconds()
	l.CyclesPerS = harness.Round(float64(f.Window.Cycles) / max(l.window, 1e-9))
	l.LatenessMs, l.AddMs = harness.QuantilesOf(f.Lateness), harness.QuantilesOf(f.AddTime)
	l.CPU = harness.NewCPU(u.CPU, f.Window.Cycles)
	for name, us := range l.UsPerCycle {
		if name == "total" || outside(name) {
			continue
		}
		l.InstallationUs = harness.Round(l.InstallationUs + us)
		if !broker(name) {
			l.OwnUs = harness.Round(l.OwnUs + us)
		}
	}
	l.WALPerCycle = harness.Round(float64(u.WAL) / float64(max(f.Window.Cycles, 1)))
	findings := harness.FindingsOf(res)
	l.Broken = findings.Broken()
}

// add adds a load, and the ratio that it completes.
func (r *Report) add(l Load, res check.Result) {
	r.Loads = append(r.Loads, l)
	for kind, n := range res.Violations {
		r.Violations[kind] += n
	}
	r.Examples = append(r.Examples, res.Examples...)
	switch n := len(r.Loads); n {
	case 2:
		r.Ratio = ratio(l.InstallationUs, r.Loads[0].InstallationUs)
		r.RatioOfAll = ratio(l.UsPerCycle["total"], r.Loads[0].UsPerCycle["total"])
	case 4:
		r.LimitRatio = ratio(2*r.Loads[2].InstallationUs, r.Loads[1].InstallationUs+l.InstallationUs)
	}
}

func ratio(x, to float64) float64 {
	if to == 0 {
		return 0
	}
	return harness.Round(x / to)
}

// idle sets the shares of a core.
func (s *Size) idle(u harness.Usage) {
	s.PercentBy = percents(u)
	for name, percent := range s.PercentBy {
		if !outside(name) {
			s.CorePercent = harness.Round(s.CorePercent + percent)
		}
	}
	s.WALBytesPS = harness.Round(float64(u.WAL) / max(u.Took.Seconds(), 1e-9))
}

// Table implements [harness.Report].
func (r *Report) Table(t *harness.Table) {
	t.Line("\n%d tenants (seed %d)", r.Tenants, r.Seed)
	t.Row("created", "%.1f tenants per second", r.CreatedPerS)
	for i := range r.Loads {
		r.Loads[i].table(t)
	}
	if r.Ratio > 0 {
		t.Row("ratio to one tenant", "%.2f   (with listeners and adds %.2f)", r.Ratio, r.RatioOfAll)
	}
	if r.LimitRatio > 0 {
		t.Row("ratio to no rate", "%.2f", r.LimitRatio)
	}
	for _, s := range r.Sizes {
		s.table(t)
	}
	t.Findings(&r.Findings)
}

func (l *Load) table(t *harness.Table) {
	t.Line("%s: %.0f cycles/s, listeners joined in %.1f s", l.Name, l.CyclesPerS, l.JoinS)
	t.Row("lateness ms", "%s", l.LatenessMs)
	t.Row("add ms", "%s", l.AddMs)
	t.Row("installation", "%.1f µs per cycle, %.1f without Kafka and ZooKeeper", l.InstallationUs, l.OwnUs)
	for _, name := range ordered(l.UsPerCycle) {
		if name == "total" {
			continue
		}
		note := ""
		if outside(name) {
			note = "   (not of the installation)"
		}
		t.Row("  "+name, "%8.1f µs per cycle %8.2f %% of a core without a task%s", l.UsPerCycle[name], l.StandingPercent[name], note)
	}
	t.Row("write-ahead log", "%.0f bytes per cycle", l.WALPerCycle)
	t.Row("violations", "%d", l.Broken)
	t.Statements(l.Statements)
}

func (s *Size) table(t *harness.Table) {
	t.Line("%d tenants that wait", s.Tenants)
	t.Row("start", "taskd %.2f s, dispatcher %.2f s, all shards owned %.2f s", s.TaskdReadyS, s.DispatcherReadyS, s.OwnedS)
	t.Row("idle", "%.2f %% of a core, write-ahead log %.0f bytes/s", s.CorePercent, s.WALBytesPS)
	for _, name := range ordered(s.PercentBy) {
		t.Row("  "+name, "%6.2f %%", s.PercentBy[name])
	}
	for _, name := range ordered(s.MemoryMiB) {
		t.Row("  memory of "+name, "%6.0f MiB", s.MemoryMiB[name])
	}
	if s.TakeoverS > 0 {
		t.Row("take-over", "%.2f s", s.TakeoverS)
	}
	t.Row("lost", "%d", s.Lost)
}

// ordered returns the names by their figures, the largest first.
func ordered(figures map[string]float64) []string {
	return slices.SortedFunc(maps.Keys(figures), func(a, b string) int {
		return cmp.Or(-cmp.Compare(figures[a], figures[b]), strings.Compare(a, b))
	})
}

// Verdict implements [harness.Report].
func (r *Report) Verdict() error {
	faults := r.Broke()
	for _, s := range r.Sizes {
		if s.Lost != 0 {
			faults = append(faults, fmt.Sprintf("%d waiting tasks of %d tenants lost", s.Lost, s.Tenants))
		}
	}
	return harness.Verdict(faults)
}
