package harness

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/perceptor/perceptor/internal/chart"
	"github.com/perceptor/perceptor/internal/testenv"
)

// counter is a process with a settable processor time.
type counter struct {
	pid  int
	used time.Duration
	err  error
}

func (c *counter) PID() int                        { return c.pid }
func (c *counter) CPUTime() (time.Duration, error) { return c.used, c.err }

func TestProcessorTimeIsAddedUpOverRestarts(t *testing.T) {
	c := &counter{pid: 1}
	m := newMeter(map[string]Source{"x": c})
	for _, step := range []struct {
		counter
		want time.Duration
	}{
		{counter{1, 5, nil}, 5},
		{counter{1, 7, nil}, 7},
		{counter{1, 6, nil}, 7}, // a process of the group ended
		{counter{1, 9, nil}, 9},
		{counter{0, 0, errors.New("gone")}, 9},
		{counter{2, 4, nil}, 13}, // the process was restarted
		{counter{2, 5, nil}, 14},
	} {
		*c = step.counter
		if got := m.Sample()["x"]; got != step.want {
			t.Errorf("Sample after %+v = %d, want %d", step.counter, got, step.want)
		}
	}
}

func TestOnlyBackendsWithClientsServe(t *testing.T) {
	for title, want := range map[string]bool{
		"postgres: perceptor postgres 127.0.0.1(34760) idle": true,
		"postgres: perceptor load 127.0.0.1(34760) UPDATE":   true,
		"postgres: parallel worker for PID 4711":             true,
		"postgres: checkpointer":                             false,
		"postgres: 15/main: background writer":               false,
		"postgres: walwriter":                                false,
		"postgres: autovacuum launcher":                      false,
		"postgres: autovacuum worker postgres":               false,
		"postgres: logical replication launcher":             false,
		"/usr/lib/postgresql/15/bin/postgres -D /tmp/data":   false,
		"": false,
	} {
		if serves(title) != want {
			t.Errorf("serves(%q) = %v", title, !want)
		}
	}
}

func TestTheTokenIsNotShown(t *testing.T) {
	got := withoutToken([]string{"run", "--token", "secret", "--token=secret", "--rate", "5"})
	if want := []string{"run", "--token", "...", "--token=...", "--rate", "5"}; !slices.Equal(got, want) {
		t.Errorf("withoutToken = %v, want the token replaced", got)
	}
}

func TestSettingsAreAddedToTheDefaults(t *testing.T) {
	setup := Setup{Real: DefaultStack()}
	o, flags := &setup.Real, newFlags(&setup)
	flags.Stack()
	if err := flags.Parse(strings.Fields("--pg jit=on --pg shared_buffers=1GB --set dispatcher.max_tick=1s --kafka a.b=c=d")); err != nil {
		t.Fatal(err)
	}
	if o.Postgres["jit"] != "on" || o.Postgres["shared_buffers"] != "1GB" || o.Postgres["max_wal_size"] == "" {
		t.Errorf("wrong PostgreSQL settings: %v", o.Postgres)
	}
	if o.Settings["dispatcher.max_tick"] != "1s" || o.Kafka["a.b"] != "c=d" || o.Kafka["log.retention.bytes"] == "" {
		t.Errorf("wrong settings of the programs: %v, or of Kafka: %v", o.Settings, o.Kafka)
	}
	for _, bad := range []string{"x", "=x", ""} {
		if err := flags.Parse([]string{"--pg", bad}); err == nil {
			t.Errorf("--pg %q is accepted", bad)
		}
	}
}

// fake is a report.
type fake struct {
	Header
	CPU
	Findings
}

func (f *fake) Table(t *Table) { t.WriteString(f.CPU.Table("cycle", 10*time.Second)) }

// noPaper is a writer that fails.
type noPaper struct{}

var errNoPaper = errors.New("no paper")

func (noPaper) Write([]byte) (int, error) { return 0, errNoPaper }

func (f *fake) Chart() *chart.Chart { return &chart.Chart{Title: "fake"} }

func TestAReportIsWrittenAsTableJSONAndPicture(t *testing.T) {
	dir := t.TempDir()
	out := Output{JSON: filepath.Join(dir, "r.json"), SVG: filepath.Join(dir, "r.svg")}
	f := &fake{Header: NewHeader("fake", 7, map[string]string{"kafka": "4"}), CPU: NewCPU(map[string]time.Duration{
		"taskd-1": time.Second, "postgres-backends": 3 * time.Second,
	}, 100_000)}
	cmd, table := &cobra.Command{}, &bytes.Buffer{}
	cmd.SetOut(table)
	if err := out.Write(cmd, f); err != nil {
		t.Fatal(err)
	}
	if got := table.String(); !strings.Contains(got, "0.40 cores, 40.0 µs per cycle") || strings.Index(got, "postgres") > strings.Index(got, "taskd") {
		t.Errorf("wrong table:\n%s", got)
	}
	text, err := os.ReadFile(out.JSON)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Command  string
		Seed     int
		Versions map[string]string
		CPU      map[string]float64 `json:"cpu_us_per_cycle"`
	}
	if err := json.Unmarshal(text, &got); err != nil || got.Command != "fake" || got.Seed != 7 || got.Versions["kafka"] != "4" || got.CPU["total"] != 40 {
		t.Errorf("wrong JSON (%v): %s", err, text)
	}
	if svg, err := os.ReadFile(out.SVG); err != nil || !bytes.Contains(svg, []byte("<title>fake</title>")) {
		t.Errorf("wrong chart (%v): %s", err, svg)
	}

	cmd.SetOut(noPaper{})
	out = Output{JSON: filepath.Join(dir, "no", "r.json")}
	if err := out.Write(cmd, f); !errors.Is(err, errNoPaper) || !strings.Contains(err.Error(), "r.json") {
		t.Errorf("Write = %v, want both errors", err)
	}
}

func TestAServerTellsWALAndSizes(t *testing.T) {
	if testing.Short() {
		t.Skip("needs PostgreSQL; make test runs it")
	}
	ctx := t.Context()
	db, err := Dial(ctx, testenv.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	before, err := db.WAL(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, statement := range []string{
		"CREATE SCHEMA perceptor_03", "CREATE SCHEMA perceptor_04", "CREATE SCHEMA other",
		"CREATE TABLE perceptor_03.task_096 (id int8 PRIMARY KEY, v text)", "CREATE TABLE perceptor_04.task_128 (id int8)",
		"CREATE TABLE other.task_000 (id int8)", "CREATE TABLE perceptor_03.outbox (id int8)",
		"INSERT INTO perceptor_03.task_096 SELECT g, repeat('x', 100) FROM generate_series(1, 1000) g",
		"INSERT INTO perceptor_04.task_128 VALUES (1)", "INSERT INTO other.task_000 VALUES (1)",
	} {
		if _, err := db.conn.Exec(ctx, statement); err != nil {
			t.Fatal(err)
		}
	}
	if after, err := db.WAL(ctx); err != nil || after < before+100_000 {
		t.Errorf("WAL went from %d to %d bytes, %v", before, after, err)
	}
	sizes, err := db.Sizes(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if s := sizes["task"]; len(sizes) != 2 || s.Heap < 100_000 || s.Indexes < 16_000 || s.Total() < s.Heap+s.Indexes {
		t.Errorf("wrong sizes: %+v", sizes)
	}
	if n, err := db.Bytes(ctx); err != nil || n < sizes["task"].Total() {
		t.Errorf("Bytes() = %d, %v", n, err)
	}
	if age, err := db.OldestSnapshot(ctx); err != nil || age < 0 {
		t.Errorf("OldestSnapshot() = %d, %v", age, err)
	}
}

func TestMain(m *testing.M) { testenv.Main(m) }

func TestStatementsOfTheMeasuredTimeAreCounted(t *testing.T) {
	before := StatementCounts{"peek": {50, 2, 1, 10, 50, 0}, "past": {9, 0, 0, 9, 9, 0}}
	after := StatementCounts{"peek": {150, 7, 11, 60, 350, 4000}, "past": {9, 0, 0, 9, 9, 0}, "new": {200, 0, 0, 2, 100, 200}}
	got := after.Since(before, 10*time.Second)
	want := []Statement{{"peek", 10, 0.5, 100, 600, 6, 3, 40}, {"new", 20, 0, 0, 10, 0.2, 0.5, 1}}
	if !slices.Equal(got, want) {
		t.Errorf("Since = %+v, want %+v", got, want)
	}
	for text, want := range map[string]string{"SELECT 1\n\t  FROM task": "SELECT 1 FROM task", "COPY task_017 (shard)": "COPY task_NNN (shard)"} {
		if got := firstWords(text); got != want {
			t.Errorf("firstWords(%q) = %q, want %q", text, got, want)
		}
	}
}
