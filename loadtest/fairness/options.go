package fairness

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/stack"
)

// Options say how much load there is.
type Options struct {
	// Rate is what the steady tenant adds and has called, per second.
	Rate float64
	// Alone is how long it is measured alone, after Warmup.
	Alone, Warmup time.Duration
	// Backlog is how many tasks of the other tenant are due at one instant. They are
	// added at AddRate per second.
	Backlog int
	AddRate float64
	// Sharers are tenants of equal weight with ShareBacklog tasks each; 0: none.
	Sharers, ShareBacklog int
	// Limit is the dispatch rate of a tenant with a backlog; it is measured for LimitFor
	// and then raised to RaisedLimit. 0: none.
	Limit, RaisedLimit int
	LimitFor           time.Duration

	ParamsBytes, Workers int
	// Drain is how long to wait at most for each backlog.
	Drain    time.Duration
	Seed     uint64
	Real     stack.RealOptions
	Progress io.Writer
	// ListenerCommand starts a listener process.
	ListenerCommand []string
}

// DefaultOptions returns what flags start from.
func DefaultOptions() Options {
	return Options{
		Rate: 500, Alone: time.Minute, Warmup: 15 * time.Second, Backlog: 1_000_000, AddRate: 10_000,
		Sharers: 4, ShareBacklog: 50_000, Limit: 200, RaisedLimit: 1000, LimitFor: 20 * time.Second,
		ParamsBytes: 100, Workers: 256, Drain: 30 * time.Minute, Real: harness.DefaultStack(),
	}
}

func (o *Options) validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	for name, x := range map[string]float64{"rate": o.Rate, "add-rate": o.AddRate} {
		if x <= 0 || x > 1e6 {
			fault("--%s %v is not above 0 and at most 1,000,000", name, x)
		}
	}
	for name, n := range map[string]int{"backlog": o.Backlog, "share-backlog": o.ShareBacklog} {
		if n < 1000 || n > 100_000_000 {
			fault("--%s %d is not between 1,000 and 100,000,000", name, n)
		}
	}
	if o.Sharers == 1 || o.Sharers < 0 || o.Sharers > 16 {
		fault("--sharers %d is not 0, or between 2 and 16", o.Sharers)
	}
	if o.Limit < 0 || o.Limit > 100_000 || o.Limit > 0 && o.RaisedLimit <= o.Limit {
		fault("--limit %d is not between 0 and 100,000 and below --raised-limit %d", o.Limit, o.RaisedLimit)
	}
	for name, d := range map[string]time.Duration{"alone": o.Alone, "limit-for": o.LimitFor, "drain": o.Drain} {
		if d <= 0 || d > 24*time.Hour {
			fault("--%s %v is not above 0 and at most 24h", name, d)
		}
	}
	return errors.Join(faults...)
}
