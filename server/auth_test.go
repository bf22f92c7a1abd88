package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// methods returns all methods that the server has registered, except that of
// health.
func (b *bundle) methods() []string {
	var all []string
	for service, info := range b.server.grpc.GetServiceInfo() {
		if service == grpc_health_v1.Health_ServiceDesc.ServiceName {
			continue
		}
		for _, m := range info.Methods {
			all = append(all, "/"+service+"/"+m.Name)
		}
	}
	return all
}

func TestEveryMethodRefusesCallersWithoutAGoodTokenOfItsScope(t *testing.T) {
	b := setup(t)
	b.auth.revoke("rival-secret")
	methods := b.methods()
	if len(methods) != len(access) || len(methods) < 18 {
		t.Fatalf("%d methods are registered, %d have a scope", len(methods), len(access))
	}
	for _, m := range methods {
		other := "admin-secret"
		if access[m]&(AdminScope|AdminReadScope) != 0 {
			other = "acme-secret"
		}
		for _, c := range []struct {
			secret string
			code   codes.Code
			http   int
		}{
			{"", codes.Unauthenticated, http.StatusUnauthorized},
			{"unknown-secret", codes.Unauthenticated, http.StatusUnauthorized},
			{"rival-secret", codes.Unauthenticated, http.StatusUnauthorized},
			{other, codes.PermissionDenied, http.StatusForbidden},
		} {
			if c.secret == other && access[m] == anyScope {
				c.code, c.http = codes.OK, http.StatusOK
			}
			a := b.overGRPC(c.secret, m, requestFor(t, m), replyFor(t, m))
			if a.code != c.code {
				t.Errorf("%s with %q: %s", m, c.secret, a.code)
			}
			if streams(t, m) {
				continue
			}
			a = b.overHTTP(c.secret, m, requestFor(t, m), nil)
			if a.http != c.http || a.code != c.code {
				t.Errorf("%s over HTTP with %q: %d %s", m, c.secret, a.http, a.code)
			}
		}
	}
	if len(b.tasks.adds)+len(b.tasks.lists)+len(b.runs.attempts)+len(b.admin.tenants) != 0 {
		t.Error("a refused call reached a store")
	}
}

func TestRefusalsDoNotSayWhy(t *testing.T) {
	b := setup(t)
	b.auth.revoke("rival-secret")
	missing := b.fetch("", http.MethodGet, "/v1/tasks", "", nil)
	for _, secret := range []string{"unknown-secret", "rival-secret", strings.Repeat("x", 300), "a\tb", " ", "ä"} {
		a := b.fetch(secret, http.MethodGet, "/v1/tasks", "", nil)
		if a.http != http.StatusUnauthorized || string(a.body) != string(missing.body) {
			t.Errorf("%q: %d %s, want %s", secret, a.http, a.body, missing.body)
		}
		if got := a.header.Get("WWW-Authenticate"); !strings.HasPrefix(got, "Bearer ") {
			t.Errorf("WWW-Authenticate: %q", got)
		}
	}
}

func TestOnlyOneBearerHeaderCounts(t *testing.T) {
	for _, c := range []struct {
		headers []string
		want    string
	}{
		{[]string{"Bearer abc"}, "abc"},
		{[]string{"bearer abc"}, "abc"},
		{nil, ""},
		{[]string{"abc"}, ""},
		{[]string{"Basic abc"}, ""},
		{[]string{"Bearer "}, ""},
		{[]string{"Bearer a b"}, ""},
		{[]string{"Bearer abc", "Bearer def"}, ""},
	} {
		if got := secretFrom(c.headers); got != c.want {
			t.Errorf("%q gives %q, want %q", c.headers, got, c.want)
		}
	}
}

func TestHealthAndTheDocumentNeedNoToken(t *testing.T) {
	b := setup(t)
	client := grpc_health_v1.NewHealthClient(b.conn)
	for _, service := range []string{"", "perceptor.v1.TaskService"} {
		r, err := client.Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: service}, grpc.WaitForReady(true))
		if err != nil || r.Status != grpc_health_v1.HealthCheckResponse_SERVING {
			t.Errorf("health of %q: %v %v", service, r, err)
		}
	}
	a := b.fetch("", http.MethodGet, "/v1/openapi.json", "", nil)
	if a.http != http.StatusOK || !strings.Contains(string(a.body), `"/v1/tasks/{id}:cancel"`) {
		t.Errorf("%d %.100s", a.http, a.body)
	}
}

func TestTheRootSaysWhatIsHereWithoutAToken(t *testing.T) {
	b := setup(t)
	var page struct {
		Service       string            `json:"service"`
		Authorization string            `json:"authorization"`
		Links         map[string]string `json:"links"`
	}
	a := b.fetch("", http.MethodGet, "/", "", nil)
	if err := json.Unmarshal(a.body, &page); err != nil || a.http != http.StatusOK || page.Service != "Perceptor" {
		t.Fatalf("%d %s %v", a.http, a.body, err)
	}
	for name, path := range page.Links {
		want := map[bool]int{true: http.StatusOK, false: http.StatusUnauthorized}[name == "openapi"]
		if got := b.fetch("", http.MethodGet, path, "", nil); got.http != want {
			t.Errorf("%s at %s answers %d, want %d", name, path, got.http, want)
		}
	}
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("Accept", "text/html,*/*")
	w := httptest.NewRecorder()
	serveRoot(true)(w, r)
	if !strings.Contains(w.Body.String(), `<a href="/console/">`) || !strings.HasPrefix(w.Header().Get("Content-Type"), "text/html") {
		t.Errorf("a browser gets %v %s", w.Header(), w.Body)
	}
	if b.fetch("", http.MethodGet, "/v1/", "", nil).http != http.StatusUnauthorized {
		t.Error("other paths need no token")
	}
}

func TestAServiceWithAMethodOrAStreamWithoutAScopeCannotBeRegistered(t *testing.T) {
	g := &gate{methods: map[string]method{}}
	s := grpc.NewServer()
	unknown := &grpc.ServiceDesc{ServiceName: "perceptor.v1.Other", Methods: []grpc.MethodDesc{{MethodName: "Do"}}}
	if err := g.register(s, unknown, nil); err == nil || !strings.Contains(err.Error(), "/perceptor.v1.Other/Do") {
		t.Errorf("unknown method: %v", err)
	}
	if err := g.register(s, &grpc.ServiceDesc{ServiceName: "grpc.health.v1.Health", Streams: grpc_health_v1.Health_ServiceDesc.Streams}, nil); err == nil || !strings.Contains(err.Error(), "/grpc.health.v1.Health/Watch") {
		t.Errorf("stream: %v", err)
	}
}

func TestARevokedTokenWorksForAtMostFiveSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		auth := &fakeAuth{}
		b := newBearers(auth)
		header := []string{"Bearer acme-secret"}
		if _, err := b.identify(t.Context(), header); err != nil {
			t.Fatal(err)
		}
		auth.revoke("acme-secret")
		time.Sleep(5*time.Second - 1)
		if id, err := b.identify(t.Context(), header); err != nil || id.Tenant.Name != "acme" {
			t.Errorf("remembered for less than stated: %v", err)
		}
		time.Sleep(time.Nanosecond)
		if _, err := b.identify(t.Context(), header); !errors.Is(err, errUnauthenticated) {
			t.Errorf("after 5 s: %v", err)
		}
		if n := auth.count("acme-secret"); n != 2 {
			t.Errorf("the source was asked %d times, want 2", n)
		}
	})
}

func TestAnUnknownTokenIsRememberedForASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		auth := &fakeAuth{}
		b := newBearers(auth)
		for range 10 {
			if _, err := b.identify(t.Context(), []string{"Bearer nobody"}); !errors.Is(err, errUnauthenticated) {
				t.Fatal(err)
			}
		}
		if n := auth.count("nobody"); n != 1 {
			t.Errorf("asked %d times within a second, want 1", n)
		}
		time.Sleep(time.Second)
		_, _ = b.identify(t.Context(), []string{"Bearer nobody"})
		if n := auth.count("nobody"); n != 2 {
			t.Errorf("asked %d times after a second, want 2", n)
		}
	})
}

func TestAFailingSourceIsNotRememberedAndAsksToTryAgain(t *testing.T) {
	b := setup(t)
	b.auth.err = &task.Error{Code: task.Unavailable, Message: "tokens cannot be checked now", Err: errors.New("dial 10.0.0.1: refused")}
	for range 2 {
		a := b.fetch("acme-secret", http.MethodGet, "/v1/tasks", "", nil)
		if a.http != http.StatusServiceUnavailable || a.header.Get("Retry-After") != "1" || strings.Contains(string(a.body), "10.0.0.1") {
			t.Errorf("%d %s", a.http, a.body)
		}
	}
	if n := b.auth.count("acme-secret"); n != 2 {
		t.Errorf("asked %d times, want 2", n)
	}
}

// slowAuth answers after it is released.
type slowAuth struct {
	asked  chan struct{}
	answer chan struct{}
}

func (s slowAuth) Authenticate(ctx context.Context, _ string) (Identity, error) {
	s.asked <- struct{}{}
	select {
	case <-s.answer:
		return Identity{Scopes: TenantScope, Tenant: acme}, nil
	case <-ctx.Done():
		return Identity{}, ctx.Err()
	}
}

func TestCallersOfOneTokenAskOnceAndOneThatLeavesDisturbsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source := slowAuth{make(chan struct{}, 10), make(chan struct{})}
		b := newBearers(source)
		leaving, leave := context.WithCancel(t.Context())
		gone, stayed := make(chan error, 1), make(chan error, 1)
		go func() {
			_, err := b.identify(leaving, []string{"Bearer x"})
			gone <- err
		}()
		synctest.Wait()
		go func() {
			_, err := b.identify(t.Context(), []string{"Bearer x"})
			stayed <- err
		}()
		synctest.Wait()
		leave()
		if err := <-gone; !errors.Is(err, context.Canceled) {
			t.Errorf("the one that left: %v", err)
		}
		close(source.answer)
		if err := <-stayed; err != nil {
			t.Errorf("the one that stayed: %v", err)
		}
		if n := len(source.asked); n != 1 {
			t.Errorf("asked %d times, want 1", n)
		}
	})
}

func TestASourceThatHangsIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBearers(slowAuth{make(chan struct{}, 1), nil})
		began := time.Now()
		if _, err := b.identify(t.Context(), []string{"Bearer x"}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
		if took := time.Since(began); took != authTimeout {
			t.Errorf("gave up after %s, want %s", took, authTimeout)
		}
	})
}

func TestRememberedTokensAreBounded(t *testing.T) {
	var r remembered[*Identity]
	until := time.Now().Add(time.Hour)
	for i := range maxRemembered + 500 {
		r.put([32]byte{byte(i), byte(i >> 8), byte(i >> 16)}, &Identity{}, until)
	}
	if len(r.entries) > maxRemembered {
		t.Errorf("%d entries, at most %d are allowed", len(r.entries), maxRemembered)
	}
	last := maxRemembered + 499
	if _, ok := r.get([32]byte{byte(last), byte(last >> 8), byte(last >> 16)}, time.Now()); !ok {
		t.Error("the newest entry is missing")
	}
}

func TestNoSecretAndNoParamIsLogged(t *testing.T) {
	b := setup(t)
	bad := recurring()
	bad.Params = map[string]string{"card-4242": "secret-value\x00"}
	b.overGRPC("acme-secret", addTask, &perceptorv1.AddTaskRequest{Task: bad}, &perceptorv1.AddTaskResponse{})
	b.overHTTP("acme-secret", addTask, &perceptorv1.AddTaskRequest{Task: recurring()}, nil)
	b.overHTTP("unknown-secret", addTask, &perceptorv1.AddTaskRequest{Task: recurring()}, nil)
	b.overGRPC("admin-secret", createToken, &perceptorv1.CreateTokenRequest{Token: &perceptorv1.Token{Scope: perceptorv1.Token_ADMIN}}, &perceptorv1.CreateTokenResponse{})
	log := b.log.String()
	if !strings.Contains(log, `"tenant":"acme"`) || !strings.Contains(log, "token created") {
		t.Fatalf("the log says too little: %s", log)
	}
	for _, hidden := range []string{"acme-secret", "unknown-secret", "admin-secret", "_secret", "4242", "secret-value"} {
		if strings.Contains(log, hidden) {
			t.Errorf("%q is in the log: %s", hidden, log)
		}
	}
}

func TestHTTPHeadersCannotSmuggleAnAuthorization(t *testing.T) {
	b := setup(t)
	r := must(http.NewRequest(http.MethodGet, "http://memory/v1/tasks", nil))(t)
	r.Header.Set("Grpc-Metadata-Authorization", "Bearer acme-secret")
	if a := b.do("", r, nil); a.http != http.StatusUnauthorized {
		t.Errorf("%d %s", a.http, a.body)
	}
	r = must(http.NewRequest(http.MethodGet, "http://memory/v1/tasks", nil))(t)
	r.Header.Set("Grpc-Metadata-Authorization", "Bearer rival-secret")
	if a := b.do("acme-secret", r, nil); a.http != http.StatusOK {
		t.Errorf("%d %s", a.http, a.body)
	}
}

func TestCallsOverTheBoundAreRefusedWithARetry(t *testing.T) {
	b := setup(t, func(c *Config) { c.MaxCalls = 1 })
	b.tasks.hold, b.tasks.holding = make(chan struct{}), make(chan struct{})
	first := make(chan answer, 1)
	go func() {
		first <- b.overGRPC("acme-secret", getTask, &perceptorv1.GetTaskRequest{Id: 1000}, &perceptorv1.Task{})
	}()
	<-b.tasks.holding
	a := b.overGRPC("acme-secret", listTasks, &perceptorv1.ListTasksRequest{}, &perceptorv1.ListTasksResponse{})
	if a.code != codes.Unavailable || a.reason != "SERVER_BUSY" {
		t.Errorf("%s %s", a.code, a.reason)
	}
	close(b.tasks.hold)
	if a := <-first; a.code != codes.NotFound {
		t.Errorf("the first call: %s", a.code)
	}
	if a := b.overGRPC("acme-secret", listTasks, &perceptorv1.ListTasksRequest{}, &perceptorv1.ListTasksResponse{}); a.code != codes.OK {
		t.Errorf("after the first call: %s", a.code)
	}
}

func TestACallThatTakesTooLongIsEnded(t *testing.T) {
	b := setup(t, func(c *Config) { c.CallTimeout = 20 * time.Millisecond })
	b.tasks.hold, b.tasks.holding = make(chan struct{}), make(chan struct{})
	a := b.overGRPC("acme-secret", getTask, &perceptorv1.GetTaskRequest{Id: 1000}, &perceptorv1.Task{})
	if a.code != codes.DeadlineExceeded || a.reason != "DEADLINE_EXCEEDED" {
		t.Errorf("%s %s", a.code, a.reason)
	}
}

func TestACallerThatLeavesEndsItsCall(t *testing.T) {
	b := setup(t)
	b.tasks.hold, b.tasks.holding = make(chan struct{}), make(chan struct{})
	ctx, leave := context.WithCancel(metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer acme-secret"))
	left := make(chan error, 1)
	go func() {
		left <- b.conn.Invoke(ctx, getTask, &perceptorv1.GetTaskRequest{Id: 1000}, &perceptorv1.Task{})
	}()
	<-b.tasks.holding
	leave()
	if err := <-left; status.Code(err) != codes.Canceled {
		t.Error(err)
	}
}

func TestAPanicIsInternalAndSaysNothing(t *testing.T) {
	b := setup(t)
	b.tasks.panics = true
	request := &perceptorv1.GetTaskRequest{Id: 1000}
	for side, a := range map[string]answer{
		"gRPC": b.overGRPC("acme-secret", getTask, request, &perceptorv1.Task{}),
		"HTTP": b.overHTTP("acme-secret", getTask, request, nil),
	} {
		if a.code != codes.Internal || a.message != "internal error" {
			t.Errorf("%s: %s %q", side, a.code, a.message)
		}
	}
	if log := b.log.String(); !strings.Contains(log, "secret detail of the store") || !strings.Contains(log, "fakes_test.go") {
		t.Errorf("the log has no stack: %s", log)
	}
}

func TestErrorsOfStoresBecomeTheRightStatus(t *testing.T) {
	cause := errors.New("ERROR: relation task_007 (SQLSTATE 42P01)")
	cases := []struct {
		err    error
		code   codes.Code
		http   int
		logged string
	}{
		{&task.Error{Code: task.Unavailable, Message: "the database is away", Err: cause}, codes.Unavailable, 503, "WARN"},
		{&task.Error{Code: task.ResourceExhausted, Message: "the queue is full"}, codes.ResourceExhausted, 429, ""},
		{&task.Error{Code: task.FailedPrecondition, Message: "the task is COMPLETED"}, codes.FailedPrecondition, 400, ""},
		{&task.Error{Code: task.AlreadyExists, Message: "request_id is taken"}, codes.AlreadyExists, 409, ""},
		{&task.Error{Code: task.Internal, Message: cause.Error()}, codes.Internal, 500, "ERROR"},
		{&task.Error{Code: task.DataLoss, Message: "what is stored is damaged", Err: cause}, codes.DataLoss, 500, "ERROR"},
		{&task.Error{Code: 99, Message: cause.Error()}, codes.Internal, 500, ""},
		{cause, codes.Internal, 500, "ERROR"},
		{fmt.Errorf("wrapped: %w", context.Canceled), codes.Unavailable, 503, "WARN"},
		{fmt.Errorf("wrapped: %w", context.DeadlineExceeded), codes.DeadlineExceeded, 504, "WARN"},
	}
	for _, c := range cases {
		t.Run(c.err.Error(), func(t *testing.T) {
			b := setup(t)
			b.tasks.err = c.err
			a := b.overGRPC("acme-secret", getTask, &perceptorv1.GetTaskRequest{Id: 1000}, &perceptorv1.Task{})
			if a.code != c.code || a.reason == "" || strings.Contains(a.message, "SQLSTATE") {
				t.Errorf("gRPC: %s %s %q", a.code, a.reason, a.message)
			}
			a = b.overHTTP("acme-secret", getTask, &perceptorv1.GetTaskRequest{Id: 1000}, nil)
			if a.http != c.http || a.code != c.code || strings.Contains(string(a.body), "SQLSTATE") {
				t.Errorf("HTTP: %d %s %s", a.http, a.code, a.body)
			}
			if !strings.Contains(b.log.String(), `"level":"`+c.logged) {
				t.Errorf("logged: %s", b.log.String())
			}
		})
	}
}
