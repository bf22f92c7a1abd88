package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health/grpc_health_v1"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

func TestAStopLetsCallsUnderWayFinish(t *testing.T) {
	b := setup(t)
	b.tasks.hold, b.tasks.holding = make(chan struct{}), make(chan struct{})
	answered := make(chan answer, 1)
	go func() {
		answered <- b.overHTTP("acme-secret", getTask, &perceptorv1.GetTaskRequest{Id: 1000}, nil)
	}()
	<-b.tasks.holding
	b.stop()
	waitFor(t, func() bool { return b.server.Ready() != nil })
	close(b.tasks.hold)
	if a := <-answered; a.http != http.StatusNotFound {
		t.Errorf("the call under way: %d %s", a.http, a.message)
	}
}

func TestAStopCutsCallsOffWhenTheGracePeriodEnds(t *testing.T) {
	b := setup(t, func(c *Config) { c.Grace = 10 * time.Millisecond })
	b.tasks.hold, b.tasks.holding = make(chan struct{}), make(chan struct{})
	answered := make(chan answer, 1)
	go func() {
		answered <- b.overGRPC("acme-secret", getTask, &perceptorv1.GetTaskRequest{Id: 1000}, &perceptorv1.Task{})
	}()
	<-b.tasks.holding
	b.stop()
	if a := <-answered; a.code != codes.Unavailable && a.code != codes.Canceled {
		t.Errorf("%s %s", a.code, a.message)
	}
}

func TestAHealthWatchDoesNotHoldUpAStop(t *testing.T) {
	b := setup(t, func(c *Config) { c.Grace = time.Hour })
	watch := must(grpc_health_v1.NewHealthClient(b.conn).Watch(t.Context(), &grpc_health_v1.HealthCheckRequest{}))(t)
	for must(watch.Recv())(t).Status != grpc_health_v1.HealthCheckResponse_SERVING {
	}
	b.stop()
	for {
		if _, err := watch.Recv(); err != nil {
			break
		}
	}
	if err := b.server.Ready(); err == nil {
		t.Error("ready after the stop")
	}
}

func TestAListenerThatFailsEndsRunWithItsError(t *testing.T) {
	web := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	rpc := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	_ = web.Close()
	s := must(New(Config{GRPC: rpc, HTTP: web}, someDeps()))(t)
	err := s.Run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "serve HTTP on 127.0.0.1") {
		t.Errorf("%v", err)
	}
}

func someDeps() Deps {
	return Deps{
		Tasks: &fakeTasks{}, Runs: &fakeRuns{}, Dead: &fakeDead{}, Bulk: &fakeBulk{}, Admin: newFakeAdmin(), Auth: &fakeAuth{}, Epochs: fakeEpochs{},
		Delivery: func(Tenant) Delivery { return Delivery{} },
	}
}

func TestAServerThatLacksSomethingIsNotMade(t *testing.T) {
	l := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	_, err := New(Config{MaxCalls: -1, Grace: -1}, someDeps())
	for _, want := range []string{"GRPC", "MaxCalls: -1", "Grace: -1"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
	}
	d := someDeps()
	d.Auth = nil
	if _, err := New(Config{GRPC: l}, d); err == nil {
		t.Error("made without an authenticator")
	}
}

func TestAnswersCarryTheHeadersThatProtectBrowsers(t *testing.T) {
	b := setup(t)
	for _, path := range []string{"/v1/openapi.json", "/v1/tasks", "/", "/v1/nothing"} {
		a := b.fetch("acme-secret", http.MethodGet, path, "", nil)
		for header, want := range map[string]string{
			"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "Referrer-Policy": "no-referrer",
			"Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'", "Content-Type": "application/json",
		} {
			if got := a.header.Get(header); got != want {
				t.Errorf("%s: %s: %q, want %q", path, header, got, want)
			}
		}
	}
}

func TestUnknownPathsAndVerbsAreAnsweredInJSON(t *testing.T) {
	b := setup(t)
	for _, c := range []struct {
		verb, path string
		want       int
		reason     string
		allow      string
	}{
		{http.MethodGet, "/v1/nothing", http.StatusNotFound, "UNKNOWN_PATH", ""},
		{http.MethodGet, "/v2", http.StatusNotFound, "UNKNOWN_PATH", ""},
		{http.MethodDelete, "/v1/tasks", http.StatusMethodNotAllowed, "UNKNOWN_METHOD", "GET, POST"},
		{http.MethodPost, "/v1/tasks/5:explode", http.StatusMethodNotAllowed, "UNKNOWN_METHOD", "GET, PATCH"},
		{http.MethodPut, "/v1/tasksByKey/a%2Fb", http.StatusMethodNotAllowed, "UNKNOWN_METHOD", "GET, PATCH"},
		{http.MethodDelete, "/v1/kinds/orders%2Flate:pause", http.StatusMethodNotAllowed, "UNKNOWN_METHOD", "POST"},
	} {
		a := b.fetch("acme-secret", c.verb, c.path, "", nil)
		if a.http != c.want || a.reason != c.reason || a.header.Get("Allow") != c.allow {
			t.Errorf("%s %s: %d, allowed %q, %s", c.verb, c.path, a.http, a.header.Get("Allow"), a.body)
		}
		if c.want == http.StatusNotFound && !strings.Contains(a.message, "/v1/openapi.json") {
			t.Errorf("%s %s: %q does not say where the paths are", c.verb, c.path, a.message)
		}
	}
	a := b.overGRPC("acme-secret", "/perceptor.v1.TaskService/Explode", &perceptorv1.GetTaskRequest{}, &perceptorv1.Task{})
	if a.code != codes.Unimplemented || a.reason != "UNKNOWN_METHOD" {
		t.Errorf("over gRPC: %s %s", a.code, a.reason)
	}
	r := must(http.NewRequest(http.MethodGet, "http://memory/v1/tasks/600", nil))(t)
	r.Header.Set("X-HTTP-Method-Override", "POST")
	if a := b.do("acme-secret", r, nil); a.http != http.StatusNotFound || a.message != "no such task: 600" {
		t.Errorf("a method override was obeyed: %s", a.body)
	}
}

func TestJSONNamesEnumsAndLeavesDefaultsOut(t *testing.T) {
	b := setup(t)
	b.overGRPC("acme-secret", addTask, &perceptorv1.AddTaskRequest{Task: recurring()}, &perceptorv1.AddTaskResponse{})
	body := strings.ReplaceAll(string(b.fetch("acme-secret", http.MethodGet, "/v1/tasks/519", "", nil).body), " ", "")
	for _, want := range []string{`"id":"519"`, `"type":"NON_BLOCKING"`, `"state":"SCHEDULED"`, `"interval":"3600s"`} {
		if !strings.Contains(body, want) {
			t.Errorf("%s is not in %s", want, body)
		}
	}
	for _, not := range []string{"paused", "finishTime", "stopOnFailure", "missedCount"} {
		if strings.Contains(body, not) {
			t.Errorf("%s is in %s", not, body)
		}
	}
}

func TestAnEmptyListOfAnAnswerIsNotLeftOut(t *testing.T) {
	b := setup(t)
	none := b.fetch("acme-secret", http.MethodGet, "/v1/tasks?kind=none", "", nil)
	if got := strings.TrimSpace(string(none.body)); got != `{"tasks":[],"missingDatabases":[]}` {
		t.Errorf("no tasks are %s", got)
	}
	b.overGRPC("acme-secret", addTask, &perceptorv1.AddTaskRequest{Task: recurring()}, &perceptorv1.AddTaskResponse{})
	var list struct {
		Tasks            []map[string]any
		MissingDatabases []int
	}
	got := b.fetch("acme-secret", http.MethodGet, "/v1/tasks", "", nil)
	if err := json.Unmarshal(got.body, &list); err != nil || len(list.Tasks) != 1 || list.Tasks[0]["tags"] != nil || list.MissingDatabases == nil {
		t.Errorf("%v: %s", err, got.body)
	}
}

// waitFor polls a condition that has no signal.
func waitFor(t *testing.T, holds func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for !holds() {
		select {
		case <-ctx.Done():
			t.Fatal("waited in vain")
		case <-time.After(time.Millisecond):
		}
	}
}

func TestBothSidesSpeakTLS(t *testing.T) {
	certified := httptest.NewUnstartedServer(nil)
	certified.StartTLS()
	defer certified.Close()
	web := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	rpc := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	config := &tls.Config{Certificates: certified.TLS.Certificates, MinVersion: tls.VersionTLS13}
	s := must(New(Config{GRPC: rpc, HTTP: web, TLS: config}, someDeps()))(t)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	roots := x509.NewCertPool()
	roots.AddCert(certified.Certificate())
	trusting := &tls.Config{RootCAs: roots, ServerName: "example.com"}

	conn := must(grpc.NewClient(rpc.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(trusting))))(t)
	_, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{}, grpc.WaitForReady(true))
	if err != nil {
		t.Errorf("gRPC: %v", err)
	}
	transport := &http.Transport{TLSClientConfig: trusting}
	response, err := (&http.Client{Transport: transport}).Get("https://" + web.Addr().String() + "/v1/openapi.json")
	if err != nil {
		t.Errorf("HTTP: %v", err)
	} else {
		_ = response.Body.Close()
	}
	transport.CloseIdleConnections()
	_ = conn.Close()
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestAStopBeforeTheServerHasBegunIsNoError(t *testing.T) {
	for range 50 {
		t.Run("", func(t *testing.T) { setup(t) }) // its clean-up stops the server, and fails if Run does
	}
}
