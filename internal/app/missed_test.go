package app

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"

	"github.com/perceptor/perceptor/delivery"
	"github.com/perceptor/perceptor/task"
)

func TestMissedInstantsAreCountedUnderTheNamesOfTenantsAsFarAsTheyAreKnown(t *testing.T) {
	got := map[string]int64{}
	m := &missedMeter{
		known: func(tenant int32) (string, bool) { return "tenant-2", tenant == 2 },
		find: func(_ context.Context, tenant int32) (delivery.Tenant, error) {
			if tenant == 9 {
				return delivery.Tenant{}, errors.New("no database answers")
			}
			return delivery.Tenant{Name: fmt.Sprint("tenant-", tenant)}, nil
		},
		count: func(tenant string, _ task.Type, policy task.Misfire, n int64) { got[tenant+" "+policy.String()] += n },
		queue: make(chan missedOf, 2),
	}
	m.record(task.MissedCounts{{Tenant: 1, Policy: task.FireOnce}: 5})
	m.record(task.MissedCounts{{Tenant: 9, Policy: task.FireAll}: 3})
	m.record(task.MissedCounts{{Tenant: 1, Policy: task.Skip}: 7}) // the queue is full
	m.record(task.MissedCounts{{Tenant: 2, Policy: task.Skip}: 4})
	if want := map[string]int64{"1 SKIP": 7, "tenant-2 SKIP": 4}; !maps.Equal(got, want) {
		t.Errorf("before anything was looked up: %v, want %v", got, want)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.run(ctx); err != nil {
		t.Error(err)
	}
	if want := map[string]int64{"1 SKIP": 7, "tenant-2 SKIP": 4, "tenant-1 FIRE_ONCE": 5, "9 FIRE_ALL": 3}; !maps.Equal(got, want) {
		t.Errorf("at the end: %v, want %v", got, want)
	}
}
