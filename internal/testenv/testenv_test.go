package testenv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/jackc/pgx/v5"
	"github.com/segmentio/kafka-go"

	"github.com/perceptor/perceptor/internal/subprocess"
)

const patience = time.Minute

// runVariable is an environment variable. If it is set, the test binary runs [Run] with its arguments, as
// the command testenv does.
const runVariable = "PERCEPTOR_TESTENV_TEST_RUN"

func TestMain(m *testing.M) {
	if os.Getenv(runVariable) != "" {
		os.Exit(Run(os.Args[1:]))
	}
	MainWithoutLeaks(m)
}

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func waitFor(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: did not happen within %v", what, patience)
		}
	}
}

func TestDatabasesAreEmptyApartAndDropped(t *testing.T) {
	var dsns []string
	t.Run("created", func(t *testing.T) {
		for range 2 {
			dsn := Database(t)
			conn, err := pgx.Connect(bounded(t), dsn)
			must(t, err)
			_, err = conn.Exec(bounded(t), "CREATE TABLE mine (n int)")
			must(t, err) // fails if both tests get the same database
			dsns = append(dsns, dsn)
		}
	}) // connections are still open, but dropping a database does not wait for them
	for _, dsn := range dsns {
		if conn, err := pgx.Connect(bounded(t), dsn); err == nil {
			conn.Close(bounded(t))
			t.Errorf("%s still exists after its test", dsn)
		}
	}
}

func TestATemplateIsFilledOnceAndItsCopiesKeepApart(t *testing.T) {
	server, fills := Postgres(t), 0
	words := func(dsn, statement string) (n int) {
		t.Helper()
		conn, err := pgx.Connect(bounded(t), dsn)
		must(t, err)
		defer conn.Close(bounded(t))
		_, err = conn.Exec(bounded(t), statement)
		must(t, err)
		must(t, conn.QueryRow(bounded(t), "SELECT count(*) FROM words").Scan(&n))
		return n
	}
	full := Template{Name: "template_" + randomName(), Fill: func(_ context.Context, dsn string) error {
		words(dsn, "CREATE TABLE words AS SELECT 'one' AS word")
		if fills++; fills == 1 {
			return errors.New("cut short")
		}
		return nil
	}}
	fuller := Template{Name: full.Name + "_more", Base: &full, Fill: func(_ context.Context, dsn string) error {
		words(dsn, "INSERT INTO words VALUES ('three')")
		return nil
	}}
	t.Cleanup(func() {
		for _, template := range []Template{full, fuller} {
			name := pgx.Identifier{template.Name}.Sanitize()
			must(t, server.administer("ALTER DATABASE "+name+" IS_TEMPLATE false"))
			must(t, server.administer("DROP DATABASE "+name))
		}
	})
	if _, _, err := server.create(full); err == nil || !strings.Contains(err.Error(), "cut short") {
		t.Fatalf("create with a Fill that fails: got %v, want the error of Fill", err)
	}
	one, two := DatabaseOf(t, full), DatabaseOf(t, full)
	if n := words(one, "INSERT INTO words VALUES ('two')"); n != 2 {
		t.Errorf("rows in the copy that a row was added to = %d, want 2", n)
	}
	if n := words(two, "SELECT"); n != 1 || fills != 2 {
		t.Errorf("rows in another copy = %d, want 1; calls of Fill = %d, want 2", n, fills)
	}
	if n := words(DatabaseOf(t, fuller), "SELECT"); n != 2 || fills != 2 {
		t.Errorf("rows in a copy of the derived template = %d, want 2; calls of the base's Fill = %d, want 2", n, fills)
	}
}

func TestNamesDoNotRepeat(t *testing.T) {
	if a, b := Root(t), Root(t); a == b || !strings.HasPrefix(a, "/") {
		t.Errorf("roots = %q and %q, want different absolute paths", a, b)
	}
	if a, b := TopicPrefix(t), TopicPrefix(t); a == b {
		t.Errorf("topic prefixes = %q and %q, want different ones", a, b)
	}
}

func TestRunningServersAreTakenFromTheEnvironment(t *testing.T) {
	saved := shared
	shared = &pool{errs: map[string]error{}}
	t.Cleanup(func() { shared = saved })
	const dsn = "postgres://me:secret@db.example:5432/postgres"
	t.Setenv(PostgresVariable, dsn)
	s := Postgres(t)
	if s.DSN() != dsn || s.PID() != 0 {
		t.Errorf("Postgres = %s with pid %d, want the server that %s names", s.DSN(), s.PID(), PostgresVariable)
	}
	if err := s.Kill(); !errors.Is(err, ErrShared) {
		t.Errorf("Kill of a shared server: got %v, want %v", err, ErrShared)
	}
	if err := s.Restart(t.Context()); !errors.Is(err, ErrShared) {
		t.Errorf("Restart of a shared server: got %v, want %v", err, ErrShared)
	}
	if err := StopShared(); err != nil {
		t.Errorf("StopShared with a server that another process started: %v", err)
	}
}

// server has the methods that all private servers have in common.
type server interface {
	PID() int
	Stop(context.Context) error
	Kill() error
	Pause() error
	Resume() error
	Restart(context.Context) error
	CPUTime() (time.Duration, error)
}

// hurt stops, kills and pauses a server. After each, the server must answer and have its data.
func hurt(t *testing.T, s server, kept func(context.Context) error) {
	t.Helper()
	must(t, kept(bounded(t)))
	pid := s.PID()
	used, err := s.CPUTime()
	must(t, err)
	if used <= 0 {
		t.Error("a server that has started has used no processor time")
	}

	must(t, s.Pause())
	frozen, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if err := kept(frozen); err == nil {
		t.Error("a paused server answered")
	}
	must(t, s.Resume())
	must(t, kept(bounded(t)))

	must(t, s.Kill())
	if subprocess.Alive(pid) {
		t.Errorf("pid %d is alive after Kill", pid)
	}
	must(t, s.Restart(bounded(t)))
	must(t, kept(bounded(t)))
	if s.PID() == pid {
		t.Error("the process id after Restart is that of the killed process")
	}

	pid = s.PID()
	must(t, s.Stop(bounded(t)))
	must(t, s.Stop(bounded(t)))
	if subprocess.Alive(pid) {
		t.Errorf("pid %d is alive after Stop", pid)
	}
	must(t, s.Restart(bounded(t)))
	must(t, kept(bounded(t)))
}

func TestPostgresKeepsWhatItCommitted(t *testing.T) {
	t.Parallel()
	s := NewPostgres(t, Setting("shared_buffers", "16MB"))
	dsn := s.Database(t)
	conn, err := pgx.Connect(bounded(t), dsn)
	must(t, err)
	_, err = conn.Exec(bounded(t), "CREATE TABLE kept AS SELECT 'one' AS word")
	must(t, err)
	must(t, conn.Close(bounded(t)))

	hurt(t, s, func(ctx context.Context) error {
		conn, err := pgx.Connect(ctx, dsn)
		if err != nil {
			return err
		}
		defer conn.Close(ctx)
		var word string
		return conn.QueryRow(ctx, "SELECT word FROM kept").Scan(&word)
	})
}

func TestZooKeeperKeepsItsNodes(t *testing.T) {
	t.Parallel()
	s := NewZooKeeper(t, TickTime(200*time.Millisecond))
	path := Root(t)
	connect := func(ctx context.Context) (*zk.Conn, error) {
		conn, events, err := zk.Connect([]string{s.Addr()}, 4*time.Second, zk.WithLogInfo(false), zk.WithLogger(silent{}))
		if err != nil {
			return nil, err
		}
		for {
			select {
			case e := <-events:
				if e.State == zk.StateHasSession {
					return conn, nil
				}
			case <-ctx.Done():
				conn.Close()
				return nil, ctx.Err()
			}
		}
	}
	conn, err := connect(bounded(t))
	must(t, err)
	_, err = conn.Create(path, []byte("one"), 0, zk.WorldACL(zk.PermAll))
	must(t, err)
	conn.Close()

	hurt(t, s, func(ctx context.Context) error {
		conn, err := connect(ctx)
		if err != nil {
			return err
		}
		defer conn.Close()
		_, _, err = conn.Get(path)
		return err
	})
}

type silent struct{}

func (silent) Printf(string, ...any) {}

func TestKafkaKeepsItsRecords(t *testing.T) {
	t.Parallel()
	s := NewKafka(t)
	topic := TopicPrefix(t) + "kept"
	transport := &kafka.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	client := &kafka.Client{Addr: kafka.TCP(s.Addr()), Transport: transport}
	created, err := client.CreateTopics(bounded(t), &kafka.CreateTopicsRequest{
		Topics: []kafka.TopicConfig{{Topic: topic, NumPartitions: 1, ReplicationFactor: 1}},
	})
	must(t, err)
	must(t, created.Errors[topic])
	_, err = client.Produce(bounded(t), &kafka.ProduceRequest{
		Topic: topic, RequiredAcks: kafka.RequireAll,
		Records: kafka.NewRecordReader(kafka.Record{Value: kafka.NewBytes([]byte("one"))}),
	})
	must(t, err)

	hurt(t, s, func(ctx context.Context) error {
		for ctx.Err() == nil { // a broker may still load the partition just after its start
			if err = fetchOne(ctx, client, topic); err == nil {
				return nil
			}
		}
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	})
}

func fetchOne(ctx context.Context, client *kafka.Client, topic string) error {
	fetched, err := client.Fetch(ctx, &kafka.FetchRequest{Topic: topic, MinBytes: 1, MaxBytes: 1 << 20, MaxWait: 100 * time.Millisecond})
	if err != nil {
		return err
	}
	if fetched.Error != nil {
		return fetched.Error
	}
	record, err := fetched.Records.ReadRecord()
	if err != nil {
		return err
	}
	value, err := io.ReadAll(record.Value)
	if err == nil && string(value) != "one" {
		err = fmt.Errorf("value of the record = %q, want one", value)
	}
	return err
}

func TestConsumerGroupGetsItsFirstRecordFromAFreshKafka(t *testing.T) {
	addr := Kafka(t).Addr()
	topic := TopicPrefix(t) + "first"
	transport := &kafka.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	client := &kafka.Client{Addr: kafka.TCP(addr), Transport: transport}
	created, err := client.CreateTopics(bounded(t), &kafka.CreateTopicsRequest{
		Topics: []kafka.TopicConfig{{Topic: topic, NumPartitions: 1, ReplicationFactor: 1}},
	})
	must(t, err)
	must(t, created.Errors[topic])
	writer := &kafka.Writer{Addr: kafka.TCP(addr), Topic: topic, RequiredAcks: kafka.RequireAll, BatchTimeout: time.Millisecond, Transport: transport}
	must(t, writer.WriteMessages(bounded(t), kafka.Message{Value: []byte("one")}))
	must(t, writer.Close())
	reader := kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{addr}, Topic: topic, GroupID: topic, StartOffset: kafka.FirstOffset,
		JoinGroupBackoff: 100 * time.Millisecond, MaxWait: 100 * time.Millisecond,
	})
	message, err := reader.FetchMessage(bounded(t))
	must(t, err)
	if string(message.Value) != "one" {
		t.Errorf("value of the message = %q, want one", message.Value)
	}
	must(t, reader.Close())
}

// command returns a call of the test binary that acts as the command testenv.
func command(args ...string) (*exec.Cmd, *bytes.Buffer) {
	cmd := exec.Command(os.Args[0], args...)
	for _, entry := range os.Environ() {
		if !strings.HasPrefix(entry, "PERCEPTOR_TEST_") {
			cmd.Env = append(cmd.Env, entry)
		}
	}
	cmd.Env = append(cmd.Env, runVariable+"=1")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	return cmd, &stderr
}

// onlyPostgres makes a run start no ZooKeeper and no Kafka.
func onlyPostgres(cmd *exec.Cmd) {
	cmd.Env = append(cmd.Env, ZooKeeperVariable+"=127.0.0.1:1", KafkaVariable+"=127.0.0.1:2")
}

func TestRunNamesItsServersAndPassesTheExitCodeOn(t *testing.T) {
	t.Parallel()
	cmd, stderr := command("sh", "-c", "echo $"+PostgresVariable+"; echo $"+ZooKeeperVariable+"; echo $"+KafkaVariable+"; exit 7")
	onlyPostgres(cmd)
	out, err := cmd.Output()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Fatalf("got %v, want exit code 7: %s", err, stderr)
	}
	lines := strings.Fields(string(out))
	if len(lines) != 3 || !strings.HasPrefix(lines[0], "postgres://") || lines[1] != "127.0.0.1:1" || lines[2] != "127.0.0.1:2" {
		t.Fatalf("variables of the command = %q, want a started PostgreSQL and the given addresses", lines)
	}
	if conn, err := pgx.Connect(bounded(t), lines[0]); err == nil {
		conn.Close(bounded(t))
		t.Error("the server still runs after the run")
	}
}

func TestServersEndWithARunThatIsInterruptedOrKilled(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGKILL} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			cmd, stderr := command("sh", "-c", "echo ready; exec sleep 600")
			out, err := cmd.StdoutPipe()
			must(t, err)
			must(t, cmd.Start())
			defer cmd.Process.Kill() //nolint:errcheck // it has ended unless the test fails
			if _, err := io.ReadAtLeast(out, make([]byte, 6), 6); err != nil {
				t.Fatalf("%v: %s", err, stderr)
			}
			pids, err := subprocess.Children(cmd.Process.Pid)
			must(t, err)
			if len(pids) != 4 { // three servers and the command
				t.Errorf("processes of the run = %v, want 4", pids)
			}
			must(t, cmd.Process.Signal(sig))
			if sig == syscall.SIGKILL {
				killed := pids[:0]
				for _, pid := range pids {
					if name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid)); err == nil && string(name) == "sleep\n" {
						must(t, syscall.Kill(pid, syscall.SIGKILL)) // a killed run does not end its command
						continue
					}
					killed = append(killed, pid)
				}
				pids = killed
			}
			for _, pid := range pids {
				waitFor(t, fmt.Sprintf("end of pid %d", pid), func() bool { return !subprocess.Alive(pid) })
			}
			cmd.Wait() //nolint:errcheck // it was ended by a signal
		})
	}
}

func TestMissingJavaIsExplained(t *testing.T) {
	old := t.TempDir()
	must(t, os.WriteFile(filepath.Join(old, "java"), []byte("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n"), 0o755))
	for name, path := range map[string]string{"none": t.TempDir(), "too old": old} {
		t.Setenv("JAVA_HOME", "")
		t.Setenv("PATH", path)
		_, err := StartKafka(t.Context(), t.TempDir())
		if err == nil || !strings.Contains(err.Error(), "Java 17 or newer is needed") || !strings.Contains(err.Error(), KafkaVariable+"=host:port") {
			t.Errorf("java %s: got %v, want an error that names Java 17 and %s", name, err, KafkaVariable)
		}
		if strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: the error has more than one line: %v", name, err)
		}
	}
}

func TestClusterIDNeverLooksLikeAnOption(t *testing.T) {
	for first := range 256 {
		random := bytes.Repeat([]byte{byte(first)}, 16)
		if id := clusterID(bytes.NewReader(random)); strings.HasPrefix(id, "-") {
			t.Errorf("clusterID of bytes %#x starts with a dash: %q", first, id)
		}
	}
}
