package pagetest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/internal/subprocess"
	"github.com/perceptor/perceptor/internal/testenv"
)

// installWait bounds the whole page, with the time to build the programs.
const installWait = 5 * time.Minute

func TestMain(m *testing.M) { testenv.Main(m) }

// site is where the page is followed: servers, a folder, and the addresses of this machine.
type site struct {
	t        *testing.T
	postgres *testenv.PostgresServer
	kafka    *testenv.SecureKafka
	dir      string
	values   map[string]string
	environ  []string
}

func newSite(t *testing.T) *site {
	t.Helper()
	ca := testenv.NewCA(t)
	cert := ca.Issue(t, testenv.Server)
	s := &site{
		t: t, dir: filepath.Join(t.TempDir(), "perceptor"), kafka: testenv.NewSecureKafka(t),
		// What a server has from its package, apart from the one setting that the page asks for.
		postgres: testenv.NewPostgres(t, testenv.SecurePostgres(ca, ca.Issue(t, testenv.Server)), testenv.Setting("fsync", "on"),
			testenv.Setting("max_connections", "100"), testenv.Setting("max_locks_per_transaction", "256")),
	}
	api := freeAddress(t)
	s.values = map[string]string{
		"ADMIN_DSN": s.postgres.DSN(), "DB": s.postgres.Addr(), "KAFKA": s.kafka.Addr(), "KAFKA_USER": testenv.KafkaAdmin,
		"KAFKA_PASSWORD": testenv.KafkaPassword, "KAFKA_REPLICAS": "1", "API": api, "CA": ca.File, "KAFKA_CA": s.kafka.CA.File,
		"CERT": cert.CertFile, "KEY": cert.KeyFile, "DIR": s.dir, "CLONE": root(t),
	}
	// Other programs of this machine may have the ports of the page.
	s.environ = append(os.Environ(), "PATH="+programs(t)+":"+os.Getenv("PATH"), "PERCEPTOR_TASKD_GRPC_ADDR="+api,
		"PERCEPTOR_TASKD_HTTP_ADDR="+freeAddress(t), "PERCEPTOR_TASKD_OPS_ADDR="+freeAddress(t),
		"PERCEPTOR_DISPATCHER_OPS_ADDR="+freeAddress(t), "PERCEPTOR_DISPATCHER_HINT_ADDR=127.0.0.1:0")
	return s
}

func freeAddress(t *testing.T) string {
	t.Helper()
	port, err := subprocess.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", port)
}

// programs builds the programs and returns their folder.
func programs(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", dir, "./cmd/...")
	build.Dir = root(t)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return dir
}

// run runs a script in a process group of its own, which does not outlive it, and returns its output.
func (s *site) run(script string) string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), installWait)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", script)
	cmd.Env = s.environ
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	if cmd.Process != nil {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) //nolint:errcheck // most often nobody is left
	}
	if err != nil {
		for _, log := range []string{"taskd.log", "dispatcher.log"} {
			text, _ := os.ReadFile(filepath.Join(s.dir, log))
			s.t.Logf("%s:\n%s", log, text[max(0, len(text)-4000):])
		}
		s.t.Fatalf("the page ended with %v:\n%s", err, out)
	}
	return string(out)
}

// TestFirstInstallation follows docs/first-installation.md from an empty server.
func TestFirstInstallation(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a whole installation; make test runs it")
	}
	s := newSite(t)
	page := blocks(t, "first-installation.md")
	page[0] = withValues(t, page[0], s.values)
	// What the reader sees of the doctor at the end of the page's setup is written down, too.
	const doctor = "perceptorctl --tls-ca-file \"$CA\" doctor\n"
	script := strings.Join(page, "\n")
	if !strings.Contains(script, doctor) {
		t.Fatal("the page does not ask the doctor when the programs run")
	}
	script = strings.Replace(script, doctor, doctor+strings.TrimSuffix(doctor, "\n")+" -o json > doctor.json\n", 1)
	out := s.run(script)
	for _, want := range []string{`(?m)^FAILED +schema .*perceptorctl migrate up`, `(?m)^WARNING +topics +not checked`, `database 15: \d+ versions applied`, `hello, world!`, `(?m)COMPLETED`} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("the page has not printed %s:\n%s", want, out)
		}
	}
	s.isGreen()
	s.mayDoNothingElse()
}

// isGreen fails unless doctor is content with everything, apart from the single broker of the test.
func (s *site) isGreen() {
	s.t.Helper()
	text, err := os.ReadFile(filepath.Join(s.dir, "doctor.json"))
	if err != nil {
		s.t.Fatal(err)
	}
	var findings []struct{ State, Part, What string }
	if err := json.Unmarshal(text, &findings); err != nil {
		s.t.Fatal(err)
	}
	parts := map[string]bool{}
	for _, f := range findings {
		parts[f.Part] = true
		if f.State != "ok" && f.Part != "topics" {
			s.t.Errorf("doctor says %s of %s: %s", f.State, f.Part, f.What)
		}
	}
	for _, part := range []string{"postgres", "sessions", "connections", "locks", "schema", "shards", "kafka", "topic access", "assignment", "api", "listeners"} {
		if !parts[part] {
			s.t.Errorf("doctor has not examined %s: %s", part, text)
		}
	}
}

// mayDoNothingElse fails if the role of the programs has rights that the page does not tell of, or lacks
// one that they need now and then.
func (s *site) mayDoNothingElse() {
	s.t.Helper()
	dsn, err := os.ReadFile(filepath.Join(s.dir, "secrets", "dsn"))
	if err != nil {
		s.t.Fatal(err)
	}
	conn, err := pgx.Connect(s.t.Context(), string(dsn))
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Close(context.Background()) //nolint:errcheck // the test has ended
	for _, c := range []struct {
		allowed   bool
		statement string
	}{
		{false, "CREATE TABLE perceptor_00.x (i int)"},
		{false, "CREATE SCHEMA x"},
		{false, "CREATE TEMP TABLE x (i int)"},
		{false, "DROP TABLE perceptor_00.outbox"},
		{false, "TRUNCATE perceptor_00.task"},
		{false, "ALTER TABLE perceptor_00.task ADD COLUMN x int"},
		{false, "CREATE ROLE x"},
		{false, "SET ROLE perceptor_owner"},
		// What the chores do once a day, and reads and writes of the partition that they make.
		{true, "SELECT perceptor_05.run_event_make_day(30000)"},
		{true, "SELECT FROM perceptor_05.run_event_20520220"},
		{true, "SELECT perceptor_05.run_event_drop_before(30001)"},
	} {
		if _, err := conn.Exec(s.t.Context(), c.statement); (err == nil) != c.allowed {
			s.t.Errorf("%s as the role of the programs: got %v, allowed is %v", c.statement, err, c.allowed)
		}
	}
}
