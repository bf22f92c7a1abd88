package server

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

const (
	countTasks   = perceptorv1.TaskService_CountTasks_FullMethodName
	listEvents   = perceptorv1.TaskService_ListRunEvents_FullMethodName
	updateTenant = perceptorv1.AdminService_UpdateTenant_FullMethodName
)

// Counts returns numbers that differ for each tenant and field.
func (f *fakeTasks) Counts(_ context.Context, tenant int32) ([]task.TypeCounts, error) {
	n := int64(tenant) * 100
	return []task.TypeCounts{{Tenant: tenant, Type: task.Blocking, Counts: task.Counts{
		Added: n + 45, Scheduled: n + 1, Running: 2, Completed: 3, Cancelled: 4, Failed: 5,
		PurgedCompleted: 9, PurgedCancelled: 10, PurgedFailed: 11, Dead: 12, Died: 13,
	}}}, f.err
}

// History has five events of every task, three of them at the same instant.
func (f *fakeTasks) History(_ context.Context, tenant int32, id task.ID, after task.HistoryCursor, limit int) (list []task.RunEvent, err error) {
	for i, at := range []task.Instant{fakeNow, fakeNow - 1, fakeNow - 1, fakeNow - 1, fakeNow - 2} {
		e := task.RunEvent{
			Tenant: tenant, RunID: task.RunID{Task: id, Seq: int64(9 - i)}, Attempt: 1, At: at, ScheduledAt: task.Never,
			Event: task.EventFailed, Detail: fmt.Sprintf("%d of tenant %d", i, tenant),
		}
		if c := e.Cursor(); c.At < after.At || (c.At == after.At && c.Seq < after.Seq) {
			list = append(list, e)
		}
	}
	return list[:min(limit, len(list))], f.err
}

// UpdateTenant changes a tenant that was created before.
func (f *fakeAdmin) UpdateTenant(_ context.Context, name string, c TenantChange) (Tenant, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t, ok := f.tenants[name]
	if !ok {
		return t, task.Errorf(task.ReasonTenantNotFound, "no tenant %q", name)
	}
	if c.ParamsBytes != nil {
		t.ParamsBytes = *c.ParamsBytes
	}
	if c.Retention != nil {
		t.Retention = *c.Retention
	}
	if c.History != nil {
		t.History = *c.History
	}
	f.tenants[name] = t
	return t, nil
}

func TestCountsAreThoseOfTheCaller(t *testing.T) {
	b := setup(t)
	n := int64(acme.ID) * 100
	want := &perceptorv1.CountTasksResponse{Counts: []*perceptorv1.TaskCounts{{
		Type: perceptorv1.Task_BLOCKING, Added: n + 45, Scheduled: n + 1, Running: 2, Completed: 3, Cancelled: 4, Failed: 5, Purged: 30,
		PurgedByState: &perceptorv1.PurgedCounts{Completed: 9, Cancelled: 10, Failed: 11}, DeadRuns: 12, DeadRunsEver: 13,
	}}}
	var got perceptorv1.CountTasksResponse
	if a := b.overHTTP("acme-secret", countTasks, &perceptorv1.CountTasksRequest{}, &got); a.http != http.StatusOK {
		t.Fatal(a.message)
	}
	if diff := cmp.Diff(want, &got, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestHistoryIsListedInPages(t *testing.T) {
	b := setup(t)
	request := &perceptorv1.ListRunEventsRequest{TaskId: 1000, PageSize: 2}
	var got []string
	for pages := 0; ; pages++ {
		if pages > 5 {
			t.Fatal("the pages have no end")
		}
		var page perceptorv1.ListRunEventsResponse
		if a := b.overHTTP("acme-secret", listEvents, request, &page); a.http != http.StatusOK {
			t.Fatal(a.message)
		}
		for _, e := range page.Events {
			got = append(got, fmt.Sprint(e.Type, e.Seq, e.ScheduledTime == nil, " ", e.Detail))
		}
		if request.PageToken = page.NextPageToken; request.PageToken == "" {
			break
		}
	}
	var want []string
	for i := range 5 {
		want = append(want, fmt.Sprint(perceptorv1.RunEvent_FAILED, int64(9-i), true, " ", fmt.Sprintf("%d of tenant %d", i, acme.ID)))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestBadRequestsAboutHistoryAreRefused(t *testing.T) {
	b := setup(t)
	var page perceptorv1.ListRunEventsResponse
	b.overGRPC("acme-secret", listEvents, &perceptorv1.ListRunEventsRequest{TaskId: 1000, PageSize: 2}, &page)
	for name, c := range map[string]struct {
		request *perceptorv1.ListRunEventsRequest
		field   string
	}{
		"no task":                   {&perceptorv1.ListRunEventsRequest{}, "task_id"},
		"a long page":               {&perceptorv1.ListRunEventsRequest{TaskId: 1, PageSize: 1001}, "page_size"},
		"the token of another task": {&perceptorv1.ListRunEventsRequest{TaskId: 1001, PageToken: page.NextPageToken}, "page_token"},
		"a forged token": {&perceptorv1.ListRunEventsRequest{TaskId: 1000,
			PageToken: pageToken(pageHash("events", fmt.Sprint(acme.ID), "1000"), "1.2.3.4.5")}, "page_token"},
	} {
		a := b.overGRPC("acme-secret", listEvents, c.request, &perceptorv1.ListRunEventsResponse{})
		if a.code != codes.InvalidArgument || a.faults[c.field] == "" {
			t.Errorf("%s: %s %v", name, a.code, a.faults)
		}
	}
}

func TestTenantChangesOnlyWhatTheMaskNames(t *testing.T) {
	b := setup(t)
	b.overGRPC("admin-secret", createTenant, &perceptorv1.CreateTenantRequest{Tenant: &perceptorv1.Tenant{Name: "shop", MaxParamsBytes: 9}}, &perceptorv1.Tenant{})
	request := &perceptorv1.UpdateTenantRequest{
		Name:       "shop",
		Tenant:     &perceptorv1.Tenant{History: perceptorv1.Tenant_ALL, MaxParamsBytes: 7, DefaultRetention: durationpb.New(time.Second)},
		UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"history", "default_retention"}},
	}
	var got perceptorv1.Tenant
	if a := b.overHTTP("admin-secret", updateTenant, request, &got); a.http != http.StatusOK {
		t.Fatal(a.message)
	}
	if got.History != perceptorv1.Tenant_ALL || got.MaxParamsBytes != 9 || got.DefaultRetention.AsDuration() != time.Second {
		t.Errorf("got %v", &got)
	}
	request.Name = "nobody"
	if a := b.overGRPC("admin-secret", updateTenant, request, &got); a.code != codes.NotFound {
		t.Errorf("an unknown tenant: %s", a.code)
	}
}

func TestBadChangesOfTenantsAreRefused(t *testing.T) {
	b := setup(t)
	mask := func(paths ...string) *fieldmaskpb.FieldMask { return &fieldmaskpb.FieldMask{Paths: paths} }
	for field, request := range map[string]*perceptorv1.UpdateTenantRequest{
		"name":                 {Name: "-", Tenant: &perceptorv1.Tenant{}, UpdateMask: mask("history")},
		"tenant":               {Name: "shop", UpdateMask: mask("history")},
		"tenant.history":       {Name: "shop", Tenant: &perceptorv1.Tenant{History: 9}, UpdateMask: mask("history")},
		"update_mask":          {Name: "shop", Tenant: &perceptorv1.Tenant{}},
		"update_mask.paths[1]": {Name: "shop", Tenant: &perceptorv1.Tenant{}, UpdateMask: mask("history", "topic")},
	} {
		a := b.overGRPC("admin-secret", updateTenant, request, &perceptorv1.Tenant{})
		if a.code != codes.InvalidArgument || a.faults[field] == "" || len(a.faults) != 1 {
			t.Errorf("%s: %s %v", field, a.code, a.faults)
		}
	}
}
