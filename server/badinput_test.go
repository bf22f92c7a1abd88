package server

import (
	"fmt"
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// badTask is a task with faults in the listed fields only.
type badTask struct {
	name   string
	change func(*perceptorv1.Task)
	fields []string
	// says is part of the description of the first field.
	says string
	// json is the same task in JSON, where the protobuf library cannot write
	// it.
	json string
}

func secs(s int64) *timestamppb.Timestamp { return &timestamppb.Timestamp{Seconds: s} }

func after(d time.Duration) *timestamppb.Timestamp {
	return timestamppb.New(fakeNow.Add(d).Time())
}

func every(d time.Duration) *perceptorv1.Task_Interval {
	return &perceptorv1.Task_Interval{Interval: durationpb.New(d)}
}

// recurring returns a valid recurring task.
func recurring() *perceptorv1.Task {
	return &perceptorv1.Task{
		Kind: "check", Type: perceptorv1.Task_NON_BLOCKING, Schedule: every(time.Hour),
		Params: map[string]string{"order": "42"},
	}
}

const (
	year0    = -62167219200
	year9999 = 253402300799
)

var badTasks = []badTask{
	{"an empty task", func(t *perceptorv1.Task) { proto.Reset(t) }, []string{"kind", "type"}, "is missing", ""},
	{"begin after end", func(t *perceptorv1.Task) { t.BeginTime, t.EndTime = after(2*time.Hour), after(time.Hour) },
		[]string{"end_time"}, "2026-11-21T11:00:00.000Z is not after begin_time 2026-11-21T12:00:00.000Z", ""},
	{"begin at end", func(t *perceptorv1.Task) { t.BeginTime, t.EndTime = after(time.Hour), after(time.Hour) },
		[]string{"end_time"}, "is not after begin_time", ""},
	{"end already past by the database's clock", func(t *perceptorv1.Task) { t.EndTime = after(-time.Second) },
		[]string{"end_time"}, "has passed", ""},
	{"a missing interval", func(t *perceptorv1.Task) { t.Schedule = nil }, []string{"interval"}, "is missing", ""},
	{"a zero interval", func(t *perceptorv1.Task) { t.Schedule = every(0) }, []string{"interval"}, "0s is not between 1s and", ""},
	{"a negative interval", func(t *perceptorv1.Task) { t.Schedule = every(-time.Hour) }, []string{"interval"}, "-1h0m0s is not between", ""},
	{"an interval below the minimum", func(t *perceptorv1.Task) { t.Schedule = every(999 * time.Millisecond) }, []string{"interval"}, "999ms is not between 1s", ""},
	{"an interval over ten years", func(t *perceptorv1.Task) { t.Schedule = every(task.MaxInterval + time.Second) }, []string{"interval"}, "is not between", ""},
	{"an interval over 292 years", func(t *perceptorv1.Task) {
		t.Schedule = &perceptorv1.Task_Interval{Interval: &durationpb.Duration{Seconds: 99999999999}}
	}, []string{"interval"}, "99999999999 s is more than 292 years", ""},
	{"an interval of half milliseconds", func(t *perceptorv1.Task) { t.Schedule = every(time.Second + 500*time.Microsecond) }, []string{"interval"}, "whole number of milliseconds", ""},
	{"an interval that is no duration", func(t *perceptorv1.Task) {
		t.Schedule = &perceptorv1.Task_Interval{Interval: &durationpb.Duration{Seconds: 1, Nanos: -1}}
	}, []string{"interval"}, "is not a duration", `{"kind":"check","type":"NON_BLOCKING","interval":"soon"}`},
	{"an interval on a ONE_SHOT", func(t *perceptorv1.Task) { t.Type = perceptorv1.Task_ONE_SHOT }, []string{"interval"}, "a ONE_SHOT task has no interval", ""},
	{"a zero interval on a ONE_SHOT", func(t *perceptorv1.Task) { t.Type, t.Schedule = perceptorv1.Task_ONE_SHOT, every(0) }, []string{"interval"}, "a ONE_SHOT task has no interval", ""},
	{"two runs of a ONE_SHOT", func(t *perceptorv1.Task) {
		t.Type, t.Schedule, t.MaxCount = perceptorv1.Task_ONE_SHOT, nil, 2
	}, []string{"max_count"}, "2", ""},
	{"a negative max_count", func(t *perceptorv1.Task) { t.MaxCount = -1 }, []string{"max_count"}, "-1 is not between 0 and", ""},
	{"too large a max_count", func(t *perceptorv1.Task) { t.MaxCount = 1e12 + 1 }, []string{"max_count"}, "is not between", ""},
	{"params over the tenant's limit", func(t *perceptorv1.Task) { t.Params = map[string]string{"k": strings.Repeat("x", 1000)} },
		[]string{"params"}, "1001 bytes; the tenant's limit is 1000", ""},
	{"too many params", func(t *perceptorv1.Task) {
		t.Params = map[string]string{}
		for i := range 65 {
			t.Params[fmt.Sprint(i)] = ""
		}
	}, []string{"params"}, "has 65 entries; at most 64", ""},
	{"a param without key", func(t *perceptorv1.Task) { t.Params = map[string]string{"": "x"} }, []string{"params"}, "has 0 bytes", ""},
	{"too long a param key", func(t *perceptorv1.Task) { t.Params = map[string]string{strings.Repeat("k", 101): ""} }, []string{"params"}, "has 101 bytes", ""},
	{"a NUL byte in a param", func(t *perceptorv1.Task) { t.Params = map[string]string{"k": "a\x00"} }, []string{`params["k"]`}, "NUL byte at position 1", ""},
	{"a NUL byte in a param key", func(t *perceptorv1.Task) { t.Params = map[string]string{"k\x00": "a"} }, []string{"params"}, "NUL byte", ""},
	{"a NUL byte in the kind", func(t *perceptorv1.Task) { t.Kind = "a\x00b" }, []string{"kind"}, "control character U+0000", ""},
	{"a line break in the kind", func(t *perceptorv1.Task) { t.Kind = "a\nb" }, []string{"kind"}, "control character U+000A", ""},
	{"no kind", func(t *perceptorv1.Task) { t.Kind = "" }, []string{"kind"}, "is missing", ""},
	{"too long a kind", func(t *perceptorv1.Task) { t.Kind = strings.Repeat("k", 101) }, []string{"kind"}, "has 101 bytes; at most 100", ""},
	{"a begin in the year 0", func(t *perceptorv1.Task) { t.BeginTime = secs(year0) }, []string{"begin_time"}, "is not an instant of the years 1 to 9999",
		`{"kind":"check","type":"NON_BLOCKING","interval":"3600s","beginTime":"0000-01-01T00:00:00Z"}`},
	{"a begin in the year 9999", func(t *perceptorv1.Task) { t.BeginTime = secs(year9999) }, []string{"begin_time"}, "9999-12-31T23:59:59.000Z is not between", ""},
	{"an end in the year 9999", func(t *perceptorv1.Task) { t.EndTime = secs(year9999) }, []string{"end_time"}, "is not between", ""},
	{"a begin before the epoch", func(t *perceptorv1.Task) { t.BeginTime = secs(-1) }, []string{"begin_time"}, "1969-12-31T23:59:59.000Z is not between", ""},
	{"an end before the epoch", func(t *perceptorv1.Task) { t.EndTime = secs(-1) }, []string{"end_time"}, "is not between", ""},
	{"nanoseconds that are none", func(t *perceptorv1.Task) { t.BeginTime = &timestamppb.Timestamp{Nanos: -1} }, []string{"begin_time"}, "-1 ns",
		`{"kind":"check","type":"NON_BLOCKING","interval":"3600s","beginTime":"yesterday"}`},
	{"an unknown type", func(t *perceptorv1.Task) { t.Type = 77 }, []string{"type"}, "77 is not one of", ""},
	{"no type", func(t *perceptorv1.Task) { t.Type = 0 }, []string{"type"}, "is missing: one of ONE_SHOT", ""},
	{"an unknown misfire policy", func(t *perceptorv1.Task) { t.MisfirePolicy = 9 }, []string{"misfire_policy"}, "9 is not one of FIRE_ONCE, FIRE_ALL, SKIP", ""},
	{"an expression with a fault", cronOf("61 * * * *", "", 0), []string{"cron.expression"}, "61", ""},
	{"an expression that never matches", cronOf("0 0 31 2 *", "", 0), []string{"cron.expression"}, "never fires", ""},
	{"a recurrence rule without a start", cronOf("RRULE:FREQ=DAILY", "", 0), []string{"cron.expression"}, "has no start", ""},
	{"a recurrence rule that never matches", cronOf("DTSTART:20260101T090000 FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30", "", perceptorv1.Cron_RRULE), []string{"cron.expression"}, "never fires", ""},
	{"a Quartz expression that never matches", cronOf("0 0 0 31 4 ? 2030", "", perceptorv1.Cron_QUARTZ), []string{"cron.expression"}, "never fires", ""},
	{"no expression", cronOf("", "", 0), []string{"cron.expression"}, "has 0 fields", ""},
	{"an unknown time zone", cronOf("0 0 * * *", "Europe/Atlantis", 0), []string{"cron.time_zone"}, "is not the name of a time zone", ""},
	{"an unknown dialect", cronOf("0 0 * * *", "", 9), []string{"cron.dialect"}, "is unknown", ""},
	{"@every with a fault", cronOf("@every soon", "", 0), []string{"cron.expression"}, "is not a duration", ""},
	{"@every below the minimum", cronOf("@every 10ms", "", 0), []string{"interval"}, "10ms is not between 1s", ""},
	{"a grace without SKIP", func(t *perceptorv1.Task) { t.MisfireGrace = durationpb.New(time.Second) }, []string{"misfire_grace"}, "only SKIP has a grace", ""},
	{"too long a grace", func(t *perceptorv1.Task) {
		t.MisfirePolicy, t.MisfireGrace = perceptorv1.Task_SKIP, durationpb.New(31*24*time.Hour)
	}, []string{"misfire_grace"}, "is not between 0s and 720h0m0s", ""},
	{"a limit without FIRE_ALL", func(t *perceptorv1.Task) { t.MisfireLimit = 5 }, []string{"misfire_limit"}, "only FIRE_ALL has a limit", ""},
	{"too high a limit", func(t *perceptorv1.Task) {
		t.MisfirePolicy, t.MisfireLimit = perceptorv1.Task_FIRE_ALL, 100_001
	}, []string{"misfire_limit"}, "is not between 1 and 100000", ""},
	{"a spread of the interval", func(t *perceptorv1.Task) {
		t.Schedule, t.Spread = every(time.Hour), durationpb.New(time.Hour)
	}, []string{"spread"}, "1h0m0s is not less than the interval 1h0m0s", ""},
	{"too wide a spread", func(t *perceptorv1.Task) { t.Spread = durationpb.New(25 * time.Hour) }, []string{"spread"}, "is not between 0s and 24h0m0s", ""},
	{"a zero ack_timeout", func(t *perceptorv1.Task) { t.AckTimeout = durationpb.New(0) }, []string{"ack_timeout"}, "0s is not between 1s and 24h0m0s", ""},
	{"too long an ack_timeout", func(t *perceptorv1.Task) {
		t.AckTimeout, t.GiveUpAfter = durationpb.New(25*time.Hour), durationpb.New(48*time.Hour)
	}, []string{"ack_timeout"}, "25h0m0s is not between", ""},
	{"giving up before the ack_timeout", func(t *perceptorv1.Task) {
		t.AckTimeout, t.GiveUpAfter = durationpb.New(time.Minute), durationpb.New(59*time.Second)
	}, []string{"give_up_after"}, "59s is not between 1m0s", ""},
	{"giving up after more than 30 days", func(t *perceptorv1.Task) { t.GiveUpAfter = durationpb.New(31 * 24 * time.Hour) }, []string{"give_up_after"}, "is not between", ""},
	{"a negative retention", func(t *perceptorv1.Task) { t.Retention = durationpb.New(-time.Second) }, []string{"retention"}, "-1s is not between", ""},
	{"too long a retention", func(t *perceptorv1.Task) { t.Retention = durationpb.New(91 * 24 * time.Hour) }, []string{"retention"}, "is not between", ""},
	{"negative max_attempts", retry(&perceptorv1.RetryPolicy{MaxAttempts: -1}), []string{"retry_policy.max_attempts"}, "-1 is not between 1 and 1000", ""},
	{"too many max_attempts", retry(&perceptorv1.RetryPolicy{MaxAttempts: 1001}), []string{"retry_policy.max_attempts"}, "1001 is not", ""},
	{"a multiplier below 1", retry(&perceptorv1.RetryPolicy{Multiplier: 0.5}), []string{"retry_policy.multiplier"}, "0.5 is not between 1 and 10", ""},
	{"a multiplier that is no number", retry(&perceptorv1.RetryPolicy{Multiplier: math.NaN()}), []string{"retry_policy.multiplier"}, "NaN is not between", ""},
	{"a multiplier with three decimals", retry(&perceptorv1.RetryPolicy{Multiplier: 1.125}), []string{"retry_policy.multiplier"}, "more than two decimals", ""},
	{"a negative jitter", retry(&perceptorv1.RetryPolicy{Jitter: proto.Float64(-1)}), []string{"retry_policy.jitter"}, "-1 is not between 0 and 1", ""},
	{"an endless jitter", retry(&perceptorv1.RetryPolicy{Jitter: proto.Float64(math.Inf(1))}), []string{"retry_policy.jitter"}, "+Inf is not between 0 and 1", ""},
	{"a negative backoff", retry(&perceptorv1.RetryPolicy{InitialBackoff: durationpb.New(-time.Second)}), []string{"retry_policy.initial_backoff"}, "-1s is not between", ""},
	{"a longest backoff below the first", retry(&perceptorv1.RetryPolicy{InitialBackoff: durationpb.New(time.Minute), MaxBackoff: durationpb.New(time.Second)}),
		[]string{"retry_policy.max_backoff"}, "1s is not between 1m0s", ""},
	{"a payload without data", payloadOf(&perceptorv1.Payload{ContentType: "text/plain"}), []string{"payload.data"}, "is empty", ""},
	{"a content type that is none", payloadOf(&perceptorv1.Payload{Data: []byte("x"), ContentType: "text"}), []string{"payload.content_type"}, "is not a media type", ""},
	{"too long a content type", payloadOf(&perceptorv1.Payload{Data: []byte("x"), ContentType: "text/" + strings.Repeat("x", 251)}), []string{"payload.content_type"}, "has 256 bytes; at most 255", ""},
	{"a line break in a content type", payloadOf(&perceptorv1.Payload{Data: []byte("x"), ContentType: "text/plain\nx: y"}), []string{"payload.content_type"}, "printable ASCII", ""},
	{"a payload that is not JSON", payloadOf(&perceptorv1.Payload{Data: []byte(`{"a": nil}`), ContentType: "application/json"}), []string{"payload.data"}, "line 1, column 7: nil is not a value", ""},
	{"a payload over the tenant's limit", payloadOf(&perceptorv1.Payload{Data: make([]byte, 1000-len("order42")+1)}),
		[]string{"payload"}, "together have 1001 bytes; the tenant's limit is 1000", ""},
	{"JSON that is not its data", payloadOf(&perceptorv1.Payload{Data: []byte(`{"a":1}`), Json: structpb.NewNumberValue(2)}), []string{"payload.json"}, "set only one", ""},
	{"JSON of another content type", payloadOf(&perceptorv1.Payload{ContentType: "text/plain", Json: structpb.NewNumberValue(2)}), []string{"payload.content_type"}, "is not that of JSON", ""},
	{"JSON with a number that is not exact", payloadOf(&perceptorv1.Payload{Json: structpb.NewNumberValue(1 << 53)}), []string{"payload.json"}, "the number 9007199254740992 is beyond", ""},
	{"several faults at once", func(t *perceptorv1.Task) {
		t.Kind, t.MaxCount, t.AckTimeout, t.Schedule = "", -5, durationpb.New(time.Millisecond), nil
	}, []string{"ack_timeout", "interval", "kind", "max_count"}, "1ms is not between", ""},
}

func cronOf(expression, zone string, d perceptorv1.Cron_Dialect) func(*perceptorv1.Task) {
	return func(t *perceptorv1.Task) {
		t.Schedule = &perceptorv1.Task_Cron{Cron: &perceptorv1.Cron{Expression: expression, TimeZone: zone, Dialect: d}}
	}
}

func payloadOf(p *perceptorv1.Payload) func(*perceptorv1.Task) {
	return func(t *perceptorv1.Task) { t.Payload = p }
}

func retry(p *perceptorv1.RetryPolicy) func(*perceptorv1.Task) {
	return func(t *perceptorv1.Task) { t.RetryPolicy = p }
}

func TestABadTaskIsRefusedWithAllItsFieldsOverBothSides(t *testing.T) {
	b := setup(t)
	for _, c := range badTasks {
		t.Run(c.name, func(t *testing.T) {
			bad := recurring()
			c.change(bad)
			request := &perceptorv1.AddTaskRequest{Task: bad}
			a := b.overGRPC("acme-secret", addTask, request, &perceptorv1.AddTaskResponse{})
			expectFaults(t, a, "task.", c.fields, c.says)
			if c.json != "" {
				a = b.fetch("acme-secret", http.MethodPost, "/v1/tasks", c.json, nil)
				if a.http != http.StatusBadRequest || a.reason != "MALFORMED_REQUEST" || len(a.faults) != 1 {
					t.Errorf("HTTP: %+v", a)
				}
				return
			}
			a = b.overHTTP("acme-secret", addTask, request, nil)
			if a.http != http.StatusBadRequest {
				t.Errorf("HTTP status %d, want 400", a.http)
			}
			expectFaults(t, a, "task.", c.fields, c.says)
		})
	}
	if len(b.tasks.tasks) != 0 {
		t.Errorf("%d bad tasks were stored", len(b.tasks.tasks))
	}
}

func expectFaults(t *testing.T, a answer, prefix string, fields []string, says string) {
	t.Helper()
	if a.code != codes.InvalidArgument || a.reason != "INVALID_FIELD" {
		t.Errorf("code %s, reason %s: %s", a.code, a.reason, a.message)
	}
	got := slices.Sorted(maps.Keys(a.faults))
	want := make([]string, len(fields))
	for i, f := range fields {
		want[i] = prefix + f
	}
	if !slices.Equal(got, want) {
		t.Errorf("faults in %q, want %q: %s", got, want, a.message)
	}
	if text := a.faults[prefix+fields[0]]; !strings.Contains(text, says) {
		t.Errorf("%s: %q does not say %q", fields[0], text, says)
	}
}

func TestABadTaskInABatchFailsNoOther(t *testing.T) {
	b := setup(t)
	request := &perceptorv1.AddTasksRequest{Tasks: []*perceptorv1.Task{recurring()}}
	for _, c := range badTasks {
		bad := recurring()
		c.change(bad)
		request.Tasks = append(request.Tasks, bad, recurring())
	}
	var reply perceptorv1.AddTasksResponse
	if a := b.overGRPC("acme-secret", addTasks, request, &reply); a.code != codes.OK {
		t.Fatal(a.message)
	}
	if len(reply.Results) != len(request.Tasks) {
		t.Fatalf("%d results for %d tasks", len(reply.Results), len(request.Tasks))
	}
	for i, r := range reply.Results {
		if i%2 == 0 {
			if r.GetId() <= 0 {
				t.Errorf("the good task %d was refused: %v", i, r.GetError())
			}
			continue
		}
		c := badTasks[i/2]
		expectFaults(t, fromProto(r.GetError()), fmt.Sprintf("tasks[%d].", i), c.fields, c.says)
	}
}

// badCalls are requests that are refused completely.
var badCalls = []struct {
	name    string
	secret  string
	method  string
	request proto.Message
	fields  []string
}{
	{"an add without task", "acme-secret", addTask, &perceptorv1.AddTaskRequest{}, []string{"task"}},
	{"too long a request_id", "acme-secret", addTask, &perceptorv1.AddTaskRequest{Task: recurring(), RequestId: strings.Repeat("r", 65)}, []string{"request_id"}},
	{"a control character in a request_id", "acme-secret", addTask, &perceptorv1.AddTaskRequest{Task: recurring(), RequestId: "a\nb"}, []string{"request_id"}},
	{"a request_id that is not ASCII", "acme-secret", addTasks, &perceptorv1.AddTasksRequest{Tasks: []*perceptorv1.Task{recurring()}, RequestId: "é"}, []string{"request_id"}},
	{"an empty batch", "acme-secret", addTasks, &perceptorv1.AddTasksRequest{}, []string{"tasks"}},
	{"too large a batch", "acme-secret", addTasks, &perceptorv1.AddTasksRequest{Tasks: make1001()}, []string{"tasks"}},
	{"a batch of too many bytes", "acme-secret", addTasks, &perceptorv1.AddTasksRequest{Tasks: []*perceptorv1.Task{{Kind: strings.Repeat("k", 4<<20)}}}, []string{"tasks"}},
	{"the id 0", "acme-secret", getTask, &perceptorv1.GetTaskRequest{}, []string{"id"}},
	{"a negative id", "acme-secret", getTask, &perceptorv1.GetTaskRequest{Id: -5}, []string{"id"}},
	{"a negative id to cancel", "acme-secret", cancelTask, &perceptorv1.CancelTaskRequest{Id: -5}, []string{"id"}},
	{"the id 0 to pause", "acme-secret", pauseTask, &perceptorv1.PauseTaskRequest{}, []string{"id"}},
	{"the id 0 to resume", "acme-secret", resumeTask, &perceptorv1.ResumeTaskRequest{}, []string{"id"}},
	{"a negative page size", "acme-secret", listTasks, &perceptorv1.ListTasksRequest{PageSize: -1}, []string{"page_size"}},
	{"too large a page", "acme-secret", listTasks, &perceptorv1.ListTasksRequest{PageSize: 1001}, []string{"page_size"}},
	{"a garbage page token", "acme-secret", listTasks, &perceptorv1.ListTasksRequest{PageToken: "!?"}, []string{"page_token"}},
	{"a short page token", "acme-secret", listTasks, &perceptorv1.ListTasksRequest{PageToken: "AQ"}, []string{"page_token"}},
	{"an endless page token", "acme-secret", listTasks, &perceptorv1.ListTasksRequest{PageToken: strings.Repeat("A", 300)}, []string{"page_token"}},
	{"everything wrong with a list", "acme-secret", listTasks, &perceptorv1.ListTasksRequest{PageSize: -1, PageToken: "x", Kind: "a\nb"},
		[]string{"kind", "page_size", "page_token"}},
	{"a start by nobody", "acme-secret", startRuns, &perceptorv1.StartRunsRequest{Attempts: []*perceptorv1.Attempt{{TaskId: 1000, Seq: 1, Attempt: 1}}}, []string{"holder"}},
	{"a start of nothing by nobody", "acme-secret", startRuns, &perceptorv1.StartRunsRequest{}, []string{"attempts", "holder"}},
	{"too many heartbeats", "acme-secret", heartbeat, &perceptorv1.HeartbeatRunsRequest{Holder: 1, Attempts: make([]*perceptorv1.Attempt, 5001)}, []string{"attempts"}},
	{"an empty hand-back", "acme-secret", handBack, &perceptorv1.HandBackRunsRequest{Holder: 1}, []string{"attempts"}},
	{"a report of an odd idle time", "acme-secret", report, &perceptorv1.ReportResultsRequest{Holder: 1, Results: []*perceptorv1.RunResult{{}}, IdlePercent: 101}, []string{"idle_percent"}},
	{"a report of a negative idle time", "acme-secret", report, &perceptorv1.ReportResultsRequest{Holder: 1, Results: []*perceptorv1.RunResult{{}}, IdlePercent: -1}, []string{"idle_percent"}},
	{"an empty report by nobody", "acme-secret", report, &perceptorv1.ReportResultsRequest{}, []string{"holder", "results"}},
	{"no tenant", "admin-secret", createTenant, &perceptorv1.CreateTenantRequest{}, []string{"tenant"}},
	{"an empty tenant", "admin-secret", createTenant, &perceptorv1.CreateTenantRequest{Tenant: &perceptorv1.Tenant{}}, []string{"tenant.name"}},
	{"a bad tenant", "admin-secret", createTenant, &perceptorv1.CreateTenantRequest{Tenant: &perceptorv1.Tenant{
		Name: "Acme", MaxParamsBytes: 300_000, DefaultRetention: durationpb.New(-1)}}, []string{"tenant.default_retention", "tenant.max_params_bytes", "tenant.name"}},
	{"a hyphen at the end", "admin-secret", createTenant, &perceptorv1.CreateTenantRequest{Tenant: &perceptorv1.Tenant{Name: "acme-"}}, []string{"tenant.name"}},
	{"a hyphen at the start", "admin-secret", getTenant, &perceptorv1.GetTenantRequest{Name: "-acme"}, []string{"name"}},
	{"too long a tenant's name", "admin-secret", getTenant, &perceptorv1.GetTenantRequest{Name: strings.Repeat("a", 64)}, []string{"name"}},
	{"bad paging of tenants", "admin-secret", listTenants, &perceptorv1.ListTenantsRequest{PageSize: -1, PageToken: "x"}, []string{"page_size", "page_token"}},
	{"no token", "admin-secret", createToken, &perceptorv1.CreateTokenRequest{}, []string{"token"}},
	{"a token without scope", "admin-secret", createToken, &perceptorv1.CreateTokenRequest{Token: &perceptorv1.Token{}}, []string{"token.scope"}},
	{"a token of an unknown scope", "admin-secret", createToken, &perceptorv1.CreateTokenRequest{Token: &perceptorv1.Token{Scope: 70}}, []string{"token.scope"}},
	{"a tenant's token without tenant", "admin-secret", createToken, &perceptorv1.CreateTokenRequest{Token: &perceptorv1.Token{Scope: perceptorv1.Token_TENANT}}, []string{"token.tenant"}},
	{"an admin's token with tenant", "admin-secret", createToken, &perceptorv1.CreateTokenRequest{Token: &perceptorv1.Token{Scope: perceptorv1.Token_ADMIN, Tenant: "acme"}}, []string{"token.tenant"}},
	{"a token with bad words and time", "admin-secret", createToken, &perceptorv1.CreateTokenRequest{Token: &perceptorv1.Token{
		Scope: perceptorv1.Token_ADMIN, Description: strings.Repeat("d", 201), ExpireTime: secs(year9999)}}, []string{"token.description", "token.expire_time"}},
	{"a token that has expired already", "admin-secret", createToken, &perceptorv1.CreateTokenRequest{Token: &perceptorv1.Token{
		Scope: perceptorv1.Token_ADMIN, ExpireTime: after(-time.Second)}}, []string{"token.expire_time"}},
	{"bad paging of tokens", "admin-secret", listTokens, &perceptorv1.ListTokensRequest{Tenant: "A", PageSize: 1001, PageToken: "x"}, []string{"page_size", "page_token", "tenant"}},
	{"a rotation for a name that no tenant can have", "admin-secret", perceptorv1.AdminService_RotateTenantKey_FullMethodName, &perceptorv1.RotateTenantKeyRequest{Name: "A"}, []string{"name"}},
	{"too long an overlap of keys", "admin-secret", perceptorv1.AdminService_RotateTenantKey_FullMethodName,
		&perceptorv1.RotateTenantKeyRequest{Name: "acme", Overlap: durationpb.New(31 * 24 * time.Hour)}, []string{"overlap"}},
	{"a token id with control characters", "admin-secret", revokeToken, &perceptorv1.RevokeTokenRequest{Id: "a\nb"}, []string{"id"}},
	{"too long a token id", "admin-secret", revokeToken, &perceptorv1.RevokeTokenRequest{Id: strings.Repeat("i", 65)}, []string{"id"}},
}

func make1001() []*perceptorv1.Task {
	tasks := make([]*perceptorv1.Task, 1001)
	for i := range tasks {
		tasks[i] = recurring()
	}
	return tasks
}

func TestABadCallIsRefusedWithItsFieldsOverBothSides(t *testing.T) {
	b := setup(t)
	for _, c := range badCalls {
		t.Run(c.name, func(t *testing.T) {
			fields := slices.Clone(c.fields)
			expectFaults(t, b.overGRPC(c.secret, c.method, c.request, replyFor(t, c.method)), "", fields, "")
			a := b.overHTTP(c.secret, c.method, withoutNil(c.request), nil)
			if a.http != http.StatusBadRequest {
				t.Errorf("HTTP status %d, want 400: %s", a.http, a.message)
			}
			expectFaults(t, a, "", fields, "")
		})
	}
	if len(b.tasks.adds)+len(b.tasks.lists)+len(b.runs.attempts)+len(b.runs.results)+len(b.admin.tenants)+len(b.admin.tokens) != 0 {
		t.Error("a bad call reached a store")
	}
}

// withoutNil replaces nil messages in lists, which have no JSON form.
func withoutNil(m proto.Message) proto.Message {
	if r, ok := m.(*perceptorv1.HeartbeatRunsRequest); ok {
		for i := range r.Attempts {
			if r.Attempts[i] == nil {
				r.Attempts[i] = &perceptorv1.Attempt{}
			}
		}
	}
	return m
}

func TestJSONThatIsNotTheContractIsRefusedWithItsPlace(t *testing.T) {
	b := setup(t)
	cases := []struct{ name, path, body, field, says string }{
		{"an unknown field", "/v1/tasks", `{"kind":"k","priority":1}`, "task.priority", "unknown field"},
		{"a misspelt field far inside", "/v1/tasks:batchAdd", "{\"tasks\":[{\"kind\":\"k\"},\n {\"retryPolicy\":{\"maxAtempts\":1}}]}",
			"tasks[1].retry_policy.maxAtempts", "unknown field; did you mean max_attempts?"},
		{"an unknown enum name", "/v1/tasks", `{"type":"SOMETIMES"}`, "task.type", `"SOMETIMES" is not one of ONE_SHOT, NON_BLOCKING, BLOCKING`},
		{"a field given twice", "/v1/tasks", `{"kind":"a","kind":"b"}`, "task.kind", "is given twice"},
		{"a wrong kind of value", "/v1/tasks", `{"maxCount":{}}`, "task.max_count", "{} is not a whole number"},
		{"a number that is no integer", "/v1/tasks", `{"maxCount":1.5}`, "task.max_count", "1.5 is not a whole number"},
		{"an integer too large", "/v1/tasks", `{"maxCount":"9223372036854775808"}`, "task.max_count", `"9223372036854775808" is not between`},
		{"no duration", "/v1/tasks", `{"interval":"soon"}`, "task.interval", `"soon" is not a duration; write seconds with an s, such as "3600s"`},
		{"no instant", "/v1/tasks", `{"beginTime":"yesterday"}`, "task.begin_time", `"yesterday" is not an instant; write RFC 3339, such as "2026-11-25T10:00:00Z"`},
		{"a list for an object", "/v1/tasks", `[]`, "task", "[] is not an object"},
		{"a list for a request", "/v1/tasks:batchAdd", `[]`, "body", "[] is not an object"},
		{"invalid UTF-8", "/v1/tasks", "{\"kind\":\"a\xffb\"}", "task.kind", "UTF-8"},
		{"invalid UTF-8 in a param", "/v1/tasks", "{\"params\":{\"a\":\"\xc3(\"}}", `task.params["a"]`, "UTF-8"},
		{"half of a pair of escapes", "/v1/tasks", `{"params":{"a":"\ud800"}}`, `task.params["a"]`, "half of a pair"},
		{"a payload that is no base64", "/v1/tasks", `{"payload":{"data":"!"}}`, "task.payload.data", `"!" is not bytes in base64`},
		{"a tenant", "/v1/admin/tenants", `{"maxParamsBytes":"x"}`, "tenant.max_params_bytes", `"x" is not a whole number`},
		{"half a text", "/v1/tasks", `{"kind":"a"`, "", "line 1, column 12: the text ends before the object of line 1 is closed with }"},
		{"two texts", "/v1/tasks", `{"kind":"a"} {}`, "", "line 1, column 14: '{' follows"},
		{"no JSON at all", "/v1/tasks", `kind=a`, "", "line 1, column 1: kind is not a value"},
		{"a holder that is no number", "/v1/runs:report", `{"holder":"me"}`, "holder", `"me" is not a whole number`},
		{"an id that is no number", "/v1/tasks/abc:cancel", `{}`, "id", `"abc" is not a whole number`},
		{"an id too large", "/v1/tasks/9223372036854775808:pause", `{}`, "id", `"9223372036854775808" is not between`},
		{"a query parameter that is none", "/v1/tasks?requestid=a", `{"kind":"a"}`, "requestid", "unknown query parameter; did you mean request_id?"},
		{"a query parameter that belongs into the body", "/v1/tasks?task.kind=b", `{"kind":"a"}`, "task.kind", "belongs in the body or the path, not in the query"},
		{"a query where there is none", "/v1/tasks:batchAdd?request_id=a", `{"tasks":[{}]}`, "request_id", "this call takes no query parameters; its fields belong in the body"},
		{"a query parameter given twice", "/v1/tasks?request_id=a&request_id=b", `{"kind":"a"}`, "request_id", "is given 2 times"},
		{"a query parameter in two spellings", "/v1/tasks?request_id=a&requestId=b", `{"kind":"a"}`, "request_id", "is given 2 times"},
		{"a query parameter that is not true or false", "/v1/tasks?upsert=perhaps", `{"kind":"a"}`, "upsert", `"perhaps" is not true or false`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			secret := "acme-secret"
			if strings.HasPrefix(c.path, "/v1/admin/") {
				secret = "admin-secret"
			}
			a := b.fetch(secret, http.MethodPost, c.path, c.body, nil)
			if a.http != http.StatusBadRequest || a.code != codes.InvalidArgument || a.reason != "MALFORMED_REQUEST" {
				t.Errorf("%d %s %s", a.http, a.code, a.reason)
			}
			if !strings.Contains(a.message, c.says) {
				t.Errorf("%q does not say %q", a.message, c.says)
			}
			if _, ok := a.faults[c.field]; ok != (c.field != "") {
				t.Errorf("faults in %v, want %q", a.faults, c.field)
			}
		})
	}
	for query, want := range map[string]map[string]string{
		"kinds=a":                {"kinds": "unknown query parameter; did you mean kind?"},
		"kind=%ff":               {"kind": "contains invalid UTF-8"},
		"tags=a&tags=%ff":        {"tags[1]": "contains invalid UTF-8"},
		"state=LATE":             {"state": `"LATE" is not one of SCHEDULED, RUNNING, COMPLETED, CANCELLED, FAILED`},
		"pageSize=x&dueFrom=now": {"page_size": `"x" is not a whole number`, "due_from": `"now" is not an instant; write RFC 3339, such as "2026-11-25T10:00:00Z"`},
		"page_size=9999999999":   {"page_size": `"9999999999" is not between -2147483648 and 2147483647`},
		"kind=%zz":               {},
	} {
		a := b.fetch("acme-secret", http.MethodGet, "/v1/tasks?"+query, "", nil)
		if diff := cmp.Diff(want, a.faults); diff != "" || a.http != http.StatusBadRequest || a.reason != "MALFORMED_REQUEST" {
			t.Errorf("%s: %d %s: %s", query, a.http, a.body, diff)
		}
	}
	if len(b.tasks.adds)+len(b.tasks.lists) != 0 {
		t.Error("a malformed request reached the store")
	}
}

func TestAQueryOfACallThatTakesNoneIsRefused(t *testing.T) {
	b := setup(t)
	for _, c := range []struct{ verb, path, field string }{
		{http.MethodGet, "/v1/tasks:count?kind=mail", "kind"},
		{http.MethodGet, "/v1/calendars?pageSize=1", "pageSize"},
		{http.MethodGet, "/v1/calendars/holidays?x=1", "x"},
		{http.MethodGet, "/v1/identity?x=1", "x"},
		{http.MethodPatch, "/v1/calendars/holidays?version=3", "version"},
		{http.MethodPost, "/v1/tasks/1000:cancel?version=3", "version"},
		{http.MethodPost, "/v1/tasksByKey/order-42:cancel?version=3", "version"},
	} {
		a := b.fetch("acme-secret", c.verb, c.path, "{}", nil)
		if a.http != http.StatusBadRequest || a.reason != "MALFORMED_REQUEST" || !strings.Contains(a.faults[c.field], "takes no query parameters") {
			t.Errorf("%s %s: %d %s", c.verb, c.path, a.http, a.body)
		}
	}
	if a := b.fetch("acme-secret", http.MethodPost, "/v1/no-such-path?x=1", "{}", nil); a.http != http.StatusNotFound {
		t.Errorf("an unknown path with a query: %d %s", a.http, a.body)
	}
}

func TestBytesThatAreNotTheContractAreRefusedOverGRPC(t *testing.T) {
	b := setup(t)
	cases := []struct {
		name string
		wire string
		says string
	}{
		{"invalid UTF-8", "\x0a\x03\x12\x01\xff", "task.kind: contains invalid UTF-8"},
		{"invalid UTF-8 in a param", "\x0a\x08\x4a\x06\x0a\x01k\x12\x01\xff", "task.params[\"k\"]: contains invalid UTF-8"},
		{"a truncated message", "\x0a\x7f\x12", "its bytes are not a perceptor.v1.AddTaskRequest"},
		{"no message at all", "\xff\xff\xff\xff", "cannot be decoded"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			a := b.rawGRPC("acme-secret", addTask, []byte(c.wire))
			if a.code != codes.InvalidArgument || a.reason != "MALFORMED_REQUEST" || !strings.Contains(a.message, c.says) {
				t.Errorf("%s %s %q", a.code, a.reason, a.message)
			}
			if a := b.rawGRPC("", addTask, []byte(c.wire)); a.code != codes.Unauthenticated {
				t.Errorf("without token: %s %q", a.code, a.message)
			}
		})
	}
}

func TestBytesThatAreNotTheContractEndAStream(t *testing.T) {
	b := setup(t)
	for _, method := range []string{perceptorv1.ImportService_WriteImport_FullMethodName, perceptorv1.ExportService_ExportTasks_FullMethodName} {
		s := must(b.conn.NewStream(as(t.Context(), "acme-secret"), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method, grpc.ForceCodec(rawCodec{})))(t)
		if err := s.SendMsg([]byte("\xff\xff")); err != nil {
			t.Fatal(err)
		}
		_ = s.CloseSend()
		a := b.answerOf(status.Convert(s.RecvMsg(&[]byte{})))
		if a.code != codes.InvalidArgument || a.reason != "MALFORMED_REQUEST" || !strings.Contains(a.message, "its bytes are not a perceptor.v1.") {
			t.Errorf("%s: %s %s %q", method, a.code, a.reason, a.message)
		}
	}
}

func TestUnknownEnumNumbersInAListAreRefused(t *testing.T) {
	b := setup(t)
	request := &perceptorv1.ListTasksRequest{Type: 9, State: 9}
	a := b.overGRPC("acme-secret", listTasks, request, &perceptorv1.ListTasksResponse{})
	expectFaults(t, a, "", []string{"state", "type"}, "9 is not one of SCHEDULED")
}

func TestARequestOverTheSizeLimitIsRefused(t *testing.T) {
	b := setup(t, func(c *Config) { c.MaxRequestBytes = 2000 })
	big := recurring()
	big.Kind = strings.Repeat("k", 3000)
	if a := b.overGRPC("acme-secret", addTask, &perceptorv1.AddTaskRequest{Task: big}, &perceptorv1.AddTaskResponse{}); a.code != codes.ResourceExhausted {
		t.Errorf("gRPC: %s %s", a.code, a.message)
	}
	a := b.overHTTP("acme-secret", addTask, &perceptorv1.AddTaskRequest{Task: big}, nil)
	if a.http != http.StatusRequestEntityTooLarge || a.reason != "REQUEST_TOO_LARGE" || !strings.Contains(a.message, "2000 bytes") {
		t.Errorf("HTTP with a length: %+v", a)
	}
	for _, verb := range []string{http.MethodPost, http.MethodPatch} {
		path := map[string]string{http.MethodPost: "/v1/tasks", http.MethodPatch: "/v1/tasks/1000"}[verb]
		a = b.chunked("acme-secret", verb, path, `{"kind":"`+big.Kind+`"}`)
		if a.http != http.StatusRequestEntityTooLarge || !strings.Contains(a.message, "2000 bytes") {
			t.Errorf("%s over HTTP without a length: %+v", verb, a)
		}
	}
}

func TestATextThatIsNotUTF8IsAFaultOfTheRequestAlsoOfTheConsole(t *testing.T) {
	t.Parallel()
	var api grpc.ClientConnInterface
	b := setupWith(t, func(d *Deps) {
		d.Console = func(c grpc.ClientConnInterface) http.Handler { api = c; return http.NotFoundHandler() }
	})
	ctx := metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer acme-secret")
	_, err := perceptorv1.NewTaskServiceClient(api).ListTasks(ctx, &perceptorv1.ListTasksRequest{Kind: "\xff"})
	if a := b.answerOf(status.Convert(err)); a.code != codes.InvalidArgument || a.reason != string(task.ReasonMalformedRequest) {
		t.Errorf("got %v %s %s", a.code, a.reason, a.message)
	}
	if strings.Contains(b.log.String(), "ERROR") {
		t.Errorf("logged:\n%s", b.log)
	}
}

func TestACompressedBodyIsRefusedByTheNameOfItsCoding(t *testing.T) {
	b := setup(t)
	for coding, want := range map[string]string{
		"gzip": "Content-Encoding: gzip: a body is not compressed here", "identity": "the text ends before the object",
	} {
		r := must(http.NewRequest(http.MethodPost, "http://memory/v1/tasks", strings.NewReader("{")))(t)
		r.Header.Set("Content-Encoding", coding)
		if a := b.do("acme-secret", r, nil); a.http != http.StatusBadRequest || !strings.Contains(a.message, want) {
			t.Errorf("%s: %+v, want %q", coding, a, want)
		}
	}
}
