package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/anypb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bundle is a server with fake dependencies, reachable over gRPC in memory and
// over HTTP.
type bundle struct {
	t       testing.TB
	server  *Server
	auth    *fakeAuth
	tasks   *fakeTasks
	runs    *fakeRuns
	dead    *fakeDead
	bulk    *fakeBulk
	imports *fakeImports
	admin   *fakeAdmin
	log     *logBuffer
	conn    *grpc.ClientConn
	web     *http.Client
	stop    context.CancelFunc
	done    chan error
}

func setup(t testing.TB, change ...func(*Config)) *bundle {
	t.Helper()
	return setupWith(t, func(*Deps) {}, change...)
}

// setupWith also changes the dependencies.
func setupWith(t testing.TB, deps func(*Deps), change ...func(*Config)) *bundle {
	t.Helper()
	b := &bundle{
		t: t, auth: &fakeAuth{}, tasks: &fakeTasks{}, runs: &fakeRuns{}, dead: &fakeDead{}, bulk: &fakeBulk{}, imports: &fakeImports{}, admin: newFakeAdmin(),
		log: &logBuffer{}, done: make(chan error, 1),
	}
	grpcSide := bufconn.Listen(1 << 20)
	// Not bufconn: net/http ends reads by a deadline in the past and takes it
	// back, and a bufconn that is slow to notice fails a later read.
	httpSide := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	c := Config{
		GRPC: grpcSide, HTTP: httpSide, Limits: task.DefaultLimits(),
		Log: slog.New(slog.NewJSONHandler(b.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	for _, f := range change {
		f(&c)
	}
	d := Deps{
		Tasks: b.tasks, Runs: b.runs, Dead: b.dead, Bulk: b.bulk, Imports: b.imports, Admin: b.admin, Auth: b.auth, Epochs: fakeEpochs{},
		Delivery: func(t Tenant) Delivery {
			return Delivery{Topic: t.Topic, Group: "listeners." + t.Name, Brokers: []string{"127.0.0.1:9092"}}
		},
	}
	deps(&d)
	b.server = must(New(c, d))(t)
	var ctx context.Context
	ctx, b.stop = context.WithCancel(context.Background())
	go func() { b.done <- b.server.Run(ctx) }()
	b.conn = must(grpc.NewClient("passthrough:///memory", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return grpcSide.DialContext(ctx) })))(t)
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", httpSide.Addr().String())
	}}
	b.web = &http.Client{Transport: transport}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		_ = b.conn.Close()
		b.stop()
		if err := <-b.done; err != nil {
			t.Errorf("Run: %v", err)
		}
		close(b.done)
	})
	return b
}

// must returns a function that returns v or ends the test.
func must[V any](v V, err error) func(testing.TB) V {
	return func(t testing.TB) V {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// answer is the result of a call over either side.
type answer struct {
	code    codes.Code
	http    int // 0 over gRPC
	message string
	reason  string
	faults  map[string]string // field to description
	header  http.Header
	body    []byte
}

// answerOf unpacks an answer. Every error must have a reason of the list, and the code
// of that reason, unless the caller has ended the call or the gRPC library answers.
func (b *bundle) answerOf(s *status.Status) answer {
	b.t.Helper()
	a := unpacked(s)
	code, ok := task.ErrorReasons()[task.ErrorReason(a.reason)]
	library := strings.HasPrefix(a.message, "grpc: ") || strings.HasPrefix(a.message, "closing transport")
	if a.code != codes.OK && a.code != codes.Canceled && !library && (!ok || grpcCodes[code] != a.code) {
		b.t.Errorf("%s %q has the reason %q", a.code, a.message, a.reason)
	}
	return a
}

func unpacked(s *status.Status) answer {
	a := answer{code: s.Code(), message: s.Message(), faults: map[string]string{}}
	for _, d := range s.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			a.reason = d.Reason
		case *errdetails.BadRequest:
			for _, v := range d.FieldViolations {
				a.faults[v.Field] = v.Description
			}
		}
	}
	return a
}

// overGRPC calls a method and decodes its answer into reply.
func (b *bundle) overGRPC(secret, method string, request, reply proto.Message) answer {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if secret != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+secret)
	}
	return b.answerOf(status.Convert(b.conn.Invoke(ctx, method, request, reply)))
}

// overHTTP calls the same method by its HTTP rule.
func (b *bundle) overHTTP(secret, method string, request, reply proto.Message) answer {
	b.t.Helper()
	verb, path, body := httpForm(b.t, method, request)
	a := b.fetch(secret, verb, path, body, reply)
	b.checkDescribed(method, a)
	return a
}

// fetch makes an HTTP request and decodes its answer.
func (b *bundle) fetch(secret, verb, path, body string, reply proto.Message) answer {
	b.t.Helper()
	return b.do(secret, must(http.NewRequest(verb, "http://memory"+path, strings.NewReader(body)))(b.t), reply)
}

func (b *bundle) do(secret string, r *http.Request, reply proto.Message) answer {
	b.t.Helper()
	if secret != "" {
		r.Header.Set("Authorization", "Bearer "+secret)
	}
	response, err := b.web.Do(r)
	if err != nil {
		b.t.Fatal(err)
	}
	defer response.Body.Close()
	raw := must(io.ReadAll(response.Body))(b.t)
	if response.StatusCode == http.StatusOK {
		if reply != nil {
			if err := protojson.Unmarshal(raw, reply); err != nil {
				b.t.Fatalf("%s %s: %v in %s", r.Method, r.URL, err, raw)
			}
		}
		return answer{http: http.StatusOK, header: response.Header, body: raw}
	}
	a := b.answerOf(status.FromProto(b.statusOf(response.StatusCode, raw)))
	a.http, a.header, a.body = response.StatusCode, response.Header, raw
	return a
}

// statusOf returns the gRPC status of an error over HTTP. Each must have the form of AIP-193.
func (b *bundle) statusOf(at int, raw []byte) *rpcstatus.Status {
	b.t.Helper()
	var e struct {
		Error *struct {
			Code            int
			Message, Status string
			Details         []json.RawMessage
		}
	}
	known := json.NewDecoder(bytes.NewReader(raw))
	known.DisallowUnknownFields()
	if err := known.Decode(&e); err != nil || e.Error == nil || e.Error.Code != at {
		b.t.Fatalf("the error of a call with the status %d is %s (%v)", at, raw, err)
	}
	number, ok := code.Code_value[e.Error.Status]
	if !ok || number == 0 || len(e.Error.Details) == 0 || e.Error.Message == "" {
		b.t.Fatalf("the error has no status, message or details: %s", raw)
	}
	s := &rpcstatus.Status{Code: number, Message: e.Error.Message}
	for _, text := range e.Error.Details {
		d := &anypb.Any{}
		if err := protojson.Unmarshal(text, d); err != nil {
			b.t.Fatalf("%v in %s", err, raw)
		}
		s.Details = append(s.Details, d)
	}
	return s
}

// httpForm returns the HTTP request that stands for a call, by its annotation.
func httpForm(t testing.TB, method string, request proto.Message) (verb, path, body string) {
	t.Helper()
	rule := httpRule(t, method)
	request = proto.Clone(request)
	m := request.ProtoReflect()
	verb, path = http.MethodGet, rule.GetGet()
	if rule.GetPost() != "" {
		verb, path = http.MethodPost, rule.GetPost()
	}
	if rule.GetPatch() != "" {
		verb, path = http.MethodPatch, rule.GetPatch()
		inPath := "{task.id}"
		if r, ok := request.(*perceptorv1.UpdateTaskRequest); ok {
			path = strings.ReplaceAll(path, inPath, fmt.Sprint(r.GetTask().GetId()))
			if r.Task != nil {
				r.Task.Id = 0
			}
		}
	}
	for i := range m.Descriptor().Fields().Len() {
		f := m.Descriptor().Fields().Get(i)
		inPath := "{" + string(f.Name()) + "}"
		switch {
		case strings.Contains(path, inPath):
			path = strings.ReplaceAll(path, inPath, queryValue(m.Get(f).Interface()))
			m.Clear(f)
		case rule.Body == string(f.Name()):
			if m.Has(f) {
				body = string(must(protojson.Marshal(m.Get(f).Message().Interface()))(t))
			}
		case rule.Body != "*" && m.Has(f) && f.Message() != nil && f.Message().FullName() == "perceptor.v1.AddTaskRequest.Expected":
			e := m.Get(f).Message().Interface().(*perceptorv1.AddTaskRequest_Expected)
			path += fmt.Sprintf("%sexpected.id=%d&expected.version=%d", separator(path), e.Id, e.Version)
		case rule.Body != "*" && m.Has(f):
			path += fmt.Sprintf("%s%s=%s", separator(path), f.JSONName(), queryValue(m.Get(f).Interface()))
		}
	}
	if rule.Body == "*" {
		body = string(must(protojson.Marshal(request))(t))
	}
	return verb, path, body
}

func separator(path string) string {
	if strings.Contains(path, "?") {
		return "&"
	}
	return "?"
}

func queryValue(v any) string {
	return strings.NewReplacer("%", "%25", "&", "%26", "#", "%23", "+", "%2B", " ", "%20", "\x00", "%00", "\n", "%0A").Replace(fmt.Sprint(v))
}

func httpRule(t testing.TB, method string) *annotations.HttpRule {
	t.Helper()
	name := protoreflect.FullName(strings.ReplaceAll(strings.TrimPrefix(method, "/"), "/", "."))
	d := must(protoregistry.GlobalFiles.FindDescriptorByName(name))(t)
	rule := proto.GetExtension(d.Options(), annotations.E_Http).(*annotations.HttpRule)
	if rule.GetGet() == "" && rule.GetPost() == "" && rule.GetPatch() == "" {
		t.Fatalf("%s has no HTTP form", method)
	}
	return rule
}

// streams reports whether a method is a stream, which has no HTTP form.
func streams(t testing.TB, method string) bool {
	t.Helper()
	name := protoreflect.FullName(strings.ReplaceAll(strings.TrimPrefix(method, "/"), "/", "."))
	d := must(protoregistry.GlobalFiles.FindDescriptorByName(name))(t).(protoreflect.MethodDescriptor)
	return d.IsStreamingClient() || d.IsStreamingServer()
}

// logBuffer collects log output.
type logBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// rawCodec sends bytes unchanged.
type rawCodec struct{}

func (rawCodec) Marshal(v any) ([]byte, error) { return v.([]byte), nil }
func (rawCodec) Unmarshal([]byte, any) error   { return nil }
func (rawCodec) Name() string                  { return "proto" }

// rawGRPC calls a method with bytes that need not be a valid message.
func (b *bundle) rawGRPC(secret, method string, wire []byte) answer {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if secret != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+secret)
	}
	return b.answerOf(status.Convert(b.conn.Invoke(ctx, method, wire, nil, grpc.ForceCodec(rawCodec{}))))
}

// chunked makes a request without a length.
func (b *bundle) chunked(secret, verb, path, body string) answer {
	b.t.Helper()
	r := must(http.NewRequest(verb, "http://memory"+path, io.MultiReader(strings.NewReader(body))))(b.t)
	return b.do(secret, r, nil)
}

func fromProto(s *rpcstatus.Status) answer { return unpacked(status.FromProto(s)) }

// replyFor returns an empty reply of a method.
func replyFor(t testing.TB, method string) proto.Message {
	t.Helper()
	name := protoreflect.FullName(strings.ReplaceAll(strings.TrimPrefix(method, "/"), "/", "."))
	d := must(protoregistry.GlobalFiles.FindDescriptorByName(name))(t).(protoreflect.MethodDescriptor)
	return must(protoregistry.GlobalTypes.FindMessageByName(d.Output().FullName()))(t).New().Interface()
}

// requestFor returns a request of a method whose strings are "x", so that its
// HTTP path is complete.
func requestFor(t testing.TB, method string) proto.Message {
	t.Helper()
	name := protoreflect.FullName(strings.ReplaceAll(strings.TrimPrefix(method, "/"), "/", "."))
	d := must(protoregistry.GlobalFiles.FindDescriptorByName(name))(t).(protoreflect.MethodDescriptor)
	m := must(protoregistry.GlobalTypes.FindMessageByName(d.Input().FullName()))(t).New()
	for i := range m.Descriptor().Fields().Len() {
		if f := m.Descriptor().Fields().Get(i); f.Kind() == protoreflect.StringKind && f.Cardinality() != protoreflect.Repeated {
			m.Set(f, protoreflect.ValueOfString("x"))
		}
	}
	return m.Interface()
}

// Short names of methods.
const (
	addTask      = perceptorv1.TaskService_AddTask_FullMethodName
	addTasks     = perceptorv1.TaskService_AddTasks_FullMethodName
	getTask      = perceptorv1.TaskService_GetTask_FullMethodName
	listTasks    = perceptorv1.TaskService_ListTasks_FullMethodName
	cancelTask   = perceptorv1.TaskService_CancelTask_FullMethodName
	pauseTask    = perceptorv1.TaskService_PauseTask_FullMethodName
	resumeTask   = perceptorv1.TaskService_ResumeTask_FullMethodName
	startRuns    = perceptorv1.RunService_StartRuns_FullMethodName
	report       = perceptorv1.RunService_ReportResults_FullMethodName
	heartbeat    = perceptorv1.RunService_HeartbeatRuns_FullMethodName
	handBack     = perceptorv1.RunService_HandBackRuns_FullMethodName
	getDelivery  = perceptorv1.RunService_GetDelivery_FullMethodName
	createTenant = perceptorv1.AdminService_CreateTenant_FullMethodName
	getTenant    = perceptorv1.AdminService_GetTenant_FullMethodName
	listTenants  = perceptorv1.AdminService_ListTenants_FullMethodName
	createToken  = perceptorv1.AdminService_CreateToken_FullMethodName
	listTokens   = perceptorv1.AdminService_ListTokens_FullMethodName
	rotateToken  = perceptorv1.AdminService_RotateToken_FullMethodName
	revokeToken  = perceptorv1.AdminService_RevokeToken_FullMethodName
)
