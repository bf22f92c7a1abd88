package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/internal/subprocess"
	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/stack"
	"github.com/perceptor/perceptor/monitoring"
)

// prometheus is a real Prometheus with the project's rules, which scrapes a stack each second.
type prometheus struct {
	t    *testing.T
	base string // URL of its API
}

// startPrometheus starts the program of Debian's package prometheus. Without it the test is
// skipped, except in CI. Its alerts fire at once: how long they wait is tested with promtool.
func startPrometheus(t *testing.T, s *stack.Stack) *prometheus {
	t.Helper()
	path, err := exec.LookPath("prometheus")
	if err != nil && os.Getenv("CI") == "" {
		t.Skip("prometheus is missing on this machine: install the package prometheus")
	}
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name string, text []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	rules, err := monitoring.Rules()
	if err != nil {
		t.Fatal(err)
	}
	write("rules.yml", regexp.MustCompile(`(?m)^ +for: .*\n`).ReplaceAll(rules, nil))
	write("prometheus.yml", scrapeConfig(t, s))
	port, err := subprocess.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	p := &prometheus{t, fmt.Sprintf("http://127.0.0.1:%d", port)}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), path, "--config.file", filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path", filepath.Join(dir, "data"),
		"--web.listen-address", strings.TrimPrefix(p.base, "http://"))
	cmd.Stdout, cmd.Stderr = log, log
	process, err := subprocess.Start(cmd, syscall.SIGKILL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		err := errors.Join(process.Stop(ctx, syscall.SIGTERM), log.Close())
		if text, _ := os.ReadFile(log.Name()); t.Failed() || err != nil {
			t.Logf("%v\n%s", err, text[max(0, len(text)-4000):])
		}
	})
	await(t, "Prometheus has scraped every program", func() bool {
		return process.Running() && len(p.query(`up == 1`)) == len(s.Programs())
	})
	return p
}

// scrapeConfig lets Prometheus scrape the programs of a stack.
func scrapeConfig(t *testing.T, s *stack.Stack) []byte {
	t.Helper()
	var targets []string
	for _, part := range s.Programs() {
		address, err := s.OpsAddress(part.Name)
		if err != nil {
			t.Fatal(err)
		}
		targets = append(targets, address)
	}
	job := map[string]any{"job_name": "perceptor", "static_configs": []any{map[string]any{"targets": targets}}}
	if s.OpsToken != "" {
		job["scheme"] = "https"
		job["tls_config"] = map[string]string{"ca_file": s.CAFile}
		job["authorization"] = map[string]string{"credentials": s.OpsToken}
	}
	text, err := yaml.Marshal(map[string]any{
		"global":     map[string]string{"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
		"rule_files": []string{"rules.yml"}, "scrape_configs": []any{job},
	})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// query returns the values of an expression: none if Prometheus does not answer yet.
func (p *prometheus) query(expr string) []json.RawMessage {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.base+"/api/v1/query?query="+url.QueryEscape(expr), nil)
	if err != nil {
		p.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil
	}
	defer resp.Body.Close() //nolint:errcheck // it was only read
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode == http.StatusServiceUnavailable {
		return nil
	}
	var answer struct {
		Status, Error string
		Data          struct{ Result []json.RawMessage }
	}
	if err := json.Unmarshal(text, &answer); err != nil || answer.Status != "success" {
		p.t.Fatalf("%s: %v: %s", expr, err, text)
	}
	return slices.DeleteFunc(answer.Data.Result, func(r json.RawMessage) bool { return bytes.Contains(r, []byte(`"NaN"`)) })
}

// firing reports whether an alert fires.
func (p *prometheus) firing(alert string) bool {
	return len(p.query(fmt.Sprintf(`ALERTS{alertname=%q,alertstate="firing"}`, alert))) > 0
}

// noData are the queries that may have no values, with the reason.
var noData = map[string]string{
	"PerceptorAuditEventsLost":                                   "no audit event is lost here",
	"PerceptorShardsGivenToNobody":                               "the plan gives every shard to somebody",
	"PerceptorNoHandler":                                         "every kind has a handler here",
	"PerceptorCertificateNotRenewed":                             "no program has a certificate here",
	"PerceptorCertificateExpires":                                "the same",
	"PerceptorChoreFails":                                        "no chore need be at work while PostgreSQL is away",
	"perceptor-kafka-far / Far tier / Failed chores / {{chore}}": "the same",
}

// All servers restart while tasks of all types run, and Prometheus watches. Every rule and every
// panel has values then. When the dispatchers die, the alert on shards without owner fires,
// and it ends when they are back.
func TestPrometheusSeesWhatHappensWhileTheServersRestart(t *testing.T) {
	s := realStack(t)
	p := startPrometheus(t, s)
	ctx, cancel := context.WithTimeout(context.Background(), e2eLimit)
	defer cancel()
	report, err := harness.Run(ctx, e2eOptions(t, s, serversRestart))
	if err != nil {
		t.Error(err)
	}
	if report != nil {
		judge(t, report, 0)
	}
	refusedLogin(t, s)
	p.hasDataEverywhere()
	const alert = "PerceptorShardsWithoutOwner"
	if p.firing(alert) {
		t.Errorf("%s fires while every shard has an owner", alert)
	}
	for _, part := range s.Programs() {
		if strings.HasPrefix(part.Name, "dispatcher") {
			if err := part.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	await(t, alert+" fires", func() bool { return p.firing(alert) })
	if err := s.Revive(ctx); err != nil {
		t.Fatal(err)
	}
	await(t, alert+" has ended", func() bool { return !p.firing(alert) })
}

// refusedLogin makes a call with a token that does not exist.
func refusedLogin(t *testing.T, s *stack.Stack) {
	t.Helper()
	c, err := client.New(s.Client("pcp_AAAAAAAAAAAAAAAA_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() //nolint:errcheck // no call is in progress
	if _, err := c.GetTask(t.Context(), 1); err == nil {
		t.Error("a call with a token that does not exist was answered")
	}
}

// hasDataEverywhere waits until every query of a rule or a panel has values. Rates are taken over
// the whole test.
func (p *prometheus) hasDataEverywhere() {
	p.t.Helper()
	tenant := `topk(1, sum by (tenant) (rate(perceptor_runs_published_total{tenant!="(other)"}[1m])))` // that of the load
	var named struct{ Metric struct{ Tenant string } }
	await(p.t, "a tenant has a name in the metrics", func() bool {
		found := p.query(tenant)
		return len(found) > 0 && json.Unmarshal(found[0], &named) == nil
	})
	fill := strings.NewReplacer("$__rate_interval", "5m", `"$tenant"`, fmt.Sprintf("%q", named.Metric.Tenant), "$instance", ".*")
	missing := monitoring.Queries()
	for where, why := range noData {
		p.t.Logf("may have no values: %s: %s", where, why)
		if missing[where] == "" {
			p.t.Errorf("there is no query %s", where)
		}
		delete(missing, where)
	}
	for deadline := time.Now().Add(time.Minute); len(missing) > 0 && time.Now().Before(deadline); time.Sleep(time.Second) {
		for where, expr := range missing {
			if len(p.query(fill.Replace(expr))) > 0 {
				delete(missing, where)
			}
		}
	}
	for _, where := range slices.Sorted(maps.Keys(missing)) {
		p.t.Errorf("%s has no values: %s", where, missing[where])
	}
}
