package client

import (
	"context"
	"time"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// PreviewOptions say which instants of a schedule are wanted.
type PreviewOptions struct {
	// After: only instants later than this one. Default (zero): all from Begin on.
	After time.Time
	// Count is how many are wanted, at most 1,000. Default (0): 10.
	Count int
	// TaskID is the id by which H is drawn and Spread computed. Default (0): none; H
	// has some value, and nothing is spread.
	TaskID int64
}

// Preview is what a schedule comes to.
type Preview struct {
	// Instants are when runs would be scheduled, if each fired on time and, for
	// Blocking, had its result at once. Fewer than were asked for: there are no more.
	Instants []time.Time
	// Expression is the one of Cron as it was read, with each H replaced by its value.
	Expression string
	// ZoneData is the release of the time zone data, such as "2025c".
	ZoneData string
}

// PreviewSchedule returns the next instants of a schedule and stores nothing. It
// refuses what AddTask would refuse; Kind may be left out.
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
