package assign

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/perceptor/perceptor/loadtest/chart"
	"github.com/perceptor/perceptor/loadtest/harness"
)

// Report is what the command writes down. Of several rounds the worst is the
// figure.
type Report struct {
	harness.Header
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

// Chart implements harness.Report: there is none.
func (r *Report) Chart() *chart.Chart { return nil }

// WriteTable implements harness.Report.
func (r *Report) WriteTable(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "taken over after kill -9\t%.0f ms\tworst of %d; session %d ms\n", r.TakeoverMS, len(r.Measured.Takeovers), r.SessionMS)
	fmt.Fprintf(t, "handed over by a clean stop\t%.0f ms\tworst of %d\n", r.HandoverMS, len(r.Measured.Handovers))
	fmt.Fprintf(t, "settled after a common start\t%.0f ms\tworst of %d\n", r.SettleMS, len(r.Measured.Settles))
	fmt.Fprintf(t, "moved by one more member\t%d items\tallowed are %d\n", r.MovedOnJoin, r.AllowedOnJoin)
	fmt.Fprintf(t, "during an outage of ZooKeeper\t%.0f ms idle at most\t%d items moved\n", r.Measured.OutageIdle, r.Measured.OutageMoved)
	if s := r.Storm; s != nil {
		fmt.Fprintf(t, "storm, seed %d\t%d calms\twell again after %d ms at most; an item idle for %d ms at most\n", s.Seed, s.Calms, s.SettledMS, s.IdleMS)
	}
	fmt.Fprintf(t, "violations\t%d\t\n", r.Violations)
	for _, what := range r.Broken {
		fmt.Fprintf(t, "\t%s\t\n", what)
	}
	return t.Flush()
}

// Command measures the sharing of items, and lets a storm loose on it.
func Command() *cobra.Command {
	o, p, output, storm := DefaultOptions(), DefaultPlan(), harness.Output{}, 30*time.Second
	cmd := &cobra.Command{
		Use: "assign", Short: "sharing items: take-over, hand-over, settling; a storm of disturbances", Args: cobra.NoArgs,
		Long: "assign starts members as processes over an ensemble of ZooKeepers, each working for its items in Postgres by epochs.\n" +
			"It kills and stops some and measures how long their items are without an owner, starts many at once and measures how\n" +
			"long they take to settle, takes all of ZooKeeper away, and then disturbs everything at random while a checker watches.",
		Example: "  loadtest assign --json assign.json\n  loadtest assign --storm 10m --members 12 --seed 7\n  loadtest assign --outage 5m --storm 0",
		RunE:    func(cmd *cobra.Command, _ []string) error { return run(cmd, o, p, storm, output) },
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&output.JSON, "json", "", "write the report to this file, too (-: to standard output)")
	f.DurationVar(&storm, "storm", storm, "how long the storm lasts; 0: there is none")
	f.IntVar(&p.Rounds, "rounds", p.Rounds, "how often a member is killed, and how often one is stopped")
	f.DurationVar(&p.Outage, "outage", p.Outage, "how long all of ZooKeeper is away; 0: it is not")
	f.IntVar(&o.Items, "items", o.Items, "items in the storm")
	f.IntVar(&o.MaxMembers, "members", o.MaxMembers, "members at a time in the storm, at most")
	f.IntVar(&o.Servers, "servers", o.Servers, "ZooKeeper servers")
	f.DurationVar(&o.Session, "session", o.Session, "ZooKeeper session timeout, 1s to 10s")
	f.IntVar(&p.SettleItems, "settle-items", p.SettleItems, "items that many members share")
	f.IntVar(&p.SettleMembers, "settle-members", p.SettleMembers, "members that start at once")
	f.Uint64Var(&o.Seed, "seed", 0, "of everything random (default: a new one)")
	f.BoolVar(&o.Keep, "keep", false, "keep data and logs")
	return cmd
}

func run(cmd *cobra.Command, o Options, p Plan, storm time.Duration, output harness.Output) error {
	path, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	o.Member = []string{path, MemberName}
	o.Progress = func(format string, args ...any) { harness.Say(cmd.ErrOrStderr(), format, args...) }
	if o.Seed == 0 {
		o.Seed = rand.Uint64()
	}
	r := &Report{Header: harness.NewHeader("assign", o.Seed, map[string]string{"zookeeper": "3.9.4"}), SessionMS: o.Session.Milliseconds()}
	ctx := cmd.Context()
	if r.Measured, r.Broken, err = Measure(ctx, o, p); err != nil {
		return err
	}
	if storm > 0 {
		if r.Storm, err = Storm(ctx, o, storm); err != nil {
			return err
		}
		r.Broken = append(r.Broken, r.Storm.Violations...)
	}
	r.sum(p)
	err = output.Write(cmd, r)
	if err == nil && r.Violations > 0 {
		return fmt.Errorf("%w: %d violations", harness.ErrBroken, r.Violations)
	}
	return err
}

// sum takes the worst of the rounds, and holds them against what is allowed.
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
