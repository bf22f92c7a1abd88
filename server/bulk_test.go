package server

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

const (
	createBulk = perceptorv1.BulkService_CreateBulkOperation_FullMethodName
	abortBulk  = perceptorv1.BulkService_AbortBulkOperation_FullMethodName
	purgeTask  = perceptorv1.TaskService_PurgeTask_FullMethodName
)

func TestAnOperationComesBackAsItWasAskedFor(t *testing.T) {
	b := setup(t)
	for name, o := range map[string]*perceptorv1.BulkOperation{
		"pause": {Action: perceptorv1.BulkOperation_PAUSE, MaxRate: 100, Filter: &perceptorv1.TaskFilter{
			Kind: "mail", Type: perceptorv1.Task_BLOCKING, State: perceptorv1.Task_SCHEDULED, Tags: []string{"a", "b"},
			DueFrom: timestamppb.New(fakeNow.Time()), DueUntil: timestamppb.New(fakeNow.Add(time.Hour).Time()), AddedFrom: timestamppb.New(fakeNow.Time()),
		}},
		"replay": {Action: perceptorv1.BulkOperation_REPLAY, DryRun: true, DeadFilter: &perceptorv1.DeadRunFilter{
			Kind: "mail", Reason: perceptorv1.DeadRun_SILENT, TaskId: 512, DiedUntil: timestamppb.New(fakeNow.Time()),
		}},
		"backfill": {
			Action: perceptorv1.BulkOperation_BACKFILL, BackfillFrom: timestamppb.New(fakeNow.Time()), BackfillUntil: timestamppb.New(fakeNow.Add(time.Hour).Time()), OneAtATime: true,
			Filter: &perceptorv1.TaskFilter{TaskId: 1025},
		},
		"the tasks of a backfill": {Action: perceptorv1.BulkOperation_CANCEL, Filter: &perceptorv1.TaskFilter{BackfillId: 7}},
		"purge":                   {Action: perceptorv1.BulkOperation_PURGE_FINISHED, Filter: &perceptorv1.TaskFilter{State: perceptorv1.Task_FAILED}},
	} {
		var got perceptorv1.BulkOperation
		if a := b.overHTTP("acme-secret", createBulk, &perceptorv1.CreateBulkOperationRequest{Operation: o, RequestId: "x"}, &got); a.http != http.StatusOK {
			t.Fatalf("%s: %s", name, a.message)
		}
		if got.Id != 7 || got.Matched != 48 || got.Done != 32 || got.Failed != 16 || len(got.Parts) != 16 || got.State != perceptorv1.BulkOperation_RUNNING {
			t.Errorf("%s: %v", name, &got)
		}
		asked := &perceptorv1.BulkOperation{Action: got.Action, Filter: got.Filter, DeadFilter: got.DeadFilter, DryRun: got.DryRun, MaxRate: got.MaxRate}
		asked.BackfillFrom, asked.BackfillUntil, asked.OneAtATime = got.BackfillFrom, got.BackfillUntil, got.OneAtATime
		if !proto.Equal(asked, o) {
			t.Errorf("%s: asked for %v, got %v", name, o, asked)
		}
	}
	if a := b.overGRPC("rival-secret", abortBulk, &perceptorv1.AbortBulkOperationRequest{Id: 7}, &perceptorv1.BulkOperation{}); a.code != codes.NotFound {
		t.Errorf("another tenant is answered %s", a.code)
	}
}

func TestOperationsThatCannotBeMeantAreRefused(t *testing.T) {
	b := setup(t)
	now := timestamppb.New(fakeNow.Time())
	for name, c := range map[string]struct {
		o      *perceptorv1.BulkOperation
		fields []string
	}{
		"no action":            {&perceptorv1.BulkOperation{}, []string{"operation.action"}},
		"a dead filter":        {&perceptorv1.BulkOperation{Action: 1, DeadFilter: &perceptorv1.DeadRunFilter{}}, []string{"operation.dead_filter"}},
		"a task filter":        {&perceptorv1.BulkOperation{Action: 5, Filter: &perceptorv1.TaskFilter{}}, []string{"operation.filter"}},
		"finished tasks":       {&perceptorv1.BulkOperation{Action: 3, Filter: &perceptorv1.TaskFilter{State: 3}}, []string{"operation.filter.state"}},
		"living tasks":         {&perceptorv1.BulkOperation{Action: 7, Filter: &perceptorv1.TaskFilter{State: 1}}, []string{"operation.filter.state"}},
		"a due finished task":  {&perceptorv1.BulkOperation{Action: 7, Filter: &perceptorv1.TaskFilter{DueFrom: now}}, []string{"operation.filter.due_from"}},
		"paused and due":       {&perceptorv1.BulkOperation{Action: 2, Filter: &perceptorv1.TaskFilter{DueUntil: now}}, []string{"operation.filter.due_from"}},
		"a move of open runs":  {&perceptorv1.BulkOperation{Action: 4, NextTime: now, Filter: &perceptorv1.TaskFilter{State: 2}}, []string{"operation.filter.state"}},
		"a shift of a pause":   {&perceptorv1.BulkOperation{Action: 1, Shift: durationpb.New(time.Hour)}, []string{"operation.shift"}},
		"no place to go":       {&perceptorv1.BulkOperation{Action: 4}, []string{"operation.shift"}},
		"a range of a pause":   {&perceptorv1.BulkOperation{Action: 1, BackfillFrom: now}, []string{"operation.backfill_from"}},
		"no range":             {&perceptorv1.BulkOperation{Action: 9}, []string{"operation.backfill_from", "operation.backfill_until"}},
		"half a range":         {&perceptorv1.BulkOperation{Action: 9, BackfillFrom: now}, []string{"operation.backfill_until"}},
		"an empty range":       {&perceptorv1.BulkOperation{Action: 9, BackfillFrom: now, BackfillUntil: now}, []string{"operation.backfill_until"}},
		"a range of two years": {&perceptorv1.BulkOperation{Action: 9, BackfillFrom: now, BackfillUntil: timestamppb.New(fakeNow.Add(800 * 24 * time.Hour).Time())}, []string{"operation.backfill_until"}},
		"a negative task":      {&perceptorv1.BulkOperation{Action: 9, BackfillFrom: now, BackfillUntil: timestamppb.New(fakeNow.Add(time.Hour).Time()), Filter: &perceptorv1.TaskFilter{TaskId: -1}}, []string{"operation.filter.task_id"}},
		"a negative dry run":   {&perceptorv1.BulkOperation{Action: 1, DryRunId: -1}, []string{"operation.dry_run_id"}},
		"a rate and a bad tag": {&perceptorv1.BulkOperation{Action: 1, MaxRate: -1, Filter: &perceptorv1.TaskFilter{Tags: []string{""}}}, []string{"operation.filter.tags[0]", "operation.max_rate"}},
	} {
		t.Run(name, func(t *testing.T) {
			a := b.overGRPC("acme-secret", createBulk, &perceptorv1.CreateBulkOperationRequest{Operation: c.o}, &perceptorv1.BulkOperation{})
			expectFaults(t, a, "", c.fields, "")
		})
	}
}

func TestAnOperationIsBoundByADryRunOfItsActionThatHasEnded(t *testing.T) {
	b := setup(t)
	asked := &perceptorv1.BulkOperation{Action: perceptorv1.BulkOperation_CANCEL, DryRunId: 7}
	for name, c := range map[string]struct {
		action task.BulkAction
		dry    bool
		state  task.BulkState
		ok     bool
	}{
		"ended":              {task.BulkCancel, true, task.BulkDone, true},
		"not ended":          {task.BulkCancel, true, task.BulkRunning, false},
		"aborted":            {task.BulkCancel, true, task.BulkAborted, false},
		"of another action":  {task.BulkPause, true, task.BulkDone, false},
		"that changed tasks": {task.BulkCancel, false, task.BulkDone, false},
	} {
		t.Run(name, func(t *testing.T) {
			b.bulk.action, b.bulk.terms, b.bulk.state = c.action, task.BulkTerms{DryRun: c.dry}, c.state
			var got perceptorv1.BulkOperation
			a := b.overGRPC("acme-secret", createBulk, &perceptorv1.CreateBulkOperationRequest{Operation: asked}, &got)
			if !c.ok {
				expectFaults(t, a, "", []string{"operation.dry_run_id"}, "")
				return
			}
			if a.code != codes.OK || got.DryRunId != 7 || got.Counted != 48 || len(b.bulk.terms.Counted) != task.Databases || b.bulk.terms.Counted[5] != 3 {
				t.Errorf("%s %s: %v, %v", a.code, a.message, &got, b.bulk.terms)
			}
		})
	}
	asked.DryRunId = 8
	if a := b.overGRPC("acme-secret", createBulk, &perceptorv1.CreateBulkOperationRequest{Operation: asked}, &perceptorv1.BulkOperation{}); a.code != codes.NotFound {
		t.Errorf("a dry run that does not exist: %s", a.code)
	}
}

func TestATaskIsPurgedByItsTenantOnly(t *testing.T) {
	b := setup(t)
	if a := b.overHTTP("acme-secret", purgeTask, &perceptorv1.PurgeTaskRequest{Id: 512}, &perceptorv1.PurgeTaskResponse{}); a.http != http.StatusOK {
		t.Error(a.message)
	}
	if a := b.overGRPC("rival-secret", purgeTask, &perceptorv1.PurgeTaskRequest{Id: 512}, &perceptorv1.PurgeTaskResponse{}); a.code != codes.NotFound {
		t.Errorf("another tenant is answered %s", a.code)
	}
}

func TestADeletionOfATenantReportsItsProgress(t *testing.T) {
	b := setup(t)
	var got perceptorv1.DeleteTenantResponse
	method := perceptorv1.AdminService_DeleteTenant_FullMethodName
	if a := b.overHTTP("admin-secret", method, &perceptorv1.DeleteTenantRequest{Name: "acme"}, &got); a.http != http.StatusOK || got.Removed != 32 {
		t.Errorf("%s: %v", a.message, &got)
	}
	if a := b.overGRPC("admin-secret", method, &perceptorv1.DeleteTenantRequest{Name: "gone"}, &got); a.code != codes.NotFound {
		t.Errorf("a tenant that is gone: %s", a.code)
	}
	if a := b.overGRPC("acme-secret", method, &perceptorv1.DeleteTenantRequest{Name: "acme"}, &got); a.code != codes.PermissionDenied {
		t.Errorf("a tenant about itself: %s", a.code)
	}
}

func TestAnActionThatNobodyMayAskForIsRefusedByItsName(t *testing.T) {
	t.Parallel()
	b := setup(t)
	a := b.fetch("acme-secret", http.MethodPost, "/v1/bulkOperations", `{"operation": {"action": "ROLLBACK_IMPORT"}}`, nil)
	if a.http != http.StatusBadRequest || !strings.HasPrefix(a.faults["operation.action"], "ROLLBACK_IMPORT is not one of PAUSE, ") {
		t.Errorf("%d %s", a.http, a.body)
	}
}
