package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/perceptor/perceptor/internal/subprocess"
	"github.com/perceptor/perceptor/internal/testenv"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/control"
	"github.com/perceptor/perceptor/store/shards"
	"github.com/perceptor/perceptor/store/storetest"
	"github.com/perceptor/perceptor/task"
)

// mainVariable makes the test binary be dispatcher.
const mainVariable = "PERCEPTOR_DISPATCHER_TEST_MAIN"

const patience = 60 * time.Second

func TestMain(m *testing.M) {
	if os.Getenv(mainVariable) != "" {
		main()
		return
	}
	testenv.Main(m)
}

// command is dispatcher with arguments, in an environment without configuration.
func command(t *testing.T, args ...string) (*exec.Cmd, *bytes.Buffer) {
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
	stderr := &bytes.Buffer{}
	cmd.Stderr = stderr
	return cmd, stderr
}

// migrated is a cluster on a database of its own, with all tables.
func migrated(t *testing.T) (dsn string, cluster *store.Cluster) {
	t.Helper()
	dsn = storetest.DSN(t)
	return dsn, storetest.OpenDSN(t, dsn, func(c *store.Config) { c.MaxConns = 1 })
}

func TestAnUnreachableServerIsNamedWithItsAddress(t *testing.T) {
	dsn, _ := migrated(t)
	kafka := testenv.Kafka(t).Addr()
	for name, c := range map[string]struct{ postgres, kafka, zookeeper, want string }{
		"postgres":  {"postgres://me:hush@127.0.0.1:1/x", kafka, "127.0.0.1:1", "dispatcher: postgres: database 0 at 127.0.0.1:1/x"},
		"kafka":     {dsn, "127.0.0.1:1", "127.0.0.1:1", "dispatcher: kafka at [127.0.0.1:1]: "},
		"zookeeper": {dsn, kafka, "127.0.0.1:1", "dispatcher: zookeeper at [127.0.0.1:1]: "},
	} {
		t.Run(name, func(t *testing.T) {
			cmd, stderr := command(t, "--postgres.servers="+c.postgres, "--kafka.brokers="+c.kafka, "--zookeeper.servers="+c.zookeeper,
				"--dispatcher.ops-addr=", "--dispatcher.hint-addr=", "--start-timeout=1s", "--log.level=error")
			var exit *exec.ExitError
			if err := cmd.Run(); !errors.As(err, &exit) || exit.ExitCode() != 1 {
				t.Errorf("got %v, want the exit code 1", err)
			}
			text := strings.TrimSpace(stderr.String())
			if !strings.HasPrefix(text, c.want) || strings.Contains(text, "\n") || strings.Contains(text, "hush") {
				t.Errorf("got %q, want one line that begins with %q and holds no password", text, c.want)
			}
		})
	}
}

func TestWrongUseIsNamed(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--dispatcher.claim-share=0"}, "dispatcher.claim_share: 0"},
		{nil, "postgres.servers: is missing"},
		{[]string{"--assignment=zookeeper"}, "zookeeper.servers: is missing"},
		{[]string{"--dispatcher.max-tick=1"}, `dispatcher.max_tick: "1" is not a duration`},
	} {
		cmd, stderr := command(t, c.args...)
		var exit *exec.ExitError
		if err := cmd.Run(); !errors.As(err, &exit) || exit.ExitCode() != 2 || !strings.Contains(stderr.String(), c.want) {
			t.Errorf("%v: got %v: %s, want %q", c.args, err, stderr, c.want)
		}
	}
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

// owned counts the shards whose owner has the name.
func owned(t *testing.T, cluster *store.Cluster, name string) int {
	t.Helper()
	n := 0
	s := shards.New(cluster, shards.Config{})
	for d := range task.Databases {
		list, err := s.Owners(t.Context(), d)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range list {
			if i.Item < task.Shards && i.Name == name {
				n++
			}
		}
	}
	return n
}

// missTwo stores a task of the tenant acme that has missed two instants, and fires
// none soon.
func missTwo(t *testing.T, cluster *store.Cluster) {
	t.Helper()
	acme, err := control.New(cluster, slog.New(slog.DiscardHandler)).CreateTenant(t.Context(), control.Tenant{Name: "acme", ParamsBytes: 1000})
	if err != nil {
		t.Fatal(err)
	}
	now := task.At(time.Now())
	spec := task.Spec{
		Terms: task.Terms{Kind: "k", Begin: now.Add(-time.Hour), End: task.Never, Interval: 50 * time.Minute, Misfire: task.Skip, Grace: time.Minute}, Type: task.NonBlocking, ParamsWire: []byte{},
	}
	if faults := spec.Validate(task.DefaultLimits()); len(faults) > 0 {
		t.Fatal(faults)
	}
	if _, err := shards.New(cluster, shards.Config{}).Load(t.Context(), 3, []task.Row{*task.NewRow(acme.ID, 0, &spec, now)}); err != nil {
		t.Fatal(err)
	}
}

func TestADispatcherOwnsAllShardsAndLetsGoOfThemAtAStop(t *testing.T) {
	t.Run("zookeeper", func(t *testing.T) {
		ownAndLetGo(t, "--zookeeper.servers="+testenv.ZooKeeper(t).Addr(), "--zookeeper.root="+testenv.Root(t), "--zookeeper.session-timeout=2s")
	})
	t.Run("postgres", func(t *testing.T) { ownAndLetGo(t, "--leases.session-timeout=2s") })
}

func ownAndLetGo(t *testing.T, assignment ...string) {
	dsn, cluster := migrated(t)
	port, err := subprocess.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	ops := fmt.Sprintf("127.0.0.1:%d", port)
	cmd, stderr := command(t, append(assignment, "--postgres.servers="+dsn, "--kafka.brokers="+testenv.Kafka(t).Addr(),
		"--dispatcher.name=mine", "--dispatcher.ops-addr="+ops, "--dispatcher.hint-addr=127.0.0.1:0")...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill() //nolint:errcheck // it has ended, if all went well
	await(t, "all shards to be owned", func() bool { return owned(t, cluster, "mine") == task.Shards })
	await(t, "readiness", func() bool { code, body := get("http://" + ops + "/readyz"); return code == 200 && body == "ready\n" })
	if _, body := get("http://" + ops + "/metrics"); !strings.Contains(body, "perceptor_owned_shards 512\n") {
		t.Error("the metrics do not tell of 512 owned shards")
	}
	missTwo(t, cluster)
	await(t, "the metric of missed instants", func() bool {
		_, body := get("http://" + ops + "/metrics")
		return strings.Contains(body, `perceptor_instants_missed_total{policy="SKIP",tenant="acme",type="NON_BLOCKING"} 2`+"\n")
	})
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("a stop is no failure: %v\n%s", err, stderr)
	}
	if n := owned(t, cluster, "mine"); n != 0 {
		t.Errorf("%d shards still name the owner that has gone", n)
	}
}
