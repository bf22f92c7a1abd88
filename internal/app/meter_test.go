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
	count := func(tenant string, _ task.Type, policy task.Misfire, n int64) { got[tenant+" "+policy.String()] += n }
	m := &meter{
		known: func(tenant int32) (string, bool) { return "tenant-2", tenant == 2 },
		find: func(_ context.Context, tenant int32) (delivery.Tenant, error) {
			if tenant == 9 {
				return delivery.Tenant{}, errors.New("no database answers")
			}
			return delivery.Tenant{Name: fmt.Sprint("tenant-", tenant)}, nil
		},
		queue: make(chan unnamed, 2),
	}
	m.missed(task.MissedCounts{{Tenant: 1, Policy: task.FireOnce}: 5}, count)
	m.missed(task.MissedCounts{{Tenant: 9, Policy: task.FireAll}: 3}, count)
	m.missed(task.MissedCounts{{Tenant: 1, Policy: task.Skip}: 7}, count) // the queue is full
	m.missed(task.MissedCounts{{Tenant: 2, Policy: task.Skip}: 4}, count)
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
