package server

import (
	"context"
	"log/slog"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// Clock is the virtual clock of an installation. Its methods may be called
// concurrently. [task.InvalidArgument]: the target is out of range.
// [task.FailedPrecondition]: a run got no result in time.
type Clock interface {
	Clock(ctx context.Context) (*perceptorv1.Clock, error)
	// Advance and Set move the clock to the target that the request names.
	Advance(ctx context.Context, r *perceptorv1.AdvanceClockRequest) (*perceptorv1.AdvanceClockResponse, error)
	Set(ctx context.Context, r *perceptorv1.SetClockRequest) (*perceptorv1.AdvanceClockResponse, error)
}

// clockService implements the API's ClockService.
type clockService struct {
	perceptorv1.UnimplementedClockServiceServer
	clock Clock // nil: the installation uses the real clock
	log   *slog.Logger
}

// errRealClock is the answer if the clock cannot be moved.
var errRealClock = task.Errorf(task.ReasonNoVirtualClock, "this installation uses the real clock; only taskd dev --virtual-clock has a clock that can be moved")

func (s *clockService) GetClock(ctx context.Context, _ *perceptorv1.GetClockRequest) (*perceptorv1.Clock, error) {
	if s.clock == nil {
		return nil, errRealClock
	}
	return s.clock.Clock(ctx)
}

func (s *clockService) AdvanceClock(ctx context.Context, r *perceptorv1.AdvanceClockRequest) (*perceptorv1.AdvanceClockResponse, error) {
	var faults []task.Fault
	switch to := r.GetTo().(type) {
	case nil:
		faults = append(faults, faultf("time", "either duration or time is required"))
	case *perceptorv1.AdvanceClockRequest_Duration:
		faults = append(faults, present(durationFault("duration", to.Duration))...)
	case *perceptorv1.AdvanceClockRequest_Time:
		faults = append(faults, present(timeFault("time", to.Time))...)
	}
	if err := s.checked(faults, r.GetWait()); err != nil {
		return nil, err
	}
	return s.clock.Advance(ctx, r)
}

func (s *clockService) SetClock(ctx context.Context, r *perceptorv1.SetClockRequest) (*perceptorv1.AdvanceClockResponse, error) {
	var faults []task.Fault
	if r.GetTime() == nil {
		faults = append(faults, faultf("time", "is required"))
	}
	faults = append(faults, present(timeFault("time", r.GetTime()))...)
	if err := s.checked(faults, r.GetWait()); err != nil {
		return nil, err
	}
	answer, err := s.clock.Set(ctx, r)
	if err == nil {
		s.log.InfoContext(ctx, "clock set", "caller", identityOf(ctx).TokenID)
	}
	return answer, err
}

// checked adds the faults of w to faults and returns them as one error, or nil if there
// are none. Without a virtual clock it returns errRealClock.
func (s *clockService) checked(faults []task.Fault, w *perceptorv1.ClockWait) error {
	if s.clock == nil {
		return errRealClock
	}
	faults = append(faults, present(durationFault("wait.settle", w.GetSettle()))...)
	if w.GetNoWait() && (w.GetLeaveOpen() || w.GetSettle() != nil) {
		faults = append(faults, faultf("wait.no_wait", "excludes settle and leave_open, which concern the wait for results"))
	}
	if len(faults) > 0 {
		return &task.Error{Code: task.InvalidArgument, Message: "the clock cannot be moved", Faults: faults}
	}
	return nil
}
