package server

import (
	"context"
	"math"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/schedule"
	"github.com/perceptor/perceptor/task"
)

// expressions caches cron expressions of recent requests.
var expressions = schedule.NewCalendars(1000)

// schedule reads the interval or the expression.
func (r *reader) schedule(t *perceptorv1.Task, limits task.Limits) (time.Duration, *task.Cron) {
	recurring := t.Type == perceptorv1.Task_NON_BLOCKING || t.Type == perceptorv1.Task_BLOCKING
	var interval *durationpb.Duration
	switch given := t.Schedule.(type) {
	case *perceptorv1.Task_Interval:
		interval = given.Interval
	case *perceptorv1.Task_Cron:
		if given.Cron == nil {
			break
		}
		if !schedule.IsEvery(given.Cron.Expression) {
			return 0, r.cron(given.Cron, limits)
		}
		if interval = r.every(given.Cron); interval == nil {
			return 0, &task.Cron{Dialect: task.NamedCron} // a placeholder, so that a missing interval is not reported, too
		}
	}
	if interval == nil && recurring {
		r.fault("interval", "is missing: a %s task needs one, or a cron expression", t.Type)
	}
	return r.given("interval", interval), nil
}

// every parses "@every 90m".
func (r *reader) every(c *perceptorv1.Cron) *durationpb.Duration {
	if c.Dialect != perceptorv1.Cron_DIALECT_UNSPECIFIED && c.Dialect != perceptorv1.Cron_NAMED {
		r.fault("cron.dialect", "%s: @every belongs to the dialect NAMED", c.Dialect)
		return nil
	}
	d, err := schedule.ParseEvery(c.Expression)
	if err == nil {
		err = schedule.CheckZone(c.TimeZone)
	}
	if err != nil {
		f := schedule.FaultOf(err)
		r.fault(f.Field, "%s", f.Message)
		return nil
	}
	return durationpb.New(d)
}

// cron parses an expression. The value of H does not matter for whether it is
// valid; the store checks that for the task.
func (r *reader) cron(c *perceptorv1.Cron, limits task.Limits) *task.Cron {
	out := &task.Cron{Dialect: task.Dialect(c.Dialect), Expression: c.Expression, Zone: c.TimeZone}
	if c.Dialect == perceptorv1.Cron_DIALECT_UNSPECIFIED {
		out.Dialect = task.StandardCron
		switch {
		case schedule.IsNamed(c.Expression):
			out.Dialect = task.NamedCron
		case schedule.IsRule(c.Expression):
			out.Dialect = task.RRuleCron
		}
	}
	if out.Zone == "" {
		out.Zone = "UTC"
	}
	calendar, err := expressions.Of(*out, 1, 0)
	if err != nil {
		f := schedule.FaultOf(err)
		r.fault(f.Field, "%s", f.Message)
		return out
	}
	if d := shortestDistance(calendar); d < limits.MinInterval {
		r.fault("cron.expression", "%q has instants that are %s apart; the minimum is %s", c.Expression, d, limits.MinInterval)
	}
	return out
}

// shortestDistance checks the first instants of a calendar, enough to cover
// those within a minute.
func shortestDistance(c task.Calendar) time.Duration {
	shortest := time.Duration(math.MaxInt64)
	at, ok := c.Next(0)
	for range 61 {
		if !ok {
			break
		}
		var next task.Instant
		if next, ok = c.Next(at); ok {
			shortest, at = min(shortest, next.Sub(at)), next
		}
	}
	return shortest
}

// maxPreview bounds the instants of one call; defaultPreview is the default.
const (
	maxPreview     = 1000
	defaultPreview = 10
)

func (s *taskService) PreviewSchedule(ctx context.Context, r *perceptorv1.PreviewScheduleRequest) (*perceptorv1.PreviewScheduleResponse, error) {
	spec, after, faults := s.previewed(ctx, r)
	if len(faults) > 0 {
		return nil, invalid(faults)
	}
	answer := &perceptorv1.PreviewScheduleResponse{ZoneData: schedule.ZoneDataVersion()}
	id := task.ID(max(r.TaskId, 0))
	if id == 0 {
		spec.Spread = 0
	}
	if spec.Cron != nil {
		calendar, err := expressions.Of(*spec.Cron, max(id, 1), spec.Spread)
		if err != nil {
			return nil, invalid(under("task", []task.Fault{schedule.FaultOf(err)}))
		}
		spec.Calendar = calendar
		answer.Expression = calendar.(schedule.Calendar).String()
	}
	now, err := s.store.Now(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.setWindows(ctx, tenantOf(ctx).ID, &spec); err != nil {
		return nil, err
	}
	if faults := append(spec.ResolveBegin(now), spec.NeverFires(id, now)...); len(faults) > 0 {
		return nil, invalid(under("task", faults))
	}
	n := int(r.Count)
	if n == 0 {
		n = defaultPreview
	}
	for _, at := range task.NewRow(0, id, &spec, now).Upcoming(after, n) {
		answer.Instants = append(answer.Instants, timestamppb.New(at.Time()))
	}
	return answer, nil
}

// previewed reads the request.
func (s *taskService) previewed(ctx context.Context, r *perceptorv1.PreviewScheduleRequest) (task.Spec, task.Instant, []task.Fault) {
	if r.Task == nil {
		return task.Spec{}, 0, []task.Fault{faultf("task", "is missing")}
	}
	t := proto.Clone(r.Task).(*perceptorv1.Task)
	t.IdempotencyKey, t.TraceParent = "", ""
	if t.Kind == "" {
		t.Kind = "preview"
	}
	spec, faults := specOf(t, tenantOf(ctx), s.limits)
	faults = under("task", faults)
	if r.Count < 0 || r.Count > maxPreview {
		faults = append(faults, faultf("count", "%d is not between 0 and %d", r.Count, maxPreview))
	}
	if r.TaskId < 0 {
		faults = append(faults, faultf("task_id", "%d is negative", r.TaskId))
	}
	after := task.Instant(-1)
	if r.AfterTime != nil {
		in := &reader{}
		after = in.instant("after_time", r.AfterTime)
		faults = append(faults, in.faults...)
	}
	return spec, after, faults
}
