package hang

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"github.com/perceptor/perceptor/internal/tempdir"
	"github.com/perceptor/perceptor/loadtest/check"
	"github.com/perceptor/perceptor/loadtest/history"
	"github.com/perceptor/perceptor/loadtest/stack"
	"github.com/perceptor/perceptor/loadtest/workload"
	"github.com/perceptor/perceptor/task"
)

// A freezer can be stopped and continued.
type freezer interface {
	Pause() error
	Resume() error
}

// A part is a kind of parts of an installation of which one is frozen.
type part struct {
	// start starts a stack with several parts of the kind.
	start func(context.Context, stack.RealOptions) (*stack.Stack, error)
	// prepare sets r.holds and returns the part to freeze.
	prepare func(ctx context.Context, r *runner) (freezer, error)
	// takeover bounds the time from the freeze until others do what the part did. 0: nobody
	// does.
	takeover time.Duration
}

// parts are all kinds of parts. Nobody does what a PostgreSQL server holds; a ZooKeeper server
// holds nothing that tasks wait for.
var parts = map[string]part{
	"postgres":   {start: stack.Real, prepare: theDatabases},
	"zookeeper":  {start: startCluster, prepare: theNothing("zookeeper-3")},
	"broker":     {start: startCluster, prepare: theRuns("kafka-1"), takeover: 20 * time.Second},
	"taskd":      {start: startCluster, prepare: theCalls("taskd-1"), takeover: 5 * time.Second},
	"dispatcher": {start: startCluster, prepare: theShards("dispatcher-1"), takeover: 10 * time.Second},
	"listener":   {start: startCluster, prepare: aListener, takeover: workload.GroupLimit},
}

func partNames() []string { return slices.Sorted(maps.Keys(parts)) }

// startCluster starts a stack with three brokers and ZooKeepers, and at least two taskds and
// dispatchers.
func startCluster(ctx context.Context, o stack.RealOptions) (*stack.Stack, error) {
	o.Taskds, o.Dispatchers = max(o.Taskds, 2), max(o.Dispatchers, 2)
	c, err := stack.StartCluster(ctx, stack.ClusterOptions{RealOptions: o, Servers: 1, Brokers: 3, ZooKeepers: 3})
	return c.Stack, err
}

// theDatabases freezes the second PostgreSQL server, which has the upper half of the databases.
func theDatabases(_ context.Context, r *runner) (freezer, error) {
	r.holds = func(_ *tenant, _ feature, id task.ID) bool { return id.Shard().Database() >= task.Databases/2 }
	return r.stack.Part("postgres-2")
}

func theNothing(name string) func(context.Context, *runner) (freezer, error) {
	return func(_ context.Context, r *runner) (freezer, error) {
		r.holds = func(*tenant, feature, task.ID) bool { return false }
		return r.stack.Part(name)
	}
}

// theRuns freezes a broker. It has a replica of every partition, for whose acknowledgement
// every record waits until the other brokers take it out.
func theRuns(name string) func(context.Context, *runner) (freezer, error) {
	return func(_ context.Context, r *runner) (freezer, error) {
		r.holds = func(_ *tenant, key feature, _ task.ID) bool { return slices.Contains(features, key) }
		return r.stack.Part(name)
	}
}

// theCalls freezes a taskd. The calls that it has got are adds, results and the starts of
// BLOCKING runs.
func theCalls(name string) func(context.Context, *runner) (freezer, error) {
	return func(_ context.Context, r *runner) (freezer, error) {
		r.holds = func(_ *tenant, key feature, _ task.ID) bool { return key == add || key == result || key == blocking }
		return r.stack.Part(name)
	}
}

// theShards freezes a dispatcher, which owns some of the shards.
func theShards(name string) func(context.Context, *runner) (freezer, error) {
	return func(ctx context.Context, r *runner) (freezer, error) {
		owned := map[task.Shard]bool{}
		all, err := r.stack.Owners().List(ctx)
		for _, o := range all {
			owned[o.Shard] = o.Name == name
		}
		r.holds = func(_ *tenant, key feature, id task.ID) bool {
			return slices.Contains(features, key) && owned[id.Shard()]
		}
		if err != nil {
			return nil, err
		}
		return r.stack.Part(name)
	}
}

// aListener freezes a second listener of the first tenant. Its group holds the runs of the
// tenant: a rebalance stops them all.
func aListener(ctx context.Context, r *runner) (freezer, error) {
	of := r.tenants[0]
	r.holds = func(t *tenant, key feature, _ task.ID) bool { return t == of && key != add }
	p, err := r.startProcess(ctx, of)
	r.listener = p
	return p, err
}

// A process is a listener in a process of its own. The methods of a nil process do nothing.
type process struct {
	*workload.Listener
	of  *tenant
	dir *tempdir.Dir
}

func (r *runner) startProcess(ctx context.Context, of *tenant) (*process, error) {
	dir, err := tempdir.New("perceptor-history-", r.Real.Keep)
	if err != nil {
		return nil, err
	}
	l, err := workload.StartListener(r.ListenerCommand, workload.ListenerConfig{
		Address: r.stack.Address, CAFile: r.stack.CAFile, Token: of.secret, Kind: string(of.feature), History: dir.Path, Workers: r.Workers, Mortal: true,
	}, filepath.Join(dir.Path, "listener.log"))
	if err != nil {
		return nil, errors.Join(err, dir.Close(ctx))
	}
	return &process{l, of, dir}, l.AwaitReady(ctx)
}

// answered returns how many results of the process were accepted.
func (p *process) answered() int {
	if p == nil {
		return 0
	}
	return int(p.Progress().Accepted)
}

// end stops the process and adds what it has seen.
func (p *process) end(ctx context.Context, to *observed) error {
	if p == nil {
		return nil
	}
	if err := errors.Join(p.Died(), p.Stop(ctx)); err != nil {
		return fmt.Errorf("the listener process: %w", err)
	}
	return errors.Join(history.Check(p.dir.Path, processSink{p, to}), p.dir.Close(ctx))
}

// processSink adds the calls and results of a process.
type processSink struct {
	*process
	to *observed
}

// Task implements [history.Sink].
func (s processSink) Task(t check.Task) {
	s.to.mu.Lock()
	defer s.to.mu.Unlock()
	for _, e := range t.Executions {
		if e.Unfinished || e.Attempt > 1 {
			continue
		}
		at := e.ScheduledAt.Time()
		s.to.record(s.of, s.of.feature, int64(t.ID), at, e.Start.Time().Sub(at))
	}
	if len(t.Replies) > 0 {
		delete(s.to.oneShots, int64(t.ID))
	}
}
