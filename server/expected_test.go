package server

import (
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

func TestWhatACallerExpectsOfAKeyReachesTheStoreOverBothSides(t *testing.T) {
	t.Parallel()
	b := setup(t)
	keyed := recurring()
	keyed.IdempotencyKey = "nightly"
	request := &perceptorv1.AddTaskRequest{Task: keyed, Upsert: true, Expected: &perceptorv1.AddTaskRequest_Expected{Id: 1031, Version: 4}}
	if a := b.overGRPC("acme-secret", addTask, request, &perceptorv1.AddTaskResponse{}); a.code != codes.OK {
		t.Errorf("over gRPC: %+v", a)
	}
	if a := b.overHTTP("acme-secret", addTask, request, &perceptorv1.AddTaskResponse{}); a.http != http.StatusOK {
		t.Errorf("over HTTP: %+v", a)
	}
	request.Expected = &perceptorv1.AddTaskRequest_Expected{} // no task has had the key
	b.overHTTP("acme-secret", addTask, request, &perceptorv1.AddTaskResponse{})
	want := []task.Expected{{ID: 1031, Version: 4}, {ID: 1031, Version: 4}, {}}
	if len(b.tasks.adds) != len(want) {
		t.Fatalf("%d adds, want %d", len(b.tasks.adds), len(want))
	}
	for i, r := range b.tasks.adds {
		if r.Expected == nil || *r.Expected != want[i] {
			t.Errorf("add %d expects %+v, want %+v", i, r.Expected, want[i])
		}
	}
}

func TestAnUpsertThatExpectsAnotherVersionIsAborted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.tasks.err = task.Errorf(task.ReasonVersionMismatch, "idempotency_key %q has another task, or another version of it; read it again", "nightly")
	keyed := recurring()
	keyed.IdempotencyKey = "nightly"
	request := &perceptorv1.AddTaskRequest{Task: keyed, Upsert: true, Expected: &perceptorv1.AddTaskRequest_Expected{Id: 1031, Version: 4}}
	over := map[string]answer{
		"gRPC": b.overGRPC("acme-secret", addTask, request, &perceptorv1.AddTaskResponse{}),
		"HTTP": b.overHTTP("acme-secret", addTask, request, nil),
	}
	for side, a := range over {
		if a.code != codes.Aborted || a.reason != string(task.ReasonVersionMismatch) || !strings.Contains(a.message, "read it again") || side == "HTTP" && a.http != http.StatusConflict {
			t.Errorf("over %s: %+v", side, a)
		}
	}
}

func TestExpectedNeedsAnUpsertWithAKey(t *testing.T) {
	t.Parallel()
	b := setup(t)
	keyed := recurring()
	keyed.IdempotencyKey = "nightly"
	expected := &perceptorv1.AddTaskRequest_Expected{Id: 1031, Version: 4}
	for name, request := range map[string]*perceptorv1.AddTaskRequest{
		"without upsert": {Task: keyed, Expected: expected},
		"without a key":  {Task: recurring(), Upsert: true, Expected: expected},
		"without a task": {Upsert: true, Expected: expected},
	} {
		if a := b.overHTTP("acme-secret", addTask, request, nil); a.http != http.StatusBadRequest || a.faults["expected"] != "needs upsert and an idempotency_key" {
			t.Errorf("%s: %+v", name, a)
		}
	}
	for query, want := range map[string][2]string{
		"expected.id=x": {"expected.id", "is not a whole number"}, "expected.id=1&expected.id=2": {"expected.id", "is given 2 times"},
		"expected.number=1": {"expected.number", ""}, "expected=1": {"expected", "cannot be a query parameter"}, "task.kind=a": {"task.kind", "belongs in the body"},
	} {
		a := b.fetch("acme-secret", http.MethodPost, "/v1/tasks?upsert=true&"+query, `{"kind": "check", "type": "ONE_SHOT", "idempotencyKey": "nightly"}`, nil)
		if said, ok := a.faults[want[0]]; a.http != http.StatusBadRequest || !ok || !strings.Contains(said, want[1]) {
			t.Errorf("%s: %+v", query, a)
		}
	}
	if len(b.tasks.adds) > 0 {
		t.Errorf("%d tasks were added", len(b.tasks.adds))
	}
}
