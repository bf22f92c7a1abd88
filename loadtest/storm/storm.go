// Package storm disturbs a whole installation at random and checks that the contract is kept.
//
// The stack has several servers of each kind, and every link between processes goes through
// a proxy (package stack, [stack.Cluster]). Several tenants put load on it: tasks of all
// types, a dispatch rate, a concurrency cap, edits, triggers, pauses, cancels, replays and
// bulk operations. The plan of faults follows from the seed, the length and the names of
// the allowed faults alone. Faults happen one after the other. Each has these steps:
//
//  1. The fault begins. From now on, probes ask the disturbed part what clients would ask.
//  2. After the planned time the fault ends: the part is started again, the link is healed.
//  3. The installation recovers: every shard has an owner. There is a bound on this.
//  4. The effect is judged. A fault that no probe noticed tests nothing, so it fails the run.
//
// After the load everything that is due must be done within a bound. Then the checker
// compares all accounts (package check).
package storm

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/perceptor/perceptor/internal/tempdir"
	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/stack"
)

// Options configure a storm. Their units and bounds are those of the flags.
type Options struct {
	harness.Setup
	// Rate is in full cycles per second, all tenants together.
	Rate float64
	// For is the length of the load, Drain the longest wait after it until everything is done.
	For, Drain time.Duration
	// Faults are the names of the allowed faults. Empty: all.
	Faults []string
	// Other is the folder of programs of another version, or empty. OldCommit is the commit of
	// which they are built, or empty.
	Other, OldCommit string
	// Plant is the falsification of the observations, or empty.
	Plant string
	// Tenants is the number of tenants.
	Tenants int
	// Servers is the number of PostgreSQL servers.
	Servers int
}

const (
	brokers    = 3
	zookeepers = 3
	// replicated is the number of PostgreSQL servers with standbys.
	replicated = 1
	// warmup is the time of the load before the first fault, tail the time after the last one.
	warmup = 4 * time.Second
	tail   = 4 * time.Second
)

// DefaultOptions returns the defaults of the flags.
func DefaultOptions() Options {
	cheap := stack.RealOptions{
		Taskds: 2, Dispatchers: 3, Session: 4 * time.Second,
		// Processes are killed but not the machine, so fsync would protect nothing.
		Postgres: map[string]string{"fsync": "off", "shared_buffers": "64MB", "max_wal_size": "512MB"},
		Kafka: map[string]string{
			"log.retention.bytes": "268435456", "num.io.threads": "2", "num.network.threads": "2",
			"num.replica.fetchers": "1", "background.threads": "2",
		},
	}
	return Options{
		Setup: harness.Setup{Real: cheap}, Rate: 100, For: 5 * time.Minute, Drain: 4 * time.Minute, Tenants: 3, Servers: 2,
	}
}

// About implements [harness.Experiment].
func (o *Options) About() harness.About { return harness.About{Name: "storm"} }

// Declare implements [harness.Experiment].
func (o *Options) Declare(f *harness.Flags) {
	harness.Num(f, &o.For, "for", harness.Between(10*time.Second, 24*time.Hour), "length of the load, during which the faults happen")
	f.StringSliceVar(&o.Faults, "faults", o.Faults, "names of faults, or their first words such as kill, that may happen (default: all)")
	f.StringVar(&o.Plant, "plant", o.Plant, "falsify the observations, which the check must find: "+strings.Join(plantNames(), ", "))
	f.StringVar(&o.Other, "other-programs", o.Other, "folder with the programs taskd and dispatcher of another version: parts change to them and back")
	f.StringVar(&o.OldCommit, "old-commit", o.OldCommit, "commit of which these programs are built, in place of --other-programs")
	f.Require(o.Other == "" || o.OldCommit == "", "--old-commit and --other-programs exclude each other")
	harness.Num(f, &o.Rate, "rate", harness.Between(10.0, 300), "full cycles per second, all tenants together")
	harness.Num(f, &o.Drain, "drain", harness.UpTo(time.Hour), "longest wait after the load until everything is done")
	harness.Num(f, &o.Tenants, "tenants", harness.Between(1, 16), "tenants; the second has a dispatch rate, the third a concurrency cap")
	harness.Num(f, &o.Servers, "servers", harness.Between(1, 4), "PostgreSQL servers, among which the databases are distributed")
	f.Seed()
	f.Stack()
	for _, name := range o.Faults {
		f.Require(len(named(name)) > 0, "--faults %s: the faults are %s", name, strings.Join(faultNames(), ", "))
	}
	f.Require(o.Plant == "" || slices.Contains(plantNames(), o.Plant), "--plant %q is not one of %s", o.Plant, strings.Join(plantNames(), ", "))
}

// Measure implements [harness.Experiment].
func (o *Options) Measure(ctx context.Context) (*Report, error) {
	header := harness.NewHeader("storm", o.Seed, nil)
	if o.OldCommit != "" {
		dir, err := tempdir.New("perceptor-old-", o.Real.Keep)
		if err != nil {
			return nil, err
		}
		defer dir.Close(ctx) //nolint:errcheck // the next run removes it
		o.Say("building the programs of %s", o.OldCommit)
		if err := stack.BuildCommit(ctx, dir.Path, o.OldCommit); err != nil {
			return nil, err
		}
		o.Other = filepath.Join(dir.Path, "bin")
	}
	on, err := stack.StartCluster(ctx, stack.ClusterOptions{
		RealOptions: o.Real, Servers: o.Servers, Replicated: replicated, LimitDisk: true, Brokers: brokers, ZooKeepers: zookeepers,
	})
	if err != nil {
		return nil, fmt.Errorf("start the stack: %w", err)
	}
	for name, version := range on.Versions {
		header.Versions[name] = version
	}
	r := &runner{Options: o, on: on, header: header, stepped: map[int]time.Duration{}, changed: map[string]string{}}
	report, err := r.run(ctx)
	return report, errors.Join(err, harness.CloseStack(ctx, on.Stack))
}
