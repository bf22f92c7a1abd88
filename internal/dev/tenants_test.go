package dev

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// mark is in everything that belongs to the victim.
const mark = "victim"

// sameKey is a request_id and an idempotency_key of both tenants.
const sameKey = "same"

// target is what the victim of a cross-tenant call has, or what nobody has.
type target struct {
	waiting, open, finished, dead, bulk, imported int64
	token, tenant                                 string
}

// crossTenant has a request of each method for something of a tenant. refused: the method is
// about the installation, and no tenant may call it.
type crossTenant struct {
	request func(x target) proto.Message
	refused bool
	// moves says that the answer of the same caller changes by itself.
	moves bool
}

// attempt is the first delivery of a task's first run.
func attempt(id int64) []*v1.Attempt { return []*v1.Attempt{{TaskId: id, Seq: 1, Attempt: 1}} }

func deadRun(x target) string { return fmt.Sprintf("%d-1", x.dead) }

// crossTenantCases has a case of every method of the API.
var crossTenantCases = map[string]crossTenant{
	"TaskService.AddTask": {request: func(x target) proto.Message {
		return &v1.AddTaskRequest{RequestId: sameKey, Task: &v1.Task{Kind: "mine", Type: v1.Task_ONE_SHOT, BeginTime: inAnHour(), IdempotencyKey: sameKey}}
	}},
	"TaskService.AddTasks": {request: func(x target) proto.Message {
		return &v1.AddTasksRequest{RequestId: sameKey, Tasks: []*v1.Task{{Kind: "mine", Type: v1.Task_ONE_SHOT, BeginTime: inAnHour(), IdempotencyKey: sameKey}}}
	}},
	"TaskService.GetTask":     {request: func(x target) proto.Message { return &v1.GetTaskRequest{Id: x.waiting} }},
	"TaskService.ListTasks":   {request: func(target) proto.Message { return &v1.ListTasksRequest{} }},
	"TaskService.CancelTask":  {request: func(x target) proto.Message { return &v1.CancelTaskRequest{Id: x.waiting} }},
	"TaskService.PauseTask":   {request: func(x target) proto.Message { return &v1.PauseTaskRequest{Id: x.waiting} }},
	"TaskService.ResumeTask":  {request: func(x target) proto.Message { return &v1.ResumeTaskRequest{Id: x.waiting} }},
	"TaskService.TriggerTask": {request: func(x target) proto.Message { return &v1.TriggerTaskRequest{Id: x.waiting} }},
	"TaskService.PurgeTask":   {request: func(x target) proto.Message { return &v1.PurgeTaskRequest{Id: x.finished} }},
	"TaskService.ExplainTask": {request: func(x target) proto.Message { return &v1.ExplainTaskRequest{Id: x.waiting} }},
	"TaskService.UpdateTask": {request: func(x target) proto.Message {
		return &v1.UpdateTaskRequest{Task: &v1.Task{Id: x.waiting, Kind: "stolen"}, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"kind"}}}
	}},
	"TaskService.ListRunEvents": {request: func(x target) proto.Message { return &v1.ListRunEventsRequest{TaskId: x.dead} }},
	"TaskService.CountTasks":    {request: func(target) proto.Message { return &v1.CountTasksRequest{} }},
	"TaskService.PauseKind":     {request: func(target) proto.Message { return &v1.PauseKindRequest{Kind: "shared"} }},
	"TaskService.ResumeKind":    {request: func(target) proto.Message { return &v1.ResumeKindRequest{Kind: "shared"} }},
	"TaskService.PreviewSchedule": {request: func(target) proto.Message {
		return &v1.PreviewScheduleRequest{Task: &v1.Task{Kind: "mine", Type: v1.Task_ONE_SHOT, BeginTime: inAnHour()}}
	}},

	"RunService.StartRuns":     {request: func(x target) proto.Message { return &v1.StartRunsRequest{Holder: 7, Attempts: attempt(x.open)} }},
	"RunService.HeartbeatRuns": {request: func(x target) proto.Message { return &v1.HeartbeatRunsRequest{Holder: 7, Attempts: attempt(x.open)} }},
	"RunService.HandBackRuns":  {request: func(x target) proto.Message { return &v1.HandBackRunsRequest{Holder: 7, Attempts: attempt(x.open)} }},
	"RunService.CheckRuns":     {request: func(x target) proto.Message { return &v1.CheckRunsRequest{Attempts: attempt(x.open)} }},
	"RunService.ReportResults": {request: func(x target) proto.Message { return result(x.open, v1.RunResult_SUCCESS) }},
	"RunService.GetDelivery":   {request: func(target) proto.Message { return &v1.GetDeliveryRequest{HoldsRuns: true} }},

	"DeadLetterService.ListDeadRuns":  {request: func(target) proto.Message { return &v1.ListDeadRunsRequest{} }},
	"DeadLetterService.GetDeadRun":    {request: func(x target) proto.Message { return &v1.GetDeadRunRequest{RunId: deadRun(x)} }},
	"DeadLetterService.ReplayDeadRun": {request: func(x target) proto.Message { return &v1.ReplayDeadRunRequest{RunId: deadRun(x)} }},
	"DeadLetterService.PurgeDeadRun":  {request: func(x target) proto.Message { return &v1.PurgeDeadRunRequest{RunId: deadRun(x)} }},

	"BulkService.CreateBulkOperation": {request: func(target) proto.Message {
		return &v1.CreateBulkOperationRequest{Operation: &v1.BulkOperation{Action: v1.BulkOperation_CANCEL, Filter: &v1.TaskFilter{Kind: "shared"}}}
	}},
	"BulkService.ListBulkOperations":  {request: func(target) proto.Message { return &v1.ListBulkOperationsRequest{} }},
	"BulkService.GetBulkOperation":    {request: func(x target) proto.Message { return &v1.GetBulkOperationRequest{Id: x.bulk} }},
	"BulkService.AbortBulkOperation":  {request: func(x target) proto.Message { return &v1.AbortBulkOperationRequest{Id: x.bulk} }},
	"BulkService.PauseBulkOperation":  {request: func(x target) proto.Message { return &v1.PauseBulkOperationRequest{Id: x.bulk} }},
	"BulkService.ResumeBulkOperation": {request: func(x target) proto.Message { return &v1.ResumeBulkOperationRequest{Id: x.bulk} }},

	"ImportService.PlanImport": {request: func(target) proto.Message { return &v1.PlanImportRequest{ExpectedBytes: 1000} }},
	"ImportService.CreateImport": {moves: true, request: func(target) proto.Message {
		return &v1.CreateImportRequest{Import: &v1.Import{Description: "mine"}}
	}},
	"ImportService.ListImports": {request: func(target) proto.Message { return &v1.ListImportsRequest{} }},
	"ImportService.GetImport":   {request: func(x target) proto.Message { return &v1.GetImportRequest{Id: x.imported} }},
	"ImportService.WriteImport": {request: func(x target) proto.Message {
		return &v1.WriteImportRequest{Id: x.imported, Part: []byte("a"), Last: true}
	}},
	"ImportService.FinishImport":   {request: func(x target) proto.Message { return &v1.FinishImportRequest{Id: x.imported} }},
	"ImportService.AbortImport":    {request: func(x target) proto.Message { return &v1.AbortImportRequest{Id: x.imported} }},
	"ImportService.RollbackImport": {request: func(x target) proto.Message { return &v1.RollbackImportRequest{Id: x.imported} }},

	// What comes has the instant at which it was read.
	"ExportService.ExportTasks":     {moves: true, request: func(target) proto.Message { return &v1.ExportTasksRequest{} }},
	"ExportService.ExportDeadRuns":  {moves: true, request: func(target) proto.Message { return &v1.ExportDeadRunsRequest{} }},
	"ExportService.ExportRunEvents": {moves: true, request: func(target) proto.Message { return &v1.ExportRunEventsRequest{} }},

	"CalendarService.CreateCalendar": {request: func(target) proto.Message {
		return &v1.CreateCalendarRequest{Calendar: &v1.Calendar{Name: "shared", Days: []string{"2026-12-25"}}}
	}},
	"CalendarService.UpdateCalendar": {request: func(target) proto.Message {
		return &v1.UpdateCalendarRequest{Name: "shared", Calendar: &v1.Calendar{Days: []string{"2026-12-26"}}}
	}},
	"CalendarService.GetCalendar":    {request: func(target) proto.Message { return &v1.GetCalendarRequest{Name: "shared"} }},
	"CalendarService.ListCalendars":  {request: func(target) proto.Message { return &v1.ListCalendarsRequest{} }},
	"CalendarService.DeleteCalendar": {request: func(target) proto.Message { return &v1.DeleteCalendarRequest{Name: "shared"} }},

	"AdminService.GetTenant":   {request: func(x target) proto.Message { return &v1.GetTenantRequest{Name: x.tenant} }},
	"AdminService.ListTokens":  {request: func(x target) proto.Message { return &v1.ListTokensRequest{Tenant: x.tenant} }},
	"AdminService.RotateToken": {request: func(x target) proto.Message { return &v1.RotateTokenRequest{Id: x.token} }},
	"AdminService.RevokeToken": {request: func(x target) proto.Message { return &v1.RevokeTokenRequest{Id: x.token} }},
	"AdminService.CreateToken": {request: func(x target) proto.Message {
		return &v1.CreateTokenRequest{Token: &v1.Token{Scope: v1.Token_TENANT, Tenant: x.tenant}}
	}},

	"AdminService.ListTenants": {refused: true, request: func(target) proto.Message { return &v1.ListTenantsRequest{} }},
	"AdminService.CreateTenant": {refused: true, request: func(x target) proto.Message {
		return &v1.CreateTenantRequest{Tenant: &v1.Tenant{Name: x.tenant}}
	}},
	"AdminService.UpdateTenant": {refused: true, request: func(x target) proto.Message {
		return &v1.UpdateTenantRequest{Name: x.tenant, Tenant: &v1.Tenant{Paused: true}, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"paused"}}}
	}},
	"AdminService.PauseTenant":                  {refused: true, request: func(x target) proto.Message { return &v1.PauseTenantRequest{Name: x.tenant} }},
	"AdminService.ResumeTenant":                 {refused: true, request: func(x target) proto.Message { return &v1.ResumeTenantRequest{Name: x.tenant} }},
	"AdminService.DeleteTenant":                 {refused: true, request: func(x target) proto.Message { return &v1.DeleteTenantRequest{Name: x.tenant} }},
	"AdminService.RotateTenantKey":              {refused: true, request: func(x target) proto.Message { return &v1.RotateTenantKeyRequest{Name: x.tenant} }},
	"AuditService.ListAuditEvents":              {refused: true, request: func(target) proto.Message { return &v1.ListAuditEventsRequest{} }},
	"AuditService.ListTenantAuditEvents":        {request: func(target) proto.Message { return &v1.ListTenantAuditEventsRequest{} }, moves: true},
	"MonitoringService.GetTenantFigures":        {moves: true, request: func(target) proto.Message { return &v1.GetTenantFiguresRequest{} }},
	"MonitoringService.GetForecast":             {moves: true, request: func(target) proto.Message { return &v1.GetForecastRequest{} }},
	"MonitoringService.ListTenantFigures":       {refused: true, request: func(x target) proto.Message { return &v1.ListTenantFiguresRequest{Tenant: x.tenant} }},
	"MonitoringService.GetClusterFigures":       {refused: true, request: func(target) proto.Message { return &v1.GetClusterFiguresRequest{} }},
	"MonitoringService.GetInstallationForecast": {refused: true, request: func(target) proto.Message { return &v1.GetInstallationForecastRequest{} }},
	"AssignmentService.GetAssignment":           {refused: true, request: func(target) proto.Message { return &v1.GetAssignmentRequest{} }},
	"AssignmentService.UpdateStrategy":          {refused: true, request: func(target) proto.Message { return &v1.UpdateStrategyRequest{} }},
	"AssignmentService.RaiseEpochs":             {refused: true, request: func(target) proto.Message { return &v1.RaiseEpochsRequest{Databases: []int32{3}} }},
	"ClockService.GetClock":                     {refused: true, request: func(target) proto.Message { return &v1.GetClockRequest{} }},
	"ClockService.AdvanceClock":                 {refused: true, request: func(target) proto.Message { return &v1.AdvanceClockRequest{} }},
	"ClockService.SetClock":                     {refused: true, request: func(target) proto.Message { return &v1.SetClockRequest{} }},
	"IdentityService.GetIdentity":               {request: func(target) proto.Message { return &v1.GetIdentityRequest{} }},
}

func inAnHour() *timestamppb.Timestamp {
	return timestamppb.New(time.Now().Add(time.Hour).Truncate(time.Hour))
}

func result(id int64, o v1.RunResult_Outcome) *v1.ReportResultsRequest {
	return &v1.ReportResultsRequest{Holder: 7, Results: []*v1.RunResult{{Attempt: attempt(id)[0], Outcome: o, Error: mark}}}
}

// apiMethods returns all methods of the API as "Service.Method", from the contract.
func apiMethods() map[string]protoreflect.MethodDescriptor {
	all := map[string]protoreflect.MethodDescriptor{}
	protoregistry.GlobalFiles.RangeFilesByPackage("perceptor.v1", func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			s := f.Services().Get(i)
			for j := range s.Methods().Len() {
				all[string(s.Name())+"."+string(s.Methods().Get(j).Name())] = s.Methods().Get(j)
			}
		}
		return true
	})
	return all
}

// api calls methods by their descriptors.
type api struct {
	t    *testing.T
	conn *grpc.ClientConn
}

// call returns the answer, or the status, as text.
func (a api) call(secret string, m protoreflect.MethodDescriptor, request proto.Message) (codes.Code, string) {
	a.t.Helper()
	kind, err := protoregistry.GlobalTypes.FindMessageByName(m.Output().FullName())
	if err != nil {
		a.t.Fatal(err)
	}
	path := fmt.Sprintf("/%s/%s", m.Parent().FullName(), m.Name())
	if m.IsStreamingServer() {
		return a.stream(secret, path, m, kind, request)
	}
	reply := kind.New().Interface()
	if err = a.conn.Invoke(a.as(secret), path, request, reply); err != nil {
		return status.Code(err), status.Convert(err).Message()
	}
	return codes.OK, prototext.Format(reply)
}

// stream sends one message on a stream, and returns all answers, or the status, as text.
func (a api) stream(secret, path string, m protoreflect.MethodDescriptor, kind protoreflect.MessageType, request proto.Message) (codes.Code, string) {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(a.as(secret), time.Minute)
	defer cancel()
	s, err := a.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: m.IsStreamingClient()}, path)
	if err == nil {
		err = s.SendMsg(request)
	}
	if err == nil {
		err = s.CloseSend()
	}
	if err != nil && !errors.Is(err, io.EOF) { // after which RecvMsg has the status
		a.t.Fatal(err)
	}
	var all strings.Builder
	for {
		reply := kind.New().Interface()
		switch err := s.RecvMsg(reply); {
		case errors.Is(err, io.EOF):
			return codes.OK, all.String()
		case err != nil:
			return status.Code(err), status.Convert(err).Message()
		}
		all.WriteString(prototext.Format(reply))
	}
}

func (a api) as(secret string) context.Context {
	return metadata.AppendToOutgoingContext(a.t.Context(), "authorization", "Bearer "+secret)
}

// tenant creates a tenant and returns a token of its tasks and one of its tokens.
func (a api) tenant(name, admin string) (tasks, tokens string) {
	a.t.Helper()
	c := v1.NewAdminServiceClient(a.conn)
	if _, err := c.CreateTenant(a.as(admin), &v1.CreateTenantRequest{Tenant: &v1.Tenant{Name: name, History: v1.Tenant_ALL}}); err != nil {
		a.t.Fatal(err)
	}
	secrets := map[v1.Token_Scope]string{}
	for _, s := range []v1.Token_Scope{v1.Token_TENANT, v1.Token_TENANT_ADMIN} {
		made, err := c.CreateToken(a.as(admin), &v1.CreateTokenRequest{Token: &v1.Token{Scope: s, Tenant: name}})
		if err != nil {
			a.t.Fatal(err)
		}
		secrets[s] = made.Secret
	}
	return secrets[v1.Token_TENANT], secrets[v1.Token_TENANT_ADMIN]
}

// furnish gives the victim something of everything.
func (a api) furnish(secret, tokens string) target {
	a.t.Helper()
	x := target{tenant: mark}
	tasks, runs, bulk := v1.NewTaskServiceClient(a.conn), v1.NewRunServiceClient(a.conn), v1.NewBulkServiceClient(a.conn)
	add := func(begin *timestamppb.Timestamp, key string) int64 {
		made, err := tasks.AddTask(a.as(secret), &v1.AddTaskRequest{RequestId: key, Task: &v1.Task{
			Kind: "shared", Type: v1.Task_BLOCKING, Schedule: &v1.Task_Interval{Interval: durationpb.New(time.Hour)}, MaxCount: 1, BeginTime: begin,
			Params: map[string]string{"of": mark}, Tags: []string{mark}, IdempotencyKey: key, AckTimeout: durationpb.New(time.Hour),
			RetryPolicy: &v1.RetryPolicy{MaxAttempts: 1}, Retention: durationpb.New(time.Hour),
		}})
		if err != nil {
			a.t.Fatal(err)
		}
		return made.Id
	}
	x.waiting, x.open, x.finished, x.dead = add(inAnHour(), sameKey), add(nil, ""), add(nil, ""), add(nil, "")
	for id, outcome := range map[int64]v1.RunResult_Outcome{x.open: 0, x.finished: v1.RunResult_SUCCESS, x.dead: v1.RunResult_FAIL} {
		a.until(func() (bool, error) {
			r, err := runs.StartRuns(a.as(secret), &v1.StartRunsRequest{Holder: 7, Attempts: attempt(id)})
			return err == nil && r.Replies[0].Code == v1.RunCode_RUN_CODE_ACCEPTED, err
		})
		if outcome == 0 {
			continue
		}
		r, err := runs.ReportResults(a.as(secret), result(id, outcome))
		if err != nil || r.Replies[0].Code != v1.RunCode_RUN_CODE_ACCEPTED {
			a.t.Fatalf("%v, %v", r, err)
		}
	}
	op, err := bulk.CreateBulkOperation(a.as(secret), &v1.CreateBulkOperationRequest{Operation: &v1.BulkOperation{
		Action: v1.BulkOperation_CANCEL, Filter: &v1.TaskFilter{Kind: mark}, MaxRate: 1,
	}})
	if err != nil {
		a.t.Fatal(err)
	}
	x.bulk = op.Id
	if _, err := bulk.PauseBulkOperation(a.as(secret), &v1.PauseBulkOperationRequest{Id: x.bulk}); err != nil {
		a.t.Fatal(err)
	}
	made, err := v1.NewImportServiceClient(a.conn).CreateImport(a.as(secret), &v1.CreateImportRequest{Import: &v1.Import{Description: mark}})
	if err != nil {
		a.t.Fatal(err)
	}
	x.imported = made.Id
	list, err := v1.NewAdminServiceClient(a.conn).ListTokens(a.as(tokens), &v1.ListTokensRequest{})
	if err != nil {
		a.t.Fatal(err)
	}
	x.token = list.Tokens[0].Id
	return x
}

func (a api) until(done func() (bool, error)) {
	a.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		ok, err := done()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			a.t.Fatal(errors.Join(errors.New("it does not happen"), err))
		}
	}
}

// possessions is all that the victim has, as it sees it.
func (a api) possessions(secret, tokens string, x target) string {
	a.t.Helper()
	var all strings.Builder
	methods := apiMethods()
	for _, c := range []struct {
		secret, method string
		request        proto.Message
	}{
		{secret, "TaskService.ListTasks", &v1.ListTasksRequest{}},
		{secret, "TaskService.GetTask", &v1.GetTaskRequest{Id: x.waiting}}, {secret, "TaskService.GetTask", &v1.GetTaskRequest{Id: x.open}},
		{secret, "TaskService.GetTask", &v1.GetTaskRequest{Id: x.finished}}, {secret, "TaskService.GetTask", &v1.GetTaskRequest{Id: x.dead}},
		{secret, "TaskService.ListRunEvents", &v1.ListRunEventsRequest{TaskId: x.waiting}}, {secret, "TaskService.ListRunEvents", &v1.ListRunEventsRequest{TaskId: x.open}},
		{secret, "TaskService.CountTasks", &v1.CountTasksRequest{}}, {secret, "DeadLetterService.ListDeadRuns", &v1.ListDeadRunsRequest{}},
		{secret, "RunService.CheckRuns", &v1.CheckRunsRequest{Attempts: attempt(x.open)}}, {secret, "BulkService.ListBulkOperations", &v1.ListBulkOperationsRequest{}},
		{secret, "ImportService.ListImports", &v1.ListImportsRequest{}},
		{tokens, "AdminService.ListTokens", &v1.ListTokensRequest{}}, {tokens, "AdminService.GetTenant", &v1.GetTenantRequest{Name: mark}},
	} {
		code, text := a.call(c.secret, methods[c.method], c.request)
		if code != codes.OK {
			a.t.Fatalf("%s: %s %s", c.method, code, text)
		}
		fmt.Fprintf(&all, "%s %s\n", c.method, changing.ReplaceAllString(text, ""))
	}
	return all.String()
}

// changing matches what changes by itself: uses of tokens, and the random spaces of prototext.
var changing = regexp.MustCompile(`(?s)\s*last_use_time:\s*\{.*?\}| `)

// longNumber matches the ids that messages repeat.
var longNumber = regexp.MustCompile(`[0-9]{5,}`)

// TestNoCallReachesAnotherTenant calls every method of the contract with what another tenant
// has. The answer must be that for something that nobody has, show nothing of the other
// tenant, and change nothing of it.
func TestNoCallReachesAnotherTenant(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a whole installation; make test runs it")
	}
	t.Parallel()
	o := ephemeral(t, &output{})
	where, _ := running(t, o)
	conn, err := grpc.NewClient("dns:///"+where.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	a := api{t, conn}
	theirs, theirTokens := a.tenant(mark, where.Admin)
	tasks, tokens := a.tenant("rival", where.Admin)
	x := a.furnish(theirs, theirTokens)
	before, same := "", 0
	a.until(func() (bool, error) { // the last parts of the bulk operation see that it is paused
		now := a.possessions(theirs, theirTokens, x)
		if same++; now != before {
			before, same = now, 0
		}
		return same == 5, nil
	})
	const far = 512 << 20 // the same shard
	nobody := target{x.waiting + far, x.open + far, x.finished + far, x.dead + far, x.bulk + far, x.imported + 1, "pct_aaaaaaaaaaaa", "nobody"}
	methods := apiMethods()
	for _, name := range slices.Sorted(maps.Keys(methods)) {
		m := methods[name]
		c, ok := crossTenantCases[name]
		if !ok {
			t.Errorf("%s has no case: add one that calls it with what another tenant has", name)
			continue
		}
		secret := tasks
		if code, _ := a.call(secret, m, c.request(nobody)); code == codes.PermissionDenied {
			secret = tokens
		}
		wantCode, want := a.call(secret, m, c.request(nobody))
		code, got := a.call(secret, m, c.request(x))
		switch {
		case c.refused != (code == codes.PermissionDenied) && !strings.HasPrefix(name, "AdminService."):
			t.Errorf("%s: %s %s", name, code, got)
		case c.refused && code != codes.PermissionDenied:
			t.Errorf("%s: %s %s, want it refused", name, code, got)
		case c.moves && code != wantCode:
			t.Errorf("%s: %s, and for something that nobody has %s", name, code, wantCode)
		case !c.moves && (code != wantCode || longNumber.ReplaceAllString(got, "") != longNumber.ReplaceAllString(want, "")):
			t.Errorf("%s: %s %q, and for something that nobody has %s %q", name, code, got, wantCode, want)
		case strings.Contains(got, mark):
			t.Errorf("%s tells of the other tenant: %s", name, got)
		}
	}
	for name := range crossTenantCases {
		if methods[name] == nil {
			t.Errorf("%s is no method of the API", name)
		}
	}
	if after := a.possessions(theirs, theirTokens, x); after != before {
		t.Errorf("the other tenant had\n%s\nand has\n%s", before, after)
	}
}
