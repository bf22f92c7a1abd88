package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
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
	"github.com/perceptor/perceptor/store"
)

// mainVariable makes the test binary be taskd.
const mainVariable = "PERCEPTOR_TASKD_TEST_MAIN"

const patience = 60 * time.Second

func TestMain(m *testing.M) {
	if os.Getenv(mainVariable) != "" {
		main()
		return
	}
	testenv.Main(m)
}

// command is taskd with arguments, in an environment without configuration.
func command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	t.Cleanup(cancel)
	args, servers := testenv.WithoutSecrets(args)
	cmd := exec.CommandContext(ctx, os.Args[0], args...)
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "PERCEPTOR_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(append(cmd.Env, mainVariable+"=1"), servers...)
	return cmd
}

// ended runs taskd to its end.
func ended(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	cmd := command(t, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

func TestWrongUseIsNamed(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	const servers = "--postgres.servers=postgres://me:hush@127.0.0.1:1/x"
	addresses := []string{servers, "--kafka.brokers=127.0.0.1:1", "--taskd.grpc-addr=127.0.0.1:0", "--taskd.http-addr=127.0.0.1:0", "--taskd.ops-addr=127.0.0.1:0"}
	for _, c := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{"unknown key", []string{"--config", write("key.yaml", "taskd: {grcp_addr: x}")}, 2, "unknown key taskd.grcp_addr; did you mean taskd.grpc_addr?"},
		{"missing file", []string{"--config", "/no/such.yaml"}, 2, "/no/such.yaml does not exist"},
		{"nothing configured", nil, 2, "postgres.servers: is missing"},
		{"nothing configured: how to try it", nil, 2, "to try it without servers, run taskd dev --demo"},
		{"bad value", append(addresses, "--taskd.min-interval=1ms"), 2, "taskd.min_interval: 1ms is below 10ms"},
		{"unknown flag", []string{"--frobnicate"}, 2, "unknown flag: --frobnicate"},
		{"argument", []string{"frobnicate"}, 2, `unknown command "frobnicate"`},
		{"port in use", append(addresses, "--taskd.http-addr="+taken.Addr().String()), 1, "taskd.http_addr: cannot listen on " + taken.Addr().String() + ": bind: address already in use"},
		{"certificate", append(addresses, "--taskd.tls.cert-file=/no/cert", "--taskd.tls.key-file=/no/key"), 1, "taskd.tls.cert_file: open /no/cert"},
		{"unreachable server", append(addresses, "--start-timeout=300ms"), 1, "taskd: postgres: database 0 at 127.0.0.1:1/x"},
		{"negative time", []string{"dev", "--for=-1s"}, 2, "--for: -1s is negative"},
		{"port", []string{"dev", "--kafka-port=99999"}, 2, "--kafka-port: 99999 is not a port: must be 0 to 65535"},
		{"traces", []string{"dev", "--traces=localhost:4317"}, 2, `--traces: "localhost:4317" is not a URL such as http://127.0.0.1:4317`},
		{"level", []string{"dev", "--log-level=loud"}, 2, "--log-level"},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, _, stderr := ended(t, c.args...)
			if code != c.code || !strings.Contains(stderr, c.want) {
				t.Errorf("ended with %d, want %d and %q in:\n%s", code, c.code, c.want, stderr)
			}
			if strings.Contains(stderr, "hush") {
				t.Errorf("a password is shown:\n%s", stderr)
			}
		})
	}
}

func TestAnUnreachableServerIsOneLine(t *testing.T) {
	_, _, stderr := ended(t, "--postgres.servers=postgres://127.0.0.1:1/x", "--kafka.brokers=127.0.0.1:1", "--log.level=error",
		"--taskd.grpc-addr=127.0.0.1:0", "--taskd.http-addr=", "--taskd.ops-addr=", "--start-timeout=200ms")
	if lines := strings.Count(strings.TrimSpace(stderr), "\n"); lines != 0 {
		t.Errorf("got %d more lines:\n%s", lines, stderr)
	}
	if !strings.Contains(stderr, "connection refused") || !strings.Contains(stderr, "within 200ms") {
		t.Errorf("got %s", stderr)
	}
}

func TestPrintConfigShowsTheEffectiveConfiguration(t *testing.T) {
	code, stdout, stderr := ended(t, "--print-config", "--postgres.servers=postgres://me:hush@h/x", "--kafka.brokers=h:1", "--taskd.grace=3s", "--insecure=true")
	if code != 0 || !strings.Contains(stdout, "  grace: 3s  # flag --taskd.grace\n") || strings.Contains(stdout, "hush") {
		t.Errorf("ended with %d: %s\n%s", code, stderr, stdout)
	}
}

// background is a running taskd.
type background struct {
	*exec.Cmd
	stderr *bytes.Buffer
}

func start(t *testing.T, cmd *exec.Cmd) *background {
	t.Helper()
	b := &background{Cmd: cmd, stderr: &bytes.Buffer{}}
	cmd.Stderr = b.stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	return b
}

func get(url string) (int, string) {
	res, err := http.Get(url)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, err.Error()
	}
	return res.StatusCode, string(body)
}

func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %s", what, patience)
		}
	}
}

func freeAddress(t *testing.T) string {
	t.Helper()
	port, err := subprocess.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("127.0.0.1:%d", port)
}

// TestReadinessTellsTheTruth runs taskd on real servers and takes them away.
func TestReadinessTellsTheTruth(t *testing.T) {
	if testing.Short() {
		t.Skip("stops servers of its own; make test runs it")
	}
	t.Parallel()
	postgres, kafka := testenv.NewPostgres(t), testenv.NewKafka(t)
	args := func(ops, http string) []string {
		return []string{
			"--postgres.servers=" + postgres.DSN(), "--kafka.brokers=" + kafka.Addr(), "--taskd.grpc-addr=127.0.0.1:0",
			"--taskd.http-addr=" + http, "--taskd.ops-addr=" + ops, "--start-timeout=30s", "--log.format=text",
		}
	}
	code, _, stderr := ended(t, args("127.0.0.1:0", "127.0.0.1:0")...)
	if code != 1 || !strings.Contains(stderr, "run perceptorctl migrate up") {
		t.Fatalf("without a schema: ended with %d: %s", code, stderr)
	}
	execute(t, postgres.DSN(), `CREATE SCHEMA perceptor_00; CREATE TABLE perceptor_00.goose_db_version (version_id int8)`)
	code, _, stderr = ended(t, args("127.0.0.1:0", "127.0.0.1:0")...)
	if code != 1 || !strings.Contains(stderr, "created by an earlier version of Perceptor") {
		t.Fatalf("with an outdated schema: ended with %d: %s", code, stderr)
	}
	execute(t, postgres.DSN(), `DROP SCHEMA perceptor_00 CASCADE`)
	migrate(t, postgres.DSN())

	ops, api := freeAddress(t), freeAddress(t)
	taskd := start(t, command(t, args(ops, api)...))
	await(t, "readiness", func() bool { code, _ := get("http://" + ops + "/readyz"); return code == 200 })
	if code, body := get("http://" + ops + "/readyz"); body != "ready\n" {
		t.Errorf("readyz: %d %q", code, body)
	}
	if code, body := get("http://" + api + "/v1/openapi.json"); code != 200 || !strings.Contains(body, "AddTask") {
		t.Errorf("the API does not answer: %d", code)
	}
	if code, body := get("http://" + api + "/v1/tasks"); code != 401 {
		t.Errorf("a call without token: %d %s", code, body)
	}

	if err := kafka.Kill(); err != nil {
		t.Fatal(err)
	}
	await(t, "Kafka's loss to show", func() bool {
		code, body := get("http://" + ops + "/readyz")
		return code == 200 && strings.HasPrefix(body, "degraded\nkafka: ")
	})
	if err := postgres.Kill(); err != nil {
		t.Fatal(err)
	}
	await(t, "PostgreSQL's loss to show", func() bool {
		code, body := get("http://" + ops + "/readyz")
		return code == 503 && strings.Contains(body, "postgres: no database answers")
	})
	if code, _ := get("http://" + ops + "/healthz"); code != 200 {
		t.Errorf("healthz: %d: the process is alive", code)
	}
	if err := postgres.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	await(t, "PostgreSQL's return", func() bool { code, _ := get("http://" + ops + "/readyz"); return code == 200 })

	if err := taskd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := taskd.Wait(); err != nil {
		t.Errorf("a stop is no failure: %v\n%s", err, taskd.stderr)
	}
}

func execute(t *testing.T, dsn, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if _, err := conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
}

func migrate(t *testing.T, dsn string) {
	t.Helper()
	cluster, err := store.Open(t.Context(), store.Config{Servers: []store.Server{{DSN: dsn}}})
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	if err := cluster.Migrate(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
}

var (
	dataLine = regexp.MustCompile(`^  data +(\S+) `)
	endLine  = "Ctrl-C stops everything."
)

// The directory would stay empty, and the data be gone.
func TestAnEphemeralInstallationHasNoDataDirectoryOfItsUser(t *testing.T) {
	out, err := command(t, "dev", "--ephemeral", "--data-dir", t.TempDir()).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "--data-dir: --ephemeral has a directory of its own") {
		t.Errorf("%v: %s", err, out)
	}
}

// devProcess starts taskd dev and returns where its data is.
func devProcess(t *testing.T, args ...string) (*background, string) {
	t.Helper()
	args = append([]string{"dev", "--ephemeral", "--grpc-port=0", "--http-port=0", "--ops-port=0", "--kafka-port=0", "--postgres-port=0"}, args...)
	cmd := command(t, args...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	b := start(t, cmd)
	dir := ""
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if m := dataLine.FindStringSubmatch(lines.Text()); m != nil {
			dir = m[1]
		}
		if lines.Text() == endLine {
			go io.Copy(io.Discard, out) //nolint:errcheck // it ends with the process
			return b, dir
		}
	}
	err = b.Wait() // with it, all of stderr was read
	t.Fatalf("taskd dev has ended: %v: %s", err, b.stderr)
	return nil, ""
}

// postmaster is the pid of the server on a data directory.
func postmaster(t *testing.T, dir string) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "postgres", "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Sscan(string(text), &pid); err != nil || !subprocess.Alive(pid) {
		t.Fatalf("no server runs on %s: %v", dir, err)
	}
	return pid
}

func TestCtrlCStopsDevAndLeavesNothingBehind(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a whole installation; make test runs it")
	}
	t.Parallel()
	b, dir := devProcess(t)
	pid := postmaster(t, dir)
	if err := b.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := b.Wait(); err != nil {
		t.Errorf("a stop is no failure: %v\n%s", err, b.stderr)
	}
	if subprocess.Alive(pid) {
		t.Error("PostgreSQL is still running")
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is still there", dir)
	}
}

func TestPostgresDoesNotOutliveAKilledDev(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a whole installation; make test runs it")
	}
	t.Parallel()
	b, dir := devProcess(t)
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	pid := postmaster(t, dir)
	if err := b.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = b.Wait() // it was killed
	await(t, "end of PostgreSQL", func() bool { return !subprocess.Alive(pid) })
}
