// Package fairness measures how tenants affect each other: the lateness of one
// tenant's runs while another tenant has a million overdue tasks, how evenly tenants
// with a backlog are served, how exactly a dispatch rate is kept, and how soon a
// raised rate acts.
//
// Each tenant has a listener process and a history of its own. Each history is
// checked against the whole contract.
package fairness

import (
	"context"
	"time"

	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/stack"
)

// Options say how much load there is. Their units and bounds are those of the flags.
type Options struct {
	harness.Setup
	Rate                  float64
	Alone, Warmup         time.Duration
	Backlog               int
	AddRate               float64
	Sharers, ShareBacklog int
	Limit, RaisedLimit    int
	LimitFor              time.Duration
	ParamsBytes, Workers  int
	Drain                 time.Duration
}

// DefaultOptions returns the defaults of the flags.
func DefaultOptions() Options {
	return Options{
		Rate: 500, Alone: time.Minute, Warmup: 15 * time.Second, Backlog: 1_000_000, AddRate: 10_000,
		Sharers: 4, ShareBacklog: 50_000, Limit: 200, RaisedLimit: 1000, LimitFor: 20 * time.Second,
		ParamsBytes: 100, Workers: 256, Drain: 30 * time.Minute, Setup: harness.Setup{Real: harness.DefaultStack()},
	}
}

// About implements [harness.Experiment].
func (o *Options) About() harness.About {
	return harness.About{
		Name: "fairness", Picture: true, Question: "How late is a tenant beside another with a million overdue tasks? Are shares and rates kept?",
		Long: "A tenant with a steady load runs alone, and then beside a tenant with a million tasks that are due at one instant.\n" +
			"Then tenants of equal weight work off a backlog each. Then a tenant has a dispatch rate, which is raised. Every task\n" +
			"of every tenant is checked against the contract.",
		Example: "  loadtest fairness --json fairness.json\n  loadtest fairness --backlog 100000 --sharers 0 --limit 0",
	}
}

// Declare implements [harness.Experiment].
func (o *Options) Declare(f *harness.Flags) {
	harness.Num(f, &o.Rate, "rate", harness.UpTo(1e6), "tasks per second of the steady tenant")
	harness.Num(f, &o.Alone, "alone", harness.UpTo(24*time.Hour), "how long the steady tenant is measured alone")
	harness.Num(f, &o.Warmup, "warmup", harness.Between(0, 24*time.Hour), "its load before that")
	harness.Num(f, &o.Backlog, "backlog", harness.Between(1000, 100_000_000), "tasks of the other tenant, all due at one instant")
	harness.Num(f, &o.AddRate, "add-rate", harness.UpTo(1e6), "tasks per second at which backlogs are added")
	harness.Num(f, &o.Sharers, "sharers", harness.Between(0, 16), "tenants of equal weight with a backlog; 0: none")
	harness.Num(f, &o.ShareBacklog, "share-backlog", harness.Between(1000, 100_000_000), "tasks of each of them")
	harness.Num(f, &o.Limit, "limit", harness.Between(0, 100_000), "dispatch rate of a tenant with a backlog; 0: not measured")
	f.IntVar(&o.RaisedLimit, "raised-limit", o.RaisedLimit, "the dispatch rate after it is raised")
	harness.Num(f, &o.LimitFor, "limit-for", harness.UpTo(24*time.Hour), "how long the rate is measured before")
	f.ParamsBytes(&o.ParamsBytes)
	f.Workers(&o.Workers)
	harness.Num(f, &o.Drain, "drain", harness.UpTo(24*time.Hour), "the longest wait for each backlog")
	f.Seed()
	f.Stack()
	f.Require(o.Sharers != 1, "--sharers %d: want 0, or at least 2", o.Sharers)
	f.Require(o.Limit == 0 || o.RaisedLimit > o.Limit, "--raised-limit %d is not above --limit %d", o.RaisedLimit, o.Limit)
}

// Measure implements [harness.Experiment].
func (o *Options) Measure(ctx context.Context) (report *Report, err error) {
	err = o.WithStack(ctx, func(s *stack.Stack) (err error) {
		report, err = (&runner{Options: o, stack: s}).run(ctx)
		return err
	})
	return report, err
}
