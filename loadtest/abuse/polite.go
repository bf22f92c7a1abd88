package abuse

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"
	"time"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/loadtest/harness"
)

// steerEvery is how often the rate of the polite tenant is adapted.
const steerEvery = 250 * time.Millisecond

// polite loads the installation with ordinary adds of a tenant, so many each tick. It returns
// when ctx has ended. Each add is a call of its own, as services make them: the SDK groups adds
// without a request id, and grouped ones use little processor time.
//
// A polite tenant waits for answers: it has at most politeAdds adds in progress. Otherwise it
// would add more and more on a machine that cannot reach the target, and everything would look
// harmless beside it.
func polite(ctx context.Context, c *client.Client, perTick func() float64) {
	var adding sync.WaitGroup
	defer adding.Wait()
	places := make(chan struct{}, politeAdds)
	const tick = 10 * time.Millisecond
	owed := 0.0
	for harness.Sleep(ctx, tick) == nil {
		for owed += perTick(); owed >= 1; owed-- {
			select {
			case places <- struct{}{}:
			default:
				owed = 0
				continue
			}
			adding.Go(func() {
				defer func() { <-places }()
				due := client.Task{Kind: "polite", Type: client.OneShot, Begin: time.Now().Add(time.Hour)}
				_, _ = c.AddTask(context.WithoutCancel(ctx), due, client.WithRequestID(rand.Text()))
			})
		}
	}
}

// steer tells a polite tenant its rate until ctx ends, so that all processes together use the given
// processor time per second.
func steer(ctx context.Context, by *rival, meter *harness.Meter, target float64) error {
	perTick, before, at := 10.0, total(meter), time.Now()
	for {
		if err := by.work(perTick); err != nil {
			return fmt.Errorf("tell the polite tenant its rate: %w", err)
		}
		if harness.Sleep(ctx, steerEvery) != nil {
			return nil
		}
		now, used := time.Now(), total(meter)
		perTick = steered(perTick, target, (used-before).Seconds()/now.Sub(at).Seconds())
		before, at = used, now
	}
}

// politeAdds is the most adds of the polite tenant in progress.
const politeAdds = 128

// maxPerTick bounds the rate of the polite tenant.
const maxPerTick = 200

// steered returns the rate that brings the used processor time closer to the target.
func steered(rate, target, used float64) float64 {
	factor := 1.3
	if used > 0 {
		factor = min(max(target/used, 0.7), 1.3)
	}
	return min(max(rate*factor, 0.05), maxPerTick)
}

func total(m *harness.Meter) (sum time.Duration) {
	for _, used := range m.Sample() {
		sum += used
	}
	return sum
}
