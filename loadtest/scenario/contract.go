package scenario

import (
	"context"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/loadtest/workload"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

const (
	countLimit = 30 * time.Second
	// What a change needs to reach a handler, and a run to reach its own, while
	// nothing is disturbed.
	calmWindow, calmDelivery = 2 * time.Second, 10 * time.Second
)

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

// delivery is how long a run may take from its claim to its handler: all that was
// disturbed, as long as it took, and a take-over.
func (r *runner) delivery() time.Duration {
	d := calmDelivery
	for _, dist := range r.disturbed {
		d += r.Real.Session + dist.took
	}
	return max(d, r.Delivery)
}

// count asks how many tasks the tenant has, all types together.
func (r *runner) count(ctx context.Context) (sum task.Counts, err error) {
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+r.stack.Token), countLimit)
	defer cancel()
	for address := range strings.SplitSeq(r.stack.Address, ",") { // one of them may have been killed
		if sum, err = countAt(ctx, address); err == nil {
			return sum, nil
		}
	}
	return sum, fmt.Errorf("count the tasks: %w", err)
}

func countAt(ctx context.Context, address string) (sum task.Counts, err error) {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return sum, err
	}
	defer conn.Close()
	a, err := perceptorv1.NewTaskServiceClient(conn).CountTasks(ctx, &perceptorv1.CountTasksRequest{})
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
