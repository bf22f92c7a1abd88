package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/perceptor/perceptor/internal/testenv"
	"github.com/perceptor/perceptor/loadtest/abuse"
	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/scenario"
	"github.com/perceptor/perceptor/loadtest/stack"
)

// atOnce is the number of parallel tests. Each of them waits about half of its time for what takes
// seconds on any machine, like sessions that expire.
const atOnce = 3

// TestMain runs a listener, or a rival of an attack, if the first argument is its command, as the
// program does.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == harness.ListenerName || os.Args[1] == abuse.RivalName) {
		main()
		return
	}
	if err := flag.Set("test.parallel", strconv.Itoa(atOnce)); err != nil {
		panic(err) // package testing has this flag
	}
	code := m.Run()
	if common.stack != nil {
		if err := harness.CloseStack(context.Background(), common.stack); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

const (
	e2eSession = 2 * time.Second
	e2eLimit   = 15 * time.Minute // for one scenario, with the time to build the programs on a busy machine
)

// drilled skips a drill of operators, which takes minutes of its own installation. Its steps have tests
// of their packages.
func drilled(t *testing.T) {
	t.Helper()
	if !testenv.Long() {
		t.Skip("takes minutes of an installation of its own; make test-long runs it")
	}
}

// common is the stack that the tests share. Tests that disturb it or create tenants run one
// after another; the other tests run in parallel after them.
var common struct {
	sync.Mutex
	started bool
	stack   *stack.Stack
	err     error
}

// realStack returns a stack of two dispatchers, a taskd and real servers, all of them
// running.
func realStack(t *testing.T) *stack.Stack {
	t.Helper()
	if testing.Short() {
		t.Skip("starts every real part; make test runs it")
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	common.Lock()
	defer common.Unlock()
	if !common.started {
		common.started = true
		o := harness.DefaultStack()
		o.Dispatchers, o.Session, o.Progress = 2, e2eSession, func(what string) { t.Log(what) }
		o.Postgres["fsync"] = "off" // only processes are killed, not the machine
		o.Postgres["shared_buffers"] = "256MB"
		o.Settings = map[string]string{"chores.share": "1", "chores.purge_every": "1s", "chores.forecast_every": "5s"} // bulk operations run at full speed
		common.stack, common.err = stack.Real(ctx, o)
	}
	if common.err != nil {
		t.Fatal(common.err)
	}
	if err := common.stack.Revive(ctx); err != nil {
		t.Fatal(err)
	}
	return common.stack
}

// runs are the disturbances of the stack while tasks of all types run.
var runs = []struct {
	name    string
	disturb []scenario.Disturbance
	// takeover bounds the time until the last shard has a new owner. 0 means that no shard
	// changes its owner. The bound tells a clean stop, after which no member waits for the
	// end of the session, from other take-overs.
	takeover time.Duration
}{
	{name: "nothing happens"},
	{
		name:     "a dispatcher is killed",
		disturb:  []scenario.Disturbance{{Action: scenario.Kill, Part: "dispatcher-1", After: time.Second}},
		takeover: 2*e2eSession + 2*time.Second,
	},
	{
		name:     "a dispatcher stops gracefully",
		disturb:  []scenario.Disturbance{{Action: scenario.Stop, Part: "dispatcher-1", After: time.Second}},
		takeover: e2eSession,
	},
	{
		name:     "a dispatcher is frozen for three sessions",
		disturb:  []scenario.Disturbance{{Action: scenario.Pause, Part: "dispatcher-2", After: time.Second, For: 3 * e2eSession}},
		takeover: 2*e2eSession + 2*time.Second,
	},
}

// serversRestart are disturbances of all servers.
var serversRestart = []scenario.Disturbance{
	{Action: scenario.Restart, Part: "kafka", After: 500 * time.Millisecond},
	{Action: scenario.Restart, Part: "zookeeper", After: 1500 * time.Millisecond},
	{Action: scenario.Crash, Part: "postgres", After: 3 * time.Second},
}

func TestTheContractIsKeptWhateverHappensToTheParts(t *testing.T) {
	s := realStack(t)
	for _, run := range runs {
		t.Run(run.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), e2eLimit)
			defer cancel()
			if err := s.Revive(ctx); err != nil {
				t.Fatal(err)
			}
			report, err := harness.Run(ctx, e2eOptions(t, s, run.disturb))
			if err != nil {
				t.Error(err)
			}
			if report == nil {
				return
			}
			judge(t, report, run.takeover)
		})
	}
}

// A load uses the rest of the contract while dispatchers and taskd are killed and
// restarted. Meanwhile another tenant is deleted. The two tests are combined because the
// end of the deletion takes most of that time anyway.
func TestTheWholeContractIsKeptUnderKillsAndATenantBesideItIsDeleted(t *testing.T) {
	s := realStack(t)
	c := deleteTenant(t, s)
	underKills(t, s)
	if !t.Failed() {
		c.finishDeletion()
		c.recreate()
	}
}

// underKills repeats the run if no handler was called at the moments at which the listeners were killed: on
// a busy machine they may wait for records then.
func underKills(t *testing.T, s *stack.Stack) {
	t.Helper()
	const tries = 4
	for range tries {
		if killAll(t, s) > 0 || t.Failed() {
			return
		}
	}
	t.Errorf("the listeners were killed during no call of a handler in %d runs", tries)
}

// killAll disturbs a load, and returns how many calls of handlers ended with their listener.
func killAll(t *testing.T, s *stack.Stack) (silent int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), e2eLimit)
	defer cancel()
	if err := s.Revive(ctx); err != nil {
		t.Fatal(err)
	}
	o := e2eOptions(t, s, []scenario.Disturbance{
		// The calls that a listener had begun are silent.
		{Action: scenario.Crash, Part: "listener-1", After: time.Second},
		{Action: scenario.Crash, Part: "dispatcher-1", After: 2 * time.Second},
		{Action: scenario.Crash, Part: "listener-2", After: 3 * time.Second},
		{Action: scenario.Crash, Part: "taskd-1", After: 4 * time.Second},
		{Action: scenario.Kill, Part: "dispatcher-2", After: 6 * time.Second},
	})
	o.Contract, o.Rate, o.For = true, 100, 12*time.Second
	o.Listeners, o.Work, o.Drain = 2, 200*time.Millisecond, 90*time.Second
	report, err := harness.Run(ctx, o)
	if err != nil {
		t.Error(err)
	}
	if report == nil {
		return 0
	}
	judge(t, report, 0)
	return report.Silent
}

func TestTheContractIsKeptByTheDevStack(t *testing.T) {
	if testing.Short() {
		t.Skip("starts taskd dev; make test runs it")
	}
	t.Parallel()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	o := e2eOptions(t, nil, nil)
	o.Stack = "dev"
	patient(o)
	report, err := harness.Run(ctx, o)
	if err != nil {
		t.Error(err)
	}
	if report != nil {
		judge(t, report, 0)
	}
}

func e2eOptions(t *testing.T, s *stack.Stack, disturb []scenario.Disturbance) *scenario.Options {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	o := scenario.Run()
	o.Rate, o.For, o.Warmup, o.Drain = 150, 4*time.Second, time.Second, 40*time.Second
	o.Interval, o.AckTimeout, o.Retain = time.Second, 5*time.Second, 1
	o.Work, o.Fail, o.Seed = 5*time.Millisecond, 0.02, uint64(time.Now().UnixNano())
	o.Real.Dispatchers, o.Real.Session, o.Disturbances = 2, e2eSession, disturb
	o.ListenerCommand = []string{self, harness.ListenerName}
	o.On, o.Progress = s, testLog{t}
	return o
}

// patient is for tests that run beside others: nothing is lost, however late it is on a busy machine.
func patient(o *scenario.Options) {
	o.Window, o.Delivery, o.Drain = time.Minute, 2*time.Minute, 3*time.Minute
}

func judge(t *testing.T, report *scenario.Report, takeover time.Duration) {
	t.Helper()
	if err := harness.WriteTable(testLog{t}, report); err != nil {
		t.Error(err)
	}
	if report.Broken() != 0 {
		t.Errorf("the contract was broken %d times", report.Broken())
	}
	if !report.Complete || report.Tasks == 0 || report.Runs <= report.Tasks {
		t.Errorf("%d tasks with %d runs, complete: %v, want a complete run with more runs than tasks", report.Tasks, report.Runs, report.Complete)
	}
	if takeover == 0 {
		return
	}
	if report.TakeoverMs == nil {
		t.Fatal("the report has no take-over")
	}
	if got := time.Duration(*report.TakeoverMs * float64(time.Millisecond)); got > takeover {
		t.Errorf("the shards were taken over after %v, want at most %v", got, takeover)
	}
}

// testLog is a writer to the test's log.
type testLog struct{ t *testing.T }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Logf("%s", p)
	return len(p), nil
}
