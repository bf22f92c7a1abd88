package server

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// fakeAudit keeps events in memory.
type fakeAudit struct {
	mu      sync.Mutex
	events  []task.AuditEvent
	queries []task.AuditQuery
	page    task.AuditPage
	full    bool // no event is admitted
}

func (f *fakeAudit) AdmitAudit(task.AuditEvent) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return !f.full
}

func (f *fakeAudit) RecordAudit(_ context.Context, e task.AuditEvent) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events = append(f.events, e)
}

func (f *fakeAudit) ListAudit(_ context.Context, q task.AuditQuery) (task.AuditPage, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.queries = append(f.queries, q)
	return f.page, nil
}

// take returns the events since the last call.
func (f *fakeAudit) take() []task.AuditEvent {
	f.mu.Lock()
	defer f.mu.Unlock()
	events := f.events
	f.events = nil
	return events
}

func auditSetup(t *testing.T) (*bundle, *fakeAudit) {
	t.Helper()
	f := &fakeAudit{}
	return setupWith(t, func(d *Deps) { d.Audit = f }), f
}

// one returns the only event since the last call.
func (f *fakeAudit) one(t *testing.T) task.AuditEvent {
	t.Helper()
	events := f.take()
	if len(events) != 1 {
		t.Fatalf("%d events were recorded, want 1: %+v", len(events), events)
	}
	return events[0]
}

func TestEveryMethodIsEitherAuditedOrListedAsNotAudited(t *testing.T) {
	b, _ := auditSetup(t)
	for _, m := range b.methods() {
		if _, is := audited[m]; is == slices.Contains(notAudited, m) {
			t.Errorf("%s must be in one of the tables audited and notAudited", m)
		}
	}
	if n := len(audited) + len(notAudited); n != len(b.methods()) {
		t.Errorf("the tables have %d methods, the contract %d", n, len(b.methods()))
	}
}

// TestAuditRulesNameFieldsThatExist finds misspelled paths.
func TestAuditRulesNameFieldsThatExist(t *testing.T) {
	for m, rule := range audited {
		request, reply := requestFor(t, m).ProtoReflect(), replyFor(t, m).ProtoReflect()
		for _, path := range []string{rule.object, rule.tenant, rule.after} {
			_, in := fieldAt(request, path)
			_, out := fieldAt(reply, path)
			if path != "" && in == nil && out == nil {
				t.Errorf("%s: neither request nor answer has the field %s", m, path)
			}
		}
	}
}

func TestAnAuditedCallIsRecordedWithItsOriginAndChanges(t *testing.T) {
	b, log := auditSetup(t)
	create := &perceptorv1.CreateTenantRequest{Tenant: &perceptorv1.Tenant{Name: "new", MaxParamsBytes: 5}}
	if a := b.overGRPC("admin-secret", createTenant, create, &perceptorv1.Tenant{}); a.code != codes.OK {
		t.Fatal(a)
	}
	e := log.one(t)
	if e.Actor != "admin-token" || !e.Operator || e.TenantName != "new" || e.Tenant == 0 || e.Object != "new" || e.Result != "OK" ||
		e.Action != "AdminService/CreateTenant" || e.Source == "" || e.RequestID == "" {
		t.Errorf("got %+v", e)
	}
	update := &perceptorv1.UpdateTenantRequest{
		Name: "new", Tenant: &perceptorv1.Tenant{MaxParamsBytes: 7}, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"max_params_bytes"}},
	}
	if a := b.overHTTP("admin-secret", perceptorv1.AdminService_UpdateTenant_FullMethodName, update, nil); a.http != 200 {
		t.Fatal(a)
	} else if id := a.header.Get("X-Request-Id"); id == "" {
		t.Error("the answer has no request id")
	}
	e = log.one(t)
	if want := []task.AuditChange{{Field: "max_params_bytes", Before: "5", After: "7"}}; cmp.Diff(want, e.Changes) != "" {
		t.Errorf("changes: %s", cmp.Diff(want, e.Changes))
	}
	if !strings.HasPrefix(e.Source, "127.0.0.1:") {
		t.Errorf("over HTTP the source is %q", e.Source)
	}
}

func TestAFailedAuditedCallIsRecordedWithItsResultAlone(t *testing.T) {
	b, log := auditSetup(t)
	b.overGRPC("acme-secret", cancelTask, &perceptorv1.CancelTaskRequest{Id: 512}, &perceptorv1.Task{})
	e := log.one(t)
	if e.Result != "NOT_FOUND" || e.Object != "512" || e.Tenant != acme.ID || e.Operator || len(e.Changes) != 0 {
		t.Errorf("got %+v", e)
	}
}

// TestNothingIsReadForAnEventThatIsNotKept counts what is read for calls of a tenant and of an
// operator, with and without room for their events.
func TestNothingIsReadForAnEventThatIsNotKept(t *testing.T) {
	b, log := auditSetup(t)
	call := func() (tasks, tenants int) {
		t.Helper()
		tasks, tenants = b.tasks.gets(), b.admin.reads()
		b.overGRPC("acme-secret", cancelTask, &perceptorv1.CancelTaskRequest{Id: 512}, &perceptorv1.Task{})
		b.overGRPC("admin-secret", perceptorv1.AdminService_PauseTenant_FullMethodName, &perceptorv1.PauseTenantRequest{Name: "acme"}, &perceptorv1.Tenant{})
		return b.tasks.gets() - tasks, b.admin.reads() - tenants
	}
	if tasks, tenants := call(); tasks != 1 || tenants != 2 || len(log.take()) != 2 {
		t.Errorf("%d tasks and %d tenants were read for recorded calls, want 1 and 2: before the changes, and for the event", tasks, tenants)
	}
	log.full = true
	if tasks, tenants := call(); tasks != 0 || tenants != 0 || len(log.take()) != 0 {
		t.Errorf("%d tasks and %d tenants were read for calls that are not recorded", tasks, tenants)
	}
}

func TestTheAuditLogHasNoParamsAndNoSecret(t *testing.T) {
	b, log := auditSetup(t)
	added := &perceptorv1.AddTaskResponse{}
	b.overGRPC("acme-secret", addTask, &perceptorv1.AddTaskRequest{Task: &perceptorv1.Task{
		Kind: "k", Type: perceptorv1.Task_ONE_SHOT, Params: map[string]string{"card": "4111"},
	}}, added)
	if events := log.take(); len(events) != 0 {
		t.Errorf("an add was recorded: %+v", events)
	}
	purge := perceptorv1.TaskService_PurgeTask_FullMethodName
	b.overGRPC("acme-secret", cancelTask, &perceptorv1.CancelTaskRequest{Id: added.Id}, &perceptorv1.Task{})
	if e := log.one(t); !slices.Contains(e.Changes, task.AuditChange{Field: "state", Before: "SCHEDULED", After: "CANCELLED"}) {
		t.Errorf("cancel: got %+v", e.Changes)
	}
	b.overGRPC("acme-secret", purge, &perceptorv1.PurgeTaskRequest{Id: added.Id}, &perceptorv1.PurgeTaskResponse{})
	e := log.one(t)
	if e.Result == "OK" && !slices.Contains(e.Changes, task.AuditChange{Field: "params", After: "changed"}) {
		t.Errorf("purge: got %+v", e.Changes)
	}
	reply := &perceptorv1.CreateTokenResponse{}
	b.overGRPC("admin-secret", createToken, &perceptorv1.CreateTokenRequest{
		Token: &perceptorv1.Token{Scope: perceptorv1.Token_ADMIN, Id: "forged"},
	}, reply)
	made := log.one(t)
	if made.Object != reply.Token.Id {
		t.Errorf("the object of the new token %s is %q", reply.Token.Id, made.Object)
	}
	for _, e := range []task.AuditEvent{e, made} {
		for _, c := range e.Changes {
			if text := c.Before + c.After; strings.Contains(text, "4111") || strings.Contains(text, reply.Secret) {
				t.Errorf("%s: %+v", e.Action, c)
			}
		}
	}
}

func TestRefusedCallersAreRecorded(t *testing.T) {
	b, log := auditSetup(t)
	const secret = "pct_abcdefghijkl_0123456789012345678901234567890123456789012"
	for name, call := range map[string]func() answer{
		"gRPC": func() answer { return b.overGRPC(secret, listTasks, requestFor(t, listTasks), replyFor(t, listTasks)) },
		"HTTP": func() answer { return b.fetch(secret, "GET", "/v1/tasks", "", nil) },
	} {
		if a := call(); a.code != codes.Unauthenticated {
			t.Fatalf("%s: %+v", name, a)
		}
		e := log.one(t)
		if e.Action != task.AuditLogin || e.Actor != "pct_abcdefghijkl" || e.Tenant != task.AuditLogins || e.Result != "UNAUTHENTICATED" || e.Source == "" {
			t.Errorf("%s: got %+v", name, e)
		}
	}
	b.overGRPC("no token at all", listTasks, requestFor(t, listTasks), replyFor(t, listTasks))
	if e := log.one(t); e.Actor != "" {
		t.Errorf("a secret of another form became the actor %q", e.Actor)
	}
	b.overGRPC("acme-secret", createTenant, requestFor(t, createTenant), replyFor(t, createTenant))
	if e := log.one(t); e.Result != "PERMISSION_DENIED" || e.Actor != "acme-token" || e.Tenant != acme.ID {
		t.Errorf("a call beyond the scope: got %+v", e)
	}
}

func TestTheCallersRequestIDIsKeptIfItIsShortText(t *testing.T) {
	b, log := auditSetup(t)
	for given, kept := range map[string]bool{"my-id": true, strings.Repeat("x", 200): false} {
		ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer acme-secret", "x-request-id", given)
		var header metadata.MD
		_ = b.conn.Invoke(ctx, cancelTask, &perceptorv1.CancelTaskRequest{Id: 512}, &perceptorv1.Task{}, grpc.Header(&header))
		e := log.one(t)
		if (e.RequestID == given) != kept || e.RequestID == "" || !slices.Equal(header.Get("x-request-id"), []string{e.RequestID}) {
			t.Errorf("%.20s: the event has %q, the answer %q", given, e.RequestID, header.Get("x-request-id"))
		}
	}
}

func TestATenantSeesItsOwnEventsWithoutTheOperators(t *testing.T) {
	b, log := auditSetup(t)
	log.page = task.AuditPage{
		Events: []task.AuditEvent{
			{At: 2, ID: 1, Tenant: acme.ID, TenantName: "acme", Actor: "admin-token", Operator: true, Source: "10.0.0.1:5", Action: "a"},
			{At: 1, ID: 1, Tenant: acme.ID, TenantName: "acme", Actor: "acme-token", Source: "10.0.0.2:5", Action: "b"},
		},
		Missing: []int{3}, Next: &task.AuditCursor{At: 1, ID: 1},
	}
	list, reply := perceptorv1.AuditService_ListTenantAuditEvents_FullMethodName, &perceptorv1.ListAuditEventsResponse{}
	if a := b.overHTTP("acme-secret", list, &perceptorv1.ListTenantAuditEventsRequest{PageSize: 2}, reply); a.http != 200 {
		t.Fatal(a)
	}
	if q := log.queries[0]; q.AnyTenant || q.Tenant != acme.ID || q.Limit != 2 {
		t.Errorf("the query is %+v", q)
	}
	if e := reply.Events[0]; e.Actor != "operator" || e.Source != "" {
		t.Errorf("the tenant sees of the operator: %v", e)
	}
	if e := reply.Events[1]; e.Actor != "acme-token" || e.Source == "" || !slices.Equal(reply.MissingDatabases, []int32{3}) {
		t.Errorf("got %v", reply)
	}
	next := &perceptorv1.ListTenantAuditEventsRequest{PageToken: reply.NextPageToken}
	b.overGRPC("acme-secret", list, next, reply)
	if q := log.queries[1]; q.After == nil || *q.After != *log.page.Next {
		t.Errorf("the query for the next page is %+v", q)
	}
	if a := b.overGRPC("rival-secret", list, next, reply); a.code != codes.InvalidArgument {
		t.Errorf("the page token of another tenant: %+v", a)
	}
	all := perceptorv1.AuditService_ListAuditEvents_FullMethodName
	if a := b.overGRPC("admin-secret", all, &perceptorv1.ListAuditEventsRequest{}, reply); a.code != codes.OK || reply.Events[0].Actor != "admin-token" {
		t.Errorf("an operator sees %+v %v", a, reply)
	}
}

func TestABulkOperationNamesItsCreator(t *testing.T) {
	b, log := auditSetup(t)
	reply := &perceptorv1.BulkOperation{}
	b.overGRPC("acme-secret", perceptorv1.BulkService_CreateBulkOperation_FullMethodName, &perceptorv1.CreateBulkOperationRequest{
		Operation: &perceptorv1.BulkOperation{Action: perceptorv1.BulkOperation_PAUSE, Creator: "somebody else"},
	}, reply)
	if reply.Creator != "acme-token" {
		t.Errorf("the creator is %q", reply.Creator)
	}
	if e := log.one(t); e.Object == "" || !slices.ContainsFunc(e.Changes, func(c task.AuditChange) bool { return c.Field == "action" && c.After == "PAUSE" }) {
		t.Errorf("got %+v", e)
	}
}

func TestOfParamsAnEventOnlySaysThatTheyHaveChanged(t *testing.T) {
	before, after := &perceptorv1.Task{Params: map[string]string{"card": "4111"}}, &perceptorv1.Task{Params: map[string]string{"card": "4222"}}
	before.Payload = &perceptorv1.Payload{Data: []byte("4111")}
	got := changesOf(&auditRule{}, before, after)
	if want := []task.AuditChange{{Field: "params", After: "changed"}, {Field: "payload", After: "changed"}}; !slices.Equal(got, want) {
		t.Errorf("got %+v", got)
	}
}
