package scenario

import (
	"context"
	"time"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/loadtest/check"
	"github.com/perceptor/perceptor/loadtest/workload"
	"github.com/perceptor/perceptor/task"
)

// calmDelivery is what a run needs to reach its handler while nothing is disturbed.
const calmDelivery = 10 * time.Second

// runContract changes tasks until the load ends.
func (r *runner) runContract(ctx context.Context) error {
	callers := make([]*client.Client, 2)
	for i := range callers {
		var err error
		if callers[i], err = client.New(client.Config{Address: r.stack.Address, Token: r.stack.Token}); err != nil {
			return err
		}
		defer callers[i].Close()
	}
	each := min(max(int(r.Rate/20), 4), 200)
	err := workload.NewContract(r.plan, each, r.adder, callers, r.history).Run(ctx, r.begin, r.to)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// changeWindow is how long after its acknowledgement a change may take to reach a
// listener, under the stack's own setting if it has one. A run that was asked about
// may wait for a worker as long as a handler takes.
func (r *runner) changeWindow() time.Duration {
	ahead := check.ClaimAhead
	if d, err := time.ParseDuration(r.Real.Settings["dispatcher.claim_ahead"]); err == nil {
		ahead = d
	}
	return max(check.LateAfter+ahead+2*r.Work, r.Window)
}

// redelivery is how long after the death of a listener what it had begun may take to
// be called again: until its deadline, which a heartbeat may just have moved, and by
// then another listener has its partitions.
func (r *runner) redelivery() time.Duration { return r.AckTimeout + groupLimit + r.delivery() }

// delivery is how long a run may take from its claim to its handler: all that was
// disturbed, as long as it took, and a take-over.
func (r *runner) delivery() time.Duration {
	d := calmDelivery
	for _, dist := range r.disturbed {
		d += r.Real.Session + dist.took
		if kindOf(dist.part) == listenerKind {
			d += groupLimit
		}
	}
	return max(d, r.Delivery)
}

// count asks how many tasks the tenant has, all types together.
func (r *runner) count(ctx context.Context) (sum task.Counts, err error) {
	a, err := r.stack.Counts(ctx)
	for _, c := range a.GetCounts() {
		p := c.GetPurgedByState()
		sum = sum.Plus(task.Counts{
			Added: c.GetAdded(), Scheduled: c.GetScheduled(), Running: c.GetRunning(),
			Completed: c.GetCompleted(), Cancelled: c.GetCancelled(), Failed: c.GetFailed(),
			PurgedCompleted: p.GetCompleted(), PurgedCancelled: p.GetCancelled(), PurgedFailed: p.GetFailed(),
		})
	}
	return sum, err
}
