package server

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/structpb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// addPayload adds a task with a payload in JSON over HTTP, and returns the payload in the
// answer to a Get over HTTP, and that over gRPC.
func (b *bundle) addPayload(payload string) (overHTTP map[string]json.RawMessage, overGRPC *perceptorv1.Task) {
	b.t.Helper()
	var added perceptorv1.AddTaskResponse
	a := b.fetch("acme-secret", http.MethodPost, "/v1/tasks", `{"kind":"k","type":"ONE_SHOT","payload":`+payload+`}`, &added)
	if a.code != codes.OK {
		b.t.Fatal(a.message)
	}
	a = b.fetch("acme-secret", http.MethodGet, fmt.Sprint("/v1/tasks/", added.Id), "", nil)
	var got struct{ Payload map[string]json.RawMessage }
	if err := json.Unmarshal(a.body, &got); err != nil {
		b.t.Fatalf("%v in %s", err, a.body)
	}
	overGRPC = &perceptorv1.Task{}
	if a := b.overGRPC("acme-secret", getTask, &perceptorv1.GetTaskRequest{Id: added.Id}, overGRPC); a.code != codes.OK {
		b.t.Fatal(a.message)
	}
	return got.Payload, overGRPC
}

func TestAPayloadIsWhatItsCallerMeans(t *testing.T) {
	t.Parallel()
	b := setup(t)
	base64Of := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	for name, c := range map[string]struct{ asked, data, contentType, shown string }{
		"bytes":                 {`{"data":"` + base64Of("\x00\xff") + `"}`, "\x00\xff", task.DefaultContentType, ""},
		"text":                  {`{"data":"` + base64Of("{}") + `","contentType":"text/plain"}`, "{}", "text/plain", ""},
		"JSON":                  {`{"json":{"b": [1, 2.5, -0, "<&>\u00e9"], "a": null}}`, `{"a":null,"b":[1,2.5,-0,"<&>é"]}`, "application/json", `{"a":null,"b":[1,2.5,-0,"<&>é"]}`},
		"null":                  {`{"json":null}`, `null`, "application/json", `null`},
		"JSON of a type":        {`{"json":[], "contentType":"application/problem+json"}`, `[]`, "application/problem+json", `[]`},
		"JSON as data":          {`{"data":"` + base64Of(`{"n": 9007199254740993}`) + `","contentType":"application/json"}`, `{"n": 9007199254740993}`, "application/json", `{"n":9007199254740993}`},
		"what was read, again":  {`{"data":"` + base64Of(`{ "n": 1 }`) + `","json":{"n":1}, "contentType":"application/json"}`, `{ "n": 1 }`, "application/json", `{"n":1}`},
		"the largest exact one": {`{"json":9007199254740991}`, `9007199254740991`, "application/json", `9007199254740991`},
	} {
		t.Run(name, func(t *testing.T) {
			web, got := b.addPayload(c.asked)
			want := &perceptorv1.Payload{Data: []byte(c.data), ContentType: c.contentType}
			if diff := cmp.Diff(want, got.Payload, protocmp.Transform()); diff != "" {
				t.Errorf("over gRPC (-want +got)\n%s", diff)
			}
			if string(web["json"]) != c.shown || string(web["contentType"]) != `"`+c.contentType+`"` || string(web["data"]) != `"`+base64Of(c.data)+`"` {
				t.Errorf("over HTTP %s", web)
			}
		})
	}
}

func TestJSONWhoseNumbersWouldChangeIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	a := b.fetch("acme-secret", http.MethodPost, "/v1/tasks", `{"kind":"k","type":"ONE_SHOT","payload":{"json":{"list":[{"id":9007199254740993}]}}}`, nil)
	if !strings.Contains(a.faults["task.payload.json"], "send the JSON as data") {
		t.Errorf("%+v", a.faults)
	}
}

func TestPayloadsInListsAreShownEachInItsTask(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.addPayload(`{"json":{"n":1}}`)
	b.addPayload(`{"data":"AAE="}`)
	b.addPayload(`{"json":{"n":3}}`)
	a := b.fetch("acme-secret", http.MethodGet, "/v1/tasks", "", nil)
	var list struct {
		Tasks []struct {
			Payload struct{ JSON json.RawMessage }
		}
	}
	if err := json.Unmarshal(a.body, &list); err != nil || len(list.Tasks) != 3 {
		t.Fatalf("%v in %s", err, a.body)
	}
	for i, want := range []string{`{"n":1}`, ``, `{"n":3}`} {
		if got := string(list.Tasks[i].Payload.JSON); got != want {
			t.Errorf("task %d has %s, want %s", i, got, want)
		}
	}
}

func TestParamsAndPayloadAreEditedApart(t *testing.T) {
	t.Parallel()
	payload := &perceptorv1.Payload{Data: []byte("new"), ContentType: "text/plain"}
	for name, tc := range map[string]struct {
		set  *perceptorv1.Task
		mask []string
		want func(*perceptorv1.Task)
	}{
		"the payload":        {&perceptorv1.Task{Payload: payload}, []string{"payload"}, func(t *perceptorv1.Task) { t.Payload = payload }},
		"without a mask":     {&perceptorv1.Task{Payload: payload}, nil, func(t *perceptorv1.Task) { t.Payload = payload }},
		"a part of it":       {&perceptorv1.Task{Payload: payload}, []string{"payload.data"}, func(t *perceptorv1.Task) { t.Payload = payload }},
		"it is removed":      {&perceptorv1.Task{}, []string{"payload"}, func(t *perceptorv1.Task) { t.Payload = nil }},
		"the params":         {&perceptorv1.Task{Params: map[string]string{"a": "b"}}, []string{"params"}, func(t *perceptorv1.Task) { t.Params = map[string]string{"a": "b"} }},
		"params are removed": {&perceptorv1.Task{}, []string{"params"}, func(t *perceptorv1.Task) { t.Params = nil }},
		"both":               {&perceptorv1.Task{Payload: payload}, []string{"params", "payload"}, func(t *perceptorv1.Task) { t.Params, t.Payload = nil, payload }},
		"neither":            {&perceptorv1.Task{Kind: "other"}, []string{"kind"}, func(t *perceptorv1.Task) { t.Kind = "other" }},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t)
			want := b.addFull()
			tc.set.Id = want.Id
			tc.want(want)
			want.Version = 2
			r := &perceptorv1.UpdateTaskRequest{Task: tc.set, UpdateMask: &fieldmaskpb.FieldMask{Paths: tc.mask}}
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

func TestAPatchOfJSONReplacesThePayloadHoweverLargeItIs(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.addFull().Id
	members := make([]string, maxPaths+1)
	for i := range members {
		members[i] = fmt.Sprintf(`"%d":0`, i)
	}
	for _, text := range []string{"{}", `{"a":{"b":{}}}`, "{" + strings.Join(members, ",") + "}"} {
		var got perceptorv1.Task
		a := b.fetch("acme-secret", http.MethodPatch, fmt.Sprint("/v1/tasks/", id), `{"payload":{"json":`+text+`}}`, nil)
		if a.code != codes.OK {
			t.Fatalf("%.40s: %s", text, a.message)
		}
		b.overGRPC("acme-secret", getTask, &perceptorv1.GetTaskRequest{Id: id}, &got)
		if len(got.Payload.Data) != len(text) || len(got.Params) != 3 {
			t.Errorf("%.40s: the task has %s and %v", text, got.Payload, got.Params)
		}
	}
}

// TestAPatchOfJSONMakesNoHugeMask: the gateway writes the path of each member.
func TestAPatchOfJSONMakesNoHugeMask(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.addFull().Id
	members := make([]string, 5000)
	for i := range members {
		members[i] = fmt.Sprintf(`"%d":0`, i)
	}
	text := `{"payload":{"json":{"` + strings.Repeat("x", 20<<10) + `":{` + strings.Join(members, ",") + `}}}}`
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	a := b.fetch("acme-secret", http.MethodPatch, fmt.Sprint("/v1/tasks/", id), text, nil)
	runtime.ReadMemStats(&after)
	if _, ok := a.faults["task.payload.json"]; !ok || !strings.Contains(a.message, "send the JSON as data") {
		t.Errorf("%s %v", a.message, a.faults)
	}
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 50<<20 { // the paths have 100 MiB
		t.Errorf("%d MiB were allocated for a request of %d KiB", grown>>20, len(text)>>10)
	}
}

func TestAnEditOfThePayloadLosesNoParamsOfAHandler(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.addFull().Id
	changes := 0
	b.tasks.meanwhile = func(s *task.Snapshot) {
		if changes++; changes == 1 { // a result does not change the version
			s.Params = paramsWire(map[string]string{"by": "a handler"}, &task.Payload{Data: []byte("old")})
		}
	}
	var got perceptorv1.Task
	r := &perceptorv1.UpdateTaskRequest{Task: &perceptorv1.Task{Id: id, Payload: &perceptorv1.Payload{Data: []byte("new")}}}
	if a := b.overGRPC("acme-secret", updateTask, r, &got); a.code != codes.OK {
		t.Fatal(a.message)
	}
	if got.Params["by"] != "a handler" || string(got.Payload.GetData()) != "new" || changes != 2 {
		t.Errorf("after %d tries the task has %v and %s", changes, got.Params, got.Payload)
	}
}

func TestAResultMayReplaceOrRemoveThePayload(t *testing.T) {
	t.Parallel()
	b := setup(t)
	send := func(p *perceptorv1.ParamsPatch) *perceptorv1.RunReply {
		t.Helper()
		var reply perceptorv1.ReportResultsResponse
		r := &perceptorv1.ReportResultsRequest{Holder: 1, Results: []*perceptorv1.RunResult{{Attempt: attempt(1024, 1, 1), Outcome: perceptorv1.RunResult_SUCCESS, ParamsPatch: p}}}
		if a := b.overGRPC("acme-secret", report, r, &reply); a.code != codes.OK {
			t.Fatal(a.message)
		}
		return reply.Replies[0]
	}
	send(&perceptorv1.ParamsPatch{Payload: &perceptorv1.Payload{Json: structpb.NewBoolValue(true)}})
	send(&perceptorv1.ParamsPatch{RemovePayload: true})
	want := []*task.ParamsPatch{{Payload: &task.Payload{Data: []byte("true"), ContentType: "application/json"}}, {RemovePayload: true}}
	var got []*task.ParamsPatch
	for _, r := range b.runs.results {
		got = append(got, r.Patch)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	for want, p := range map[string]*perceptorv1.Payload{
		"params_patch.payload.data":         {Data: make([]byte, 1001)},
		"params_patch.payload.content_type": {Data: []byte("x"), ContentType: "x"},
		"params_patch.payload.json":         {Json: structpb.NewNumberValue(1e300)},
	} {
		if r := send(&perceptorv1.ParamsPatch{Payload: p}); r.Code != perceptorv1.RunCode_RUN_CODE_INVALID || r.Field != want {
			t.Errorf("want a fault of %s, got %v", want, r)
		}
	}
}

func TestCallersWhoMayNotReadGetNoPayload(t *testing.T) {
	t.Parallel()
	answer := &perceptorv1.ListDeadRunsResponse{DeadRuns: []*perceptorv1.DeadRun{{RunId: "1-1", Payload: &perceptorv1.Payload{Data: []byte("x")}}}}
	hideParams(answer.ProtoReflect())
	if want := (&perceptorv1.ListDeadRunsResponse{DeadRuns: []*perceptorv1.DeadRun{{RunId: "1-1"}}}); !proto.Equal(want, answer) {
		t.Errorf("the answer is %v", answer)
	}
}

func FuzzPayloadJSON(f *testing.F) {
	f.Add(`{"a":[1,2.5,"x"],"b":{"c":null}}`)
	f.Add(`9007199254740993`)
	f.Fuzz(func(t *testing.T, text string) {
		p := &perceptorv1.Payload{}
		if newStrictJSON().decode([]byte(`{"json":`+text+`}`), p) != nil || p.Json == nil {
			return
		}
		r := &reader{}
		got := r.payload("payload", p)
		if got == nil {
			if len(r.faults) == 0 {
				t.Fatalf("%q is neither read nor refused", text)
			}
			return
		}
		if fault, bad := got.Fault(); bad {
			t.Fatalf("%q becomes %q: %v", text, got.Data, fault)
		}
		var compact bytes.Buffer
		if err := json.Compact(&compact, got.Data); err != nil || compact.String() != string(got.Data) {
			t.Fatalf("%q becomes %q", text, got.Data)
		}
	})
}
