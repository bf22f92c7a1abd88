package server

import (
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	_ "google.golang.org/grpc/encoding/gzip" // as the exporter of traces registers it
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// TestCompressedRequestsAreRefused: with and without a token.
func TestCompressedRequestsAreRefused(t *testing.T) {
	b := setup(t)
	large := strings.Repeat("x", 100<<10)
	health := grpc_health_v1.NewHealthClient(b.conn)
	if _, err := health.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: large}, grpc.UseCompressor("gzip")); !strings.Contains(fmt.Sprint(err), errCompressed.Error()) {
		t.Errorf("a check of health: %v", err)
	}
	w := must(health.Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: large}, grpc.UseCompressor("gzip")))(t)
	if _, err := w.Recv(); !strings.Contains(fmt.Sprint(err), errCompressed.Error()) {
		t.Errorf("a watch of health: %v", err)
	}
	_, err := perceptorv1.NewTaskServiceClient(b.conn).AddTask(as(t.Context(), "acme-secret"), &perceptorv1.AddTaskRequest{
		Task: &perceptorv1.Task{Kind: "k", Type: perceptorv1.Task_ONE_SHOT, Params: map[string]string{"x": large}}}, grpc.UseCompressor("gzip"))
	if !strings.Contains(fmt.Sprint(err), errCompressed.Error()) {
		t.Errorf("an add: %v", err)
	}
}

func TestALongNameOfAServiceIsNotKept(t *testing.T) {
	b := setup(t)
	health := grpc_health_v1.NewHealthClient(b.conn)
	r := &grpc_health_v1.HealthCheckRequest{Service: strings.Repeat("x", maxServiceBytes+1)}
	if _, err := health.Check(t.Context(), r); status.Code(err) != codes.InvalidArgument {
		t.Errorf("check: %v", err)
	}
	w := must(health.Watch(t.Context(), r))(t)
	if _, err := w.Recv(); status.Code(err) != codes.InvalidArgument {
		t.Errorf("watch: %v", err)
	}
}

// TestFewRequestsToTheHealthServiceArriveAtOnce: those that have arrived give their places back.
func TestFewRequestsToTheHealthServiceArriveAtOnce(t *testing.T) {
	b := setup(t)
	open := func() grpc.ClientStream {
		return must(b.conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true}, grpc_health_v1.Health_Check_FullMethodName))(t)
	}
	for range arrivingHealth / 2 {
		open()
	}
	health := grpc_health_v1.NewHealthClient(b.conn)
	if _, err := health.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{}); status.Code(err) == codes.OK {
		t.Error("a request beyond the places was taken")
	}
}

// TestManyEmptyEntriesAreRefusedBeforeTheyAreDecoded compares the memory that is allocated.
func TestManyEmptyEntriesAreRefusedBeforeTheyAreDecoded(t *testing.T) {
	b := setup(t)
	addTasks := perceptorv1.TaskService_AddTasks_FullMethodName
	wire := []byte(strings.Repeat("\x0a\x00", 1<<20)) // a million empty tasks
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	a := b.rawGRPC("acme-secret", addTasks, wire)
	runtime.ReadMemStats(&after)
	if a.code != codes.InvalidArgument || !strings.Contains(a.message, "more than 200000 entries") {
		t.Errorf("over gRPC: %v %s", a.code, a.message)
	}
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 64<<20 {
		t.Errorf("%d MiB were allocated for a request of 2 MiB", grown>>20)
	}
	text := `{"tasks":[` + strings.Repeat(`{},`, 250_000) + `{}]}`
	if a := b.fetch("acme-secret", "POST", "/v1/tasks:batchAdd", text, nil); a.code != codes.InvalidArgument || !strings.Contains(a.message, "more than 200000 entries") {
		t.Errorf("over HTTP: %v %s", a.code, a.message)
	}
}

// An empty value has two bytes, so a small request may take a hundred times its size.
func TestARequestIsChargedForItsEntries(t *testing.T) {
	const entries, largest = 10_000, 8 << 20
	v := &structpb.ListValue{}
	for range entries {
		v.Values = append(v.Values, &structpb.Value{})
	}
	request := &perceptorv1.AddTaskRequest{Task: &perceptorv1.Task{Payload: &perceptorv1.Payload{Json: structpb.NewListValue(v)}}}
	wire := must(newCodec().Marshal(request))(t)
	in := newIntake(time.Minute, largest)
	r := &received{message: &perceptorv1.AddTaskRequest{}}
	c, got, err := in.receive(t.Context(), acme.ID, func(v any) error { return newCodec().Unmarshal(wire, v) }, r)
	if err != nil {
		t.Fatal(err)
	}
	if c.bytes < 100*entries || c.bytes >= largest || got.bytes != wire.Len() {
		t.Errorf("%d bytes are charged for %d entries in %d bytes", c.bytes, entries, got.bytes)
	}
	c.release()
	if free := in.tenants.Free(); free != intakeRequests*largest {
		t.Errorf("%d bytes are free after the call", free)
	}
}

func TestEntriesOfAllLevelsAreCounted(t *testing.T) {
	m := (&perceptorv1.AddTasksRequest{}).ProtoReflect().Descriptor()
	wire := must(newCodec().Marshal(&perceptorv1.AddTasksRequest{Tasks: []*perceptorv1.Task{
		{Tags: []string{"a", "b"}, Params: map[string]string{"a": "1", "b": "2", "c": "3"}}, {}, {Kind: "k"},
	}}))(t).Materialize()
	left := 8
	if err := countEntries(m, wire, &left, maxNesting); err != nil || left != 0 {
		t.Errorf("%d left, %v", left, err)
	}
	left = 7
	if countEntries(m, wire, &left, maxNesting) == nil {
		t.Error("one too many is not refused")
	}
	if n := jsonEntries([]byte(`{"a":["x,{[", "\",", 1], "b":{}}`)); n != 6 {
		t.Errorf("%d entries of JSON, want 6", n)
	}
}

// A value in JSON becomes two messages, so JSON that is not too deep may become a request that is.
func TestJSONThatBecomesTooManyMessagesIsNoFaultOfTheServer(t *testing.T) {
	b := setup(t)
	const levels = 6000
	body := `{"kind":"k","type":"ONE_SHOT","payload":{"json":` + strings.Repeat("[", levels) + strings.Repeat("]", levels) + `}}`
	a := b.fetch("acme-secret", http.MethodPost, "/v1/tasks", body, nil)
	if a.http != http.StatusBadRequest || a.reason != "MALFORMED_REQUEST" {
		t.Errorf("%d %s", a.http, a.body)
	}
}

// Small values in JSON take fifty times as much memory when they are decoded.
func TestJSONIsChargedForItsMemoryBeforeItIsDecoded(t *testing.T) {
	b := setup(t, func(c *Config) { c.ReceiveTimeout = 100 * time.Millisecond })
	pool := b.server.decoded.tenants
	const half = decodedMemory / 2
	if !pool.Take(acme.ID, half) {
		t.Fatal("a tenant has less than half of the memory")
	}
	for _, verb := range [][2]string{{http.MethodPost, "/v1/tasks"}, {http.MethodPatch, "/v1/tasks/1000?updateMask=payload"}} {
		add := func(secret string) string {
			return b.fetch(secret, verb[0], verb[1], `{"payload":{"json":[`+strings.Repeat("[],", countedFrom)+`[]]}}`, nil).reason
		}
		if reason := add("acme-secret"); reason != "TENANT_BUSY" {
			t.Errorf("%s when the tenant has its part: %s", verb[0], reason)
		}
		if reason := add("rival-secret"); reason == "TENANT_BUSY" {
			t.Errorf("%s of another tenant: %s", verb[0], reason)
		}
	}
	pool.Give(acme.ID, half)
	if free := pool.Free(); free != decodedMemory {
		t.Errorf("%d bytes are still charged", decodedMemory-free)
	}
}

// TestManyTagsAreOneFault: a fault for each of them took minutes.
func TestJSONThatIsNestedTooDeeplyIsRefusedBeforeItIsDecoded(t *testing.T) {
	b := setup(t)
	v := structpb.NewStringValue(strings.Repeat("x", countedFrom))
	for range maxNesting {
		v = structpb.NewListValue(&structpb.ListValue{Values: []*structpb.Value{v}})
	}
	a := b.overGRPC("acme-secret", addTask, &perceptorv1.AddTaskRequest{Task: &perceptorv1.Task{Kind: "k", Payload: &perceptorv1.Payload{Json: v}}}, &perceptorv1.AddTaskResponse{})
	if a.reason != "MALFORMED_REQUEST" || !strings.Contains(a.message, "more than 1000 messages within each other") {
		t.Errorf("%s %s", a.reason, a.message)
	}
}

func TestManyTagsAreOneFault(t *testing.T) {
	tags := make([]string, 100_000)
	for i := range tags {
		tags[i] = fmt.Sprintf("\x01%d", i)
	}
	began := time.Now()
	_, faults := specOf(&perceptorv1.Task{Kind: "k", Type: perceptorv1.Task_ONE_SHOT, Tags: tags}, &Tenant{}, task.DefaultLimits())
	if len(faults) != 1 || faults[0].Field != "tags" {
		t.Errorf("%d faults: %v", len(faults), faults[:min(3, len(faults))])
	}
	r := &reader{}
	r.tags(tags)
	for i := range 100_000 {
		r.unlessFaulty(task.Fault{Field: fmt.Sprint("field", i)})
	}
	if len(r.faults) > maxViolations+1 {
		t.Errorf("%d faults are kept, an answer has %d", len(r.faults), maxViolations)
	}
	t.Logf("took %v", time.Since(began))
}

func TestAnUpsertThatChangesATaskIsRecorded(t *testing.T) {
	b, log := auditSetup(t)
	b.tasks.updates = true
	added := &perceptorv1.AddTaskResponse{}
	request := &perceptorv1.AddTaskRequest{Upsert: true, Task: &perceptorv1.Task{Kind: "k", Type: perceptorv1.Task_ONE_SHOT, IdempotencyKey: "payroll"}}
	if a := b.overGRPC("acme-secret", addTask, request, added); a.code != codes.OK || !added.Updated {
		t.Fatalf("%v, %v", a, added)
	}
	e := log.one(t)
	if e.Action != "TaskService/AddTasks" || e.Object != fmt.Sprint(added.Id) || e.Tenant != acme.ID || e.Result != "OK" || len(e.Changes) != 1 || e.Source == "" && e.RequestID == "" {
		t.Errorf("got %+v", e)
	}
}
