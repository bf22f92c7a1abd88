package outbox

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/perceptor/perceptor/loadtest/harness"
)

// Report is the result of a run.
type Report struct {
	harness.Header
	harness.NoPicture
	harness.CPU
	Rate   float64 `json:"rate_per_s"`
	ForS   float64 `json:"for_s"`
	DrainS float64 `json:"drain_s"`
	// Commits, Rollbacks and Failures are the service's transactions; the outcome of a failed one is
	// found in the service's tables. Behind are those that were not begun for lack of a connection.
	Commits   int64 `json:"commits"`
	Rollbacks int64 `json:"rollbacks"`
	Failures  int64 `json:"failures"`
	Behind    int64 `json:"behind"`
	// Added are the committed tasks without keys, Lives those with keys, Triggers the committed triggers.
	Added    int64 `json:"added"`
	Lives    int64 `json:"lives"`
	Triggers int64 `json:"triggers"`
	// MovedPerS counts committed adds in the time of the load. Lag is the time from a commit until the task
	// was stored.
	MovedPerS    float64           `json:"moved_per_s"`
	Lag          harness.Quantiles `json:"lag_ms"`
	Disturbances map[string]int    `json:"disturbances"`
	Violations   map[string]int64  `json:"violations"`
	Examples     []string          `json:"examples,omitempty"`
}

const maxExamples = 20

// broke records n violations of a kind.
func (rep *Report) broke(kind string, n int64, format string, args ...any) {
	if n == 0 {
		return
	}
	rep.Violations[kind] += n
	if len(rep.Examples) < maxExamples {
		rep.Examples = append(rep.Examples, kind+": "+fmt.Sprintf(format, args...))
	}
}

// measure sets the figures.
func (rep *Report) measure(r *runner, used map[string]time.Duration, loaded time.Duration) {
	rep.Commits, rep.Rollbacks, rep.Failures, rep.Behind = r.shop.commits.Load(), r.shop.rollbacks.Load(), r.shop.failures.Load(), r.shop.behind.Load()
	rep.MovedPerS = harness.Round(float64(rep.Added) / loaded.Seconds())
	rep.CPU = harness.NewCPU(used, rep.Added)
	lags := r.seen.lags()
	if len(lags) == 0 || r.Delay > 0 { // the begin of a task with a delay is no instant of its storage
		return
	}
	at := func(q float64) float64 {
		return harness.Milliseconds(lags[min(int(q*float64(len(lags))), len(lags)-1)])
	}
	rep.Lag = harness.Quantiles{P50: at(0.5), P99: at(0.99), P999: at(0.999), Max: at(1)}
}

// Table implements [harness.Report].
func (rep *Report) Table(t *harness.Table) {
	t.Line("\nan outbox at %.0f transactions per second for %.0f s (seed %d)", rep.Rate, rep.ForS, rep.Seed)
	t.Row("transactions", "%d committed   %d rolled back   %d failed   %d not begun", rep.Commits, rep.Rollbacks, rep.Failures, rep.Behind)
	t.Row("operations", "%d adds   %d triggers   %d tasks with keys", rep.Added, rep.Triggers, rep.Lives)
	t.Row("moved", "%.0f adds per second; the rest within %.1f s", rep.MovedPerS, rep.DrainS)
	if rep.Lag.Max > 0 {
		t.Row("lag ms", "%s", rep.Lag)
	}
	if len(rep.Disturbances) > 0 {
		var list []string
		for _, name := range slices.Sorted(maps.Keys(rep.Disturbances)) {
			list = append(list, fmt.Sprintf("%s %d", name, rep.Disturbances[name]))
		}
		t.Row("disturbances", "%s", strings.Join(list, ", "))
	}
	t.WriteString(rep.CPU.Table("add", time.Duration(rep.ForS*float64(time.Second))))
	t.Row("violations", "%d %v", rep.broken(), rep.Violations)
	for _, x := range rep.Examples {
		t.Line("    %s", x)
	}
}

func (rep *Report) broken() (sum int64) {
	for _, n := range rep.Violations {
		sum += n
	}
	return sum
}

// Verdict implements [harness.Report].
func (rep *Report) Verdict() error {
	var faults []string
	for kind, n := range rep.Violations {
		faults = append(faults, fmt.Sprintf("%s %d", kind, n))
	}
	slices.Sort(faults)
	return harness.Verdict(faults)
}
