package server

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// addNamed adds a task of acme with a key and returns its id.
func (b *bundle) addNamed(key string) int64 {
	b.t.Helper()
	spec := recurring()
	spec.IdempotencyKey = key
	added := &perceptorv1.AddTaskResponse{}
	if a := b.overGRPC("acme-secret", addTask, &perceptorv1.AddTaskRequest{Task: spec}, added); a.code != codes.OK {
		b.t.Fatal(a.message)
	}
	return added.Id
}

// byKey has the requests that name a task by a key, in an order in which all succeed.
func byKey(key string) []struct {
	method  string
	request proto.Message
} {
	return []struct {
		method  string
		request proto.Message
	}{
		{perceptorv1.TaskService_GetTask_FullMethodName, &perceptorv1.GetTaskRequest{IdempotencyKey: key}},
		{perceptorv1.TaskService_ExplainTask_FullMethodName, &perceptorv1.ExplainTaskRequest{IdempotencyKey: key}},
		{perceptorv1.TaskService_ListRunEvents_FullMethodName, &perceptorv1.ListRunEventsRequest{IdempotencyKey: key}},
		{perceptorv1.TaskService_PauseTask_FullMethodName, &perceptorv1.PauseTaskRequest{IdempotencyKey: key}},
		{perceptorv1.TaskService_ResumeTask_FullMethodName, &perceptorv1.ResumeTaskRequest{IdempotencyKey: key}},
		{perceptorv1.TaskService_UpdateTask_FullMethodName, &perceptorv1.UpdateTaskRequest{Task: &perceptorv1.Task{IdempotencyKey: key, MaxCount: 9}}},
		{perceptorv1.TaskService_TriggerTask_FullMethodName, &perceptorv1.TriggerTaskRequest{IdempotencyKey: key}},
		{perceptorv1.TaskService_CancelTask_FullMethodName, &perceptorv1.CancelTaskRequest{IdempotencyKey: key}},
		{perceptorv1.TaskService_PurgeTask_FullMethodName, &perceptorv1.PurgeTaskRequest{IdempotencyKey: key}},
	}
}

func TestACallThatNamesNoTaskSaysThatAKeyWouldDo(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, c := range byKey("") {
		a := b.overGRPC("acme-secret", c.method, c.request, replyFor(t, c.method))
		if fault := a.faults[naming[c.method]]; a.code != codes.InvalidArgument || !strings.Contains(fault, "is missing, and so is idempotency_key") {
			t.Errorf("%s: %s %s", c.method, a.code, a.message)
		}
	}
}

func TestEveryCallAboutATaskTakesItsKey(t *testing.T) {
	t.Parallel()
	b, log := auditSetup(t)
	id := b.addNamed("order-42")
	calls := byKey("order-42")
	if len(calls) != len(naming) {
		t.Fatalf("the test has %d calls, and %d take a key", len(calls), len(naming))
	}
	for _, c := range calls {
		if a := b.overGRPC("rival-secret", c.method, proto.Clone(c.request), replyFor(t, c.method)); a.code != codes.NotFound || a.reason != string(task.ReasonTaskNotFound) {
			t.Errorf("%s with the key of another tenant: %s %s", c.method, a.code, a.message)
		}
		log.take()
		reply := replyFor(t, c.method)
		if a := b.overGRPC("acme-secret", c.method, proto.Clone(c.request), reply); a.code != codes.OK {
			t.Errorf("%s: %s %s", c.method, a.code, a.message)
		}
		for _, e := range log.take() {
			if e.Object != fmt.Sprint(id) {
				t.Errorf("%s: the audit names %q, not the id", c.method, e.Object)
			}
		}
		if got, ok := reply.(*perceptorv1.Task); ok && got.Id != id {
			t.Errorf("%s: the answer is task %d, want %d", c.method, got.Id, id)
		}
	}
	unknown := &perceptorv1.CancelTaskRequest{IdempotencyKey: "order-43"}
	if a := b.overGRPC("acme-secret", perceptorv1.TaskService_CancelTask_FullMethodName, unknown, &perceptorv1.Task{}); a.code != codes.NotFound {
		t.Errorf("an unknown key: %s", a.code)
	}
	if e := log.one(t); e.Object != "key:order-43" || e.Result != "NOT_FOUND" {
		t.Errorf("the audit of an unknown key: %+v", e)
	}
}

func TestExactlyOneNameOfATaskIsRequired(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.addNamed("order-42")
	for name, c := range map[string]struct {
		request *perceptorv1.GetTaskRequest
		field   string
	}{
		"none":      {&perceptorv1.GetTaskRequest{}, "id"},
		"both":      {&perceptorv1.GetTaskRequest{Id: id, IdempotencyKey: "order-42"}, "idempotency_key"},
		"a bad key": {&perceptorv1.GetTaskRequest{IdempotencyKey: "\x01"}, "idempotency_key"},
	} {
		a := b.overGRPC("acme-secret", perceptorv1.TaskService_GetTask_FullMethodName, c.request, &perceptorv1.Task{})
		if a.code != codes.InvalidArgument || a.faults[c.field] == "" {
			t.Errorf("%s: %s %v", name, a.code, a.faults)
		}
	}
	back := &perceptorv1.UpdateTaskRequest{Task: &perceptorv1.Task{Id: id, IdempotencyKey: "order-42", MaxCount: 3}}
	if a := b.overGRPC("acme-secret", perceptorv1.TaskService_UpdateTask_FullMethodName, back, &perceptorv1.Task{}); a.code != codes.OK {
		t.Errorf("a task that is sent back with both: %s", a.message)
	}
}

func TestKeysInPathsMayHaveAnyCharacters(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, key := range []string{"a/b", "a//b", "order:42", "x:cancel", "x/events", "events", "50%", "%2F", "a%2Fb", "a b+c", "?q=1#f", "..", "5"} {
		id := b.addNamed(key)
		path := keyPath + strings.ReplaceAll(url.PathEscape(key), ":", "%3A")
		if path == keyPath+key {
			path = keyPath + fmt.Sprintf("%%%02X", key[0]) + key[1:] // one that a proxy has escaped
		}
		got := &perceptorv1.Task{}
		if a := b.fetch("acme-secret", http.MethodGet, path, "", got); a.http != http.StatusOK || got.Id != id {
			t.Errorf("%s: %d %s, task %d, want %d", path, a.http, a.message, got.Id, id)
		}
		if a := b.fetch("acme-secret", http.MethodGet, path+"/events", "", &perceptorv1.ListRunEventsResponse{}); a.http != http.StatusOK {
			t.Errorf("%s/events: %d %s", path, a.http, a.message)
		}
		if a := b.fetch("acme-secret", http.MethodPatch, path, `{"maxCount": "7"}`, got); a.http != http.StatusOK || got.MaxCount != 7 {
			t.Errorf("PATCH %s: %d %s", path, a.http, a.message)
		}
		if a := b.fetch("acme-secret", http.MethodPost, path+":cancel", "{}", got); a.http != http.StatusOK || got.State != perceptorv1.Task_CANCELLED {
			t.Errorf("POST %s:cancel: %d %s", path, a.http, a.message)
		}
	}
	if a := b.fetch("acme-secret", http.MethodGet, keyPath+"none", "", nil); a.http != http.StatusNotFound {
		t.Errorf("an unknown key: %d", a.http)
	}
	id := b.addNamed("last")
	if a := b.fetch("acme-secret", http.MethodPost, fmt.Sprintf("/v1/tasks/%d%%3Apause", id), "{}", nil); a.http != http.StatusOK {
		t.Errorf("an escaped colon in another path: %d %s", a.http, a.message)
	}
}

func TestKindsInPathsMayHaveAnyCharacters(t *testing.T) {
	t.Parallel()
	last := &TenantChange{}
	b := setupWith(t, func(d *Deps) { d.Admin = fakeUpdates{newFakeAdmin(), last} })
	for _, kind := range []string{"mail", "orders/late", "a//b", "x:pause", "50%", "a%2Fb", "?q=1 #+", "..", "ä"} {
		inPath := url.PathEscape(kind)
		for _, path := range []string{inPath + ":pause", strings.ReplaceAll(inPath, ":", "%3A") + "%3Apause"} {
			a := b.fetch("acme-secret", http.MethodPost, kindPath+path, "{}", nil)
			if a.http != http.StatusOK || last.Rates.PauseKind != kind {
				t.Errorf("%s pauses %q, want %q: %d %s", path, last.Rates.PauseKind, kind, a.http, a.message)
			}
		}
	}
}
