package server

import (
	"fmt"
	"math"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// full returns a task with every field that a caller may set.
func full() *perceptorv1.Task {
	return &perceptorv1.Task{
		Kind: "quality-check", Type: perceptorv1.Task_BLOCKING,
		BeginTime: after(time.Hour), EndTime: after(48 * time.Hour), Schedule: every(90 * time.Minute),
		MaxCount: 1000, Params: map[string]string{"order": "42", "ärger": "ü", "empty": ""},
		RetryPolicy: &perceptorv1.RetryPolicy{
			MaxAttempts: 7, InitialBackoff: durationpb.New(2 * time.Second), Multiplier: 1.15,
			MaxBackoff: durationpb.New(time.Minute), Jitter: proto.Float64(0),
		},
		AckTimeout: durationpb.New(30 * time.Second), GiveUpAfter: durationpb.New(2 * time.Hour),
		Payload:       &perceptorv1.Payload{Data: []byte("a,b\n"), ContentType: "text/csv"},
		StopOnFailure: true, MisfirePolicy: perceptorv1.Task_FIRE_ONCE, Overlap: perceptorv1.Task_Overlap_ALLOW, Retention: durationpb.New(0),
	}
}

func TestWhatIsAddedComesBackFromGetOverBothSides(t *testing.T) {
	b := setup(t)
	for side, call := range map[string]func(string, string, proto.Message, proto.Message) answer{"gRPC": b.overGRPC, "HTTP": b.overHTTP} {
		t.Run(side, func(t *testing.T) {
			asked := full()
			var added perceptorv1.AddTaskResponse
			if a := call("acme-secret", addTask, &perceptorv1.AddTaskRequest{Task: asked}, &added); a.code != codes.OK {
				t.Fatal(a.message)
			}
			var got perceptorv1.Task
			if a := call("acme-secret", getTask, &perceptorv1.GetTaskRequest{Id: added.Id}, &got); a.code != codes.OK {
				t.Fatal(a.message)
			}
			want := full()
			want.Id, want.State, want.Version = added.Id, perceptorv1.Task_SCHEDULED, 1
			want.ScheduledTime, want.DueTime, want.CreateTime = want.BeginTime, want.BeginTime, after(0)
			if diff := cmp.Diff(want, &got, protocmp.Transform()); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestFieldsLeftOutTakeTheirDefaults(t *testing.T) {
	b := setup(t)
	for _, c := range []struct {
		name string
		in   *perceptorv1.Task
		want func(*task.Spec)
	}{
		{"ONE_SHOT", &perceptorv1.Task{Kind: "k", Type: perceptorv1.Task_ONE_SHOT}, func(s *task.Spec) { s.Type, s.MaxCount = task.OneShot, 1 }},
		{"NON_BLOCKING", &perceptorv1.Task{Kind: "k", Type: perceptorv1.Task_NON_BLOCKING, Schedule: every(time.Second)},
			func(s *task.Spec) { s.Type, s.Interval = task.NonBlocking, time.Second }},
		{"an explicit zero", &perceptorv1.Task{Kind: "k", Type: perceptorv1.Task_ONE_SHOT, Retention: durationpb.New(0),
			RetryPolicy: &perceptorv1.RetryPolicy{InitialBackoff: durationpb.New(0), Jitter: proto.Float64(0)}},
			func(s *task.Spec) {
				s.Type, s.MaxCount, s.Retention, s.Retry.Jitter = task.OneShot, 1, 0, 0
				s.Retry.InitialBackoff = time.Millisecond // timing: T8.9
			}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if a := b.overGRPC("acme-secret", addTask, &perceptorv1.AddTaskRequest{Task: c.in}, &perceptorv1.AddTaskResponse{}); a.code != codes.OK {
				t.Fatal(a.message)
			}
			want := task.Spec{
				Terms: task.Terms{Kind: "k", Begin: task.Never, End: task.Never, AckTimeout: time.Minute, GiveUpAfter: 24 * time.Hour, Retention: acme.Retention, Retry: task.RetryPolicy{MaxAttempts: 5, InitialBackoff: time.Second, Multiplier: 2, MaxBackoff: time.Hour, Jitter: 0.1}},
			}
			c.want(&want)
			got := b.tasks.adds[len(b.tasks.adds)-1].Specs[0]
			got.Begin, got.ParamsWire = task.Never, nil // the fake has completed it
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestOutputOnlyFieldsOfAnAddAreIgnored(t *testing.T) {
	b := setup(t)
	plain, dressed := full(), full()
	dressed.Id, dressed.State, dressed.Paused, dressed.RunCount, dressed.Version = 77, perceptorv1.Task_FAILED, true, 5, 9
	dressed.CreateTime, dressed.FinishTime, dressed.OpenRunCount, dressed.MissedCount, dressed.Attempt = after(0), after(0), 1, 1, 1
	var first, second perceptorv1.AddTaskResponse
	b.overGRPC("acme-secret", addTask, &perceptorv1.AddTaskRequest{Task: plain, RequestId: "r"}, &first)
	if a := b.overGRPC("acme-secret", addTask, &perceptorv1.AddTaskRequest{Task: dressed, RequestId: "r"}, &second); a.code != codes.OK {
		t.Fatal(a.message)
	}
	if second.Id != first.Id || !second.Replayed {
		t.Errorf("first %v, second %v", &first, &second)
	}
}

func TestARepeatedRequestIDReturnsTheFirstAnswer(t *testing.T) {
	b := setup(t)
	ended := recurring()
	ended.EndTime = after(-time.Hour)
	request := &perceptorv1.AddTasksRequest{RequestId: "a b~c", Tasks: []*perceptorv1.Task{full(), {}, recurring(), ended}}
	var first, again perceptorv1.AddTasksResponse
	b.overGRPC("acme-secret", addTasks, request, &first)
	if a := b.overHTTP("acme-secret", addTasks, request, &again); a.http != http.StatusOK {
		t.Fatal(a.message)
	}
	if first.Replayed || !again.Replayed {
		t.Errorf("replayed: %v, %v", first.Replayed, again.Replayed)
	}
	if diff := cmp.Diff(first.Results, again.Results, protocmp.Transform()); diff != "" {
		t.Errorf("(-first +again)\n%s", diff)
	}
	for i, ok := range []bool{true, false, true, false} {
		if got := first.Results[i].GetId() > 0; got != ok {
			t.Errorf("task %d stored: %v, want %v", i, got, ok)
		}
	}
	request.Tasks[2].MaxCount = 5
	a := b.overGRPC("acme-secret", addTasks, request, &again)
	if a.code != codes.AlreadyExists || a.reason != "REQUEST_ID_REUSED" {
		t.Errorf("another body: %s %s", a.code, a.message)
	}
	var other perceptorv1.AddTasksResponse
	if a := b.overGRPC("rival-secret", addTasks, request, &other); a.code != codes.OK || other.Replayed {
		t.Errorf("another tenant: %s, replayed %v", a.code, other.Replayed)
	}
}

func TestTheRequestHashTellsDifferentRequestsApart(t *testing.T) {
	s := &taskService{limits: task.DefaultLimits(), events: &Events{}}
	seen := map[[32]byte]string{}
	for name, tasks := range map[string][]*perceptorv1.Task{
		"one":              {recurring()},
		"two":              {recurring(), recurring()},
		"bad first":        {{}, recurring()},
		"bad last":         {recurring(), {}},
		"with other param": {func() *perceptorv1.Task { t := recurring(); t.Params["order"] = "43"; return t }()},
		"with begin":       {func() *perceptorv1.Task { t := recurring(); t.BeginTime = after(0); return t }()},
		"with payload":     {withPayload("a", "")},
		"other payload":    {withPayload("b", "")},
		"of another type":  {withPayload("a", "text/plain")},
		"with retention":   {func() *perceptorv1.Task { t := recurring(); t.Retention = durationpb.New(0); return t }()},
	} {
		h := must(s.read(t.Context(), &acme, tasks, false))(t).hash
		if other, ok := seen[h]; ok && !(name == "bad last" || other == "bad last") {
			t.Errorf("%q and %q hash alike", name, other)
		}
		seen[h] = name
		if again := must(s.read(t.Context(), &acme, tasks, false))(t).hash; again != h {
			t.Errorf("%q hashes differently again", name)
		}
	}
}

func withPayload(data, contentType string) *perceptorv1.Task {
	t := recurring()
	t.Payload = &perceptorv1.Payload{Data: []byte(data), ContentType: contentType}
	return t
}

func TestEqualParamsAreStoredAsEqualBytes(t *testing.T) {
	params := map[string]string{}
	for i := range 60 {
		params[fmt.Sprint(i)] = "v"
	}
	first := paramsWire(params, nil)
	for range 20 {
		if again := paramsWire(params, nil); string(again) != string(first) {
			t.Fatal("the same params gave other bytes")
		}
	}
	var back perceptorv1.Params
	if err := proto.Unmarshal(first, &back); err != nil || len(back.Entries) != 60 {
		t.Errorf("%v, %d entries", err, len(back.Entries))
	}
	if wire := paramsWire(nil, nil); len(wire) != 0 {
		t.Errorf("no params are %d bytes", len(wire))
	}
}

func TestParamsAreEncodedAsTheGeneralEncoderDoes(t *testing.T) {
	long := strings.Repeat("x", 16<<10)
	for _, params := range []map[string]string{
		{"a": ""}, {"a": "1", "b": "2"}, {"key": "öäü\U0001F600"}, {strings.Repeat("k", 127): strings.Repeat("v", 128)},
		{strings.Repeat("k", 128): long, "z": long}, {"b": "2", "a": "1", "aa": "3", "B": "4"},
	} {
		want, err := proto.MarshalOptions{Deterministic: true}.Marshal(&perceptorv1.Params{Entries: params})
		if err != nil {
			t.Fatal(err)
		}
		if got := paramsWire(params, nil); string(got) != string(want) {
			t.Errorf("%d params: %x; want %x", len(params), got, want)
		}
		for _, payload := range []*task.Payload{{Data: []byte("1"), ContentType: "application/json"}, {Data: []byte(long)}, {Data: []byte{0}, ContentType: task.DefaultContentType}} {
			want, err := proto.MarshalOptions{Deterministic: true}.Marshal(&perceptorv1.Params{Entries: params, Payload: payload.Data, ContentType: payload.StoredType()})
			if err != nil {
				t.Fatal(err)
			}
			if got := paramsWire(params, payload); string(got) != string(want) {
				t.Errorf("%d params with a payload: %x; want %x", len(params), got, want)
			}
		}
	}
}

// unnamed returns an answer about a task without the id that it names, which is the one of the call.
func unnamed(text []byte, id int64) string {
	return strings.Replace(string(text), fmt.Sprintf("no such task: %d", id), "no such task: ID", 1)
}

func TestAnotherTenantsTaskAnswersExactlyLikeAnUnknownOne(t *testing.T) {
	b := setup(t)
	var added perceptorv1.AddTaskResponse
	b.overGRPC("rival-secret", addTask, &perceptorv1.AddTaskRequest{Task: recurring()}, &added)
	const unknown = 512 * 1_000_000
	for _, form := range []string{"GET /v1/tasks/%d", "POST /v1/tasks/%d:cancel", "POST /v1/tasks/%d:pause", "POST /v1/tasks/%d:resume"} {
		verb, path, _ := strings.Cut(form, " ")
		foreign := b.fetch("acme-secret", verb, fmt.Sprintf(path, added.Id), "{}", nil)
		for _, id := range []int64{unknown, 1, 511, math.MaxInt64} {
			missing := b.fetch("acme-secret", verb, fmt.Sprintf(path, id), "{}", nil)
			if foreign.http != http.StatusNotFound || missing.http != foreign.http || unnamed(missing.body, id) != unnamed(foreign.body, added.Id) {
				t.Errorf("%s: foreign %d %s, unknown %d %d %s", form, foreign.http, foreign.body, id, missing.http, missing.body)
			}
		}
	}
	for m, requests := range map[string][2]proto.Message{
		getTask:    {&perceptorv1.GetTaskRequest{Id: added.Id}, &perceptorv1.GetTaskRequest{Id: unknown}},
		cancelTask: {&perceptorv1.CancelTaskRequest{Id: added.Id}, &perceptorv1.CancelTaskRequest{Id: unknown}},
		pauseTask:  {&perceptorv1.PauseTaskRequest{Id: added.Id}, &perceptorv1.PauseTaskRequest{Id: unknown}},
		resumeTask: {&perceptorv1.ResumeTaskRequest{Id: added.Id}, &perceptorv1.ResumeTaskRequest{Id: unknown}},
	} {
		foreign := b.overGRPC("acme-secret", m, requests[0], &perceptorv1.Task{})
		missing := b.overGRPC("acme-secret", m, requests[1], &perceptorv1.Task{})
		foreign.message, missing.message = unnamed([]byte(foreign.message), added.Id), unnamed([]byte(missing.message), unknown)
		if diff := cmp.Diff(foreign, missing, cmp.AllowUnexported(answer{})); diff != "" || foreign.code != codes.NotFound {
			t.Errorf("%s: %s (-foreign +unknown)\n%s", m, foreign.code, diff)
		}
	}
	var got perceptorv1.Task
	b.overGRPC("rival-secret", getTask, &perceptorv1.GetTaskRequest{Id: added.Id}, &got)
	if got.State != perceptorv1.Task_SCHEDULED || got.Paused {
		t.Errorf("the owner's task was changed: %v", &got)
	}
}

func TestCancelPauseAndResumeReturnTheTask(t *testing.T) {
	b := setup(t)
	var added perceptorv1.AddTaskResponse
	b.overGRPC("acme-secret", addTask, &perceptorv1.AddTaskRequest{Task: recurring()}, &added)
	var got perceptorv1.Task
	b.overHTTP("acme-secret", pauseTask, &perceptorv1.PauseTaskRequest{Id: added.Id}, &got)
	if !got.Paused {
		t.Error("not paused")
	}
	got.Reset()
	b.overHTTP("acme-secret", resumeTask, &perceptorv1.ResumeTaskRequest{Id: added.Id}, &got)
	if got.Paused || got.Id != added.Id {
		t.Errorf("not resumed: %v", &got)
	}
	got.Reset()
	b.overHTTP("acme-secret", cancelTask, &perceptorv1.CancelTaskRequest{Id: added.Id}, &got)
	if got.State != perceptorv1.Task_CANCELLED || got.FinishTime == nil || got.ScheduledTime != nil || got.DueTime != nil {
		t.Errorf("not cancelled: %v", &got)
	}
	a := b.overHTTP("acme-secret", pauseTask, &perceptorv1.PauseTaskRequest{Id: added.Id}, nil)
	if a.http != http.StatusBadRequest || a.code != codes.FailedPrecondition || !strings.Contains(a.message, "CANCELLED") {
		t.Errorf("%d %s %s", a.http, a.code, a.message)
	}
}

func TestARunningTaskShowsItsRun(t *testing.T) {
	s := &task.Snapshot{FinishedAt: task.Never, Row: task.Row{
		ID: 1024, Type: task.Blocking, State: task.Running, Attempt: 3, Seq: 5, Terms: task.Terms{End: task.Never, Interval: time.Second}, DueAt: task.Never, ScheduledAt: fakeNow,
	}}
	got := must(taskOf(s))(t)
	if got.Attempt != 3 || got.OpenRunCount != 1 || got.RunCount != 5 || got.DueTime != nil || got.EndTime != nil || got.ScheduledTime == nil {
		t.Errorf("%v", got)
	}
	s.Type, s.OpenRuns, s.OpenRows = task.NonBlocking, 0b101, 2
	if got := must(taskOf(s))(t); got.Attempt != 0 || got.OpenRunCount != 4 {
		t.Errorf("%v", got)
	}
	s.Params = []byte("\xff")
	if _, err := taskOf(s); err == nil {
		t.Error("damaged params went unnoticed")
	}
}

func TestPagesFollowEachOtherAndStayWithTheirQuestion(t *testing.T) {
	b := setup(t)
	for range 25 {
		b.overGRPC("acme-secret", addTask, &perceptorv1.AddTaskRequest{Task: recurring()}, &perceptorv1.AddTaskResponse{})
	}
	b.overGRPC("rival-secret", addTask, &perceptorv1.AddTaskRequest{Task: recurring()}, &perceptorv1.AddTaskResponse{})
	request := &perceptorv1.ListTasksRequest{PageSize: 10, Kind: "check"}
	seen := map[int64]bool{}
	var token string
	for pages := 1; ; pages++ {
		var page perceptorv1.ListTasksResponse
		if a := b.overHTTP("acme-secret", listTasks, request, &page); a.http != http.StatusOK {
			t.Fatal(a.message)
		}
		for _, task := range page.Tasks {
			seen[task.Id] = true
		}
		if request.PageToken = page.NextPageToken; request.PageToken == "" {
			if pages != 3 {
				t.Errorf("%d pages, want 3", pages)
			}
			break
		}
		token = page.NextPageToken
		request.PageSize = int32(10 + pages) // the size may change
	}
	if len(seen) != 25 {
		t.Errorf("%d tasks seen, want 25", len(seen))
	}
	for name, r := range map[string]*perceptorv1.ListTasksRequest{
		"another kind":  {PageToken: token, Kind: "other"},
		"another type":  {PageToken: token, Kind: "check", Type: 1},
		"another state": {PageToken: token, Kind: "check", State: 1},
		"a changed one": {PageToken: token[:len(token)-1] + "_", Kind: "check"},
	} {
		a := b.overGRPC("acme-secret", listTasks, r, &perceptorv1.ListTasksResponse{})
		if _, bad := a.faults["page_token"]; name != "a changed one" && !bad {
			t.Errorf("%s: %s %v", name, a.code, a.faults)
		}
	}
	a := b.overGRPC("rival-secret", listTasks, &perceptorv1.ListTasksRequest{PageToken: token, Kind: "check"}, &perceptorv1.ListTasksResponse{})
	expectFaults(t, a, "", []string{"page_token"}, "another tenant")
}

func TestACursorThatIsNoPositionIsRefused(t *testing.T) {
	b := setup(t)
	_, hash, _ := listQuery(&perceptorv1.ListTasksRequest{}, 1)
	for _, cursor := range []string{"abc", "-1", "1024", "0.2.0.9223372036854775808.0", "16.0.0.0.0", "0.2.0.1.0\x00", "\xff"} {
		request := &perceptorv1.ListTasksRequest{PageToken: pageToken(hash, cursor)}
		expectFaults(t, b.overGRPC("acme-secret", listTasks, request, &perceptorv1.ListTasksResponse{}), "", []string{"page_token"}, "was not issued")
	}
	request := &perceptorv1.ListTasksRequest{PageToken: pageToken(hash, "0.2.0.1024.0")}
	if a := b.overGRPC("acme-secret", listTasks, request, &perceptorv1.ListTasksResponse{}); a.code != codes.OK {
		t.Errorf("a good cursor: %s", a.message)
	}
}

func TestAFilterThatWouldLookAtTooManyTasksIsRefusedWithAHint(t *testing.T) {
	b := setup(t, func(c *Config) { c.MaxScan = 102 })
	soon, later := timestamppb.New(fakeNow.Time()), timestamppb.New(fakeNow.Add(time.Hour).Time())
	muchLater, days := timestamppb.New(fakeNow.Add(1000*time.Hour).Time()), timestamppb.New(fakeNow.Add(100*time.Hour).Time())
	for name, test := range map[string]struct {
		secret string
		r      *perceptorv1.ListTasksRequest
		hint   string
	}{
		"a tag among 103":                 {"acme-secret", &perceptorv1.ListTasksRequest{Tags: []string{"a"}}, "add due_from and due_until"},
		"a kind among 103":                {"acme-secret", &perceptorv1.ListTasksRequest{Kind: "k"}, "all 103 unfinished tasks"},
		"a tag among 103 with half a due": {"acme-secret", &perceptorv1.ListTasksRequest{Tags: []string{"a"}, DueFrom: soon}, "add due_from and due_until"},
		"a tag among those due":           {"acme-secret", &perceptorv1.ListTasksRequest{Tags: []string{"a"}, DueFrom: soon, DueUntil: later}, ""},
		"a tag among very many due":       {"acme-secret", &perceptorv1.ListTasksRequest{Tags: []string{"a"}, DueUntil: muchLater}, "choose a shorter range"},
		"a tag among many due":            {"acme-secret", &perceptorv1.ListTasksRequest{Tags: []string{"a"}, DueFrom: soon, DueUntil: days}, ""},
		"all of very many due":            {"acme-secret", &perceptorv1.ListTasksRequest{DueUntil: muchLater}, ""},
		"what is RUNNING among 103":       {"acme-secret", &perceptorv1.ListTasksRequest{State: 2}, "RUNNING"},
		"what is RUNNING and due":         {"acme-secret", &perceptorv1.ListTasksRequest{State: 2, DueFrom: soon, DueUntil: later}, ""},
		"everything":                      {"acme-secret", &perceptorv1.ListTasksRequest{}, ""},
		"a tag among the finished":        {"acme-secret", &perceptorv1.ListTasksRequest{Tags: []string{"a"}, State: 3}, ""},
	} {
		a := b.overGRPC(test.secret, listTasks, test.r, &perceptorv1.ListTasksResponse{})
		want := codes.OK
		if test.hint != "" {
			want = codes.FailedPrecondition
		}
		if a.code != want || !strings.Contains(a.message, test.hint) {
			t.Errorf("%s: %s %s", name, a.code, a.message)
		}
	}
}

func TestADueRangeOfFinishedTasksIsRefused(t *testing.T) {
	b := setup(t)
	now := timestamppb.New(fakeNow.Time())
	for field, r := range map[string]*perceptorv1.ListTasksRequest{
		"due_from":  {State: perceptorv1.Task_FAILED, DueFrom: now},
		"due_until": {DueFrom: now, DueUntil: now},
		"tags[1]":   {Tags: []string{"a", "b\n"}},
	} {
		expectFaults(t, b.overGRPC("acme-secret", listTasks, r, &perceptorv1.ListTasksResponse{}), "", []string{field}, "")
	}
}

func TestAddsAndRefusalsAreCounted(t *testing.T) {
	counts := map[string]int{}
	var mu sync.Mutex
	b := setup(t, func(c *Config) {
		c.Events = Events{
			Added: func(tenant *Tenant, ty task.Type, n int) {
				mu.Lock()
				counts[tenant.Name+" "+ty.String()] += n
				mu.Unlock()
			},
			Refused: func(tenant string, n int) { mu.Lock(); counts[tenant+" refused"] += n; mu.Unlock() },
			Called: func(method string, code codes.Code, _ time.Duration) {
				mu.Lock()
				counts[method+" "+code.String()]++
				mu.Unlock()
			},
		}
	})
	ended := recurring()
	ended.EndTime = after(-time.Hour)
	request := &perceptorv1.AddTasksRequest{RequestId: "r", Tasks: []*perceptorv1.Task{full(), {}, recurring(), ended, recurring()}}
	b.overGRPC("acme-secret", addTasks, request, &perceptorv1.AddTasksResponse{})
	b.overGRPC("acme-secret", addTasks, request, &perceptorv1.AddTasksResponse{})
	b.overGRPC("acme-secret", addTask, &perceptorv1.AddTaskRequest{Task: ended}, &perceptorv1.AddTaskResponse{})
	b.overHTTP("", addTask, &perceptorv1.AddTaskRequest{}, nil)
	mu.Lock()
	defer mu.Unlock()
	want := map[string]int{
		"acme BLOCKING": 1, "acme NON_BLOCKING": 2, "acme refused": 5,
		"perceptor.v1.TaskService/AddTasks OK": 2, "perceptor.v1.TaskService/AddTask InvalidArgument": 1, "HTTP Unauthenticated": 1,
	}
	if diff := cmp.Diff(want, counts); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestAStoreThatAnswersTooFewTasksIsInternal(t *testing.T) {
	b := setup(t)
	b.tasks.replies, b.tasks.requests = map[string]task.AddResult{}, map[string]task.AddRequest{}
	s := &taskService{limits: task.DefaultLimits(), events: &Events{}}
	hash := must(s.read(t.Context(), &acme, []*perceptorv1.Task{recurring()}, false))(t).hash
	b.tasks.requests["1r"] = task.AddRequest{Hash: hash}
	a := b.overGRPC("acme-secret", addTask, &perceptorv1.AddTaskRequest{Task: recurring(), RequestId: "r"}, &perceptorv1.AddTaskResponse{})
	if a.code != codes.Internal {
		t.Errorf("%s %s", a.code, a.message)
	}
}
