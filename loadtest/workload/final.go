package workload

import (
	"context"
	"fmt"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/loadtest/check"
	"github.com/perceptor/perceptor/loadtest/history"
	"github.com/perceptor/perceptor/task"
)

const listPage = 1000

// AnyLiving reports whether a task of the plan has not ended.
func AnyLiving(ctx context.Context, c *client.Client, kind string) (bool, error) {
	for _, err := range c.ListTasks(ctx, client.Filter{Kind: kind, PageSize: listPage}) {
		return err == nil, err
	}
	return false, nil
}

// RecordFinals asks the API for every task of the plan that it still knows, and
// returns how many it listed. The living ones come first, so that a task that
// ends meanwhile is seen as ended.
func RecordFinals(ctx context.Context, c *client.Client, p Plan, h *history.Writer) (int, error) {
	pad, n := p.Pad(), 0
	for _, state := range []client.State{0, client.Completed, client.Failed, client.Cancelled} {
		for t, err := range c.ListTasks(ctx, client.Filter{Kind: p.Kind, State: state, PageSize: listPage}) {
			if err != nil {
				return n, fmt.Errorf("list the tasks at the end: %w", err)
			}
			n++
			h.Final(finalOf(t, pad))
		}
	}
	return n, nil
}

func finalOf(t *client.TaskInfo, pad string) check.Final {
	f := check.Final{
		ID: task.ID(t.ID), Number: numberOf(t.Params, pad), Type: task.Type(t.Type), State: task.State(t.State),
		Begin: task.At(t.Begin), End: task.Never, Interval: t.Interval, MaxCount: t.MaxCount,
		Runs: t.RunCount, Missed: t.MissedCount, Open: int32(t.OpenRuns),
		Version: int32(t.Version), Mark: markOf(t.Params),
	}
	if !t.End.IsZero() {
		f.End = task.At(t.End)
	}
	return f
}
