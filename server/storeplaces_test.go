package server

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/status"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
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

// TestAnAddWhoseRulesTakeTooLongIsRefusedInTime: its caller learns why while it waits for the answer, and nothing is computed for a caller
// that has left.
func TestAnAddWhoseRulesTakeTooLongIsRefusedInTime(t *testing.T) {
	var tasks []*perceptorv1.Task
	for i := range task.MaxTasksPerAdd {
		rule := fmt.Sprintf("DTSTART:19700101T000000 RRULE:FREQ=SECONDLY;INTERVAL=61;BYSECOND=1;COUNT=%d", 2_147_483_647-i)
		tasks = append(tasks, &perceptorv1.Task{Kind: "k", Type: perceptorv1.Task_BLOCKING, Schedule: &perceptorv1.Task_Cron{Cron: &perceptorv1.Cron{Expression: rule, TimeZone: "Europe/Berlin", Dialect: perceptorv1.Cron_RRULE}}})
	}
	s := &taskService{limits: task.DefaultLimits(), events: &Events{}, rules: newRulePlaces()}
	ctx := unhurried{context.WithValue(t.Context(), identityKey{}, &Identity{Tenant: acme}), 300 * time.Millisecond}
	if _, err := s.judge(ctx, tasks, false); errorReason(status.Convert(err)) != string(task.ReasonRequestTooLarge) {
		t.Error(err)
	}
	within, leave := rulesWithin(unhurried{t.Context(), 3 * time.Hour}, tasks)
	defer leave()
	if until, ok := within.Deadline(); !ok || time.Until(until) > time.Hour {
		t.Errorf("of 3h the rules may take %s, and the store computes them once more", time.Until(until))
	}
}

// unhurried is the context of a call that has a time left, however slow the machine is: it never ends.
type unhurried struct {
	context.Context //nolint:containedctx // it is one
	left            time.Duration
}

func (u unhurried) Deadline() (time.Time, bool) { return time.Now().Add(u.left), true }

// TestAChunkWithRulesHasAPlaceWhileItIsStored: its lines are placed then, each by the rule.
func TestAChunkWithRulesHasAPlaceWhileItIsStored(t *testing.T) {
	rules, stored := newRulePlaces(), false
	store := &fakeImports{done: func(*task.ImportChunk) task.ChunkResult {
		stored = true
		if rules.pool.Take(1, tenantScanCalls) {
			t.Error("the chunk that is stored has no place")
		}
		return task.ChunkResult{}
	}}
	in := &perceptorv1.ImportChunk{Templates: []*perceptorv1.Task{{Schedule: &perceptorv1.Task_Cron{Cron: &perceptorv1.Cron{Expression: "DTSTART:20260101T000000 RRULE:FREQ=DAILY"}}}}}
	c := &heldChunk{w: &importWriter{s: &importService{store: store, rules: rules}, ctx: t.Context(), tenant: 1}, of: &task.Import{}, lines: &task.ImportChunk{}, checks: &chunkReader{in: in}}
	if _, err := c.write(t.Context()); err != nil || !stored {
		t.Fatalf("%v, stored: %t", err, stored)
	}
	if !rules.pool.Take(1, tenantScanCalls) {
		t.Error("the place was not given back")
	}
}
