// Package fleet measures the same load on installations of several sizes, one after the other on one
// machine: what a cycle costs when there are more PostgreSQL servers and dispatchers, with replicated
// servers, and with latency on every link.
package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/perceptor/perceptor/internal/tempdir"
	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/scenario"
	"github.com/perceptor/perceptor/loadtest/stack"
	"github.com/perceptor/perceptor/task"
)

// Options configure the measurement. Their units and bounds are those of the flags.
type Options struct {
	harness.Setup
	// Sizes are measured in turn. The others are compared with the first one.
	Sizes []Size
	// Rate is in full cycles per second, of all types together.
	Rate               float64
	For, Warmup, Drain time.Duration
	Type               string
	Interval           time.Duration
	Cron               float64
	ParamsBytes        int
	Listeners, Workers int
	// Replicated says that there are three brokers, three ZooKeepers, and a synchronous standby of
	// every PostgreSQL server.
	Replicated bool
	// Link is the latency of every link in each direction.
	Link time.Duration
	// Limit is how many times the processor time of a cycle may grow with the PostgreSQL servers.
	Limit float64
}

// Size is the size of an installation.
type Size struct {
	// Servers is the number of PostgreSQL servers, which divides that of the databases.
	Servers int `json:"postgres_servers"`
	// Dispatchers is the number of dispatcher processes.
	Dispatchers int `json:"dispatchers"`
}

// String returns the size as [ParseSize] reads it.
func (s Size) String() string { return fmt.Sprintf("%dx%d", s.Servers, s.Dispatchers) }

// Bounds of a size.
const maxDispatchers = 64

// ParseSize reads a size such as 8x16: eight PostgreSQL servers and sixteen dispatchers.
func ParseSize(text string) (s Size, err error) {
	rest := ""
	if n, err := fmt.Sscanf(text+" ", "%dx%d%s", &s.Servers, &s.Dispatchers, &rest); n != 2 || err == nil {
		return s, fmt.Errorf("%q is not of the form SERVERSxDISPATCHERS, such as 8x16", text)
	}
	if s.Servers < 1 || s.Servers > task.Databases || task.Databases%s.Servers != 0 {
		return s, fmt.Errorf("%q: the number of PostgreSQL servers must divide %d", text, task.Databases)
	}
	if s.Dispatchers < 1 || s.Dispatchers > maxDispatchers {
		return s, fmt.Errorf("%q: the number of dispatchers is not between 1 and %d", text, maxDispatchers)
	}
	return s, nil
}

// DefaultOptions returns the defaults of the flags.
func DefaultOptions() Options {
	o := Options{
		Sizes: []Size{{1, 1}, {2, 1}, {4, 1}, {8, 1}, {1, 4}, {1, 16}, {8, 16}},
		Rate:  2000, Warmup: 45 * time.Second, For: 15 * time.Second, Drain: time.Minute,
		Type: "one_shot", Interval: 5 * time.Second, ParamsBytes: 100, Listeners: 1, Workers: 256, Limit: 1.5,
		Setup: harness.Setup{Real: harness.DefaultStack()},
	}
	// All servers share one machine.
	o.Real.Postgres["shared_buffers"], o.Real.Postgres["max_wal_size"] = "512MB", "2GB"
	// Every dispatcher may have four sessions in each database.
	o.Real.Postgres["max_connections"] = "1500"
	return o
}

// About implements [harness.Experiment].
func (o *Options) About() harness.About {
	return harness.About{Name: "fleet", Without: []string{"dispatchers"}}
}

// Declare implements [harness.Experiment].
func (o *Options) Declare(f *harness.Flags) {
	f.Var(&sizes{&o.Sizes, false}, "sizes", "sizes to measure: PostgreSQL servers and dispatchers, such as 1x1,8x16")
	harness.Num(f, &o.Rate, "rate", harness.UpTo(1e5), "full cycles per second")
	harness.Num(f, &o.For, "for", harness.UpTo(time.Hour), "length of the measured window of each size")
	harness.Num(f, &o.Warmup, "warmup", harness.Between(0, time.Hour), "length of the load before the window")
	harness.Num(f, &o.Drain, "drain", harness.UpTo(time.Hour), "longest wait until everything is done")
	f.Choice(&o.Type, "type", "one_shot", "non_blocking", "blocking", "mix")
	harness.Num(f, &o.Interval, "interval", harness.UpTo(time.Hour), "interval of recurring tasks")
	harness.Num(f, &o.Cron, "cron", harness.Between(0.0, 1), "share of the NON_BLOCKING tasks that have a calendar")
	f.ParamsBytes(&o.ParamsBytes)
	f.Listeners(&o.Listeners, &o.Workers)
	f.Switch(&o.Replicated, "replicated", "three brokers, three ZooKeepers, and a synchronous standby of every PostgreSQL server")
	harness.Num(f, &o.Link, "link", harness.Between(0, time.Second), "latency of every link in each direction")
	harness.Num(f, &o.Limit, "limit", harness.Between(1.0, 100), "how many times the processor time of a cycle may grow with the PostgreSQL servers")
	f.Statements()
	f.Seed()
	f.Stack()
	f.DataDir()
	f.Require(len(o.Sizes) > 0, "--sizes is empty")
	f.Require(!o.linked() || !o.Real.Secure, "--secure is not possible with --replicated or --link")
	if err := harness.Validate(o.load(nil)); err != nil {
		f.Require(false, "%v", err)
	}
}

// sizes is a flag with a list of sizes.
type sizes struct {
	to    *[]Size
	given bool
}

// Type implements [pflag.Value].
func (s *sizes) Type() string { return "sizes" }

// String implements [pflag.Value].
func (s *sizes) String() string {
	if s.to == nil {
		return ""
	}
	texts := make([]string, len(*s.to))
	for i, size := range *s.to {
		texts[i] = size.String()
	}
	return strings.Join(texts, ",")
}

// Set implements [pflag.Value]. The first call replaces the default.
func (s *sizes) Set(text string) error {
	if !s.given {
		*s.to, s.given = nil, true
	}
	for part := range strings.SplitSeq(text, ",") {
		size, err := ParseSize(part)
		if err != nil {
			return err
		}
		if slices.Contains(*s.to, size) {
			return fmt.Errorf("%s is given twice", size)
		}
		*s.to = append(*s.to, size)
	}
	return nil
}

// linked says that every link goes through a proxy.
func (o *Options) linked() bool { return o.Replicated || o.Link > 0 }

// load returns the experiment that runs the load on a stack.
func (o *Options) load(on *stack.Stack) *scenario.Options {
	l := scenario.Cycle()
	l.Setup, l.On, l.WithFloor = o.Setup, on, false
	l.Rate, l.For, l.Warmup, l.Drain = o.Rate, o.For, o.Warmup, o.Drain
	l.Type, l.Interval, l.Cron, l.ParamsBytes = o.Type, o.Interval, o.Cron, o.ParamsBytes
	l.Listeners, l.Workers = o.Listeners, o.Workers
	l.SampleEvery = 0
	l.Complete(func(string) bool { return false })
	return l
}

// Measure implements [harness.Experiment].
func (o *Options) Measure(ctx context.Context) (*Report, error) {
	r := &Report{
		Header: harness.NewHeader("fleet", o.Seed, nil), Rate: o.Rate, WindowS: o.For.Seconds(), Type: o.Type, ParamsBytes: o.ParamsBytes,
		Cron: o.Cron, Replicated: o.Replicated, LinkMs: harness.Milliseconds(o.Link), Limit: o.Limit,
	}
	dir, err := tempdir.New("perceptor-fleet-", false)
	if err != nil {
		return nil, err
	}
	defer dir.Close(ctx) //nolint:errcheck // the next run removes it
	o.Say("building taskd and dispatcher")
	if err := stack.BuildPrograms(ctx, dir.Path); err != nil {
		return nil, err
	}
	for _, size := range o.Sizes {
		o.Say("%d PostgreSQL server(s), %d dispatcher(s)", size.Servers, size.Dispatchers)
		measured, err := o.measure(ctx, dir.Path, size)
		if measured != nil {
			r.add(size, measured)
		}
		if err != nil {
			return r, fmt.Errorf("%s: %w", size, err)
		}
	}
	return r, nil
}

// measure runs the load on a new stack of a size.
func (o *Options) measure(ctx context.Context, programs string, size Size) (*scenario.Report, error) {
	real := o.Real
	real.Programs, real.PostgresServers, real.Dispatchers = programs, size.Servers, size.Dispatchers
	on, err := o.start(ctx, real)
	if err != nil {
		return nil, fmt.Errorf("start the stack: %w", err)
	}
	report, err := harness.Run(ctx, o.load(on))
	return report, errors.Join(err, harness.CloseStack(ctx, on))
}

// start starts a stack, whose links have proxies if they must.
func (o *Options) start(ctx context.Context, real stack.RealOptions) (*stack.Stack, error) {
	if !o.linked() {
		return stack.Real(ctx, real)
	}
	c := stack.ClusterOptions{RealOptions: real, Servers: real.PostgresServers, Brokers: 1, ZooKeepers: 1, SyncOnly: true, Delay: o.Link}
	if o.Replicated {
		c.Replicated, c.Brokers, c.ZooKeepers = c.Servers, 3, 3
	}
	on, err := stack.StartCluster(ctx, c)
	if err != nil {
		return nil, err
	}
	on.Parts = append(on.Parts, on.Standbys()...)
	return on.Stack, nil
}
