package app

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/perceptor/perceptor/internal/virtualclock"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/server"
	"github.com/perceptor/perceptor/task"
)

const (
	// clockWork bounds the work of one call; the answer says how far the clock got.
	clockWork = 5 * time.Second
	// clockCall bounds a call: its work, and the longest wait at one instant.
	clockCall = 7 * time.Minute
)

// callTimeout returns the call timeout of an API with or without a virtual clock.
func (v *VirtualClock) callTimeout(configured time.Duration) time.Duration {
	if v == nil {
		return configured
	}
	return max(configured, clockCall)
}

// server returns the clock for the API; nil means that there is none.
func (v *VirtualClock) server() server.Clock {
	if v == nil {
		return nil
	}
	return clockAPI{v}
}

// clockAPI implements [server.Clock].
type clockAPI struct{ v *VirtualClock }

// Clock implements [server.Clock].
func (a clockAPI) Clock(ctx context.Context) (*perceptorv1.Clock, error) {
	s, err := a.v.Now(ctx)
	if err != nil {
		return nil, err
	}
	next, err := a.v.Next(ctx)
	if err != nil {
		return nil, err
	}
	answer := &perceptorv1.Clock{Time: instantReply(s.Now), Frozen: s.Frozen}
	if next != task.Never {
		answer.NextTime = instantReply(max(next, s.Now))
	}
	return answer, nil
}

// Advance implements [server.Clock].
func (a clockAPI) Advance(ctx context.Context, r *perceptorv1.AdvanceClockRequest) (*perceptorv1.AdvanceClockResponse, error) {
	o := waitOf(r.GetWait())
	o.For = clockWork
	to := task.At(r.GetTime().AsTime())
	if d := r.GetDuration(); d != nil {
		s, err := a.v.Now(ctx)
		if err != nil {
			return nil, err
		}
		if d.AsDuration() < 0 {
			return nil, &task.Error{Code: task.InvalidArgument, Message: "the clock cannot be moved", Faults: []task.Fault{
				{Field: "duration", Message: d.AsDuration().String() + " is negative: the clock only goes forward"},
			}}
		}
		to = s.Now.Add(d.AsDuration())
	}
	m, err := a.v.Advance(ctx, to, o)
	return movedReply(m, to), err
}

// Set implements [server.Clock].
func (a clockAPI) Set(ctx context.Context, r *perceptorv1.SetClockRequest) (*perceptorv1.AdvanceClockResponse, error) {
	to := task.At(r.GetTime().AsTime())
	m, err := a.v.Jump(ctx, to, waitOf(r.GetWait()))
	return movedReply(m, to), err
}

func waitOf(w *perceptorv1.ClockWait) virtualclock.Options {
	return virtualclock.Options{Settle: w.GetSettle().AsDuration(), LeaveOpen: w.GetLeaveOpen(), NoWait: w.GetNoWait()}
}

func movedReply(m virtualclock.Moved, to task.Instant) *perceptorv1.AdvanceClockResponse {
	r := &perceptorv1.AdvanceClockResponse{
		Time: instantReply(m.Now), TargetTime: instantReply(to), Reached: m.Reached,
		InstantCount: int64(m.Visited), DeliveryCount: m.Fired,
	}
	for _, i := range m.Instants {
		r.Instants = append(r.Instants, instantReply(i))
	}
	for _, o := range m.Open {
		r.OpenRuns = append(r.OpenRuns, &perceptorv1.UnansweredRun{RunId: o.RunID.String(), Tenant: o.Tenant, Kind: o.Kind, Attempt: o.Attempt})
	}
	return r
}

func instantReply(i task.Instant) *timestamppb.Timestamp { return timestamppb.New(i.Time()) }
