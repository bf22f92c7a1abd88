package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// The task service of the fake: it stores the given tasks once per request id,
// and refuses tasks without a kind.

func (s *fakeService) AddTask(ctx context.Context, q *perceptorv1.AddTaskRequest) (*perceptorv1.AddTaskResponse, error) {
	s.with(func() { s.singles = append(s.singles, q) })
	if err := s.hook(ctx, "AddTask"); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tasks = append(s.tasks, q.GetTask())
	return &perceptorv1.AddTaskResponse{Id: int64(len(s.tasks))}, nil
}

func (s *fakeService) AddTasks(ctx context.Context, q *perceptorv1.AddTasksRequest) (*perceptorv1.AddTasksResponse, error) {
	s.with(func() { s.adds = append(s.adds, q) })
	if err := s.hook(ctx, "AddTasks"); err != nil {
		return nil, err
	}
	s.mu.Lock()
	stored := s.stored[q.GetRequestId()]
	s.mu.Unlock()
	if stored != nil { // on a slow machine a client may not wait for the first answer
		return stored, nil
	}
	a, whole := &perceptorv1.AddTasksResponse{}, true
	for _, t := range q.GetTasks() {
		r := &perceptorv1.AddTasksResponse_Result{}
		if t.GetKind() == "" {
			r.Outcome = &perceptorv1.AddTasksResponse_Result_Error{Error: refusal("kind", "is missing")}
		} else if refused := s.refuse(t); refused != nil {
			r.Outcome = &perceptorv1.AddTasksResponse_Result_Error{Error: refused}
			whole = false
		} else {
			s.with(func() {
				s.tasks = append(s.tasks, t)
				r.Outcome = &perceptorv1.AddTasksResponse_Result_Id{Id: int64(len(s.tasks))}
			})
		}
		a.Results = append(a.Results, r)
	}
	if whole && q.GetRequestId() != "" {
		s.with(func() { s.stored[q.GetRequestId()] = a })
	}
	return a, nil
}

func refusal(field, message string) *rpcstatus.Status {
	st, err := status.New(codes.InvalidArgument, "the task breaks a rule").WithDetails(&errdetails.BadRequest{
		FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: field, Description: message}},
	})
	if err != nil {
		panic(err)
	}
	return st.Proto()
}

func (s *fakeService) GetTask(ctx context.Context, q *perceptorv1.GetTaskRequest) (*perceptorv1.Task, error) {
	return s.find(ctx, "GetTask", q.GetId())
}

func (s *fakeService) CancelTask(ctx context.Context, q *perceptorv1.CancelTaskRequest) (*perceptorv1.Task, error) {
	return s.find(ctx, "CancelTask", q.GetId())
}

func (s *fakeService) PauseTask(ctx context.Context, q *perceptorv1.PauseTaskRequest) (*perceptorv1.Task, error) {
	return s.find(ctx, "PauseTask", q.GetId())
}

func (s *fakeService) ResumeTask(ctx context.Context, q *perceptorv1.ResumeTaskRequest) (*perceptorv1.Task, error) {
	return s.find(ctx, "ResumeTask", q.GetId())
}

func (s *fakeService) find(ctx context.Context, op string, id int64) (*perceptorv1.Task, error) {
	if err := s.hook(ctx, op); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if id < 1 || id > int64(len(s.tasks)) {
		return nil, status.Error(codes.NotFound, "no such task")
	}
	s.tasks[id-1].Id = id
	return s.tasks[id-1], nil
}

func (s *fakeService) ListTasks(ctx context.Context, q *perceptorv1.ListTasksRequest) (*perceptorv1.ListTasksResponse, error) {
	if err := s.hook(ctx, "ListTasks"); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	from, _ := strconv.Atoi(q.GetPageToken()) // the first page has no token
	to := min(from+3, len(s.tasks))
	a := &perceptorv1.ListTasksResponse{Tasks: s.tasks[from:to]}
	if to < len(s.tasks) {
		a.NextPageToken = fmt.Sprint(to)
	}
	return a, nil
}

// api returns a service without a broker, and a client of it.
func api(t *testing.T, cfg Config) (*fakeService, *Client) {
	t.Helper()
	s := newFakeService(nil)
	b := &bench{t: t, svc: s, address: serve(t, s, "127.0.0.1:0")}
	return s, b.newClient(cfg)
}

func TestConcurrentAddsTravelTogether(t *testing.T) {
	s, c := api(t, Config{})
	const n = 2000
	ids := make([]int64, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			id, err := c.AddTask(t.Context(), Task{Kind: "k", Type: OneShot})
			if err != nil {
				t.Error(err)
			}
			ids[i] = id
		})
	}
	wg.Wait()
	seen := map[int64]bool{}
	for _, id := range ids {
		seen[id] = true
	}
	if len(seen) != n || len(s.tasks) != n {
		t.Errorf("%d ids, %d stored; want %d", len(seen), len(s.tasks), n)
	}
	if len(s.adds) > n/4 {
		t.Errorf("%d calls for %d adds: they did not share requests", len(s.adds), n)
	}
}

func TestOneBadTaskOfABatchFailsNobodyElse(t *testing.T) {
	_, c := api(t, Config{})
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			kind := "k"
			if i%10 == 0 {
				kind = ""
			}
			_, err := c.AddTask(t.Context(), Task{Kind: kind, Type: OneShot})
			var e *Error
			switch {
			case kind != "" && err != nil:
				t.Errorf("a good task: %v", err)
			case kind == "" && (!errors.Is(err, ErrInvalidArgument) || !errors.As(err, &e) || !cmp.Equal(e.Fields, []FieldError{{"kind", "is missing"}})):
				t.Errorf("a bad task: %v", err)
			}
		})
	}
	wg.Wait()
}

func TestRequestIDStaysTheSameOverRetries(t *testing.T) {
	s, c := api(t, Config{})
	fails := 3
	s.before = func(context.Context, string) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if fails--; fails >= 0 {
			return status.Error(codes.Unavailable, "the answer was lost")
		}
		return nil
	}
	if _, err := c.AddTask(t.Context(), Task{Kind: "k", Type: OneShot}); err != nil {
		t.Fatal(err)
	}
	if len(s.adds) != 4 {
		t.Fatalf("%d calls; want 4", len(s.adds))
	}
	for _, a := range s.adds {
		if a.GetRequestId() == "" || a.GetRequestId() != s.adds[0].GetRequestId() {
			t.Errorf("request id %q after %q", a.GetRequestId(), s.adds[0].GetRequestId())
		}
	}
	if _, err := c.AddTask(t.Context(), Task{Kind: "k", Type: OneShot}); err != nil {
		t.Fatal(err)
	}
	if s.adds[4].GetRequestId() == s.adds[0].GetRequestId() {
		t.Error("two adds have the same request id")
	}
}

// The task of an upsert may have ended when it is sent again, and only the id tells that it is the same upsert.
func TestAnUpsertIsSentAgainUnderItsID(t *testing.T) {
	s, c := api(t, Config{})
	var calls, refusals atomic.Int32
	s.before = func(context.Context, string) error {
		if calls.Add(1)%2 == 1 {
			return status.Error(codes.Unavailable, "the answer was lost")
		}
		return nil
	}
	s.refuse = func(task *perceptorv1.Task) *rpcstatus.Status {
		if task.GetIdempotencyKey() == "b" && refusals.Add(1) == 1 {
			return status.New(codes.Unavailable, "a database does not answer").Proto()
		}
		return nil
	}
	keyed := func(key string) Task { return Task{Kind: "k", Type: OneShot, IdempotencyKey: key} }
	if _, err := c.AddTask(t.Context(), keyed("a"), WithUpsert()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.AddTasks(t.Context(), []Task{keyed("a"), keyed("b")}, WithUpsert()); err != nil {
		t.Fatal(err)
	}
	if len(s.singles) != 2 || len(s.adds) != 4 {
		t.Fatalf("%d and %d calls, want 2 and 4", len(s.singles), len(s.adds))
	}
	ids := map[string]int{}
	for _, q := range s.singles {
		ids[q.GetRequestId()]++
	}
	for _, q := range s.adds {
		ids[q.GetRequestId()]++
	}
	if ids[""] > 0 || len(ids) != 2 {
		t.Errorf("the calls by request id are %v, want 2 and 4 under two ids", ids)
	}
}

func TestAddWithoutAnswerEndsWithTheContext(t *testing.T) {
	s, c := api(t, Config{})
	s.before = func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() }
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	if _, err := c.AddTask(ctx, Task{Kind: "k", Type: OneShot}); !errors.Is(err, context.Canceled) {
		t.Errorf("AddTask returned %v", err)
	}
	// No caller waits for the batch any more, so it ends, too.
	done := make(chan struct{})
	go func() {
		defer close(done)
		for len(c.adds.slots) > 0 {
			time.Sleep(time.Millisecond)
		}
	}()
	within(t, "the end of the batch", done)
}

func TestServiceThatStaysAwayIsUnavailable(t *testing.T) {
	s, c := api(t, Config{CallTimeout: 300 * time.Millisecond})
	s.before = func(context.Context, string) error { return status.Error(codes.Unavailable, "down") }
	_, err := c.AddTask(t.Context(), Task{Kind: "k", Type: OneShot})
	if !errors.Is(err, ErrUnavailable) || !strings.HasPrefix(err.Error(), "perceptor: AddTask: ") {
		t.Errorf("AddTask, which shares calls with others, returned %v", err)
	}
	if _, err := c.AddTasks(t.Context(), []Task{{Kind: "k", Type: OneShot}}); err == nil || !strings.HasPrefix(err.Error(), "perceptor: AddTasks: ") {
		t.Errorf("AddTasks returned %v", err)
	}
	tries := 0
	for calls := 0; tries < 2 && calls < 10; calls++ { // a slow machine has time for few tries of a call
		_, err = c.GetTask(t.Context(), 1)
		s.with(func() { tries, s.calls["GetTask"] = s.calls["GetTask"], 0 })
	}
	if !errors.Is(err, ErrUnavailable) || tries < 2 {
		t.Errorf("GetTask returned %v after %d tries", err, tries)
	}
}

// Whoever waits because the service is away, or the address is another one, learns it before the call fails.
func TestCallsThatWaitForTheServiceWarn(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string // "": no warning
	}{
		{status.Error(codes.Unavailable, "connection refused"), "the service does not answer; trying again"},
		{status.Error(codes.Unavailable, "frame too large, note that the frame header looked like an HTTP/1.1 header"), "is it that of the HTTP API?"},
		{status.Error(codes.NotFound, "no such task"), ""},
	} {
		var log bytes.Buffer
		s, cl := api(t, Config{CallTimeout: 1200 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		s.before = func(context.Context, string) error { return c.err }
		for range 2 {
			if _, err := cl.GetTask(t.Context(), 1); err == nil {
				t.Fatal("GetTask succeeded")
			}
		}
		if got := log.String(); strings.Count(got, "level=WARN") != min(len(c.want), 1) || !strings.Contains(got, c.want) {
			t.Errorf("%v: logged %q, want one warning with %q", c.err, got, c.want)
		}
	}
}

func TestAnswersThatCannotChangeAreNotRetried(t *testing.T) {
	for code, want := range map[codes.Code]error{
		codes.InvalidArgument: ErrInvalidArgument, codes.NotFound: ErrNotFound, codes.AlreadyExists: ErrAlreadyExists,
		codes.FailedPrecondition: ErrFailedPrecondition, codes.Unauthenticated: ErrUnauthenticated,
		codes.PermissionDenied: ErrPermissionDenied, codes.Internal: ErrInternal, codes.Unimplemented: ErrInternal,
	} {
		s, c := api(t, Config{})
		s.before = func(context.Context, string) error { return status.Error(code, "because") }
		_, err := c.PauseTask(t.Context(), 1)
		if !errors.Is(err, want) || s.calls["PauseTask"] != 1 || !strings.Contains(err.Error(), "PauseTask: "+want.Error()+": because") {
			t.Errorf("%s: %v after %d calls", code, err, s.calls["PauseTask"])
		}
	}
}

func TestManyTasksAreSentInSeveralCalls(t *testing.T) {
	s, c := api(t, Config{})
	tasks := make([]Task, 2500)
	for i := range tasks {
		tasks[i] = Task{Kind: "k", Type: OneShot, MaxCount: int64(i)}
	}
	tasks[1700].Kind = ""
	results, err := c.AddTasks(t.Context(), tasks, WithRequestID("mine"))
	if err != nil || len(results) != len(tasks) {
		t.Fatalf("%d results, %v", len(results), err)
	}
	for i, r := range results {
		if (r.Err != nil) != (i == 1700) || (r.Err == nil && s.tasks[r.ID-1].GetMaxCount() != int64(i)) {
			t.Fatalf("task %d: %+v", i, r)
		}
	}
	var ids []string
	for _, a := range s.adds {
		ids = append(ids, a.GetRequestId())
	}
	if d := cmp.Diff([]string{"mine-0", "mine-1", "mine-2"}, ids); d != "" {
		t.Error(d)
	}
}

func TestTasksAreCutByTheirSize(t *testing.T) {
	s, c := api(t, Config{})
	tasks := make([]Task, 30)
	for i := range tasks {
		tasks[i] = Task{Kind: "k", Type: OneShot, Params: map[string]string{"p": strings.Repeat("x", 250_000)}}
	}
	if _, err := c.AddTasks(t.Context(), tasks); err != nil {
		t.Fatal(err)
	}
	if len(s.adds) != 2 || len(s.tasks) != 30 {
		t.Errorf("%d calls, %d tasks", len(s.adds), len(s.tasks))
	}
}

// TestAddsAreSplitForAServiceThatAcceptsLittle: its taskd.max_request_bytes is below the bytes of a batch.
func TestAddsAreSplitForAServiceThatAcceptsLittle(t *testing.T) {
	t.Parallel()
	s := newFakeService(nil)
	b := &bench{t: t, svc: s}
	b.address = serveOn(t, "127.0.0.1:0", func(server *grpc.Server) { perceptorv1.RegisterTaskServiceServer(server, s) }, grpc.MaxRecvMsgSize(64<<10))
	c := b.newClient(Config{})
	of := func(size int) Task {
		return Task{Kind: "k", Type: OneShot, Params: map[string]string{"p": strings.Repeat("x", size)}}
	}
	refused := func(err error) bool {
		var e *Error
		return errors.As(err, &e) && errors.Is(e, ErrInvalidArgument) && e.Reason == "REQUEST_TOO_LARGE" && strings.Contains(e.Message, "taskd.max_request_bytes")
	}
	const n = 20
	tasks := slices.Repeat([]Task{of(30_000)}, n)
	tasks[7] = of(70_000)
	results, err := c.AddTasks(t.Context(), tasks)
	if err != nil {
		t.Errorf("AddTasks returned %v", err)
	}
	var callers sync.WaitGroup
	for i := range tasks {
		if refused(results[i].Err) != (i == 7) || (results[i].Err != nil) != (i == 7) {
			t.Errorf("AddTasks: task %d: %v", i, results[i].Err)
		}
		callers.Go(func() {
			if _, err := c.AddTask(t.Context(), tasks[i]); refused(err) != (i == 7) || (err != nil) != (i == 7) {
				t.Errorf("AddTask: task %d: %v", i, err)
			}
		})
	}
	callers.Wait()
	if got := len(s.tasks); got != 2*(n-1) {
		t.Errorf("%d tasks are stored, want %d", got, 2*(n-1))
	}
	if _, err := c.AddTasks(t.Context(), tasks[:3], WithRequestID("mine")); !refused(err) {
		t.Errorf("AddTasks with an id returned %v", err)
	}
}

func TestTaskThatNoCallCanCarryIsRefusedAtOnce(t *testing.T) {
	s, c := api(t, Config{})
	huge := Task{Kind: "k", Type: OneShot, Params: map[string]string{"p": strings.Repeat("x", 5<<20)}}
	if _, err := c.AddTask(t.Context(), huge); !errors.Is(err, ErrInvalidArgument) {
		t.Errorf("AddTask returned %v", err)
	}
	good := Task{Kind: "k", Type: OneShot}
	results, err := c.AddTasks(t.Context(), []Task{good, huge, good})
	if err != nil || len(results) != 3 || results[0].Err != nil || !errors.Is(results[1].Err, ErrInvalidArgument) || results[2].Err != nil {
		t.Errorf("AddTasks returned %v, %v", results, err)
	}
	if len(s.tasks) != 2 {
		t.Errorf("%d tasks were stored; want 2", len(s.tasks))
	}
}

func TestTaskComesBackAsItWasGiven(t *testing.T) {
	_, c := api(t, Config{})
	at := time.Date(2030, 1, 2, 3, 4, 5, 6_000_000, time.UTC)
	for name, want := range map[string]Task{
		"everything": {
			Kind: "k", Type: Blocking, Begin: at, End: at.Add(time.Hour), Interval: time.Minute, MaxCount: 9,
			Params: map[string]string{"a": "b"}, AckTimeout: time.Second, GiveUpAfter: time.Hour, StopOnFailure: true, Retention: time.Hour, Overlap: AllowOverlap,
			Retry: RetryPolicy{MaxAttempts: 3, InitialBackoff: time.Second, Multiplier: 1.5, MaxBackoff: time.Minute, Jitter: 0.5},
		},
		"nothing":       {Kind: "k", Type: OneShot},
		"explicit zero": {Kind: "k", Type: OneShot, Retention: NoRetention, Retry: RetryPolicy{MaxAttempts: 1, Jitter: NoJitter}},
	} {
		id, err := c.AddTask(t.Context(), want, WithRequestID("x"))
		if err != nil {
			t.Fatal(err)
		}
		got, err := c.GetTask(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got.Task); d != "" || got.ID != id {
			t.Errorf("%s: id %d, %s", name, got.ID, d)
		}
	}
}

func TestListGoesOverAllPagesAndStopsWhenTold(t *testing.T) {
	s, c := api(t, Config{})
	if _, err := c.AddTasks(t.Context(), make10("k")); err != nil {
		t.Fatal(err)
	}
	n := 0
	for task, err := range c.ListTasks(t.Context(), Filter{Kind: "k", PageSize: 3}) {
		if err != nil || task.Kind != "k" {
			t.Fatal(task, err)
		}
		n++
	}
	if n != 10 || s.calls["ListTasks"] != 4 {
		t.Errorf("%d tasks in %d calls", n, s.calls["ListTasks"])
	}
	for _, err := range c.ListTasks(t.Context(), Filter{}) {
		if err != nil {
			t.Error(err)
		}
		break
	}
	if s.calls["ListTasks"] != 5 {
		t.Errorf("a list that was left fetched %d pages", s.calls["ListTasks"]-4)
	}
	s.before = func(context.Context, string) error { return status.Error(codes.PermissionDenied, "no") }
	for _, err := range c.ListTasks(t.Context(), Filter{}) {
		if !errors.Is(err, ErrPermissionDenied) {
			t.Errorf("the list ends with %v", err)
		}
	}
}

func make10(kind string) []Task {
	tasks := make([]Task, 10)
	for i := range tasks {
		tasks[i] = Task{Kind: kind, Type: OneShot}
	}
	return tasks
}

func TestUnknownTaskIsNotFound(t *testing.T) {
	_, c := api(t, Config{})
	for name, f := range map[string]func(context.Context, int64) (*TaskInfo, error){
		"GetTask": c.GetTask, "CancelTask": c.CancelTask, "PauseTask": c.PauseTask, "ResumeTask": c.ResumeTask,
	} {
		if _, err := f(t.Context(), 99); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestOneOfSeveralAddressesIsEnough(t *testing.T) {
	s := newFakeService(nil)
	good := serve(t, s, "127.0.0.1:0")
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone := dead.Addr().String()
	dead.Close()
	b := &bench{t: t, svc: s}
	c := b.newClient(Config{Address: gone + ", " + good})
	for range 5 {
		if _, err := c.AddTask(t.Context(), Task{Kind: "k", Type: OneShot}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestConfigurationComesFromTheEnvironmentWhenItIsNotGiven(t *testing.T) {
	t.Setenv(EnvAddress, "from-env:1")
	t.Setenv(EnvToken, "token-from-env")
	cfg, err := Config{}.complete()
	if err != nil || cfg.Address != "from-env:1" || cfg.Token != "token-from-env" {
		t.Errorf("%+v, %v", cfg, err)
	}
	cfg, err = Config{Address: "given:2", Token: "given"}.complete()
	if err != nil || cfg.Address != "given:2" || cfg.Token != "given" {
		t.Errorf("%+v, %v", cfg, err)
	}
}

func TestATokenIsAskedForWithEachCall(t *testing.T) {
	t.Setenv(EnvToken, "")
	calls := 0
	tokens := []string{"first", "second", "", "bad\n"}
	cfg, err := Config{TokenSource: func(context.Context) (string, error) {
		calls++
		if calls > len(tokens) {
			return "", errors.New("the issuer is away")
		}
		return tokens[calls-1], nil
	}}.complete()
	if err != nil {
		t.Fatal(err)
	}
	b := bearer{tokenSource(&cfg), true}
	for _, want := range []string{"Bearer first", "Bearer second", ""} {
		if got, err := b.GetRequestMetadata(t.Context()); err != nil || got["authorization"] != want {
			t.Errorf("%v, %v, want %q", got, err, want)
		}
	}
	if _, err := b.GetRequestMetadata(t.Context()); status.Code(err) != codes.Unauthenticated || strings.Contains(err.Error(), "bad") {
		t.Error(err)
	}
	if _, err := b.GetRequestMetadata(t.Context()); !retriable(err) {
		t.Errorf("while the source fails: %v", err)
	}
}

func TestAClientWithACertificateNeedsNoToken(t *testing.T) {
	t.Setenv(EnvToken, "")
	cfg, err := Config{TLS: &tls.Config{Certificates: []tls.Certificate{{}}}}.complete()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := (bearer{tokenSource(&cfg), true}).GetRequestMetadata(t.Context()); err != nil || len(got) != 0 {
		t.Errorf("%v, %v", got, err)
	}
}

func TestConfigurationFaultsAreAllNamedWithoutTheSecret(t *testing.T) {
	t.Setenv(EnvToken, "")
	_, err := New(Config{Address: "nonsense,b:1", CallTimeout: -1, Kafka: KafkaConfig{Brokers: []string{"x"}}})
	for _, want := range []string{`Address "nonsense"`, "Token is missing", "CallTimeout -1ns", `Kafka.Brokers "x"`} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not name %s", err, want)
		}
	}
	_, err = New(Config{Token: "sec\nret"})
	if err == nil || strings.Contains(err.Error(), "sec") {
		t.Errorf("a token with a line break: %v", err)
	}
}

func TestClosedClientSaysSo(t *testing.T) {
	_, c := api(t, Config{})
	if _, err := c.AddTask(t.Context(), Task{Kind: "k", Type: OneShot}); err != nil {
		t.Fatal(err)
	}
	c.Close()
	if _, err := c.AddTask(t.Context(), Task{Kind: "k", Type: OneShot}); !errors.Is(err, ErrClosed) {
		t.Errorf("AddTask returned %v", err)
	}
	if _, err := c.GetTask(t.Context(), 1); !errors.Is(err, ErrClosed) {
		t.Errorf("GetTask returned %v", err)
	}
}

// Users of the SDK must not inherit the server's dependencies.
func TestClientNeedsNoDatabaseOrZooKeeperDriver(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, banned := range []string{"jackc/pgx", "pressly/goose", "go-zookeeper", "twmb/franz-go", "perceptor/store", "perceptor/server", "perceptor/dispatch"} {
		if strings.Contains(string(out), banned) {
			t.Errorf("client depends on %s", banned)
		}
	}
	if !strings.Contains(string(out), "segmentio/kafka-go") {
		t.Error("the list of dependencies lacks packages that the client uses")
	}
}
