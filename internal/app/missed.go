package app

import (
	"context"
	"strconv"

	"github.com/perceptor/perceptor/task"
)

// missedQueue bounds how many counts wait for the names of their tenants.
const missedQueue = 256

// missedMeter counts missed instants under the names of their tenants. Many are
// missed when nothing has been published since the start, so that no name is known
// yet: a name is looked up beside the claims, which do not wait for it.
type missedMeter struct {
	// known asks nobody, topic does.
	known func(tenant int32) (name string, ok bool)
	topic func(ctx context.Context, tenant int32) (name, topic string, err error)
	count func(tenant, policy string, n int64)
	queue chan missedOf
}

// missedOf are missed instants of a tenant whose name is not known.
type missedOf struct {
	by task.MissedBy
	n  int64
}

func newMissedMeter(n *names, count func(tenant, policy string, n int64)) *missedMeter {
	return &missedMeter{known: n.name, topic: n.TenantTopic, count: count, queue: make(chan missedOf, missedQueue)}
}

// take counts at once if the names are known, else soon; and under the numbers of
// the tenants while more waits than the queue holds.
func (m *missedMeter) take(counts task.MissedCounts) {
	for by, n := range counts {
		if name, ok := m.known(by.Tenant); ok {
			m.count(name, by.Policy.String(), n)
			continue
		}
		select {
		case m.queue <- missedOf{by, n}:
		default:
			m.count(strconv.Itoa(int(by.Tenant)), by.Policy.String(), n)
		}
	}
}

// run counts until ctx ends, and then what waits.
func (m *missedMeter) run(ctx context.Context) error {
	for {
		select {
		case missed := <-m.queue:
			m.add(ctx, missed)
		case <-ctx.Done():
			for {
				select {
				case missed := <-m.queue:
					m.add(ctx, missed)
				default:
					return nil
				}
			}
		}
	}
}

func (m *missedMeter) add(ctx context.Context, missed missedOf) {
	m.count(m.name(ctx, missed.by.Tenant), missed.by.Policy.String(), missed.n)
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
