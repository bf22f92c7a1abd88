package server

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// TestFewCallsOfATenantReadRulesAtOnce: a request may have a thousand rules that nobody has parsed yet.
func TestFewCallsOfATenantReadRulesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rule := []*perceptorv1.Task{{}, nil, {Schedule: &perceptorv1.Task_Cron{Cron: &perceptorv1.Cron{Expression: "DTSTART:20260101T000000 RRULE:FREQ=DAILY"}}}}
		cron := []*perceptorv1.Task{{Schedule: &perceptorv1.Task_Cron{Cron: &perceptorv1.Cron{Expression: "0 9 * * *"}}}}
		p := newRulePlaces()
		enter := func(tenant int32, tasks []*perceptorv1.Task) (func(), error) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*placeWithin)
			defer cancel()
			return p.enter(ctx, tenant, tasks)
		}
		first, err := enter(1, rule)
		for range tenantScanCalls - 1 {
			_, more := enter(1, rule)
			err = errors.Join(err, more)
		}
		if err != nil {
			t.Fatal(err)
		}
		if _, err := enter(1, rule); !errors.Is(err, errTenantBusy) {
			t.Errorf("one call too many: %v", err)
		}
		if _, err := enter(1, cron); err != nil {
			t.Errorf("without a rule: %v", err)
		}
		if _, err := enter(2, rule); err != nil {
			t.Errorf("of another tenant: %v", err)
		}
		first()
		if _, err := enter(1, rule); err != nil {
			t.Errorf("after one has left: %v", err)
		}
	})
}
