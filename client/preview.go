package client

import (
	"context"
	"time"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// PreviewOptions select the instants of a schedule.
type PreviewOptions struct {
	// After excludes instants up to this one. Default (zero): all from Begin
	// on.
	After time.Time
	// Count is the number of instants, at most 1,000. Default (0): 10.
	Count int
	// TaskID is the id that determines H and Spread. Default (0): none; H has
	// the values of some task as an example, so the instants of a task that is
	// added may be others, and Spread is ignored.
	TaskID int64
}

// Preview is the result of a schedule.
type Preview struct {
	// Instants are when runs would be scheduled if each run fired on time and,
	// for Blocking, ended at once. It is shorter than requested if the schedule
	// has no more instants.
	Instants []time.Time
	// Expression is the expression of Cron with each H replaced by its value.
	Expression string
	// ZoneData is the release of the time zone data, such as "2025c".
	ZoneData string
}

// PreviewSchedule returns the next instants of a schedule and stores nothing.
// It refuses the same faults as AddTask, but Kind may be empty.
func (c *Client) PreviewSchedule(ctx context.Context, t Task, o PreviewOptions) (*Preview, error) {
	if fault := t.fault(); fault != nil {
		return nil, refused("PreviewSchedule", *fault)
	}
	a, err := call(ctx, c, "PreviewSchedule", c.tasks.PreviewSchedule, &perceptorv1.PreviewScheduleRequest{
		Task: t.proto(), TaskId: o.TaskID, AfterTime: protoTime(o.After), Count: int32(max(-1, min(o.Count, 1<<31-1))),
	})
	if err != nil {
		return nil, err
	}
	p := &Preview{Expression: a.GetExpression(), ZoneData: a.GetZoneData()}
	for _, at := range a.GetInstants() {
		p.Instants = append(p.Instants, goTime(at))
	}
	return p, nil
}
