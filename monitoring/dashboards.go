package monitoring

// Dashboard is a dashboard of Grafana.
type Dashboard struct {
	UID, Title, Description string
	Variables               []Variable
	Rows                    []Row
}

// Variable is a choice at the top of a dashboard: the values of a label.
type Variable struct{ Name, Label, Metric string }

// Row is a titled group of panels.
type Row struct {
	Title  string
	Panels []Panel
}

// Panel is a picture with its queries.
type Panel struct {
	Title string
	// Description tells how to read it.
	Description string
	// Unit is a unit of Grafana: s, short, reqps, bytes, percentunit.
	Unit string
	// Kind is timeseries, stat or table. Empty: timeseries.
	Kind    string
	Queries []Query
	// Width of 24 columns; 0 means 8.
	Width int
}

// Query is an expression of PromQL and the name of its lines.
type Query struct{ Expr, Legend string }

const (
	seconds   = "s"
	perSecond = "reqps"
	count     = "short"
	octets    = "bytes"
	share     = "percentunit"

	stat = "stat"
)

func one(expr, legend string) []Query { return []Query{{expr, legend}} }

// quantiles are the median and the 99th percentile of a histogram.
func quantiles(histogram, selector string) []Query {
	rates := "sum by (le) (rate(" + histogram + "_bucket" + selector + "[$__rate_interval]))"
	return []Query{{"histogram_quantile(0.5, " + rates + ")", "p50"}, {"histogram_quantile(0.99, " + rates + ")", "p99"}}
}

// Dashboards returns all dashboards.
func Dashboards() []Dashboard { return []Dashboard{overview, tenant, dispatcher, kafkaAndFar} }

var overview = Dashboard{
	UID: "perceptor-overview", Title: "Perceptor: overview",
	Description: "Whether the installation does what it promises, and for whom.",
	Rows: []Row{
		{"Now", []Panel{
			{Title: "Shards with an owner", Description: "512, or tasks of the others do not fire.", Unit: count, Kind: stat, Width: 4,
				Queries: one(`sum(perceptor_owned_shards)`, "")},
			{Title: "Fires", Unit: perSecond, Kind: stat, Width: 4, Queries: one(`sum(rate(perceptor_runs_published_total{attempt="first"}[$__rate_interval]))`, "")},
			{Title: "Lateness, p99", Description: "From the scheduled instant to the acknowledgement of Kafka.", Unit: seconds, Kind: stat, Width: 4,
				Queries: one(`histogram_quantile(0.99, sum by (le) (rate(perceptor_lateness_seconds_bucket[$__rate_interval])))`, "")},
			{Title: "Dispatchers", Unit: count, Kind: stat, Width: 4, Queries: one(`sum(perceptor_dispatcher_active)`, "")},
			{Title: "Claims stopped", Description: "Dispatchers that wait for Kafka.", Unit: count, Kind: stat, Width: 4, Queries: one(`sum(perceptor_claims_stopped)`, "")},
			{Title: "Circuit breakers open", Description: "Tenants whose topic fails.", Unit: count, Kind: stat, Width: 4, Queries: one(`max(perceptor_circuit_breakers_open)`, "")},
		}},
		{"Promises", []Panel{
			{Title: "Late runs", Description: "Share of the runs of tenants within their limits that are published more than a second late. Promised: 0.1 %.", Unit: share, Width: 12,
				Queries: []Query{{`perceptor:lateness_errors:ratio_5m`, "5 min"}, {`perceptor:lateness_errors:ratio_1h`, "1 h"}, {`perceptor:lateness_errors:ratio_3d`, "3 days"}}},
			{Title: "Failed calls", Description: "Share of the API's calls that fail because of Perceptor. Promised: 0.1 %.", Unit: share, Width: 12,
				Queries: []Query{{`perceptor:calls_errors:ratio_5m`, "5 min"}, {`perceptor:calls_errors:ratio_1h`, "1 h"}, {`perceptor:calls_errors:ratio_3d`, "3 days"}}},
		}},
		{"Work", []Panel{
			{Title: "Fires by type", Unit: perSecond, Queries: one(`sum by (type) (perceptor:runs_published:rate5m)`, "{{type}}")},
			{Title: "Tasks added by type", Unit: perSecond, Queries: one(`sum by (type) (perceptor:tasks_added:rate5m)`, "{{type}}")},
			{Title: "Busiest tenants", Description: "Fires a second.", Unit: perSecond, Queries: one(`topk(10, sum by (tenant) (perceptor:runs_published:rate5m))`, "{{tenant}}")},
			{Title: "Lateness", Unit: seconds, Queries: quantiles("perceptor_lateness_seconds", "")},
			{Title: "Lateness by type, p99", Unit: seconds, Queries: one(`perceptor:lateness_seconds:p99_5m`, "{{type}}")},
			{Title: "Redeliveries by tenant", Description: "Runs without a result, failed ones and snoozed ones.", Unit: perSecond, Queries: one(`topk(10, perceptor:runs_redelivered:rate5m)`, "{{tenant}}")},
		}},
		{"API", []Panel{
			{Title: "Calls by method", Unit: perSecond, Queries: one(`topk(10, sum by (method) (rate(perceptor_call_duration_seconds_count[$__rate_interval])))`, "{{method}}")},
			{Title: "Time of calls, p99", Unit: seconds, Queries: one(`topk(10, perceptor:call_duration_seconds:p99_5m)`, "{{method}}")},
			{Title: "Calls by code", Unit: perSecond, Queries: one(`sum by (code) (rate(perceptor_call_duration_seconds_count[$__rate_interval]))`, "{{code}}")},
		}},
	},
}

var tenant = Dashboard{
	UID: "perceptor-tenant", Title: "Perceptor: a tenant",
	Description: "What one tenant adds, gets and is refused.",
	Variables:   []Variable{{"tenant", "Tenant", "perceptor_runs_published_total"}},
	Rows: []Row{
		{"Tasks and runs", []Panel{
			{Title: "Tasks added", Unit: perSecond, Queries: one(`sum by (type) (rate(perceptor_tasks_added_total{tenant="$tenant"}[$__rate_interval]))`, "{{type}}")},
			{Title: "Fires", Unit: perSecond, Queries: one(`sum by (type) (rate(perceptor_runs_published_total{tenant="$tenant",attempt="first"}[$__rate_interval]))`, "{{type}}")},
			{Title: "Redeliveries", Unit: perSecond, Queries: one(`sum by (type) (rate(perceptor_runs_published_total{tenant="$tenant",attempt="later"}[$__rate_interval]))`, "{{type}}")},
			{Title: "Tasks by state", Unit: count, Queries: one(`sum by (state) (perceptor_tasks{tenant="$tenant"})`, "{{state}}")},
			{Title: "Due and not claimed", Unit: count, Queries: one(`sum(perceptor_tasks_due{tenant="$tenant"}) or vector(0)`, "tasks")},
			{Title: "Age of the oldest due task", Unit: seconds, Queries: one(`max(perceptor_tasks_due_oldest_seconds{tenant="$tenant"}) or vector(0)`, "oldest")},
			{Title: "Lateness", Unit: seconds, Queries: quantiles("perceptor_lateness_seconds", `{tenant="$tenant"}`)},
			{Title: "Share of quotas", Description: "Quotas of which nothing is used have no line.", Unit: share, Queries: one(`sum by (quota) (max_over_time(perceptor_tenant_quota_use_ratio{tenant="$tenant"}[$__rate_interval])) or vector(0)`, "{{quota}}")},
		}},
		{"Listeners", []Panel{
			{Title: "Listeners", Unit: count, Queries: one(`sum(perceptor_listeners{tenant="$tenant"})`, "listeners")},
			{Title: "Records not read", Unit: count, Queries: one(`sum(perceptor_listener_lag_records{tenant="$tenant"})`, "records")},
			{Title: "Results", Unit: perSecond, Queries: one(`sum by (outcome) (rate(perceptor_results_total{tenant="$tenant"}[$__rate_interval]))`, "{{outcome}}")},
			{Title: "Handler time", Unit: seconds, Queries: quantiles("perceptor_handler_seconds", `{tenant="$tenant"}`)},
			{Title: "Answers to listeners", Description: "Results, starts and heartbeats by the code of the answer.", Unit: perSecond, Width: 12,
				Queries: one(`sum by (op, code) (rate(perceptor_run_replies_total{tenant="$tenant"}[$__rate_interval]))`, "{{op}} {{code}}")},
		}},
	},
}

var dispatcher = Dashboard{
	UID: "perceptor-dispatcher", Title: "Perceptor: a dispatcher and its databases",
	Description: "How a dispatcher claims and publishes, and what its databases need for that.",
	Variables:   []Variable{{"instance", "Dispatcher", "perceptor_owned_shards"}},
	Rows: []Row{
		{"Ownership", []Panel{
			{Title: "Shards owned", Unit: count, Queries: one(`perceptor_owned_shards{instance=~"$instance"}`, "{{instance}}")},
			{Title: "Changes of owners", Unit: perSecond, Queries: one(`sum by (change) (rate(perceptor_shard_changes_total{instance=~"$instance"}[$__rate_interval]))`, "{{change}}")},
			{Title: "Members known", Unit: count, Queries: one(`perceptor_assign_members{instance=~"$instance"}`, "{{instance}}")},
		}},
		{"Claims", []Panel{
			{Title: "Time of a claim", Unit: seconds, Queries: quantiles("perceptor_claim_duration_seconds", `{instance=~"$instance"}`)},
			{Title: "Rows of a claim", Unit: count, Queries: quantiles("perceptor_claim_rows", `{instance=~"$instance"}`)},
			{Title: "Claims stopped", Unit: count, Queries: one(`perceptor_claims_stopped{instance=~"$instance"}`, "{{instance}}")},
			{Title: "Records in memory", Unit: count, Queries: []Query{
				{`perceptor_unacked_records{instance=~"$instance"}`, "all of {{instance}}"}, {`perceptor_delay_queue_records{instance=~"$instance"}`, "delay queue of {{instance}}"},
			}},
			{Title: "Bytes in memory", Unit: octets, Queries: one(`perceptor_unacked_bytes{instance=~"$instance"}`, "{{instance}}")},
			{Title: "Backlogged tenants", Unit: count, Queries: one(`perceptor_tenants_backlogged{instance=~"$instance"}`, "{{instance}}")},
			{Title: "Lagging tenants", Unit: count, Queries: one(`perceptor_tenants_lagging{instance=~"$instance"}`, "{{instance}}")},
		}},
		{"Databases", []Panel{
			{Title: "Rows of the outbox", Unit: count, Queries: one(`max by (database) (perceptor_outbox_rows)`, "{{database}}")},
			{Title: "Oldest row of the outbox", Unit: seconds, Queries: one(`max by (database) (perceptor_outbox_oldest_seconds)`, "{{database}}")},
			{Title: "Oldest snapshot", Unit: seconds, Queries: one(`max by (server) (perceptor_oldest_snapshot_seconds)`, "{{server}}")},
			{Title: "Failed steps", Unit: perSecond, Queries: one(`sum by (step) (rate(perceptor_store_failures_total{instance=~"$instance"}[$__rate_interval]))`, "{{step}}")},
			{Title: "Adoptions", Description: "A server was restarted, restored or failed over.", Unit: count,
				Queries: one(`sum by (database) (increase(perceptor_database_adoptions_total[$__rate_interval]))`, "{{database}}")},
			{Title: "Time of a chore, p99", Unit: seconds,
				Queries: one(`histogram_quantile(0.99, sum by (le, chore) (rate(perceptor_chore_duration_seconds_bucket{instance=~"$instance"}[$__rate_interval])))`, "{{chore}}")},
		}},
		{"Process", []Panel{
			{Title: "Processor", Description: "Cores in use.", Unit: count, Queries: one(`rate(process_cpu_seconds_total[$__rate_interval]) * on (instance) group_left () perceptor_dispatcher_active{instance=~"$instance"}`, "{{instance}}")},
			{Title: "Memory", Unit: octets, Queries: one(`process_resident_memory_bytes and on (instance) perceptor_dispatcher_active{instance=~"$instance"}`, "{{instance}}")},
			{Title: "Goroutines", Unit: count, Queries: one(`go_goroutines and on (instance) perceptor_dispatcher_active{instance=~"$instance"}`, "{{instance}}")},
		}},
	},
}

var kafkaAndFar = Dashboard{
	UID: "perceptor-kafka-far", Title: "Perceptor: Kafka and the far tier",
	Description: "What waits for Kafka, and how tasks move between the tiers.",
	Rows: []Row{
		{"Kafka", []Panel{
			{Title: "Records not acknowledged", Unit: count, Queries: one(`sum by (instance) (perceptor_unacked_records - perceptor_delay_queue_records)`, "{{instance}}")},
			{Title: "Failed records by tenant", Unit: perSecond, Queries: one(`topk(10, sum by (tenant) (rate(perceptor_publish_failures_total[$__rate_interval])))`, "{{tenant}}")},
			{Title: "Circuit breakers open", Unit: count, Queries: one(`perceptor_circuit_breakers_open`, "{{instance}}")},
			{Title: "Outbox parts not acknowledged", Unit: count, Queries: one(`perceptor_outbox_parts_unacknowledged`, "{{instance}}")},
			{Title: "Published again after a take-over", Unit: perSecond, Queries: one(`sum(rate(perceptor_records_republished_total[$__rate_interval]))`, "records")},
			{Title: "Dead letters: age of the oldest", Unit: seconds, Queries: one(`max by (database) (perceptor_dead_letter_lag_seconds)`, "{{database}}")},
		}},
		{"Far tier", []Panel{
			{Title: "Tasks in packs", Unit: count, Queries: one(`sum by (place) (max by (database, place) (perceptor_far_tasks))`, "{{place}}")},
			{Title: "Packs", Unit: count, Queries: one(`sum by (place) (max by (database, place) (perceptor_far_packs))`, "{{place}}")},
			{Title: "Oldest pack of level 0", Unit: seconds, Queries: one(`max by (database) (perceptor_far_level0_oldest_seconds)`, "{{database}}")},
			{Title: "Promotion is late by", Unit: seconds, Queries: one(`max by (database) (perceptor_promotion_lag_seconds)`, "{{database}}")},
			{Title: "Tasks moved", Unit: perSecond, Queries: one(`sum by (chore) (rate(perceptor_far_tasks_moved_total[$__rate_interval]))`, "{{chore}}")},
			{Title: "Failed chores", Unit: perSecond, Queries: one(`sum by (chore) (rate(perceptor_chore_failures_total[$__rate_interval]))`, "{{chore}}")},
		}},
	},
}
