package app

import (
	"context"
	"strconv"

	"github.com/perceptor/perceptor/delivery"
	"github.com/perceptor/perceptor/task"
)

// unnamedQueue bounds how many counts wait for the names of their tenants.
const unnamedQueue = 256

// meter counts by the names of tenants what the store tells by their numbers. After a start
// much may happen before any name is known. Names are looked up in the background, so that
// claims and results do not wait for them.
type meter struct {
	// known makes no call; find does.
	known func(tenant int32) (name string, ok bool)
	find  func(ctx context.Context, tenant int32) (delivery.Tenant, error)
	queue chan unnamed
}

// unnamed is a count for a tenant whose name is not known yet.
type unnamed struct {
	tenant int32
	count  func(name string)
}

func newMeter(n *names) *meter {
	return &meter{known: n.name, find: n.Tenant, queue: make(chan unnamed, unnamedQueue)}
}

// do calls count at once if the name is known, and later otherwise. If the queue is full it
// counts by the number of the tenant.
func (m *meter) do(tenant int32, count func(name string)) {
	if name, ok := m.known(tenant); ok {
		count(name)
		return
	}
	select {
	case m.queue <- unnamed{tenant, count}:
	default:
		count(strconv.Itoa(int(tenant)))
	}
}

// missed counts missed instants.
func (m *meter) missed(counts task.MissedCounts, count func(tenant string, t task.Type, policy task.Misfire, n int64)) {
	for by, n := range counts {
		m.do(by.Tenant, func(name string) { count(name, by.Type, by.Policy, n) })
	}
}

// run counts until ctx ends, and then empties the queue.
func (m *meter) run(ctx context.Context) error {
	for {
		select {
		case u := <-m.queue:
			u.count(m.name(ctx, u.tenant))
		case <-ctx.Done():
			for {
				select {
				case u := <-m.queue:
					u.count(m.name(ctx, u.tenant))
				default:
					return nil
				}
			}
		}
	}
}

// name returns the tenant's name, or its number if the name cannot be read.
func (m *meter) name(ctx context.Context, tenant int32) string {
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	if t, err := m.find(ctx, tenant); err == nil {
		return t.Name
	}
	return strconv.Itoa(int(tenant))
}
