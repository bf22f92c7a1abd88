package pgserver

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"github.com/perceptor/perceptor/internal/subprocess"
)

// parentVariable is an environment variable. If it is set, the test binary starts a server on the
// directory that it names and waits, so that a test can kill the parent.
const parentVariable = "PERCEPTOR_PGSERVER_TEST_PARENT"

const patience = time.Minute

func TestMain(m *testing.M) {
	if dir := os.Getenv(parentVariable); dir != "" {
		beParent(dir)
		return
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if dir, _ := template(); dir != "" {
			os.RemoveAll(dir)
		}
		os.Exit(code)
	}))
}

func beParent(dir string) {
	s, err := Start(context.Background(), Options{DataDir: dir, Scratch: true})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(s.PID(), s.DSN())
	<-s.Done()
}

// dataDir returns a path for a data directory in a directory that the server's user can enter.
func dataDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "perceptor-pgserver-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "data")
}

// template makes a data directory that most tests copy, because making one takes a second.
var template = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "perceptor-pgserver-")
	if err != nil {
		return "", err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return dir, err
	}
	s, err := Start(context.Background(), Options{DataDir: filepath.Join(dir, "data"), Scratch: true})
	if err != nil {
		return dir, err
	}
	return dir, s.Stop(context.Background())
})

// madeDataDir returns a data directory that a server has used.
func madeDataDir(t *testing.T) string {
	t.Helper()
	from, err := template()
	if err != nil {
		t.Fatal(err)
	}
	dir := dataDir(t)
	if out, err := exec.Command("cp", "-a", filepath.Join(from, "data"), dir).CombinedOutput(); err != nil {
		t.Fatalf("copy data directory: %v: %s", err, out)
	}
	return dir
}

func start(t *testing.T, opts Options) *Server {
	t.Helper()
	opts.Scratch = true
	s, err := Start(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Kill(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func query(t *testing.T, dsn, statement string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	var text string
	if err := conn.QueryRow(ctx, statement).Scan(&text); err != nil && !errors.Is(err, pgx.ErrNoRows) {
		t.Fatalf("%s: %v", statement, err)
	}
	return text
}

func stop(t *testing.T, s *Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := s.Stop(ctx); err != nil {
		t.Fatal(err)
	}
}

func TestDataAndPasswordSurviveStopAndKill(t *testing.T) {
	dir := dataDir(t)
	s := start(t, Options{DataDir: dir})
	query(t, s.DSN(), "CREATE TABLE kept AS SELECT 'one' AS word")
	port := s.Port()
	stop(t, s)
	stop(t, s) // a second Stop returns no error

	s = start(t, Options{DataDir: dir, Port: port})
	if s.Port() != port {
		t.Errorf("port = %d, want the requested %d", s.Port(), port)
	}
	if got := query(t, s.DSN(), "SELECT word FROM kept"); got != "one" {
		t.Errorf("after a stop: got %q, want one", got)
	}
	query(t, s.DSN(), "UPDATE kept SET word = 'two'")
	pids := s.PIDs()
	if len(pids) < 3 {
		t.Errorf("processes of the server = %v, want the background processes too", pids)
	}
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	for _, pid := range pids {
		if subprocess.Alive(pid) {
			t.Errorf("pid %d is alive after Kill", pid)
		}
	}

	s = start(t, Options{DataDir: dir, Port: port})
	if got := query(t, s.DSN(), "SELECT word FROM kept"); got != "two" {
		t.Errorf("after a kill: got %q, want two", got)
	}
}

func TestPausedServerDoesNotAnswerUntilResumed(t *testing.T) {
	s := start(t, Options{DataDir: madeDataDir(t)})
	conn, err := pgx.Connect(t.Context(), s.DSN())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if err := s.Pause(); err != nil {
		t.Fatal(err)
	}
	answered := make(chan error, 1)
	go func() {
		_, err := conn.Exec(context.Background(), "SELECT 1")
		answered <- err
	}()
	select {
	case err := <-answered:
		t.Fatalf("a paused server answered: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	if err := s.Resume(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-answered:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(patience):
		t.Fatal("a resumed server does not answer")
	}
}

func TestPausedServerCanBeStopped(t *testing.T) {
	s := start(t, Options{DataDir: madeDataDir(t)})
	if err := s.Pause(); err != nil {
		t.Fatal(err)
	}
	stop(t, s)
}

func TestNoServerOutlivesAKilledParent(t *testing.T) {
	dir := madeDataDir(t)
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), parentVariable+"="+dir)
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	defer parent.Process.Kill() //nolint:errcheck // it has ended unless the test fails
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	var dsn string
	if _, err := fmt.Sscan(line, &pid, &dsn); err != nil {
		t.Fatalf("parent printed %q, want process id and connection string", line)
	}
	query(t, dsn, "CREATE TABLE kept AS SELECT 'one' AS word")
	children, err := subprocess.Children(pid)
	if err != nil || len(children) == 0 {
		t.Fatalf("server's processes: %v, %v", children, err)
	}

	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	parent.Wait() //nolint:errcheck // it was killed
	for _, pid := range append(children, pid) {
		for deadline := time.Now().Add(patience); subprocess.Alive(pid); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("pid %d outlives its parent", pid)
			}
		}
	}
	s := start(t, Options{DataDir: dir})
	if got := query(t, s.DSN(), "SELECT word FROM kept"); got != "one" {
		t.Errorf("after the parent was killed: got %q, want one", got)
	}
}

func TestDataDirOfARunningServerIsRefused(t *testing.T) {
	s := start(t, Options{DataDir: madeDataDir(t)})
	_, err := Start(t.Context(), Options{DataDir: s.DataDir()})
	if !errors.Is(err, ErrInUse) || !strings.Contains(err.Error(), s.DataDir()) {
		t.Fatalf("second Start: got %v, want %v with the directory", err, ErrInUse)
	}
	if got := query(t, s.DSN(), "SELECT 'well'"); got != "well" {
		t.Errorf("answer of the running server = %q, want well", got)
	}
}

func TestTwoStartsOnOneDataDirGiveOneServer(t *testing.T) {
	dir := madeDataDir(t)
	type result struct {
		s   *Server
		err error
	}
	results := make(chan result, 2)
	for range 2 {
		go func() {
			s, err := Start(context.Background(), Options{DataDir: dir})
			results <- result{s, err}
		}()
	}
	started := 0
	for range 2 {
		r := <-results
		if r.err == nil {
			started++
			t.Cleanup(func() { r.s.Kill() }) //nolint:errcheck // other tests check Kill
		} else if !errors.Is(r.err, ErrInUse) {
			t.Errorf("concurrent Start: got %v, want %v", r.err, ErrInUse)
		}
	}
	if started != 1 {
		t.Errorf("servers on one directory = %d, want 1", started)
	}
}

func TestStalePidFileIsRecognised(t *testing.T) {
	dir := madeDataDir(t)
	ended := exec.Command("true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	for name, pid := range map[string]int{
		"of a process that is gone":    ended.Process.Pid,
		"of a process of another kind": os.Getpid(),
		"of a process of another user": 1,
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(dir, pidName)
			if err := os.WriteFile(file, []byte(strconv.Itoa(pid)+"\n"+dir+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := serverOwns(file); err != nil {
				t.Fatal(err)
			}
			s := start(t, Options{DataDir: dir})
			stop(t, s)
		})
	}
}

func serverOwns(path string) error {
	a, err := serverAccount()
	if err != nil {
		return err
	}
	return a.own(path)
}

func TestUnreadablePidFileIsNamed(t *testing.T) {
	dir := madeDataDir(t)
	file := filepath.Join(dir, pidName)
	if err := os.WriteFile(file, []byte("what?\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Start(t.Context(), Options{DataDir: dir}); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("got %v, want an error that names %s", err, file)
	}
}

func TestDataDirOfAnotherVersionIsRefused(t *testing.T) {
	for version, binaries := range map[string]Binaries{
		"14": {},
		"16": {Dir: "/nonexistent", Major: 17},
	} {
		dir := dataDir(t)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "PG_VERSION"), []byte(version+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Start(t.Context(), Options{DataDir: dir, Binaries: binaries})
		if !errors.Is(err, ErrVersion) || !strings.Contains(err.Error(), "version "+version) {
			t.Errorf("version %s: got %v, want %v with the version", version, err, ErrVersion)
		}
	}
}

func TestDirectoryOfOtherFilesIsRefusedAndKept(t *testing.T) {
	dir := dataDir(t)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "thesis.txt")
	if err := os.WriteFile(file, []byte("dear"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Start(t.Context(), Options{DataDir: dir}); err == nil {
		t.Error("Start accepted a directory of other files")
	}
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
}

func TestCreationThatWasCutOffIsBegunAgain(t *testing.T) {
	dir := dataDir(t)
	if err := os.MkdirAll(filepath.Join(dir+".new", "base"), 0o700); err != nil {
		t.Fatal(err)
	}
	s := start(t, Options{DataDir: dir})
	if got := query(t, s.DSN(), "SELECT 'well'"); got != "well" {
		t.Errorf("answer = %q, want well", got)
	}
}

func TestRootIsToldWhichDirectoryTheServerCannotEnter(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("PostgreSQL runs as the current user, which is not root")
	}
	closed := filepath.Join(dataDir(t), "closed")
	if err := os.MkdirAll(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	_, err := Start(t.Context(), Options{DataDir: filepath.Join(closed, "data")})
	if err == nil || !strings.Contains(err.Error(), "cannot enter "+closed) {
		t.Errorf("got %v, want an error that names %s", err, closed)
	}
}

func TestTakenPortIsNamed(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	port := listener.Addr().(*net.TCPAddr).Port
	_, err = Start(t.Context(), Options{DataDir: madeDataDir(t), Port: port})
	if !errors.Is(err, ErrPortInUse) || !strings.Contains(err.Error(), strconv.Itoa(port)) {
		t.Errorf("got %v, want %v with port %d", err, ErrPortInUse, port)
	}
}

func TestSettingsAreApplied(t *testing.T) {
	s := start(t, Options{
		DataDir:   madeDataDir(t),
		Settings:  map[string]string{"work_mem": "7MB"},
		Preferred: map[string]string{"wal_compression": "brotli", "maintenance_work_mem": "9MB"},
	})
	for name, want := range map[string]string{
		"work_mem":             "7MB",
		"maintenance_work_mem": "9MB",
		"wal_compression":      "off", // its preferred value does not exist
		"fsync":                "on",
		"listen_addresses":     "127.0.0.1",
	} {
		if got := query(t, s.DSN(), "SHOW "+name); got != want {
			t.Errorf("%s = %s, want %s", name, got, want)
		}
	}
}

func TestServersLastWordsExplainAFailedStart(t *testing.T) {
	_, err := Start(t.Context(), Options{DataDir: madeDataDir(t), Settings: map[string]string{"work_mem": "much"}})
	if err == nil || !strings.Contains(err.Error(), `invalid value for parameter "work_mem"`) {
		t.Errorf("got %v, want an error with the server's message", err)
	}
}

func TestWrongPasswordIsRefused(t *testing.T) {
	s := start(t, Options{DataDir: madeDataDir(t)})
	conn, err := pgx.Connect(t.Context(), strings.Replace(s.DSN(), s.password, "guess", 1))
	if err == nil {
		conn.Close(t.Context())
		t.Fatal("a wrong password was accepted")
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for name, opts := range map[string]Options{
		"DataDir": {},
		"Port":    {DataDir: "x", Port: 70000},
	} {
		if _, err := Start(t.Context(), opts); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("got %v, want an error that names %s", err, name)
		}
	}
}
