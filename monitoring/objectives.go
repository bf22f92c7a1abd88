package monitoring

import (
	"fmt"
	"strings"
)

// Record is a recording rule.
type Record struct{ Name, Expr string }

// objective is a share of events that must be good. Its share of bad events is recorded for
// each window under perceptor:NAME_errors:ratio_WINDOW.
type objective struct {
	name string
	// target is the share of good events that is promised.
	target float64
	// bad is the share of bad events, with {{window}} for the window of its rates.
	bad string
	// promise says the objective in words.
	promise string
	action  string
}

// objectives are what an installation promises. A team that promises something else changes
// the copy of the rules that it loads.
var objectives = []objective{
	{
		name: "lateness", target: 0.999,
		// Background tenants wait for their rates and caps, so they are not counted.
		bad:     `1 - ` + foreground("_bucket", `{le="1"}`) + ` / (` + foreground("_count", "") + ` > 0)`,
		promise: "99.9 % of the runs of tenants that are within their limits are published within a second of their instant",
		action: "Look at the dashboard of the dispatchers: is a database slow (`perceptor_claim_duration_seconds`), is Kafka slow (`perceptor_unacked_records`), " +
			"does a dispatcher lack processor time? [Lateness and CPU time](#lateness-and-cpu-time) has the settings.",
	},
	{
		name: "calls", target: 0.999,
		bad: `(sum(rate(perceptor_call_duration_seconds_count{code=~"Unavailable|Internal|Unknown|DeadlineExceeded|DataLoss"}[{{window}}])) or vector(0))` +
			` / (sum(rate(perceptor_call_duration_seconds_count[{{window}}])) > 0)`,
		promise: "99.9 % of the calls of the API do not fail because of Perceptor",
		action:  "`perceptorctl doctor` names the databases that do not answer; the log of taskd has the calls that failed, by `method` and `code`.",
	},
}

// foreground is a sum over a part of the histogram of lateness (_bucket or _count), without
// background tenants.
func foreground(part, selector string) string {
	all := "sum(rate(perceptor_lateness_seconds" + part + selector + "[{{window}}]))"
	background := "sum(rate(perceptor_background_lateness_seconds" + part + selector + "[{{window}}]))"
	return "(" + all + " - (" + background + " or vector(0)))"
}

// windows are the windows over which shares of bad events are recorded.
var windows = []string{"5m", "30m", "1h", "6h", "3d"}

// burns are the rates at which a budget for 30 days may not burn: at 14.4 a fiftieth of it is gone
// in an hour, at 6 a twentieth in six hours, at 1 a tenth in three days.
var burns = []struct {
	name        string
	factor      float64
	long, short string
	severity    Severity
}{
	{"Fast", 14.4, "1h", "5m", Page},
	{"Steadily", 6, "6h", "30m", Page},
	{"Slowly", 1, "3d", "6h", Ticket},
}

// recorded is the name of the share of bad events over a window.
func (o *objective) recorded(window string) string {
	return "perceptor:" + o.name + "_errors:ratio_" + window
}

func (o *objective) records() (out []Record) {
	for _, w := range windows {
		out = append(out, Record{o.recorded(w), strings.ReplaceAll(o.bad, "{{window}}", w)})
	}
	return out
}

func (o *objective) alerts() (out []Alert) {
	for _, b := range burns {
		limit := fmt.Sprintf("%.4g", b.factor*(1-o.target))
		out = append(out, Alert{
			Name:  "Perceptor" + strings.ToUpper(o.name[:1]) + o.name[1:] + "BudgetBurns" + b.name,
			Value: o.recorded(b.long), Condition: fmt.Sprintf("> %s and %s > %s", limit, o.recorded(b.short), limit),
			Severity: b.severity,
			Summary: fmt.Sprintf("Promised: %s. Over the last %s, {{ $value | humanizePercentage }} were not, %.4g times as many as the promise allows.",
				o.promise, b.long, b.factor),
			Action: o.action,
		})
	}
	return out
}

// Records returns all recording rules: the shares of bad events, and the sums that several panels
// show.
func Records() (out []Record) {
	for i := range objectives {
		out = append(out, objectives[i].records()...)
	}
	return append(out, sums...)
}

// sums are what several panels show, and what stays cheap to ask over weeks.
var sums = []Record{
	{"perceptor:runs_published:rate5m", `sum by (tenant, type) (rate(perceptor_runs_published_total{attempt="first"}[5m]))`},
	{"perceptor:runs_redelivered:rate5m", `sum by (tenant) (rate(perceptor_runs_published_total{attempt="later"}[5m]))`},
	{"perceptor:tasks_added:rate5m", `sum by (tenant, type) (rate(perceptor_tasks_added_total[5m]))`},
	{"perceptor:lateness_seconds:p99_5m", `histogram_quantile(0.99, sum by (le, type) (rate(perceptor_lateness_seconds_bucket[5m])))`},
	{"perceptor:call_duration_seconds:p99_5m", `histogram_quantile(0.99, sum by (le, method) (rate(perceptor_call_duration_seconds_bucket[5m])))`},
}
