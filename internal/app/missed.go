package app

import (
	"context"
	"strconv"

	"github.com/perceptor/perceptor/delivery"
	"github.com/perceptor/perceptor/task"
)

// missedQueue bounds how many counts wait for the names of their tenants.
const missedQueue = 256

// missedMeter counts missed instants by the names of their tenants. After a start
// many instants may be missed before any name is known. Names are looked up in the
// background, so that claims do not wait for them.
type missedMeter struct {
	// known makes no call; find does.
	known func(tenant int32) (name string, ok bool)
	find  func(ctx context.Context, tenant int32) (delivery.Tenant, error)
	count func(tenant string, t task.Type, policy task.Misfire, n int64)
	queue chan missedOf
}

// missedOf counts missed instants of a tenant whose name is not known yet.
type missedOf struct {
	by task.MissedBy
	n  int64
}

func newMissedMeter(n *names, count func(tenant string, t task.Type, policy task.Misfire, n int64)) *missedMeter {
	return &missedMeter{known: n.name, find: n.Tenant, count: count, queue: make(chan missedOf, missedQueue)}
}

// record counts at once if the name is known, and later otherwise. If the queue is
// full it counts by the number of the tenant.
func (m *missedMeter) record(counts task.MissedCounts) {
	for by, n := range counts {
		if name, ok := m.known(by.Tenant); ok {
			m.count(name, by.Type, by.Policy, n)
			continue
		}
		select {
		case m.queue <- missedOf{by, n}:
		default:
			m.count(strconv.Itoa(int(by.Tenant)), by.Type, by.Policy, n)
		}
	}
}

// run counts until ctx ends, and then empties the queue.
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
	m.count(m.name(ctx, missed.by.Tenant), missed.by.Type, missed.by.Policy, missed.n)
}

// name returns the tenant's name, or its number if the name cannot be read.
func (m *missedMeter) name(ctx context.Context, tenant int32) string {
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	if t, err := m.find(ctx, tenant); err == nil {
		return t.Name
	}
	return strconv.Itoa(int(tenant))
}
