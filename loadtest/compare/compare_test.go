package compare

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perceptor/perceptor/loadtest/compare/phase"
	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/scenario"
)

// engineCommand is the argument with which the test binary runs [Engine].
const engineCommand = "engine"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == engineCommand {
		if err := Engine(context.Background(), os.Getenv(DSNVariable), os.Args[2:], os.Stdout); err != nil {
			os.Stderr.WriteString(err.Error() + "\n")
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func TestTheEngineRunsEveryJobOnceInAllPhases(t *testing.T) {
	if testing.Short() {
		t.Skip("starts PostgreSQL; make test runs it")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	o := DefaultOptions()
	o.Jobs, o.Waiting, o.Spread, o.Only = 3000, 1500, 300*time.Millisecond, []string{"engine"}
	o.LatenessRate, o.LatenessFor, o.LatenessAhead = 500, time.Second, 300*time.Millisecond
	o.LatenessWarmup = 500 * time.Millisecond
	o.EngineCommand, o.Progress = []string{self, engineCommand}, testLog{t}
	o.Real.Postgres["shared_buffers"], o.Real.Postgres["fsync"] = "128MB", "off"
	ctx, cancel := context.WithTimeout(context.Background(), 8*time.Minute)
	defer cancel()
	report, err := harness.Run(ctx, &o)
	if err != nil {
		t.Fatal(err)
	}
	if err := harness.WriteTable(testLog{t}, report); err != nil {
		t.Error(err)
	}
	if report.Broken() != 0 || len(report.Failed()) != 0 || len(report.Rows) != 1 {
		t.Fatalf("%d jobs did not run exactly once, failed = %v, %d rows; want 0, none, 1", report.Broken(), report.Failed(), len(report.Rows))
	}
	row := report.Rows[0]
	for name, figure := range map[string]float64{
		"cycles_per_s": row.CyclesPerS, "drain_per_s": row.DrainPerS, "drain_waiting_per_s": row.DrainWaitingPerS,
		"ratio_to_empty": row.RatioToEmpty, "tasks_per_s": row.TasksPerS, "client": row.CPUUsPerCycle["client"],
		"wal_bytes_per_cycle": row.WALBytesPerCycle,
	} {
		if figure <= 0 {
			t.Errorf("%s = %v, want above 0", name, figure)
		}
	}
	if l := row.LatenessMs; l == nil || l.P50 < 0 || l.P99 < l.P50 || l.Max < l.P99 || l.Max == 0 {
		t.Errorf("lateness = %+v, want no negative value and p50 <= p99 <= max", l)
	}
}

func TestABurstOfTheEngineHasMediansOfItsRounds(t *testing.T) {
	if testing.Short() {
		t.Skip("starts PostgreSQL; make test runs it")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	o := DefaultOptions()
	o.Jobs, o.Only, o.Burst, o.Rounds = 3000, []string{"engine"}, true, 2
	o.burstAhead, o.burstSpread = 200*time.Millisecond, 300*time.Millisecond
	o.EngineCommand, o.Progress = []string{self, engineCommand}, testLog{t}
	o.Real.Postgres["shared_buffers"], o.Real.Postgres["fsync"] = "128MB", "off"
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	report, err := harness.Run(ctx, &o)
	if err != nil {
		t.Fatal(err)
	}
	if err := harness.WriteTable(testLog{t}, report); err != nil {
		t.Error(err)
	}
	if len(report.Peers) != 1 || report.Verdict() != nil {
		t.Fatalf("%d peers, %v", len(report.Peers), report.Verdict())
	}
	p := report.Peers[0]
	for name, figure := range map[string]float64{
		"whole_per_s": p.WholePerS, "inserted_per_s": p.InsertedPerS, "us_per_job": p.UsPerJob, "postgres_us_per_job": p.PostgresUs, "p99_ms": p.P99Ms,
	} {
		if figure <= 0 {
			t.Errorf("%s = %v, want above 0", name, figure)
		}
	}
	// The last job is due after its batch was built, whatever the machine does.
	if ceiling := float64(o.Jobs) / (o.burstAhead + o.burstSpread).Seconds(); len(p.WholePerSOf) != 2 || p.WholePerS > ceiling*1.05 {
		t.Errorf("%v jobs per second, want at most %.0f", p.WholePerSOf, ceiling)
	}
}

func TestFiguresOfAPeerAreMedians(t *testing.T) {
	var p Peer
	w := phase.Work{Jobs: 100}
	for _, s := range []float64{1, 4, 2} {
		m := measured{}
		m.WholeS, m.EnqueueS, m.CPUS, m.LatenessMs = s, s/2, s/10, phase.Quantiles{P50: s, P99: 2 * s, Max: 3 * s}
		p.add(w, m)
	}
	p.settle()
	if p.WholePerS != 50 || p.InsertedPerS != 100 || p.UsPerJob != 2000 || p.P50Ms != 2 || p.P99Ms != 4 || p.MaxMs != 6 || len(p.WholePerSOf) != 3 {
		t.Errorf("got %+v", p)
	}
}

type testLog struct{ t *testing.T }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Logf("%s", p)
	return len(p), nil
}

const goodResult = `{"event":"result","version":"1.2","enqueue_s":1,"whole_s":2,"cpu_s":0.5,"runs":10,"violations":1,"lateness_ms":{"p50":1,"p99":2,"max":3}}`

func TestAProgramsOutputIsReadOrRefused(t *testing.T) {
	begin, end := `{"event":"begin"}`, `{"event":"end"}`
	for _, test := range []struct {
		name  string
		lines []string
		want  string // part of the error; empty: no error
	}{
		{"all of it", []string{begin, "", end, goodResult}, ""},
		{"nothing", nil, "no result"},
		{"ended early", []string{begin, end}, "no result"},
		{"out of order", []string{end}, `event "end" after []`},
		{"twice", []string{begin, begin}, `event "begin" after`},
		{"more", []string{begin, end, goodResult, goodResult}, `event "result" after`},
		{"noise", []string{"hello"}, `output "hello"`},
		{"no time", []string{begin, end, `{"event":"result","enqueue_s":0,"whole_s":2,"cpu_s":1}`}, "enqueue_s = 0"},
		{"too many violations", []string{begin, end, strings.Replace(goodResult, `"violations":1`, `"violations":11`, 1)}, "11 violations"},
	} {
		t.Run(test.name, func(t *testing.T) {
			calls := ""
			out := &output{begin: func() error { calls += "b"; return nil }, end: func() error { calls += "e"; return nil }}
			var err error
			for _, l := range test.lines {
				if err = out.line([]byte(l)); err != nil {
					break
				}
			}
			var got phase.Result
			if err == nil {
				got, err = out.done(phase.Work{Phase: phase.Cycle, Jobs: 10})
			}
			if test.want != "" {
				if err == nil || !strings.Contains(err.Error(), test.want) {
					t.Fatalf("err = %v, want one with %q", err, test.want)
				}
				return
			}
			want := phase.Result{
				Version: "1.2", EnqueueS: 1, WholeS: 2, CPUS: 0.5, Runs: 10, Violations: 1, LatenessMs: phase.Quantiles{P50: 1, P99: 2, Max: 3},
			}
			if err != nil || got != want || calls != "be" {
				t.Errorf("result = %+v, err = %v, calls = %q, want %+v after calls \"be\"", got, err, calls, want)
			}
		})
	}
}

func TestAnErrorOfTheMeterEndsTheOutput(t *testing.T) {
	broken := errors.New("no meter")
	out := &output{begin: func() error { return broken }}
	if err := out.line([]byte(`{"event":"begin"}`)); !errors.Is(err, broken) {
		t.Errorf("err = %v, want %v", err, broken)
	}
}

func TestWorkSurvivesTheCommandLine(t *testing.T) {
	for _, w := range []phase.Work{
		{Phase: phase.Cycle, Jobs: 3, ParamsBytes: 100, Spread: 5 * time.Second},
		{Phase: phase.Drain, Jobs: 3, ParamsBytes: 100, Spread: time.Millisecond, Waiting: 7},
		{Phase: phase.Lateness, Jobs: 3, ParamsBytes: 100, Rate: 9, Ahead: 10 * time.Second, Warmup: 2},
		{Phase: phase.Burst, Jobs: 3, ParamsBytes: 100, Ahead: 2 * time.Second, Spread: 8 * time.Second},
	} {
		if got, err := phase.Parse(w.Args()); err != nil || got != w {
			t.Errorf("Parse(Args()) = %+v, %v, want %+v", got, err, w)
		}
	}
	for _, w := range []phase.Work{{Phase: "other", Jobs: 1}, {Phase: phase.Cycle}, {Phase: phase.Lateness, Jobs: 1}, {Phase: phase.Lateness, Jobs: 1, Rate: 1, Warmup: 1}} {
		if got, err := phase.Parse(w.Args()); err == nil {
			t.Errorf("Parse accepts the invalid work %+v", got)
		}
	}
}

func TestOptionsNameAllFaults(t *testing.T) {
	o := DefaultOptions()
	if err := harness.Validate(&o); err != nil {
		t.Fatal(err)
	}
	o.Jobs, o.Spread, o.ParamsBytes, o.LatenessFor, o.Only = 0, -1, 1, 0, []string{"river", "cron"}
	err := harness.Validate(&o)
	for _, want := range []string{"jobs 0", "spread -1ns", "params-bytes 1", "lateness-for 0s", `"cron" is not one of river, graphile-worker`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("err = %[2]v, want one with %[1]q", want, err)
		}
	}
}

func TestATallyFindsJobsThatDidNotRunExactlyOnce(t *testing.T) {
	y := phase.NewTally(4)
	for _, n := range []int{0, 1, 1, 3, -1} {
		y.Ran(n)
	}
	if got := y.Violations(); got != 2 {
		t.Errorf("%d violations, want 2, because job 1 ran twice and job 2 never", got)
	}
	y.Completed(3)
	select {
	case <-y.All:
		t.Error("All is closed after three of four completions")
	default:
	}
	y.Completed(2)
	<-y.All
	y.LateBy(3, 1, 2)
	if got, want := y.Quantiles(), (phase.Quantiles{P50: 2, P99: 3, Max: 3}); got != want {
		t.Errorf("quantiles %+v, want %+v", got, want)
	}
}

func TestDueInstantsFillTheSpreadEvenly(t *testing.T) {
	const jobs = 1000
	var dues []time.Duration
	for n := range jobs {
		dues = append(dues, phase.DueOf(n, jobs, time.Second))
	}
	if slices.IsSorted(dues) {
		t.Error("the jobs are due in the order of their adds")
	}
	slices.Sort(dues)
	for i, due := range dues {
		if want := time.Duration(i) * time.Millisecond; (due - want).Abs() > time.Microsecond {
			t.Fatalf("due instant %d = %s, want %s", i, due, want)
		}
	}
}

func TestAnInstalledFileMustHaveItsDigest(t *testing.T) {
	const digest = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824" // of hello
	for _, test := range []struct {
		name, list, extra, want string
	}{
		{"as listed", digest + "  target/lib/a.jar\n", "", ""},
		{"another", strings.Repeat("0", 64) + "  target/lib/a.jar\n", "", "another SHA-256"},
		{"missing", digest + "  target/lib/b.jar\n", "", "b.jar"},
		{"not listed", digest + "  target/lib/a.jar\n", "c.jar", "c.jar is not in"},
		{"no list", "hello\n", "", "is not"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, filepath.Join(dir, "target", "lib", "a.jar"), "hello")
			write(t, filepath.Join(dir, "list"), test.list)
			if test.extra != "" {
				write(t, filepath.Join(dir, "target", "lib", test.extra), "")
			}
			err := verify(dir, "list")
			if (err == nil) != (test.want == "") || (err != nil && !strings.Contains(err.Error(), test.want)) {
				t.Errorf("err = %v, want one with %q (empty: no error)", err, test.want)
			}
		})
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestEveryPeerHasItsSourcesAndLocks(t *testing.T) {
	for _, test := range []struct {
		peer  peer
		files []string
	}{
		{river, []string{"main.go", "phase/phase.go", "go.mod", "go.sum"}},
		{graphileWorker, []string{"peer.mjs", "phase.mjs", "package.json", "package-lock.json"}},
		{pgBoss, []string{"peer.mjs", "phase.mjs", "package.json", "package-lock.json"}},
		{dbScheduler, []string{"pom.xml", "checksums.txt", "src/main/java/Peer.java"}},
		{node, []string{"package.json", "package-lock.json"}},
	} {
		files, err := test.peer.sources(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range test.files {
			if len(files[name]) == 0 {
				t.Errorf("the sources of %s lack %s", test.peer.dir, name)
			}
		}
		before, err := cacheDir(test.peer.dir, files)
		if err != nil {
			t.Fatal(err)
		}
		files[test.files[0]] = append(files[test.files[0]], '\n')
		if after, err := cacheDir(test.peer.dir, files); err != nil || after == before {
			t.Errorf("%s: cache directory after a change of the sources = %s, err = %v, want another directory", test.peer.dir, after, err)
		}
	}
}

func TestAMissingToolIsNamed(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if err := execute(context.Background(), t.TempDir(), nil, "mvn", "package"); err == nil || !strings.Contains(err.Error(), "mvn is missing") {
		t.Errorf("err = %v, want one that names mvn", err)
	}
}

func TestARowHasTheMeasuredFigures(t *testing.T) {
	row := &Row{Name: "x"}
	m := measured{Result: phase.Result{Version: "1", EnqueueS: 2, WholeS: 4, CPUS: 1}, postgres: 3 * time.Second, wal: 4000}
	row.add(phase.Work{Phase: phase.Cycle, Jobs: 1000}, m)
	row.add(phase.Work{Phase: phase.Drain, Jobs: 1000}, m)
	m.WholeS, m.Violations, m.CPUS = 8, 2, 5
	row.add(phase.Work{Phase: phase.Drain, Jobs: 1000, Waiting: 1}, m)
	want := &Row{
		Name: "x", Version: "1", CyclesPerS: 250, CPUUsPerCycle: map[string]float64{"client": 1000, "postgres": 3000, "total": 4000},
		WALBytesPerCycle: 4, TasksPerS: 500, DrainPerS: 250, DrainCPUUs: 4000, DrainWaitingPerS: 125, RatioToEmpty: 0.5, RatioOfCPU: 2,
		Violations: 2,
	}
	if !reflect.DeepEqual(row, want) {
		t.Errorf("row = %+v, want %+v", row, want)
	}
}

func TestAStacksRateCountsFromTheFirstAddToTheLastResult(t *testing.T) {
	rep := &scenario.Report{Runs: 600, Complete: true, Series: []scenario.SecondReport{
		{}, {Adds: 600}, {Results: 100}, {Results: 500}, {},
	}}
	row := &Row{}
	row.addStack(rep, map[string]time.Duration{"taskd-1": 6 * time.Millisecond, "postgres-backends": 12 * time.Millisecond}, 6000)
	client, postgres := row.parts()
	if row.CyclesPerS != 200 || client != 10 || postgres != 20 || row.WALBytesPerCycle != 10 || row.Failed != "" {
		t.Errorf("cycles/s = %v, client = %v µs, postgres = %v µs, WAL = %v B, failed = %q; want 200, 10, 20, 10, none", row.CyclesPerS, client, postgres, row.WALBytesPerCycle, row.Failed)
	}
	row.addStack(&scenario.Report{}, nil, 0)
	if row.CyclesPerS != 0 || row.Failed == "" {
		t.Errorf("empty run: cycles/s = %v, failed = %q, want 0 and a reason", row.CyclesPerS, row.Failed)
	}
}
