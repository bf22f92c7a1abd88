package server

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

const (
	updateTask  = "/perceptor.v1.TaskService/UpdateTask"
	triggerTask = "/perceptor.v1.TaskService/TriggerTask"
)

func (b *bundle) addFull() *perceptorv1.Task {
	b.t.Helper()
	var added perceptorv1.AddTaskResponse
	if a := b.overGRPC("acme-secret", addTask, &perceptorv1.AddTaskRequest{Task: full()}, &added); a.code != codes.OK {
		b.t.Fatal(a.message)
	}
	var got perceptorv1.Task
	if a := b.overGRPC("acme-secret", getTask, &perceptorv1.GetTaskRequest{Id: added.Id}, &got); a.code != codes.OK {
		b.t.Fatal(a.message)
	}
	return &got
}

func TestAnUpdateChangesTheNamedFieldsAndNoOthers(t *testing.T) {
	for name, tc := range map[string]struct {
		set  *perceptorv1.Task
		mask []string
		want func(*perceptorv1.Task)
	}{
		"those that are set": {
			set:  &perceptorv1.Task{Kind: "other", Params: map[string]string{"a": "b"}},
			want: func(t *perceptorv1.Task) { t.Kind, t.Params = "other", map[string]string{"a": "b"} },
		},
		"a named one that is not set takes its default": {
			set: &perceptorv1.Task{}, mask: []string{"ack_timeout", "end_time", "stop_on_failure"},
			want: func(t *perceptorv1.Task) {
				t.AckTimeout, t.EndTime, t.StopOnFailure = durationpb.New(time.Minute), nil, false
			},
		},
		"a part of the retry policy": {
			set: &perceptorv1.Task{RetryPolicy: &perceptorv1.RetryPolicy{MaxAttempts: 2}}, mask: []string{"retry_policy.max_attempts"},
			want: func(t *perceptorv1.Task) { t.RetryPolicy.MaxAttempts = 2 },
		},
		"what is set and not named stays": {
			set: &perceptorv1.Task{Kind: "other", MaxCount: 7}, mask: []string{"max_count"},
			want: func(t *perceptorv1.Task) { t.MaxCount = 7 },
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			want := b.addFull()
			tc.set.Id = want.Id
			tc.want(want)
			want.Version = 2
			r := &perceptorv1.UpdateTaskRequest{Task: tc.set}
			if tc.mask != nil {
				r.UpdateMask = &fieldmaskpb.FieldMask{Paths: tc.mask}
			}
			var got perceptorv1.Task
			if a := b.overGRPC("acme-secret", updateTask, r, &got); a.code != codes.OK {
				t.Fatal(a.message)
			}
			if diff := cmp.Diff(want, &got, protocmp.Transform()); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestAnUpdateIsValidatedByTheRulesOfAddTask(t *testing.T) {
	for name, tc := range map[string]struct {
		set  *perceptorv1.Task
		mask []string
		want string // in the message
		code codes.Code
	}{
		"a bad value":        {&perceptorv1.Task{Kind: "a\nb"}, nil, "task.kind: ", codes.InvalidArgument},
		"two fields at odds": {&perceptorv1.Task{EndTime: after(time.Minute)}, nil, "task.end_time: ", codes.InvalidArgument},
		"the type":           {&perceptorv1.Task{Type: perceptorv1.Task_ONE_SHOT}, nil, `task.type: ONE_SHOT: that of the task is BLOCKING`, codes.InvalidArgument},
		"an unknown type":    {&perceptorv1.Task{Type: 77}, nil, `task.type: 77: that of the task is BLOCKING`, codes.InvalidArgument},
		"no type":            {&perceptorv1.Task{}, []string{"type", "kind"}, `task.type: TYPE_UNSPECIFIED: that of`, codes.InvalidArgument},
		"the key":            {&perceptorv1.Task{IdempotencyKey: "x"}, nil, `task.idempotency_key: "x": that of the task is ""`, codes.InvalidArgument},
		"the state alone":    {&perceptorv1.Task{}, []string{"state"}, `update_mask: names no field that can be changed`, codes.InvalidArgument},
		"no such field":      {&perceptorv1.Task{}, []string{"retry_policy.nothing"}, "retry_policy.nothing", codes.InvalidArgument},
		"a part of params":   {&perceptorv1.Task{}, []string{"params.a"}, "params.a", codes.InvalidArgument},
		"a zone without an expression": {
			&perceptorv1.Task{Schedule: &perceptorv1.Task_Cron{Cron: &perceptorv1.Cron{TimeZone: "Europe/Berlin"}}}, []string{"cron.time_zone"},
			"task.cron.time_zone: the task has no cron expression; only an expression has a time zone", codes.InvalidArgument,
		},
		"a dialect without an expression": {
			&perceptorv1.Task{Schedule: &perceptorv1.Task_Cron{Cron: &perceptorv1.Cron{Dialect: perceptorv1.Cron_QUARTZ}}}, []string{"cron.dialect"},
			"task.cron.dialect: the task has no cron expression; only an expression has a dialect", codes.InvalidArgument,
		},
		"nothing": {&perceptorv1.Task{}, nil, "names no field", codes.InvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			tc.set.Id = b.addFull().Id
			a := b.overGRPC("acme-secret", updateTask, &perceptorv1.UpdateTaskRequest{Task: tc.set, UpdateMask: &fieldmaskpb.FieldMask{Paths: tc.mask}}, &perceptorv1.Task{})
			if a.code != tc.code || !strings.Contains(a.message, tc.want) {
				t.Errorf("%s: %s", a.code, a.message)
			}
		})
	}
}

func TestAnUpdateOverHTTPTakesAMask(t *testing.T) {
	b := setup(t)
	want := b.addFull()
	path := fmt.Sprintf("/v1/tasks/%d", want.Id)
	for query, change := range map[string]func(t *perceptorv1.Task){
		"?updateMask=maxCount,retryPolicy.maxAttempts&version=1":      func(t *perceptorv1.Task) { t.MaxCount, t.RetryPolicy.MaxAttempts = 7, 2 },
		"?update_mask=max_count,retry_policy.max_attempts,ackTimeout": func(t *perceptorv1.Task) { t.AckTimeout = durationpb.New(time.Minute) },
	} {
		b := setup(t)
		want := b.addFull()
		want.MaxCount, want.RetryPolicy.MaxAttempts, want.Version = 7, 2, 2
		change(want)
		var got perceptorv1.Task
		a := b.fetch("acme-secret", http.MethodPatch, path+query, `{"kind": "other", "maxCount": "7", "retryPolicy": {"maxAttempts": 2, "jitter": 1}}`, &got)
		if diff := cmp.Diff(want, &got, protocmp.Transform()); a.http != http.StatusOK || diff != "" {
			t.Errorf("%s: %s (-want +got)\n%s", query, a.message, diff)
		}
	}
	for body, want := range map[string]string{`{}`: "names no field that can be changed", `{"state": "CANCELLED"}`: "names no field that can be changed"} {
		if a := b.fetch("acme-secret", http.MethodPatch, path, body, nil); a.code != codes.InvalidArgument || !strings.Contains(a.message, want) {
			t.Errorf("%s: %s %s", body, a.code, a.message)
		}
	}
}

func TestAnotherMisfirePolicyLeavesTheTermsOfTheOneBefore(t *testing.T) {
	b := setup(t)
	id := b.addFull().Id
	for _, c := range []struct {
		set   *perceptorv1.Task
		grace time.Duration
		limit int32
	}{
		{&perceptorv1.Task{MisfirePolicy: perceptorv1.Task_SKIP}, time.Minute, 0},
		{&perceptorv1.Task{MisfirePolicy: perceptorv1.Task_SKIP, MisfireGrace: durationpb.New(time.Hour)}, time.Hour, 0},
		{&perceptorv1.Task{MisfirePolicy: perceptorv1.Task_FIRE_ALL, MisfireLimit: 7}, 0, 7},
		{&perceptorv1.Task{MisfirePolicy: perceptorv1.Task_SKIP}, time.Minute, 0},
		{&perceptorv1.Task{MisfirePolicy: perceptorv1.Task_FIRE_ONCE}, 0, 0},
	} {
		c.set.Id = id
		var got perceptorv1.Task
		a := b.overGRPC("acme-secret", updateTask, &perceptorv1.UpdateTaskRequest{Task: c.set}, &got)
		if a.code != codes.OK || got.MisfirePolicy != c.set.MisfirePolicy || got.MisfireGrace.AsDuration() != c.grace || got.MisfireLimit != c.limit {
			t.Errorf("%v: %s %s: %v", c.set, a.code, a.message, &got)
		}
	}
	odd := &perceptorv1.Task{Id: id, MisfirePolicy: perceptorv1.Task_FIRE_ONCE, MisfireGrace: durationpb.New(time.Hour)}
	if a := b.overGRPC("acme-secret", updateTask, &perceptorv1.UpdateTaskRequest{Task: odd}, &perceptorv1.Task{}); a.code != codes.InvalidArgument {
		t.Errorf("a grace of FIRE_ONCE: %s %s", a.code, a.message)
	}
}

func TestATaskThatWasReadCanBeChangedAndSentBackWhole(t *testing.T) {
	for name, send := range map[string]func(b *bundle, t *perceptorv1.Task) answer{
		"gRPC": func(b *bundle, t *perceptorv1.Task) answer {
			return b.overGRPC("acme-secret", updateTask, &perceptorv1.UpdateTaskRequest{Task: t}, &perceptorv1.Task{})
		},
		"HTTP": func(b *bundle, t *perceptorv1.Task) answer {
			body, err := protojson.Marshal(t)
			if err != nil {
				b.t.Fatal(err)
			}
			return b.fetch("acme-secret", http.MethodPatch, fmt.Sprintf("/v1/tasks/%d", t.Id), string(body), nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			want := b.addFull()
			want.MaxCount++
			if a := send(b, want); a.code != codes.OK {
				t.Fatal(a.message)
			}
			var got perceptorv1.Task
			b.overGRPC("acme-secret", getTask, &perceptorv1.GetTaskRequest{Id: want.Id}, &got)
			want.Version = 2
			if diff := cmp.Diff(want, &got, protocmp.Transform()); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestAnUpdateOfAnotherVersionNamesBothVersions(t *testing.T) {
	b := setup(t)
	id := b.addFull().Id
	a := b.overGRPC("acme-secret", updateTask, &perceptorv1.UpdateTaskRequest{Task: &perceptorv1.Task{Id: id, Kind: "other"}, Version: 7}, &perceptorv1.Task{})
	if a.code != codes.Aborted || !strings.Contains(a.message, "has version 1, and not 7") {
		t.Fatalf("%s: %s", a.code, a.message)
	}
}

func TestAnUpdateWithoutAConditionStandsAgainstOthers(t *testing.T) {
	b := setup(t)
	id := b.addFull().Id
	others := 3
	b.tasks.meanwhile = func(s *task.Snapshot) {
		if others--; others >= 0 {
			s.Version++
		}
	}
	var got perceptorv1.Task
	if a := b.overGRPC("acme-secret", updateTask, &perceptorv1.UpdateTaskRequest{Task: &perceptorv1.Task{Id: id, Kind: "other"}}, &got); a.code != codes.OK || got.Kind != "other" || got.Version != 5 {
		t.Fatalf("%s %s: %v", a.code, a.message, &got)
	}
}

func TestAPatchOverHTTPChangesWhatItsBodyHas(t *testing.T) {
	b := setup(t)
	want := b.addFull()
	r := &perceptorv1.UpdateTaskRequest{Task: &perceptorv1.Task{Id: want.Id, Schedule: every(2 * time.Hour), RetryPolicy: &perceptorv1.RetryPolicy{MaxAttempts: 3}}}
	var got perceptorv1.Task
	if a := b.overHTTP("acme-secret", updateTask, r, &got); a.code != codes.OK {
		t.Fatal(a.message)
	}
	want.Schedule, want.RetryPolicy.MaxAttempts, want.Version = every(2*time.Hour), 3, 2
	if diff := cmp.Diff(want, &got, protocmp.Transform()); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestATriggerAnswersItsRun(t *testing.T) {
	b := setup(t)
	id := b.addFull().Id
	var got perceptorv1.TriggerTaskResponse
	if a := b.overGRPC("acme-secret", triggerTask, &perceptorv1.TriggerTaskRequest{Id: id}, &got); a.code != codes.OK || got.RunId != (task.RunID{Task: task.ID(id), Seq: 1}).String() {
		t.Fatalf("%s: %s, %v", a.code, a.message, &got)
	}
	if a := b.overGRPC("acme-secret", triggerTask, &perceptorv1.TriggerTaskRequest{Id: id}, &got); a.code != codes.FailedPrecondition {
		t.Fatalf("while the run is open: %s", a.code)
	}
}

func TestTasksWithKeysAreStoredOneByOneAndAnsweredInOrder(t *testing.T) {
	b := setup(t)
	keyed := func(key string) *perceptorv1.Task {
		x := recurring()
		x.IdempotencyKey = key
		return x
	}
	bad := keyed("bad\n")
	r := &perceptorv1.AddTasksRequest{RequestId: "r", Tasks: []*perceptorv1.Task{keyed("a"), recurring(), bad, keyed("b"), recurring()}}
	var got perceptorv1.AddTasksResponse
	if a := b.overGRPC("acme-secret", "/perceptor.v1.TaskService/AddTasks", r, &got); a.code != codes.OK {
		t.Fatal(a.message)
	}
	var keys []string
	for _, add := range b.tasks.adds {
		keys = append(keys, add.Key)
		if (add.Key == "") != (add.RequestID == "r") || (add.Key != "" && len(add.Specs) != 1) {
			t.Errorf("a request with key %q, request_id %q and %d tasks", add.Key, add.RequestID, len(add.Specs))
		}
	}
	if len(keys) != 3 {
		t.Errorf("requests with keys %q", keys)
	}
	for i, res := range got.Results {
		if (res.GetError() != nil) != (i == 2) {
			t.Errorf("task %d: %v", i, res)
		}
		var x perceptorv1.Task
		if i == 2 {
			continue
		}
		if a := b.overGRPC("acme-secret", getTask, &perceptorv1.GetTaskRequest{Id: res.GetId()}, &x); a.code != codes.OK || x.IdempotencyKey != r.Tasks[i].IdempotencyKey {
			t.Errorf("task %d has the key %q, %s", i, x.IdempotencyKey, a.code)
		}
	}
}

func TestUpsertWithoutAKeyIsRefused(t *testing.T) {
	b := setup(t)
	a := b.overGRPC("acme-secret", addTask, &perceptorv1.AddTaskRequest{Task: proto.Clone(full()).(*perceptorv1.Task), Upsert: true}, &perceptorv1.AddTaskResponse{})
	if a.code != codes.InvalidArgument || !strings.Contains(a.message, "task.idempotency_key: is missing; upsert") {
		t.Fatalf("%s: %s", a.code, a.message)
	}
	keyed := full()
	keyed.IdempotencyKey = "key"
	var got perceptorv1.AddTasksResponse
	a = b.overGRPC("acme-secret", addTasks, &perceptorv1.AddTasksRequest{Tasks: []*perceptorv1.Task{keyed, full()}, Upsert: true}, &got)
	if a.code != codes.OK || got.Results[0].GetId() == 0 || !strings.Contains(got.Results[1].GetError().GetMessage(), "tasks[1].idempotency_key: is missing") {
		t.Fatalf("%s: %v", a.code, &got)
	}
}

// Without the request_id the store would take a repeated upsert for another one when its task has ended.
func TestAnUpsertHasItsRequestID(t *testing.T) {
	for _, upsert := range []bool{false, true} {
		b := setup(t)
		keyed := full()
		keyed.IdempotencyKey = "key"
		request := &perceptorv1.AddTasksRequest{Tasks: []*perceptorv1.Task{keyed}, RequestId: "request", Upsert: upsert}
		if a := b.overGRPC("acme-secret", addTasks, request, &perceptorv1.AddTasksResponse{}); a.code != codes.OK {
			t.Fatal(a.message)
		}
		if r := b.tasks.adds[0]; upsert != (r.RequestID == "request") || r.Upsert != upsert || r.Key != "key" {
			t.Errorf("upsert %v: the store gets the request_id %q and the key %q", upsert, r.RequestID, r.Key)
		}
	}
}

func TestExplainAnswersReasonsAndTheNextInstants(t *testing.T) {
	const explainTask = "/perceptor.v1.TaskService/ExplainTask"
	b := setup(t)
	id := b.addFull().Id
	for side, call := range map[string]func(string, string, proto.Message, proto.Message) answer{"gRPC": b.overGRPC, "HTTP": b.overHTTP} {
		var got perceptorv1.ExplainTaskResponse
		if a := call("acme-secret", explainTask, &perceptorv1.ExplainTaskRequest{Id: id, NextCount: 2}, &got); a.code != codes.OK {
			t.Fatalf("%s: %s: %s", side, a.code, a.message)
		}
		if len(got.Reasons) != 1 || got.Reasons[0].Code != perceptorv1.Reason_NOT_DUE || got.Task.GetId() != id || got.Now == nil ||
			!cmp.Equal(got.NextTimes[0], after(time.Hour), protocmp.Transform()) || !cmp.Equal(got.NextTimes[1], after(150*time.Minute), protocmp.Transform()) {
			t.Errorf("%s: %v", side, &got)
		}
	}
	var got perceptorv1.ExplainTaskResponse
	if a := b.overGRPC("acme-secret", explainTask, &perceptorv1.ExplainTaskRequest{Id: 99999}, &got); a.code != codes.OK || got.Reasons[0].Code != perceptorv1.Reason_UNKNOWN_TASK || got.Task != nil {
		t.Errorf("an unknown task: %s, %v", a.code, &got)
	}
	if a := b.overGRPC("acme-secret", explainTask, &perceptorv1.ExplainTaskRequest{Id: id, NextCount: 101}, &got); a.code != codes.InvalidArgument {
		t.Errorf("too many instants: %s", a.code)
	}
}

func TestExplainTellsThatATenantHasNoListener(t *testing.T) {
	b := setup(t)
	id := b.addFull().Id
	s := &taskService{store: b.tasks, audience: func(_ context.Context, tenant int32) *task.Audience {
		if tenant != acme.ID {
			t.Errorf("asked for tenant %d", tenant)
		}
		return &task.Audience{Asked: fakeNow.Add(-time.Second)}
	}}
	ctx := context.WithValue(t.Context(), identityKey{}, &Identity{Tenant: acme})
	got, err := s.ExplainTask(ctx, &perceptorv1.ExplainTaskRequest{Id: id})
	if err != nil || len(got.Reasons) != 2 || got.Reasons[1].Code != perceptorv1.Reason_NO_LISTENER || got.Reasons[1].Duration.AsDuration() != time.Second {
		t.Errorf("%v %v", got, err)
	}
}
