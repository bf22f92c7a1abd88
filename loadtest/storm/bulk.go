package storm

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/loadtest/harness"
)

const (
	// bulkTasks is the number of tasks that bulk operations change. Half of them are due in
	// a day. None is due before the end of the storm.
	bulkTasks = 200
	bulkKind  = "bulk"
	bulkEvery = 500 * time.Millisecond
	bulkLimit = 2 * time.Minute
	farDue    = 26 * time.Hour
)

// bulk changes many tasks at once, again and again.
type bulk struct {
	// begun and done count operations, faults are what was wrong.
	begun, done int
	faults      []error
}

// fill adds the tasks, which are due after a time or later.
func (b *bulk) fill(ctx context.Context, c *client.Client, after time.Duration) error {
	tasks := make([]client.Task, bulkTasks)
	for i := range tasks {
		due := after
		if i%2 == 0 {
			due += farDue
		}
		tasks[i] = client.Task{Kind: bulkKind, Type: client.OneShot, Begin: time.Now().Add(due)}
	}
	results, err := c.AddTasks(ctx, tasks)
	errs := []error{err}
	for _, r := range results {
		errs = append(errs, r.Err)
	}
	return errors.Join(errs...)
}

// run pauses, resumes and shifts all tasks in turn until the given instant. Each operation
// must change every task exactly once, unless a database has lost changes.
func (b *bulk) run(ctx context.Context, c *client.Client, to time.Time, lost *told) {
	actions := []client.Bulk{
		{Action: client.BulkPause}, {Action: client.BulkResume}, {Action: client.BulkReschedule, Shift: time.Minute},
	}
	for i := 0; time.Now().Before(to) && ctx.Err() == nil; i++ {
		if err := b.one(ctx, c, actions[i%len(actions)], lost); err != nil && !lost.any() {
			b.faults = append(b.faults, err)
			return
		}
	}
}

// one creates an operation and waits for its end.
func (b *bulk) one(ctx context.Context, c *client.Client, o client.Bulk, lost *told) error {
	ctx, cancel := context.WithTimeout(ctx, bulkLimit)
	defer cancel()
	b.begun++
	o.Tasks, o.RequestID = client.Filter{Kind: bulkKind}, fmt.Sprintf("storm-%d", b.begun)
	var info *client.BulkInfo
	var last error
	for info == nil || info.FinishedAt.IsZero() {
		var next *client.BulkInfo
		if info == nil {
			next, last = c.CreateBulk(ctx, o)
		} else {
			next, last = c.GetBulk(ctx, info.ID)
		}
		switch {
		case last == nil:
			info = next
		case errors.Is(last, client.ErrNotFound) && lost.any():
			return last // the operation is among what was lost
		}
		if err := harness.Sleep(ctx, bulkEvery); err != nil {
			return fmt.Errorf("bulk operation %d has not ended after %v: %v", b.begun, bulkLimit, last) //nolint:errorlint // the cause may be nil
		}
	}
	b.done++
	if info.Matched != bulkTasks || info.Done != bulkTasks || info.Failed != 0 {
		return fmt.Errorf("bulk operation %d changed %d of %d matched tasks, want %d", info.ID, info.Done, info.Matched, bulkTasks)
	}
	return nil
}
