package workload

import (
	"context"
	"fmt"
	"strconv"

	"golang.org/x/sync/errgroup"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/loadtest/check"
)

const (
	fillBatch = 1000
	fillCalls = 4
)

// Fill adds tasks 1 to n of the plan as fast as they are accepted and records the
// answers. make returns each of them; its params, kind and ack_timeout are those of
// the plan. Fill returns the first error.
func (a *Adder) Fill(ctx context.Context, n int64, make func(number int64) (client.Task, check.Add)) error {
	calls, group := errgroup.WithContext(ctx)
	calls.SetLimit(fillCalls)
	for first := int64(1); first <= n && group.Err() == nil; first += fillBatch {
		batch := []item{}
		for number := first; number < min(first+fillBatch, n+1); number++ {
			t, add := make(number)
			t.Kind, t.AckTimeout, add.Number = a.plan.Kind, a.plan.AckTimeout, number
			t.Params = map[string]string{numberParam: strconv.FormatInt(number, 10), padParam: a.pad}
			batch = append(batch, item{t, add})
		}
		calls.Go(func() error { return a.send(group, batch) })
	}
	if err := calls.Wait(); err != nil {
		return fmt.Errorf("add %d tasks: %w", n, err)
	}
	return ctx.Err()
}
