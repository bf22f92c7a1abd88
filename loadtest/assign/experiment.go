// Package assign puts load on the sharing of items, disturbs it, checks it from outside
// and measures it: members are processes of their own, which share items over an ensemble
// of ZooKeepers, each through a proxy, and work for them in Postgres with epochs as
// dispatchers do. The README of loadtest has the rules that the checker checks.
//
//	this process: proxies, disturbances, checker, measurements
//	   |                                     |
//	   | SIGSTOP, kill -9, cut, freeze       | reads: plan, members; epochs, work done
//	   v                                     v
//	member ── proxy ── ZooKeeper x 3      Postgres: item_owner (epoch, nonce)
//	   └───────────────────────────────────>        item_work (epoch of the last work)
package assign

import (
	"context"
	"fmt"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/perceptor/perceptor/loadtest/harness"
)

// Report is what the experiment found. The figure of several rounds is the worst.
type Report struct {
	harness.Header
	harness.NoPicture
	SessionMS     int64         `json:"session_ms"`
	TakeoverMS    float64       `json:"takeover_ms"`
	HandoverMS    float64       `json:"handover_ms"`
	SettleMS      float64       `json:"settle_ms"`
	MovedOnJoin   int           `json:"moved_on_join"`
	AllowedOnJoin int           `json:"moved_on_join_allowed"`
	Violations    int           `json:"violations"`
	Broken        []string      `json:"broken,omitempty"`
	Measured      *Measurements `json:"measured"`
	Storm         *StormReport  `json:"storm,omitempty"`
}

// Verdict implements [harness.Report].
func (r *Report) Verdict() error { return harness.Verdict(r.Broken) }

// Table implements [harness.Report].
func (r *Report) Table(table *harness.Table) {
	t := tabwriter.NewWriter(table, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "taken over after kill -9\t%.0f ms\tworst of %d; session %d ms\n", r.TakeoverMS, len(r.Measured.Takeovers), r.SessionMS)
	fmt.Fprintf(t, "handed over by a clean stop\t%.0f ms\tworst of %d\n", r.HandoverMS, len(r.Measured.Handovers))
	fmt.Fprintf(t, "settled after a common start\t%.0f ms\tworst of %d\n", r.SettleMS, len(r.Measured.Settles))
	fmt.Fprintf(t, "moved by one more member\t%d items\tallowed are %d\n", r.MovedOnJoin, r.AllowedOnJoin)
	fmt.Fprintf(t, "during an outage of ZooKeeper\t%.0f ms idle at most\t%d items moved\n", r.Measured.OutageIdle, r.Measured.OutageMoved)
	if s := r.Storm; s != nil {
		fmt.Fprintf(t, "storm, seed %d\t%d calms\tsettled again after %d ms at most; an item idle for %d ms at most\n", s.Seed, s.Calms, s.SettledMS, s.IdleMS)
	}
	fmt.Fprintf(t, "violations\t%d\t\n", r.Violations)
	for _, what := range r.Broken {
		fmt.Fprintf(t, "\t%s\t\n", what)
	}
	t.Flush() //nolint:errcheck // a table takes everything
}

// Experiment measures how items are shared, and disturbs that.
type Experiment struct {
	harness.Setup
	World Options
	Plan  Plan
	// Storm is how long the storm lasts; 0: there is none.
	Storm time.Duration
}

// DefaultExperiment returns the defaults of the flags.
func DefaultExperiment() Experiment {
	return Experiment{World: DefaultOptions(), Plan: DefaultPlan(), Storm: 30 * time.Second}
}

// About implements [harness.Experiment].
func (e *Experiment) About() harness.About { return harness.About{Name: "assign"} }

// Declare implements [harness.Experiment].
func (e *Experiment) Declare(f *harness.Flags) {
	harness.Num(f, &e.Storm, "storm", harness.Between(0, 24*time.Hour), "how long the storm lasts; 0: there is none")
	harness.Num(f, &e.Plan.Rounds, "rounds", harness.Between(0, 1000), "how often a member is killed, and how often one is stopped")
	harness.Num(f, &e.Plan.Outage, "outage", harness.Between(0, 24*time.Hour), "how long all of ZooKeeper is away; 0: it is not")
	harness.Num(f, &e.World.Items, "items", harness.Between(1, 100_000), "items in the storm")
	harness.Num(f, &e.World.MaxMembers, "members", harness.Between(1, 1000), "the most members at a time in the storm")
	harness.Num(f, &e.World.Servers, "servers", harness.Between(1, 99), "ZooKeeper servers")
	harness.Num(f, &e.World.Session, "session", harness.Between(time.Second, 10*time.Second), "ZooKeeper session timeout")
	harness.Num(f, &e.Plan.SettleItems, "settle-items", harness.Between(1, 100_000), "items that many members share")
	harness.Num(f, &e.Plan.SettleMembers, "settle-members", harness.Between(1, 1000), "members that start at once")
	f.Seed()
	f.Switch(&e.World.Keep, "keep", "keep data and logs")
}

// Measure implements [harness.Experiment].
func (e *Experiment) Measure(ctx context.Context) (*Report, error) {
	o := e.World
	o.Member, o.Progress, o.Seed = []string{e.ListenerCommand[0], MemberName}, e.Say, e.Seed
	r := &Report{Header: harness.NewHeader("assign", e.Seed, map[string]string{"zookeeper": "3.9.4"}), SessionMS: o.Session.Milliseconds()}
	var err error
	if r.Measured, r.Broken, err = Measure(ctx, o, e.Plan); err != nil {
		return nil, err
	}
	if e.Storm > 0 {
		if r.Storm, err = Storm(ctx, o, e.Storm); err != nil {
			return nil, err
		}
		r.Broken = append(r.Broken, r.Storm.Violations...)
	}
	r.sum(e.Plan)
	return r, nil
}

// sum takes the worst of the rounds and compares it with the allowed bounds.
func (r *Report) sum(p Plan) {
	worst := func(ms []float64) float64 { return harness.Round(slices.Max(append(ms, 0))) }
	r.TakeoverMS, r.HandoverMS, r.SettleMS = worst(r.Measured.Takeovers), worst(r.Measured.Handovers), worst(r.Measured.Settles)
	r.MovedOnJoin = slices.Max(append(r.Measured.Joins, 0))
	r.AllowedOnJoin = (p.SettleItems + p.SettleMembers) / (p.SettleMembers + 1)
	if r.MovedOnJoin > r.AllowedOnJoin {
		r.Broken = append(r.Broken, fmt.Sprintf("one more member moved %d items", r.MovedOnJoin))
	}
	if r.Measured.OutageMoved > 0 {
		r.Broken = append(r.Broken, fmt.Sprintf("an outage of ZooKeeper moved %d items", r.Measured.OutageMoved))
	}
	r.Violations = len(r.Broken)
}
