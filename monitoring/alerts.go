package monitoring

import "time"

// Severity says who must act, and when.
type Severity string

// The severities.
const (
	Page   Severity = "page"   // somebody, now
	Ticket Severity = "ticket" // somebody, within days
)

// Alert is an alerting rule and its line in the runbook.
type Alert struct {
	Name string
	// Value is what is watched. The alert fires while there are values that meet Condition.
	Value, Condition string
	// For is how long the condition must hold.
	For      time.Duration
	Severity Severity
	// Summary tells what is wrong. It is a template of Prometheus.
	Summary string
	// Action tells what to do.
	Action string
}

// Expr returns the expression of the rule.
func (a *Alert) Expr() string { return a.Value + " " + a.Condition }

// Alerts returns all alerts.
func Alerts() (out []Alert) {
	for i := range objectives {
		out = append(out, objectives[i].alerts()...)
	}
	return append(out, conditions...)
}

// conditions are alerts on single conditions.
var conditions = []Alert{
	{
		Name: "PerceptorShardsWithoutOwner", Value: `512 - (sum(perceptor_owned_shards) or vector(0))`, Condition: `> 0`, For: 2 * time.Minute, Severity: Page,
		Summary: "{{ $value }} of 512 shards have no owner: their tasks do not fire.",
		Action:  "`perceptorctl shard list` and `perceptorctl assign members`: do dispatchers run, does Postgres or ZooKeeper answer, whichever has the assignment (`perceptor_assign_connected`), did somebody pause or pin shards?",
	},
	{
		Name: "PerceptorClaimsStopped", Value: `perceptor_claims_stopped`, Condition: `== 1`, For: time.Minute, Severity: Page,
		Summary: "The dispatcher {{ $labels.instance }} claims nothing: Kafka does not answer or is too slow. Due tasks wait in Postgres and are not lost.",
		Action:  "`perceptorctl doctor`: do the brokers answer, do partitions have `min.insync.replicas`? Dispatchers continue by themselves.",
	},
	{
		Name: "PerceptorOutboxOld", Value: `max by (database) (perceptor_outbox_oldest_seconds)`, Condition: `> 60`, For: time.Minute, Severity: Page,
		Summary: "Runs of database {{ $labels.database }} were claimed {{ $value | humanizeDuration }} ago and are not published.",
		Action:  "Is Kafka slow, or have the shards no owner? `perceptorctl shard list`; `perceptor_unacked_records` and `perceptor_publish_failures_total` tell which dispatcher waits.",
	},
	{
		Name: "PerceptorTopicFails", Value: `max by (instance) (perceptor_circuit_breakers_open)`, Condition: `> 0`, For: 10 * time.Minute, Severity: Ticket,
		Summary: "The topics of {{ $value }} tenants fail at {{ $labels.instance }}: their runs are deferred. Other tenants are not affected.",
		Action:  "`perceptorctl doctor` names the topics: deleted, without leader, or full? Runs come within seconds once the topic has recovered.",
	},
	{
		Name: "PerceptorTopicFaulty", Value: `max(perceptor_topics_faulty)`, Condition: `> 0`, For: 30 * time.Minute, Severity: Ticket,
		Summary: "{{ $value }} topics do not exist, or have settings that may lose runs, such as a short retention or `min.insync.replicas` of 1.",
		Action:  "`perceptorctl doctor` names the topics and the settings. Their runs are published; what Kafka loses comes again after its `ack_timeout`.",
	},
	{
		Name: "PerceptorNoListener", Value: `sum(perceptor_tenants_without_listener)`, Condition: `> 0`, For: 10 * time.Minute, Severity: Ticket,
		Summary: "Tenants that have runs and no listener: {{ $value }}. Nobody handles their runs.",
		Action:  "`perceptorctl doctor` names them. Tell the team: their runs wait and are given up after `give_up_after`.",
	},
	{
		Name: "PerceptorNoHandler", Value: `sum by (tenant) (increase(perceptor_runs_unhandled_total[15m]))`, Condition: `> 0`, For: 10 * time.Minute, Severity: Ticket,
		Summary: "Listeners of {{ $labels.tenant }} hand runs back because they have no handler for their kind.",
		Action:  "`perceptorctl doctor` names the kinds. A listener of an older version runs, or a kind is misspelt.",
	},
	{
		Name: "PerceptorDispatchersGone", Value: `count(perceptor_dispatcher_active)`, Condition: `< 2 or absent(perceptor_dispatcher_active)`, For: 10 * time.Minute, Severity: Ticket,
		Summary: "Fewer than two dispatchers are seen: nobody takes over if the last one dies.",
		Action:  "Start dispatchers, or mend the scraping of their `/metrics`. For an installation of one dispatcher, delete this rule.",
	},
	{
		Name: "PerceptorAssignmentAway", Value: `min by (instance) (perceptor_assign_connected)`, Condition: `== 0`, For: 2 * time.Minute, Severity: Page,
		Summary: "The server of the assignment (Postgres or ZooKeeper) does not answer {{ $labels.instance }}. Dispatchers keep their shards, but none is taken over.",
		Action:  "Look at the server of database 0, or at ZooKeeper: are most of its servers up? Do not restart dispatchers meanwhile: a stopped one gives its shards to nobody.",
	},
	{
		Name: "PerceptorShardsGivenToNobody", Value: `sum by (reason) (max by (reason, instance) (perceptor_assign_items_without_owner))`, Condition: `> 0`, For: 10 * time.Minute, Severity: Ticket,
		Summary: "The plan gives {{ $value }} shards or chores to nobody; reason: {{ $labels.reason }}.",
		Action:  "`perceptorctl assign strategy`: paused and pinned ones were chosen by somebody; surplus or nobody: start dispatchers or raise their limits.",
	},
	{
		Name: "PerceptorAssignmentUnreadable", Value: `max(perceptor_assign_faults)`, Condition: `> 0`, For: time.Minute, Severity: Page,
		Summary: "The plan or the strategy of the assignment cannot be read.",
		Action:  "`perceptorctl assign strategy` shows the text; `assign reset` removes it. A plan is written anew when the leader changes.",
	},
	{
		Name: "PerceptorStoreFails", Value: `sum by (instance, step) (rate(perceptor_store_failures_total[5m]))`, Condition: `> 0.2`, For: 10 * time.Minute, Severity: Ticket,
		Summary: "The step {{ $labels.step }} of {{ $labels.instance }} fails {{ $value | humanize }} times a second in Postgres.",
		Action:  "The log of the dispatcher has the error and the database. `perceptorctl doctor` checks all databases.",
	},
	{
		Name: "PerceptorDiskFull", Value: `max by (instance) (perceptor_databases_full)`, Condition: `> 0`, For: time.Minute, Severity: Page,
		Summary: "{{ $value }} databases refuse to write to {{ $labels.instance }}: the disk of their PostgreSQL server is full. Adds fail, and soon so does everything else.",
		Action:  "Make room on the disk, or make it larger; then everything goes on by itself. `perceptorctl doctor` names the server, and says when it has room again. What fills it: `pg_wal` (an archive or a replication slot that stands still), an old snapshot, or tasks.",
	},
	{
		Name: "PerceptorCertificateNotRenewed", Value: `min by (instance, part) (perceptor_certificate_life_left_ratio)`, Condition: `< 0.1`, For: 5 * time.Minute, Severity: Ticket,
		Summary: "The certificate {{ $labels.part }} of {{ $labels.instance }} has {{ $value | humanizePercentage }} of its life left.",
		Action:  "What should have renewed it? `perceptorctl doctor` on that machine says when it expires. Replace the files; programs read them again without a restart ([rotation](rotation.md)).",
	},
	{
		Name: "PerceptorCertificateExpires", Value: `min by (instance, part) (perceptor_certificate_life_left_ratio)`, Condition: `< 0.02`, For: time.Minute, Severity: Page,
		Summary: "The certificate {{ $labels.part }} of {{ $labels.instance }} has {{ $value | humanizePercentage }} of its life left, or its file cannot be read. When it has expired, connections are refused.",
		Action:  "As above, now: a certificate of a year has a week left. A program that is restarted with an expired one does not start.",
	},
	{
		Name: "PerceptorDatabaseChangedItsServer", Value: `sum by (database) (increase(perceptor_database_adoptions_total[15m]))`, Condition: `> 0`, Severity: Ticket,
		Summary: "Database {{ $labels.database }} was restarted, restored or failed over. Programs have adopted it; runs whose claims were lost come again.",
		Action:  "Did somebody do that? Otherwise the server restarts by itself: read its log. [Details](#a-database-that-was-restored-or-has-failed-over).",
	},
	{
		Name: "PerceptorTenantConflicts", Value: `sum(increase(perceptor_tenant_conflicts_total[15m]))`, Condition: `> 0`, Severity: Ticket,
		Summary: "Databases disagreed about a tenant, which no missed change explains. It is settled.",
		Action:  "A database has lost changes of tenants: `perceptorctl doctor` says which; look through `perceptorctl tenant get` and set again what is missing.",
	},
	{
		Name: "PerceptorDeadLettersLate", Value: `max by (database) (perceptor_dead_letter_lag_seconds)`, Condition: `> 300`, For: 5 * time.Minute, Severity: Ticket,
		Summary: "Dead runs of database {{ $labels.database }} have waited {{ $value | humanizeDuration }} for their dead-letter topic.",
		Action:  "Do the dead-letter topics exist, and may dispatchers write to them? `perceptorctl doctor`. The dead runs are kept all the same: their tenants find them with `perceptorctl dead list`, you with `--inspect TENANT` and a token of the scope `inspect`.",
	},
	{
		Name: "PerceptorPromotionLate", Value: `max by (database) (perceptor_promotion_lag_seconds)`, Condition: `> 0`, For: 2 * time.Minute, Severity: Page,
		Summary: "Tasks of the far tier of database {{ $labels.database }} are promoted {{ $value | humanizeDuration }} after they were due.",
		Action:  "Chores lag: raise `chores.share`, or give the database more I/O. `perceptor_chore_duration_seconds` and `perceptor_chore_failures_total` tell which chore.",
	},
	{
		Name: "PerceptorLevel0Old", Value: `max by (database) (perceptor_far_level0_oldest_seconds)`, Condition: `> 3600`, For: 30 * time.Minute, Severity: Ticket,
		Summary: "The oldest pack of level 0 of database {{ $labels.database }} is {{ $value | humanizeDuration }} old: compaction lags.",
		Action:  "Raise `chores.share`, or wait for a bulk load to be compacted. Tasks are late once the age exceeds `far.horizon`.",
	},
	{
		Name: "PerceptorOutboxUnreadable", Value: `sum by (database, state) (perceptor_outbox_rows_unreadable)`, Condition: `> 0`, For: 5 * time.Minute, Severity: Ticket,
		Summary: "{{ $value }} rows of the outbox of database {{ $labels.database }} cannot be read ({{ $labels.state }}).",
		Action:  "newer: finish the upgrade. damaged: their runs were published again; keep the rows and report it. [Details](#damaged-data).",
	},
	{
		Name: "PerceptorRowsQuarantined", Value: `sum by (database) (perceptor_rows_quarantined)`, Condition: `> 0`, For: 5 * time.Minute, Severity: Ticket,
		Summary: "{{ $value }} tasks of database {{ $labels.database }} cannot be read and do not fire.",
		Action:  "Finish an upgrade if one is going on, otherwise `perceptorctl doctor` and report it. [Details](#damaged-data).",
	},
	{
		Name: "PerceptorPacksQuarantined", Value: `sum by (database) (perceptor_far_packs_quarantined)`, Condition: `> 0`, For: 5 * time.Minute, Severity: Page,
		Summary: "{{ $value }} packs of database {{ $labels.database }} cannot be decoded; their tasks do not fire.",
		Action:  "`perceptorctl pack list` names them; keep their rows. After an upgrade to a program that can read them, `perceptorctl pack restore` lets their tasks fire. Look for the cause: disk, memory, or a fault of ours to report. [Details](#damaged-data).",
	},
	{
		Name: "PerceptorPacksWaitForUpgrade", Value: `sum by (database) (perceptor_far_packs_waiting)`, Condition: `> 0`, For: 30 * time.Minute, Severity: Ticket,
		Summary: "{{ $value }} packs of database {{ $labels.database }} wait for a newer program.",
		Action:  "Dispatchers of an older version do the chores: finish the upgrade. [Upgrades](#upgrades).",
	},
	{
		Name: "PerceptorChoreFails", Value: `sum by (chore) (rate(perceptor_chore_failures_total[15m]))`, Condition: `> 0.05`, For: 15 * time.Minute, Severity: Ticket,
		Summary: "The chore {{ $labels.chore }} fails again and again.",
		Action:  "The log of the dispatcher that owns the chore has the error; `perceptorctl shard list` says who that is.",
	},
	{
		Name: "PerceptorOldSnapshot", Value: `max by (server) (perceptor_oldest_snapshot_seconds)`, Condition: `> 600`, For: 5 * time.Minute, Severity: Ticket,
		Summary: "A transaction has been open on {{ $labels.server }} for {{ $value | humanizeDuration }}: vacuum removes nothing, and tables grow.",
		Action:  "`SELECT pid, xact_start, state, query FROM pg_stat_activity ORDER BY xact_start` on that server; end what does not belong there. Backups belong on a standby.",
	},
	{
		Name: "PerceptorQuotaNearlyUsed", Value: `max by (quota) (perceptor_quota_use_ratio)`, Condition: `> 0.8`, For: 15 * time.Minute, Severity: Ticket,
		Summary: "A tenant uses {{ $value | humanizePercentage }} of its quota {{ $labels.quota }}.",
		Action:  "`perceptorctl tenant list` and `tenant get` show which; raise the quota, or ask the team.",
	},
	{
		Name: "PerceptorAuditEventsLost", Value: `sum by (sink) (increase(perceptor_audit_events_dropped_total[15m]))`, Condition: `> 0`, Severity: Ticket,
		Summary: "Audit events were lost; sink: {{ $labels.sink }}.",
		Action:  "`perceptorctl audit --action dropped` says of whom. Somebody causes very many events, or no database answers.",
	},
	{
		Name: "PerceptorLoginsRefused", Value: `sum(rate(perceptor_logins_refused_total[5m]))`, Condition: `> 1`, For: 10 * time.Minute, Severity: Ticket,
		Summary: "{{ $value | humanize }} logins a second are refused.",
		Action:  "`perceptorctl audit --action login` has the addresses. A service with an expired token, or somebody who guesses.",
	},
}
