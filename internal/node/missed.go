package node

import (
	"context"
	"strconv"

	"github.com/perceptor/perceptor/task"
)

// missedQueue bounds how many transactions' counts wait for the names of their tenants.
const missedQueue = 256

// missedMeter counts missed instants under the names of their tenants. Many are
// missed when nothing has been published since the start, so that no name is known
// yet: a name is looked up beside the claims, which do not wait for it.
type missedMeter struct {
	topic func(ctx context.Context, tenant int32) (name, topic string, err error)
	count func(tenant, policy string, n int64)
	queue chan task.MissedCounts
}

func newMissedMeter(n *names, count func(tenant, policy string, n int64)) *missedMeter {
	return &missedMeter{topic: n.TenantTopic, count: count, queue: make(chan task.MissedCounts, missedQueue)}
}

// take counts soon. While more waits than the queue holds it counts at once, under
// the numbers of the tenants.
func (m *missedMeter) take(counts task.MissedCounts) {
	select {
	case m.queue <- counts:
	default:
		for by, n := range counts {
			m.count(strconv.Itoa(int(by.Tenant)), by.Policy.String(), n)
		}
	}
}

// run counts until ctx ends, and then what waits.
func (m *missedMeter) run(ctx context.Context) error {
	for {
		select {
		case counts := <-m.queue:
			m.add(ctx, counts)
		case <-ctx.Done():
			for {
				select {
				case counts := <-m.queue:
					m.add(ctx, counts)
				default:
					return nil
				}
			}
		}
	}
}

func (m *missedMeter) add(ctx context.Context, counts task.MissedCounts) {
	for by, n := range counts {
		m.count(m.name(ctx, by.Tenant), by.Policy.String(), n)
	}
}

// name is that of the tenant, or its number if it cannot be found out.
func (m *missedMeter) name(ctx context.Context, tenant int32) string {
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	if name, _, err := m.topic(ctx, tenant); err == nil {
		return name
	}
	return strconv.Itoa(int(tenant))
}
