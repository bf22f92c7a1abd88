package server

import (
	"context"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// maxNext is the maximum number of next instants, and of events, of one call.
const maxNext = 100

// ExplainTask returns the reasons why a task does not fire.
func (s *taskService) ExplainTask(ctx context.Context, r *perceptorv1.ExplainTaskRequest) (*perceptorv1.ExplainTaskResponse, error) {
	faults := present(idFault("id", r.Id))
	if r.NextCount < 0 || r.NextCount > maxNext {
		faults = append(faults, faultf("next_count", "%d is not between 0 and %d", r.NextCount, maxNext))
	}
	if r.EventCount < 0 || r.EventCount > maxNext {
		faults = append(faults, faultf("event_count", "%d is not between 0 and %d", r.EventCount, maxNext))
	}
	if len(faults) > 0 {
		return nil, invalid(faults)
	}
	e, err := s.explain(ctx, tenantOf(ctx).ID, task.ID(r.Id), int(r.NextCount))
	if err != nil {
		return nil, err
	}
	if s.audience != nil {
		e.AddAudience(s.audience(ctx, tenantOf(ctx).ID))
	}
	a := &perceptorv1.ExplainTaskResponse{Now: known(e.Now)}
	if e.Task != nil {
		if a.Task, err = taskOf(e.Task); err != nil {
			return nil, err
		}
	}
	if r.EventCount > 0 {
		events, err := s.store.History(ctx, tenantOf(ctx).ID, task.ID(r.Id), task.NewestEvent, int(r.EventCount))
		if err != nil {
			return nil, err
		}
		for i := range events {
			a.Events = append(a.Events, eventOf(&events[i]))
		}
	}
	for i := range e.Reasons {
		a.Reasons = append(a.Reasons, reasonOf(&e.Reasons[i], e.Now))
	}
	for _, at := range e.Next {
		a.NextTimes = append(a.NextTimes, timestamp(at))
	}
	return a, nil
}

// explain asks again if the task names calendars that this process has not read yet.
func (s *taskService) explain(ctx context.Context, tenant int32, id task.ID, n int) (task.Explanation, error) {
	e, err := s.store.Explain(ctx, tenant, id, n)
	if err != nil || e.Task == nil || e.Task.Unknown.Name == "" {
		return e, err
	}
	if err := s.loadCalendars(ctx, tenant, task.Spec{Terms: e.Task.Terms}); err != nil {
		return e, nil // that the calendar cannot be read is the reason
	}
	return s.store.Explain(ctx, tenant, id, n)
}

func reasonOf(r *task.Reason, now task.Instant) *perceptorv1.Reason {
	p := &perceptorv1.Reason{
		Code: perceptorv1.Reason_Code(r.Why), Text: shortened(r.Text), Time: known(r.At), Since: known(r.Since),
		Seq: r.Seq, Attempt: r.Attempt, Failures: r.Failures, LastError: shortened(r.LastError), GiveUpTime: known(r.GiveUpAt),
	}
	if r.Since != 0 && r.Since != task.Never && now > r.Since {
		p.Duration = durationpb.New(now.Sub(r.Since))
	}
	return p
}

// known converts an instant; 0 means unknown and becomes nil.
func known(i task.Instant) *timestamppb.Timestamp {
	if i == 0 {
		return nil
	}
	return timestamp(i)
}
