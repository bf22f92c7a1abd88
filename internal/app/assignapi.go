package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/perceptor/perceptor/assign"
	"github.com/perceptor/perceptor/internal/config"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/server"
	"github.com/perceptor/perceptor/task"
)

// coordinatorTimeout bounds each request of the API.
const coordinatorTimeout = 5 * time.Second

// assignment implements [server.Assignment].
type assignment struct {
	admins *Assignment
	owners owners
}

// newAssignment returns nil if one process owns all shards.
func (a *API) newAssignment() server.Assignment {
	if a.o.Hints != nil && len(a.o.Config.ZooKeeper.Servers) == 0 {
		return nil
	}
	return &assignment{NewAssignment(a.o.Config, a.cluster, coordinatorTimeout), owners{of: a.shards.Owners}}
}

// Assignment implements [server.Assignment].
func (a *assignment) Assignment(ctx context.Context) (*perceptorv1.Assignment, error) {
	admin, place, err := a.admins.Admin(ctx)
	if err != nil {
		return nil, errorIn(place, err)
	}
	o, err := admin.Overview(ctx)
	if err != nil {
		return nil, errorIn(place, err)
	}
	reply := &perceptorv1.Assignment{
		Leader: o.Leader, Generation: o.Generation, PlanTime: stamp(o.PlannedAt), Strategy: strategyReply(&o.Strategy), Faults: o.Faults,
	}
	names := map[string]string{}
	for _, m := range o.Members {
		names[m.ID] = m.Info.Name
		reply.Members = append(reply.Members, memberReply(m))
	}
	for _, r := range o.Recent {
		reply.Rebalances = append(reply.Rebalances, &perceptorv1.Rebalance{
			Generation: r.Generation, Writer: r.Writer, WriteTime: stamp(r.At), Members: int32(r.Members), Moved: int32(r.Moved), WithoutOwner: int32(r.Without),
		})
	}
	epochs := a.epochs(ctx)
	for _, it := range o.Items {
		item := &perceptorv1.AssignmentItem{Item: int32(it.ID), Requested: nameOr(names, it.Requested), WithoutOwner: string(it.Without), Epoch: epochs[it.ID]}
		for _, id := range it.Current {
			item.Current = append(item.Current, nameOr(names, id))
		}
		reply.Items = append(reply.Items, item)
	}
	return reply, nil
}

// nameOr returns the name of a member, or its id if it has no name or has gone.
func nameOr(names map[string]string, id string) string {
	if name := names[id]; name != "" {
		return name
	}
	return id
}

// epochs returns the epochs of all items whose database answers.
func (a *assignment) epochs(ctx context.Context) map[int]int64 {
	epochs := map[int]int64{}
	for d := range task.Databases {
		list, err := a.owners.of(ctx, d)
		if err != nil {
			continue // /readyz reports the database
		}
		for _, i := range list {
			epochs[i.Item] = i.Epoch
		}
	}
	return epochs
}

func memberReply(m assign.MemberState) *perceptorv1.AssignmentMember {
	return &perceptorv1.AssignmentMember{
		Id: m.ID, Name: m.Info.Name, Host: m.Info.Host, Address: m.Info.Address, Version: m.Info.Version, Sequence: m.Seq,
		StartTime: stamp(m.Info.Started), HeartbeatTime: stamp(m.Heartbeat), Leaving: m.Leaving, Barred: m.Barred,
		RequestedCount: int32(m.Requested), Held: assign.FormatItems(m.Current), Figures: m.Figures,
	}
}

func strategyReply(s *assign.Strategy) *perceptorv1.Strategy {
	reply := &perceptorv1.Strategy{
		Paused: s.Paused, Hosts: s.Hosts, PerHost: int32(s.PerHost), Members: int32(s.Members), MaxItems: int32(s.MaxItems),
		Drained: s.Drained, Pins: map[string]string{}, PausedItems: assign.FormatItems(s.PausedItems),
	}
	pins := map[string][]int{}
	for id, who := range s.Pins {
		pins[who] = append(pins[who], id)
	}
	for who, ids := range pins {
		reply.Pins[who] = assign.FormatItems(ids)
	}
	return reply
}

func stamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// UpdateStrategy implements [server.Assignment].
func (a *assignment) UpdateStrategy(ctx context.Context, r *perceptorv1.UpdateStrategyRequest) (*perceptorv1.Strategy, error) {
	change, faults := strategyChange(r)
	if len(faults) > 0 {
		return nil, &task.Error{Code: task.InvalidArgument, Message: "the request breaks rules", Faults: faults}
	}
	admin, place, err := a.admins.Admin(ctx)
	if err != nil {
		return nil, errorIn(place, err)
	}
	if r.Reset_ {
		if err := admin.Reset(ctx); err != nil {
			return nil, errorIn(place, err)
		}
	}
	s, err := admin.Edit(ctx, func(s *assign.Strategy) error { change(s); return nil })
	if err != nil {
		return nil, errorIn(place, err)
	}
	return strategyReply(&s), nil
}

// strategyChange reads a request. The returned change may be called more than once.
func strategyChange(r *perceptorv1.UpdateStrategyRequest) (change func(*assign.Strategy), faults []task.Fault) {
	read := func(field, text string) []int {
		ids, err := ParseItems(text)
		if err != nil {
			faults = append(faults, task.Fault{Field: field, Message: err.Error()})
		}
		return ids
	}
	unpin, pause, resume := read("unpin", r.Unpin), read("pause_items", r.PauseItems), read("resume_items", r.ResumeItems)
	pins := map[string][]int{}
	for who, text := range r.Pin {
		pins[who] = read(fmt.Sprintf("pin[%q]", who), text)
	}
	return func(s *assign.Strategy) {
		s.Unpin(unpin...)
		s.ResumeItems(resume...)
		s.Undrain(r.Undrain...)
		s.Drain(r.Drain...)
		s.PauseItems(pause...)
		for who, ids := range pins {
			s.Pin(who, ids...)
		}
		if len(r.Hosts) > 0 {
			s.Hosts = r.Hosts
		}
		if r.Paused != nil {
			s.Paused = *r.Paused
		}
		for _, f := range []struct {
			given *int32
			field *int
		}{{r.PerHost, &s.PerHost}, {r.Members, &s.Members}, {r.MaxItems, &s.MaxItems}} {
			if f.given != nil {
				*f.field = int(*f.given)
			}
		}
	}, faults
}

// errorIn maps err, which came from a place, to an error that callers can act on.
func errorIn(place string, err error) error {
	switch {
	case errors.Is(err, assign.ErrStrategy):
		return task.Errorf(task.ReasonInvalidField, "%v", err)
	case errors.Is(err, assign.ErrNotFound):
		return task.Errorf(task.ReasonNoDispatcher, "no dispatcher has joined this installation yet").CausedBy(err)
	case errors.Is(err, assign.ErrContended):
		return task.Errorf(task.ReasonStrategyContended, "others are changing the strategy; try again").CausedBy(err)
	}
	if place == config.InPostgres {
		return task.Errorf(task.ReasonDatabaseUnavailable, "database %d, which has the assignment, does not answer", homeDatabase).CausedBy(err)
	}
	return task.Errorf(task.ReasonZooKeeperUnavailable, "ZooKeeper does not answer").CausedBy(err)
}
