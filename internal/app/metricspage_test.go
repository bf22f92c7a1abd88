package app

import (
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/perceptor/perceptor/internal/config"
	"github.com/perceptor/perceptor/internal/telemetry"
)

// metric is what /metrics says of a metric, and a row of the page.
type metric struct {
	name, kind, labels, processes, help string
}

func (m metric) row() string {
	labels := m.labels
	if labels != "" {
		labels = "`" + strings.ReplaceAll(labels, ",", "`, `") + "`"
	}
	return fmt.Sprintf("| `%s` | %s | %s | %s | %s |", m.name, m.kind, labels, m.processes, m.help)
}

// metrics is a registerer that keeps what is registered for a process.
type metrics struct {
	prometheus.Registerer
	process string
	all     map[string]metric
}

var described = regexp.MustCompile(`^Desc\{fqName: "([^"]+)", help: "(.*?)"(?:, unit: "")?, constLabels: \{\}, variableLabels: \{(.*)\}\}$`)

// Register implements [prometheus.Registerer].
func (m *metrics) Register(c prometheus.Collector) error {
	descs := make(chan *prometheus.Desc, 100)
	c.Describe(descs)
	close(descs)
	for d := range descs {
		parts := described.FindStringSubmatch(d.String())
		now := metric{parts[1], kindOf(c, parts[1]), parts[3], m.process, parts[2]}
		if before, ok := m.all[now.name]; ok {
			now.processes = before.processes + ", " + m.process
		}
		m.all[now.name] = now
	}
	return m.Registerer.Register(c)
}

// MustRegister implements [prometheus.Registerer].
func (m *metrics) MustRegister(list ...prometheus.Collector) {
	for _, c := range list {
		if err := m.Register(c); err != nil {
			panic(err)
		}
	}
}

func kindOf(c prometheus.Collector, name string) string {
	switch c.(type) {
	case *prometheus.HistogramVec:
		return "histogram"
	case *prometheus.CounterVec:
		return "counter"
	case *prometheus.GaugeVec, prometheus.Gauge:
		return "gauge"
	case prometheus.Counter:
		return "counter"
	}
	if strings.HasSuffix(name, "_total") { // of a collector with several metrics
		return "counter"
	}
	return "gauge"
}

// allMetrics puts taskd and dispatcher together, without servers, and returns what
// they register.
func allMetrics(t *testing.T) map[string]metric {
	t.Helper()
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	config.Register(flags)
	loaded, err := config.Load(config.Sources{Flags: flags, Environ: []string{
		"PERCEPTOR_POSTGRES_SERVERS=postgres://127.0.0.1:1/none", "PERCEPTOR_KAFKA_BROKERS=127.0.0.1:1",
	}})
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]metric{}
	options := func(process string) Options {
		return Options{Config: &loaded.Config, Log: quiet, Metrics: &metrics{prometheus.NewRegistry(), process, all}}
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close() //nolint:errcheck // nobody has used it
	api, err := NewAPI(t.Context(), APIOptions{Options: options("taskd"), GRPC: listener})
	if err != nil {
		t.Fatal(err)
	}
	api.close()
	dispatcher, err := NewDispatcher(t.Context(), DispatcherOptions{Options: options("dispatcher"), Local: true})
	if err != nil {
		t.Fatal(err)
	}
	dispatcher.close()
	telemetry.NewRelay(options("relay").Metrics)
	return all
}

// metricRow matches the rows of the page that describe metrics.
var metricRow = regexp.MustCompile("^\\| `[a-z0-9_]+` \\| (counter|gauge|histogram) \\|")

func TestTheMetricsPageAgreesWithWhatIsRegistered(t *testing.T) {
	page, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	registered := allMetrics(t)
	rows := map[string]bool{}
	for line := range strings.Lines(string(page)) {
		if metricRow.MatchString(line) {
			rows[strings.TrimSpace(line)] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(registered)) {
		row := registered[name].row()
		if !rows[row] {
			t.Errorf("docs/metrics.md lacks the row\n%s", row)
		}
		delete(rows, row)
	}
	for row := range rows {
		t.Errorf("docs/metrics.md has a row that no process registers\n%s", row)
	}
}

func TestMetricsAreNamedAsPrometheusAdvises(t *testing.T) {
	for name, m := range allMetrics(t) {
		if got := strings.HasSuffix(name, "_total"); got != (m.kind == "counter") {
			t.Errorf("%s is a %s: counters and nothing else end in _total", name, m.kind)
		}
		if !strings.HasPrefix(name, "perceptor_") || regexp.MustCompile(`_(ms|us|millis|minutes|kb|mb|percent)(_|$)`).MatchString(name) {
			t.Errorf("%s: names begin with perceptor_ and have base units", name)
		}
		if !regexp.MustCompile(`^[A-Z0-9][^\n|]+\.$`).MatchString(m.help) {
			t.Errorf("%s: %q is not a sentence", name, m.help)
		}
	}
}

// notMetrics are names that begin like metrics: record headers, and the databases
// of a floor measurement.
var notMetrics = []string{
	"perceptor_run_id", "perceptor_attempt", "perceptor_scheduled_at", "perceptor_reason", "perceptor_error", "perceptor_died_at",
	"perceptor_key_id", "perceptor_signature", "perceptor_run", "perceptor_floor_",
	// The schema of a service's outbox, and its functions.
	"perceptor_outbox", "perceptor_add", "perceptor_cancel", "perceptor_update", "perceptor_trigger", "perceptor_upsert", "perceptor_announce",
	// The role that owns the tables.
	"perceptor_owner",
	// The slots and schemas of a move, and roles of its tests.
	"perceptor_making_", "perceptor_move_", "perceptor_test_administrator", "perceptor_test_programs",
	// The package that a generator makes of the API.
	"perceptor_client",
}

var mentioned = regexp.MustCompile(`\bperceptor_[a-z][a-z0-9_]+`)

func TestEveryMetricThatIsMentionedExists(t *testing.T) {
	registered := allMetrics(t)
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		switch {
		case d.IsDir() && (d.Name() == "proto" || d.Name() != ".." && strings.HasPrefix(d.Name(), ".")) && path != "../..":
			return fs.SkipDir
		case d.Name() == "CHANGELOG.md" || d.Name() == "metricspage_test.go":
			return nil // the first names old ones, too
		case filepath.Ext(path) != ".go" && filepath.Ext(path) != ".md":
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, name := range mentioned.FindAllString(string(text), -1) {
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				if registered[strings.TrimSuffix(name, suffix)].kind == "histogram" {
					name = strings.TrimSuffix(name, suffix)
				}
			}
			if _, ok := registered[name]; !ok && !slices.Contains(notMetrics, name) {
				t.Errorf("%s mentions %s, which no process has", path, name)
			}
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
