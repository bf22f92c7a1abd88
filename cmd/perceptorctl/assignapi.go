package main

import (
	"context"
	"encoding/json"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"time"

	"github.com/perceptor/perceptor/assign"
	"github.com/perceptor/perceptor/internal/config"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// seen makes a command that shows what dispatchers have agreed, as the servers have it or as the
// API tells it. epochs returns the epochs by item, of those whose database answers.
func (c *ctl) seen(cmd *cobra.Command, show func(o assign.Overview, epochs func() (map[int]int64, error)) error) *cobra.Command {
	servers := func(cmd *cobra.Command, conf *config.Config) error {
		return c.withAdmin(cmd, conf, func(ctx context.Context, _ *config.Config, a *assign.Admin) error {
			o, err := a.Overview(ctx)
			if err != nil {
				return err
			}
			return show(o, func() (map[int]int64, error) { return epochsIn(ctx, conf) })
		})
	}
	return c.eitherWay(cmd, config.NeedAssignment, servers, func(ctx context.Context, conn *grpc.ClientConn) error {
		a, err := perceptorv1.NewAssignmentServiceClient(conn).GetAssignment(ctx, &perceptorv1.GetAssignmentRequest{})
		if err != nil {
			return err
		}
		o, epochs := overviewOf(a)
		return show(o, func() (map[int]int64, error) { return epochs, nil })
	}, "assignment", "leases", "zookeeper", "postgres")
}

// overviewOf reads an answer of the API. Its items name their owners by names, which
// [nameOf] leaves as they are.
func overviewOf(a *perceptorv1.Assignment) (assign.Overview, map[int]int64) {
	o := assign.Overview{State: assign.State{
		Leader: a.Leader, Generation: a.Generation, PlannedAt: timeOf(a.PlanTime), Faults: a.Faults, Strategy: strategyOf(a.Strategy),
	}}
	for _, m := range a.Members {
		held, _ := assign.ParseItems(m.Held) // ranges that the server has made
		o.Members = append(o.Members, assign.MemberState{
			ID: m.Id, Seq: m.Sequence, Leaving: m.Leaving, Barred: m.Barred, Requested: int(m.RequestedCount), Current: held,
			Heartbeat: timeOf(m.HeartbeatTime), Figures: m.Figures,
			Info: assign.MemberInfo{Name: m.Name, Host: m.Host, Address: m.Address, Version: m.Version, Started: timeOf(m.StartTime)},
		})
	}
	for _, r := range a.Rebalances {
		o.Recent = append(o.Recent, assign.Rebalancing{
			Generation: r.Generation, Writer: r.Writer, At: timeOf(r.WriteTime), Members: int(r.Members), Moved: int(r.Moved), Without: int(r.WithoutOwner),
		})
	}
	epochs := map[int]int64{}
	for _, it := range a.Items {
		o.Items = append(o.Items, assign.ItemState{
			Item: assign.Item{ID: int(it.Item)}, Requested: it.Requested, Without: assign.Reason(it.WithoutOwner), Current: it.Current,
		})
		epochs[int(it.Item)] = it.Epoch
	}
	return o, epochs
}

func strategyOf(s *perceptorv1.Strategy) assign.Strategy {
	paused, _ := assign.ParseItems(s.GetPausedItems())
	out := assign.Strategy{
		Paused: s.GetPaused(), Hosts: s.GetHosts(), PerHost: int(s.GetPerHost()), Members: int(s.GetMembers()), MaxItems: int(s.GetMaxItems()),
		Drained: s.GetDrained(), PausedItems: paused,
	}
	for who, items := range s.GetPins() {
		ids, _ := assign.ParseItems(items)
		out.Pin(who, ids...)
	}
	return out
}

// timeOf returns the zero time for none.
func timeOf(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

// changed makes a command that changes the strategy and shows it: on the servers by change, or by
// the API with the request that ask makes. Both check the arguments.
func (c *ctl) changed(cmd *cobra.Command, change func(*assign.Strategy) error, ask func() *perceptorv1.UpdateStrategyRequest) *cobra.Command {
	servers := func(cmd *cobra.Command, conf *config.Config) error {
		return c.withAdmin(cmd, conf, func(ctx context.Context, conf *config.Config, a *assign.Admin) error {
			return editStrategy(ctx, cmd, conf, a, change)
		})
	}
	return c.eitherWay(cmd, config.NeedAssignment, servers, func(ctx context.Context, conn *grpc.ClientConn) error {
		if err := change(&assign.Strategy{}); err != nil {
			return err
		}
		service := perceptorv1.NewAssignmentServiceClient(conn)
		updated, err := service.UpdateStrategy(ctx, ask())
		if err != nil {
			return err
		}
		s := strategyOf(updated)
		if a, err := service.GetAssignment(ctx, &perceptorv1.GetAssignmentRequest{}); err == nil {
			o, _ := overviewOf(a)
			hintAtStrangers(cmd, &s, o.Members)
		}
		return writeJSON(cmd.OutOrStdout(), json.RawMessage(s.JSON()))
	}, "assignment", "leases", "zookeeper", "postgres")
}
