package monitoring

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// promtool returns the program, which is in Debian's package prometheus. Without it the test is
// skipped, except in CI.
func promtool(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil && os.Getenv("CI") == "" {
		t.Skip("promtool is missing on this machine: install the package prometheus")
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func run(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", filepath.Base(name), args, err, out)
	}
}

// example is how an alert's series look while nothing is wrong, and when it must fire.
type example struct {
	alert string
	// The series, in the notation of promtool.
	quiet, loud []series
	// at is when the loud series must have made it fire. 0 means at its For and a minute.
	at time.Duration
	// step is the time between two samples, and between two evaluations. 0 means a minute.
	step time.Duration
}

type series struct{ Series, Values string }

// gauge is one series with one value for ever.
func gauge(name, value string) []series { return []series{{name, value + "x200"}} }

// lateRuns are 600 runs in each step, of which good are published within a second.
func lateRuns(good string) []series {
	return []series{
		{`perceptor_lateness_seconds_bucket{type="ONE_SHOT",le="1"}`, "0+" + good + "x200"},
		{`perceptor_lateness_seconds_count{type="ONE_SHOT"}`, "0+600x200"},
	}
}

// failedCalls are 600 calls in each step, and others that are answered with UNAVAILABLE.
func failedCalls(bad string) []series {
	return []series{
		{`perceptor_call_duration_seconds_count{method="AddTask",code="OK"}`, "0+600x200"},
		{`perceptor_call_duration_seconds_count{method="AddTask",code="Unavailable"}`, "0+" + bad + "x200"},
	}
}

var examples = []example{
	{"PerceptorLatenessBudgetBurnsFast", lateRuns("600"), lateRuns("585"), 2 * time.Hour, time.Minute},
	{"PerceptorLatenessBudgetBurnsSteadily", lateRuns("598"), lateRuns("595"), 8 * time.Hour, 5 * time.Minute},
	{"PerceptorLatenessBudgetBurnsSlowly", lateRuns("599.7"), lateRuns("599"), 80 * time.Hour, 30 * time.Minute},
	{"PerceptorCallsBudgetBurnsFast", failedCalls("0"), failedCalls("15"), 2 * time.Hour, time.Minute},
	{"PerceptorCallsBudgetBurnsSteadily", failedCalls("2"), failedCalls("5"), 8 * time.Hour, 5 * time.Minute},
	{"PerceptorCallsBudgetBurnsSlowly", failedCalls("0.3"), failedCalls("1"), 80 * time.Hour, 30 * time.Minute},
	{
		alert: "PerceptorShardsWithoutOwner",
		quiet: []series{{`perceptor_owned_shards{instance="a"}`, "256x100"}, {`perceptor_owned_shards{instance="b"}`, "256x100"}},
		loud:  []series{{`perceptor_owned_shards{instance="a"}`, "256x100"}},
	},
	{alert: "PerceptorClaimsStopped", quiet: gauge(`perceptor_claims_stopped{instance="a"}`, "0"), loud: gauge(`perceptor_claims_stopped{instance="a"}`, "1")},
	{alert: "PerceptorOutboxOld", quiet: gauge(`perceptor_outbox_oldest_seconds{database="3"}`, "2"), loud: gauge(`perceptor_outbox_oldest_seconds{database="3"}`, "90")},
	{alert: "PerceptorTopicFails", quiet: gauge(`perceptor_circuit_breakers_open{instance="a"}`, "0"), loud: gauge(`perceptor_circuit_breakers_open{instance="a"}`, "2")},
	{alert: "PerceptorTopicFaulty", quiet: gauge(`perceptor_topics_faulty{instance="a"}`, "0"), loud: gauge(`perceptor_topics_faulty{instance="a"}`, "1")},
	{
		alert: "PerceptorDispatchersGone",
		quiet: []series{{`perceptor_dispatcher_active{instance="a"}`, "1x100"}, {`perceptor_dispatcher_active{instance="b"}`, "1x100"}},
		loud:  gauge(`perceptor_dispatcher_active{instance="a"}`, "1"),
	},
	{alert: "PerceptorAssignmentAway", quiet: gauge(`perceptor_assign_connected{instance="a"}`, "1"), loud: gauge(`perceptor_assign_connected{instance="a"}`, "0")},
	{
		alert: "PerceptorShardsGivenToNobody",
		quiet: gauge(`perceptor_assign_items_without_owner{instance="a",reason="nobody"}`, "0"),
		loud:  gauge(`perceptor_assign_items_without_owner{instance="a",reason="nobody"}`, "7"),
	},
	{alert: "PerceptorAssignmentUnreadable", quiet: gauge(`perceptor_assign_faults{instance="a"}`, "0"), loud: gauge(`perceptor_assign_faults{instance="a"}`, "1")},
	{
		alert: "PerceptorStoreFails",
		quiet: []series{{`perceptor_store_failures_total{instance="a",step="claim"}`, "0+1x100"}},
		loud:  []series{{`perceptor_store_failures_total{instance="a",step="claim"}`, "0+60x100"}}, at: 20 * time.Minute,
	},
	{alert: "PerceptorNoListener", quiet: gauge(`perceptor_tenants_without_listener`, "0"), loud: gauge(`perceptor_tenants_without_listener`, "2")},
	{
		alert: "PerceptorNoHandler",
		quiet: []series{{`perceptor_runs_unhandled_total{tenant="acme"}`, "3x100"}},
		loud:  []series{{`perceptor_runs_unhandled_total{tenant="acme"}`, "0+1x100"}}, at: 30 * time.Minute,
	},
	{
		alert: "PerceptorDatabaseChangedItsServer",
		quiet: []series{{`perceptor_database_adoptions_total{database="3"}`, "0x100"}},
		loud:  []series{{`perceptor_database_adoptions_total{database="3"}`, "0 0 0 1x100"}}, at: 6 * time.Minute,
	},
	{
		alert: "PerceptorTenantConflicts",
		quiet: []series{{`perceptor_tenant_conflicts_total`, "0x100"}},
		loud:  []series{{`perceptor_tenant_conflicts_total`, "0 0 0 1x100"}}, at: 6 * time.Minute,
	},
	{alert: "PerceptorDeadLettersLate", quiet: gauge(`perceptor_dead_letter_lag_seconds{database="3"}`, "0"), loud: gauge(`perceptor_dead_letter_lag_seconds{database="3"}`, "400")},
	{alert: "PerceptorPromotionLate", quiet: gauge(`perceptor_promotion_lag_seconds{database="3"}`, "0"), loud: gauge(`perceptor_promotion_lag_seconds{database="3"}`, "4")},
	{alert: "PerceptorLevel0Old", quiet: gauge(`perceptor_far_level0_oldest_seconds{database="3"}`, "60"), loud: gauge(`perceptor_far_level0_oldest_seconds{database="3"}`, "4000")},
	{
		alert: "PerceptorOutboxUnreadable",
		quiet: gauge(`perceptor_outbox_rows_unreadable{database="3",state="damaged"}`, "0"), loud: gauge(`perceptor_outbox_rows_unreadable{database="3",state="damaged"}`, "1"),
	},
	{alert: "PerceptorRowsQuarantined", quiet: gauge(`perceptor_rows_quarantined{database="3"}`, "0"), loud: gauge(`perceptor_rows_quarantined{database="3"}`, "1")},
	{alert: "PerceptorPacksQuarantined", quiet: gauge(`perceptor_far_packs_quarantined{database="3"}`, "0"), loud: gauge(`perceptor_far_packs_quarantined{database="3"}`, "1")},
	{alert: "PerceptorPacksWaitForUpgrade", quiet: gauge(`perceptor_far_packs_waiting{database="3"}`, "0"), loud: gauge(`perceptor_far_packs_waiting{database="3"}`, "1")},
	{
		alert: "PerceptorChoreFails",
		quiet: []series{{`perceptor_chore_failures_total{chore="promote"}`, "0+1x100"}},
		loud:  []series{{`perceptor_chore_failures_total{chore="promote"}`, "0+6x100"}}, at: 40 * time.Minute,
	},
	{alert: "PerceptorDiskFull", quiet: gauge(`perceptor_databases_full{instance="a"}`, "0"), loud: gauge(`perceptor_databases_full{instance="a"}`, "4")},
	{alert: "PerceptorCertificateNotRenewed", quiet: gauge(`perceptor_certificate_life_left_ratio{instance="a", part="taskd.tls.cert_file"}`, "0.3"), loud: gauge(`perceptor_certificate_life_left_ratio{instance="a", part="taskd.tls.cert_file"}`, "0.05")},
	{alert: "PerceptorCertificateExpires", quiet: gauge(`perceptor_certificate_life_left_ratio{instance="a", part="taskd.tls.cert_file"}`, "0.05"), loud: gauge(`perceptor_certificate_life_left_ratio{instance="a", part="taskd.tls.cert_file"}`, "0")},
	{alert: "PerceptorOldSnapshot", quiet: gauge(`perceptor_oldest_snapshot_seconds{server="a"}`, "20"), loud: gauge(`perceptor_oldest_snapshot_seconds{server="a"}`, "900")},
	{alert: "PerceptorQuotaNearlyUsed", quiet: gauge(`perceptor_quota_use_ratio{quota="ADD_RATE"}`, "0.5"), loud: gauge(`perceptor_quota_use_ratio{quota="ADD_RATE"}`, "0.9")},
	{
		alert: "PerceptorAuditEventsLost",
		quiet: []series{{`perceptor_audit_events_dropped_total{sink="table"}`, "0x100"}},
		loud:  []series{{`perceptor_audit_events_dropped_total{sink="table"}`, "0 0 0 6x100"}}, at: 6 * time.Minute,
	},
	{
		alert: "PerceptorLoginsRefused",
		quiet: []series{{`perceptor_logins_refused_total{reason="EXPIRED"}`, "0+1x100"}},
		loud:  []series{{`perceptor_logins_refused_total{reason="EXPIRED"}`, "0+300x100"}}, at: 20 * time.Minute,
	},
}

func (e *example) every() time.Duration { return max(e.step, time.Minute) }

// The format of promtool's tests of rules.
type (
	ruleTests struct {
		RuleFiles []string   `yaml:"rule_files"`
		Every     string     `yaml:"evaluation_interval"`
		Order     []string   `yaml:"group_eval_order"` // otherwise by chance
		Tests     []ruleTest `yaml:"tests"`
	}
	ruleTest struct {
		Name     string        `yaml:"name"`
		Interval string        `yaml:"interval"`
		Input    []inputSeries `yaml:"input_series"`
		Exprs    []exprTest    `yaml:"promql_expr_test"`
	}
	inputSeries struct {
		Series string `yaml:"series"`
		Values string `yaml:"values"`
	}
	exprTest struct {
		Expr    string   `yaml:"expr"`
		At      string   `yaml:"eval_time"`
		Samples []sample `yaml:"exp_samples"`
	}
	sample struct {
		Labels string  `yaml:"labels"`
		Value  float64 `yaml:"value"`
	}
)

// firing asks whether an alert fires at an instant.
func firing(e *example, in []series, at time.Duration, want bool) ruleTest {
	q := exprTest{Expr: fmt.Sprintf(`count(ALERTS{alertname=%q,alertstate="firing"})`, e.alert), At: duration(at)}
	name := e.alert + " is quiet"
	if want {
		q.Samples, name = []sample{{"{}", 1}}, e.alert+" fires"
	}
	t := ruleTest{Name: name, Interval: duration(e.every()), Exprs: []exprTest{q}}
	for _, s := range in {
		t.Input = append(t.Input, inputSeries(s))
	}
	return t
}

func TestEveryAlertFiresForItsFaultAndForNothingElse(t *testing.T) {
	if testing.Short() {
		t.Skip("evaluates all rules over days of samples; make test runs it")
	}
	tool := promtool(t)
	after := map[string]time.Duration{}
	for _, a := range Alerts() {
		after[a.Name] = a.For
	}
	rules, err := filepath.Abs("prometheus/rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	files := map[time.Duration]*ruleTests{}
	for i := range examples {
		e := &examples[i]
		wait, known := after[e.alert]
		if !known {
			t.Errorf("there is no alert %s, or it has two examples", e.alert)
		}
		delete(after, e.alert)
		at := e.at
		if at == 0 {
			at = wait + time.Minute
		}
		file := files[e.every()]
		if file == nil {
			file = &ruleTests{RuleFiles: []string{rules}, Every: duration(e.every()), Order: []string{recordGroup, alertGroup}}
			files[e.every()] = file
		}
		file.Tests = append(file.Tests, firing(e, e.loud, at, true), firing(e, e.quiet, at, false))
	}
	for name := range after {
		t.Errorf("the alert %s has no example", name)
	}
	run(t, tool, "check", "rules", rules)
	for every, tests := range files {
		text, err := yaml.Marshal(tests)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), duration(every)+".yml")
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		run(t, tool, "test", "rules", file)
	}
}
