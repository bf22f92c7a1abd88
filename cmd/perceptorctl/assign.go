package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/perceptor/perceptor/assign"
	"github.com/perceptor/perceptor/internal/app"
	"github.com/perceptor/perceptor/internal/cli"
	"github.com/perceptor/perceptor/internal/config"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// whoAndItems explains the arguments of the commands.
const whoAndItems = "WHO selects members by name, id, host or address (with or without port). Names outlast a restart, ids do not.\n" +
	"ITEMS are numbers such as 0-31,512: 0 to 511 are shards, 512 plus a database's number are its chores."

func (c *ctl) assignCommand() *cobra.Command {
	cmd := group("assign", "Show and change which dispatcher owns which shards",
		c.assignMembers(), c.assignItems(), c.assignRebalances(), c.assignEnvironments(), c.assignStrategy(),
		c.assignEdit("drain WHO...", "Drain members: they hand over their items and stay connected", 1, func(s *assign.Strategy, args []string) error {
			s.Drain(args...)
			return nil
		}, func(r *perceptorv1.UpdateStrategyRequest, args []string) { r.Drain = args }),
		c.assignEdit("undrain WHO...", "Let drained members own items again", 1, func(s *assign.Strategy, args []string) error {
			s.Undrain(args...)
			return nil
		}, func(r *perceptorv1.UpdateStrategyRequest, args []string) { r.Undrain = args }),
		c.assignEdit("pin WHO ITEMS", "Let only these members own some items", 2, func(s *assign.Strategy, args []string) error {
			return withItems(args[1:], func(ids []int) { s.Pin(args[0], ids...) })
		}, func(r *perceptorv1.UpdateStrategyRequest, args []string) { r.Pin = map[string]string{args[0]: args[1]} }),
		c.assignEdit("unpin ITEMS", "Let all members own pinned items again", 1, func(s *assign.Strategy, args []string) error {
			return withItems(args, func(ids []int) { s.Unpin(ids...) })
		}, func(r *perceptorv1.UpdateStrategyRequest, args []string) { r.Unpin = args[0] }),
		c.assignPause(), c.assignResume(),
		c.assignLimit(), c.assignReset(), c.assignMove(),
	)
	cmd.Long = "Show and change which dispatcher owns which shards. With a configuration that names the servers the\ncommands work in Postgres or ZooKeeper directly and need no API; without one they ask the API, with an admin token.\nenvironments and move always need the configuration.\n\n" + whoAndItems
	cmd.Example = "  perceptorctl assign drain db-host-1\n  perceptorctl assign pin 10.0.0.7 0-31\n  perceptorctl assign pause 96-127,515"
	return cmd
}

func (c *ctl) assignPause() *cobra.Command {
	return c.assignEdit("pause [ITEMS]", "Pause items: nobody owns them and their tasks do not fire; without ITEMS, pause all", 0, func(s *assign.Strategy, args []string) error {
		s.Paused = s.Paused || len(args) == 0
		return withItems(args, func(ids []int) { s.PauseItems(ids...) })
	}, func(r *perceptorv1.UpdateStrategyRequest, args []string) {
		if len(args) == 0 {
			r.Paused = proto.Bool(true)
			return
		}
		r.PauseItems = args[0]
	})
}

func (c *ctl) assignResume() *cobra.Command {
	return c.assignEdit("resume [ITEMS]", "Resume paused items; without ITEMS, end the pause of all", 0, func(s *assign.Strategy, args []string) error {
		s.Paused = s.Paused && len(args) > 0
		return withItems(args, func(ids []int) { s.ResumeItems(ids...) })
	}, func(r *perceptorv1.UpdateStrategyRequest, args []string) {
		if len(args) == 0 {
			r.Paused = proto.Bool(false)
			return
		}
		r.ResumeItems = args[0]
	})
}

// withItems calls f with the ids of one argument, if there is one.
func withItems(args []string, f func(ids []int)) error {
	if len(args) == 0 {
		return nil
	}
	ids, err := app.ParseItems(args[0])
	if err != nil {
		return cli.Usagef("ITEMS: %w", err)
	}
	f(ids)
	return nil
}

// withAdmin calls f with what works where dispatchers agree.
func (c *ctl) withAdmin(cmd *cobra.Command, conf *config.Config, f func(ctx context.Context, conf *config.Config, a *assign.Admin) error) error {
	if err := c.checkOutput(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), c.timeout)
	defer cancel()
	where, closeConnections, err := openAssignment(ctx, conf, c.timeout)
	if err != nil {
		return err
	}
	defer closeConnections()
	a, _, err := where.Admin(ctx)
	if err != nil {
		return err
	}
	return assignError(f(ctx, conf, a))
}

// openAssignment returns what works where dispatchers agree, and what closes its connections.
func openAssignment(ctx context.Context, conf *config.Config, timeout time.Duration) (*app.Assignment, func(), error) {
	if len(conf.Postgres.Servers) == 0 {
		return app.NewAssignment(conf, nil, timeout), func() {}, nil
	}
	cluster, err := app.OpenTool(ctx, conf, "perceptorctl")
	if err != nil {
		return nil, nil, err
	}
	return app.NewAssignment(conf, cluster, timeout), cluster.Close, nil
}

// assignError returns err with its exit code.
func assignError(err error) error {
	var known *cli.Error
	switch {
	case err == nil, errors.As(err, &known):
		return err
	case errors.Is(err, assign.ErrNotFound):
		return &cli.Error{Code: cli.NotFound, Err: err, Hint: "has a dispatcher ever run with this assignment, or this zookeeper.root and zookeeper.environment?"}
	case errors.Is(err, assign.ErrStrategy):
		return &cli.Error{Code: cli.Usage, Err: err, Hint: "if the stored strategy cannot be read, run perceptorctl assign reset to replace it"}
	case errors.Is(err, assign.ErrContended):
		return &cli.Error{Code: cli.Conflict, Err: err}
	case errors.Is(err, assign.ErrNoAnswer), errors.Is(err, context.DeadlineExceeded), errors.Is(err, zk.ErrNoServer), errors.Is(err, zk.ErrConnectionClosed):
		return &cli.Error{Code: cli.Unavailable, Err: err, Hint: "is PostgreSQL or ZooKeeper running? see assignment, postgres.servers and zookeeper.servers"}
	}
	return err
}

func (c *ctl) assignMembers() *cobra.Command {
	cmd := &cobra.Command{Use: "members", Short: "Show the members and their figures", Args: cobra.NoArgs}
	return c.seen(cmd, func(o assign.Overview, _ func() (map[int]int64, error)) error {
		if c.structured() {
			return c.writeData(cmd, memberList(o))
		}
		t := &table{head: []string{"NAME", "ID", "HOST", "ADDRESS", "VERSION", "STATE", "REQUESTED", "HELD", "HEARTBEAT", "FIGURES"}}
		for _, m := range memberList(o) {
			t.add(textCell(m.Name), m.ID, textCell(m.Host), textCell(m.Address), textCell(m.Version), m.State,
				strconv.Itoa(m.Requested), strconv.Itoa(m.HeldCount), textCell(m.Heartbeat), textCell(figuresCell(m.Figures)))
		}
		return errors.Join(t.write(cmd.OutOrStdout()), faultsOf(o))
	})
}

// memberLine is one member in the output.
type memberLine struct {
	Name      string           `json:"name"`
	ID        string           `json:"id"`
	Sequence  int64            `json:"sequence"`
	Host      string           `json:"host,omitempty"`
	Address   string           `json:"address,omitempty"`
	Version   string           `json:"version,omitempty"`
	State     string           `json:"state"`
	Started   string           `json:"startedAt"`
	Requested int              `json:"requested"`
	HeldCount int              `json:"heldCount"`
	Held      string           `json:"held"`
	Heartbeat string           `json:"heartbeat,omitempty"`
	Figures   map[string]int64 `json:"figures,omitempty"`
}

func memberList(o assign.Overview) []memberLine {
	lines := []memberLine{}
	for _, m := range o.Members {
		l := memberLine{
			Name: m.Info.Name, ID: m.ID, Sequence: m.Seq, Host: m.Info.Host, Address: m.Info.Address, Version: m.Info.Version,
			State: memberState(o, m), Started: m.Info.Started.UTC().Format("2006-01-02T15:04:05Z"), Requested: m.Requested,
			HeldCount: len(m.Current), Held: assign.FormatItems(m.Current), Figures: m.Figures,
		}
		if !m.Heartbeat.IsZero() {
			l.Heartbeat = m.Heartbeat.UTC().Format("2006-01-02T15:04:05Z")
		}
		lines = append(lines, l)
	}
	return lines
}

func memberState(o assign.Overview, m assign.MemberState) string {
	var states []string
	for _, s := range []struct {
		name string
		is   bool
	}{
		{"leader", m.ID == o.Leader}, {"leaving", m.Leaving}, {"barred", m.Barred},
		{"standby", !m.Barred && !m.Leaving && m.Requested == 0},
	} {
		if s.is {
			states = append(states, s.name)
		}
	}
	if len(states) == 0 {
		return "member"
	}
	return strings.Join(states, ",")
}

func figuresCell(figures map[string]int64) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(figures)) {
		parts = append(parts, fmt.Sprintf("%s=%d", name, figures[name]))
	}
	return strings.Join(parts, " ")
}

// faultsOf returns an error for stored data that cannot be read.
func faultsOf(o assign.Overview) error {
	if len(o.Faults) == 0 {
		return nil
	}
	return errors.New(strings.Join(o.Faults, "; "))
}

func (c *ctl) assignRebalances() *cobra.Command {
	cmd := &cobra.Command{Use: "rebalances", Short: "Show the last plans: time, leader, number of moved items", Args: cobra.NoArgs}
	return c.seen(cmd, func(o assign.Overview, _ func() (map[int]int64, error)) error {
		if c.structured() {
			return c.writeData(cmd, slices.Concat([]assign.Rebalancing{}, o.Recent))
		}
		t := &table{head: []string{"GENERATION", "TIME", "LEADER", "MEMBERS", "MOVED", "WITHOUT OWNER"}}
		for _, r := range slices.Backward(o.Recent) {
			t.add(strconv.FormatInt(r.Generation, 10), r.At.UTC().Format("2006-01-02T15:04:05Z"), nameOf(o, r.Writer),
				strconv.Itoa(r.Members), strconv.Itoa(r.Moved), strconv.Itoa(r.Without))
		}
		return errors.Join(t.write(cmd.OutOrStdout()), faultsOf(o))
	})
}

// nameOf returns a member's name, or its id if the member has gone.
func nameOf(o assign.Overview, id string) string {
	for _, m := range o.Members {
		if m.ID == id && m.Info.Name != "" {
			return m.Info.Name
		}
	}
	return id
}

func (c *ctl) assignEnvironments() *cobra.Command {
	cmd := &cobra.Command{Use: "environments", Short: "Show the environments in Postgres, or of zookeeper.root", Args: cobra.NoArgs}
	cli.ConfigFlags(cmd, config.NeedAssignment, func(cmd *cobra.Command, conf *config.Config) error {
		return c.withAdmin(cmd, conf, func(ctx context.Context, _ *config.Config, a *assign.Admin) error {
			list, err := a.Environments(ctx)
			if err != nil {
				return err
			}
			if c.structured() {
				return c.writeData(cmd, list)
			}
			t := &table{head: []string{"ENVIRONMENT", "MEMBERS"}}
			for _, e := range list {
				t.add(e.Name, strconv.Itoa(e.Members))
			}
			return t.write(cmd.OutOrStdout())
		})
	}, "assignment", "leases", "zookeeper", "postgres")
	return cmd
}

func (c *ctl) assignStrategy() *cobra.Command {
	cmd := &cobra.Command{Use: "strategy", Short: "Show the stored strategy", Args: cobra.NoArgs}
	return c.seen(cmd, func(o assign.Overview, _ func() (map[int]int64, error)) error {
		return errors.Join(writeJSON(cmd.OutOrStdout(), json.RawMessage(o.Strategy.JSON())), faultsOf(o))
	})
}

// assignEdit is a command that changes the strategy and shows it.
func (c *ctl) assignEdit(use, short string, least int, change func(*assign.Strategy, []string) error,
	ask func(*perceptorv1.UpdateStrategyRequest, []string)) *cobra.Command {
	args := cobra.ExactArgs(least)
	switch {
	case least == 0:
		args = cobra.MaximumNArgs(1)
	case strings.HasSuffix(use, "..."):
		args = cobra.MinimumNArgs(least)
	}
	cmd := &cobra.Command{Use: use, Short: short, Long: short + ".\n\n" + whoAndItems, Args: args}
	return c.changed(cmd, func(s *assign.Strategy) error { return change(s, cmd.Flags().Args()) }, func() *perceptorv1.UpdateStrategyRequest {
		r := &perceptorv1.UpdateStrategyRequest{}
		ask(r, cmd.Flags().Args())
		return r
	})
}

func editStrategy(ctx context.Context, cmd *cobra.Command, conf *config.Config, a *assign.Admin, change func(*assign.Strategy) error) error {
	var before []byte
	s, err := a.Edit(ctx, func(s *assign.Strategy) error {
		before = s.JSON()
		return change(s)
	})
	record(cmd, conf, task.AuditEvent{Changes: jsonChanges(before, s.JSON())}, assignError(err))
	if err != nil {
		return err
	}
	if o, err := a.Overview(ctx); err == nil {
		hintAtStrangers(cmd, &s, o.Members)
	}
	return writeJSON(cmd.OutOrStdout(), json.RawMessage(s.JSON()))
}

// hintAtStrangers tells of names in the strategy that no dispatcher has. They are no error, since one may come.
func hintAtStrangers(cmd *cobra.Command, s *assign.Strategy, members []assign.MemberState) {
	if who := s.Strangers(members); len(who) > 0 {
		fmt.Fprintf(cmd.ErrOrStderr(), "hint: no dispatcher that runs now has this name, id, host or address: %s; "+
			"perceptorctl assign members lists them, and assign items shows what has no owner\n", strings.Join(who, ", "))
	}
}

func (c *ctl) assignLimit() *cobra.Command {
	var hosts []string
	var perHost, members, maxItems int
	cmd := &cobra.Command{
		Use: "limit", Short: "Limit which members take part, how many, and how many items each owns", Args: cobra.NoArgs,
		Example: "  perceptorctl assign limit --hosts node1,node2 --per-host 1\n  perceptorctl assign limit --hosts '*' --members 0",
	}
	given := func(flag string) bool { return cmd.Flags().Changed(flag) }
	c.changed(cmd, func(s *assign.Strategy) error {
		if given("hosts") {
			s.Hosts = hosts
		}
		if given("per-host") {
			s.PerHost = perHost
		}
		if given("members") {
			s.Members = members
		}
		if given("max-items") {
			s.MaxItems = maxItems
		}
		return nil
	}, func() *perceptorv1.UpdateStrategyRequest {
		r := &perceptorv1.UpdateStrategyRequest{Hosts: hosts}
		for flag, limit := range map[string]struct {
			to    **int32
			value int
		}{"per-host": {&r.PerHost, perHost}, "members": {&r.Members, members}, "max-items": {&r.MaxItems, maxItems}} {
			if given(flag) {
				*limit.to = proto.Int32(int32(max(min(limit.value, math.MaxInt32), math.MinInt32)))
			}
		}
		return r
	})
	f := cmd.Flags()
	f.StringSliceVar(&hosts, "hosts", nil, "members that may take part: names, hosts or addresses; * for all")
	f.IntVar(&perHost, "per-host", 0, "most members on one host; 0 for no limit")
	f.IntVar(&members, "members", 0, "most members in total; 0 for no limit")
	f.IntVar(&maxItems, "max-items", 0, "most items of one member; 0 for no limit")
	return cmd
}

func (c *ctl) assignReset() *cobra.Command {
	cmd := &cobra.Command{Use: "reset", Short: "Remove all limits, pins, drains and pauses", Args: cobra.NoArgs}
	servers := func(cmd *cobra.Command, conf *config.Config) error {
		return c.withAdmin(cmd, conf, func(ctx context.Context, conf *config.Config, a *assign.Admin) error {
			err := a.Reset(ctx)
			record(cmd, conf, task.AuditEvent{}, assignError(err))
			return err
		})
	}
	return c.eitherWay(cmd, config.NeedAssignment, servers, func(ctx context.Context, conn *grpc.ClientConn) error {
		_, err := perceptorv1.NewAssignmentServiceClient(conn).UpdateStrategy(ctx, &perceptorv1.UpdateStrategyRequest{Reset_: true})
		return err
	}, "assignment", "leases", "zookeeper", "postgres")
}
