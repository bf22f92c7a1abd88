package telemetry

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/perceptor/perceptor/task"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func serve(t *testing.T, checks []Check, profiles bool) (*Ops, func(path string) (int, string)) {
	t.Helper()
	ops, get := serveWith(t, checks, OpsOptions{Profiles: profiles})
	return ops, func(path string) (int, string) { t.Helper(); return get(path, "") }
}

// serveWith returns a server and what asks it with a header Authorization.
func serveWith(t *testing.T, checks []Check, options OpsOptions) (*Ops, func(path, authorization string) (int, string)) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	registry := NewRegistry()
	m := NewDispatch(registry, func() Figures { return Figures{Shards: 512, Stopped: true} })
	m.Published("acme", task.OneShot, true, 40*time.Millisecond)
	m.Published("acme", task.OneShot, false, time.Hour)
	m.Outbox(3, task.OutboxStats{Rows: 2, Oldest: 1000, Now: 2000})
	m.Missed("acme", task.Blocking, task.Skip, 5)
	api := NewAPI(registry) // of the same process
	api.Added("acme", "BLOCKING", 3)
	api.Reported("acme", task.Blocking, task.Success, time.Second)
	api.Reported("acme", task.Blocking, task.Fail, 0)
	api.Unhandled("acme")
	api.Missed("acme", task.Blocking, task.Skip, 2)
	api.Missed("acme", task.Blocking, task.FireOnce, 1)
	ops := NewOps(listener, registry, checks, options, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- ops.Run(ctx) }()
	client := &http.Client{Transport: &http.Transport{}}
	t.Cleanup(func() {
		client.CloseIdleConnections()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return ops, func(path, authorization string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+listener.Addr().String()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if authorization != "" {
			req.Header.Set("Authorization", authorization)
		}
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(body)
	}
}

func check(name string, err error) Check {
	return Check{name, func(context.Context) error { return err }}
}

func TestReadyzListsWhatIsNotWell(t *testing.T) {
	down, slow := errors.New("no route"), errors.New("database 3 is away")
	for _, c := range []struct {
		name   string
		checks []Check
		code   int
		body   string
	}{
		{"all well", []Check{check("kafka", nil)}, 200, "ready\n"},
		{"degraded", []Check{check("kafka", nil), check("postgres", Degraded(slow))}, 200, "degraded\npostgres: database 3 is away\n"},
		{"down", []Check{check("kafka", down), check("postgres", Degraded(slow))}, 503, "not ready\nkafka: no route\npostgres: database 3 is away\n"},
		{"one line each", []Check{check("kafka", errors.Join(down, slow))}, 503, "not ready\nkafka: no route; database 3 is away\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, get := serve(t, c.checks, false)
			if code, body := get("/readyz"); code != c.code || body != c.body {
				t.Errorf("got %d %q, want %d %q", code, body, c.code, c.body)
			}
			if code, _ := get("/healthz"); code != 200 {
				t.Errorf("/healthz = %d, want 200 whatever the checks return", code)
			}
		})
	}
}

func TestReadyzSaysThatTheProgramIsStopping(t *testing.T) {
	ops, get := serve(t, nil, false)
	ops.Stopping()
	if code, body := get("/readyz"); code != 503 || !strings.Contains(body, "stopping") {
		t.Errorf("got %d %q", code, body)
	}
}

func TestMetricsAreServed(t *testing.T) {
	_, get := serve(t, nil, false)
	_, body := get("/metrics")
	for _, want := range []string{
		`perceptor_runs_published_total{attempt="first",tenant="acme",type="ONE_SHOT"} 1`,
		`perceptor_runs_published_total{attempt="later",tenant="acme",type="ONE_SHOT"} 1`,
		`perceptor_lateness_seconds_count{tenant="acme",type="ONE_SHOT"} 1`,
		`perceptor_lateness_seconds_bucket{tenant="acme",type="ONE_SHOT",le="0.05"} 1`,
		`perceptor_instants_missed_total{policy="SKIP",tenant="acme",type="BLOCKING"} 7`, `perceptor_instants_missed_total{policy="FIRE_ONCE",tenant="acme",type="BLOCKING"} 1`,
		`perceptor_results_total{outcome="SUCCESS",tenant="acme",type="BLOCKING"} 1`, `perceptor_results_total{outcome="FAIL",tenant="acme",type="BLOCKING"} 1`,
		`perceptor_handler_seconds_count{tenant="acme",type="BLOCKING"} 1`, `perceptor_runs_unhandled_total{tenant="acme"} 1`,
		`perceptor_tasks_added_total{tenant="acme",type="BLOCKING"} 3`,
		`perceptor_owned_shards 512`, `perceptor_claims_stopped 1`, `perceptor_outbox_rows{database="3"} 2`, "go_goroutines",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("/metrics does not contain %q", want)
		}
	}
}

func TestProfilesAreServedOnlyWhenAskedFor(t *testing.T) {
	_, get := serve(t, nil, false)
	if code, _ := get("/debug/pprof/"); code != 404 {
		t.Errorf("got %d, want 404", code)
	}
	_, get = serve(t, nil, true)
	if code, _ := get("/debug/pprof/"); code != 200 {
		t.Errorf("got %d, want 200", code)
	}
}

func TestOnlyOperatorsSeeTenantsAddressesAndMemory(t *testing.T) {
	const token = "0123456789abcdef"
	down := check("postgres", errors.New("database 0 at db-1:5432 does not answer"))
	_, get := serveWith(t, []Check{down}, OpsOptions{Token: token, Profiles: true})
	for _, stranger := range []string{"", "Bearer", "Bearer ", "Bearer 0123456789abcdeF", "Basic " + token, token} {
		if code, body := get("/healthz", stranger); code != 200 {
			t.Errorf("%q: /healthz: got %d %s", stranger, code, body)
		}
		if code, body := get("/", stranger); code != 200 || !strings.Contains(body, "/metrics") || strings.Contains(body, "db-1") {
			t.Errorf("%q: /: got %d %q", stranger, code, body)
		}
		if code, body := get("/readyz", stranger); code != 503 || body != "not ready\n" {
			t.Errorf("%q: /readyz: got %d %q", stranger, code, body)
		}
		for _, path := range []string{"/metrics", "/debug/pprof/", "/debug/pprof/cmdline", "/debug/pprof/heap"} {
			if code, body := get(path, stranger); code != 401 || strings.Contains(body, "acme") {
				t.Errorf("%q: %s: got %d %.200s", stranger, path, code, body)
			}
		}
	}
	if code, body := get("/readyz", "Bearer "+token); code != 503 || !strings.Contains(body, "db-1:5432") {
		t.Errorf("operator: /readyz: got %d %q", code, body)
	}
	if code, body := get("/metrics", "bearer "+token); code != 200 || !strings.Contains(body, `tenant="acme"`) {
		t.Errorf("operator: /metrics: got %d", code)
	}
	if code, _ := get("/debug/pprof/cmdline", "Bearer "+token); code != 200 {
		t.Errorf("operator: profiles: got %d", code)
	}
}

func TestLogHasTheLevelAndFormatAskedFor(t *testing.T) {
	var out bytes.Buffer
	log, err := NewLog(&out, "warn", "json")
	if err != nil {
		t.Fatal(err)
	}
	log.Info("quiet")
	log.Warn("loud", "shard", 3)
	if got := out.String(); strings.Contains(got, "quiet") || !strings.Contains(got, `"msg":"loud","shard":3`) {
		t.Errorf("log = %s, want only the warning", got)
	}
	out.Reset()
	log.With("op", "x").Warn("slow", "took", 1500*time.Millisecond, "late_ms", 2*time.Second)
	if got := out.String(); !strings.Contains(got, `"took_ms":1500,"late_ms":2000`) {
		t.Errorf("log = %s, want durations in milliseconds", got)
	}
	for bad, want := range map[[2]string]string{
		{"loud", "json"}: `log level "loud" is not one of debug, info, warn, error`,
		{"info", "xml"}:  `log format "xml" is neither json nor text`,
	} {
		if _, err := NewLog(&out, bad[0], bad[1]); err == nil || err.Error() != want {
			t.Errorf("%v: %v, want %s", bad, err, want)
		}
	}
}

// at is a listener that has only an address.
type at struct {
	net.Listener
	netip.AddrPort
}

func (a at) Addr() net.Addr { return net.TCPAddrFromAddrPort(a.AddrPort) }

func TestWithoutATokenALoopbackAnswersOnlyToItsOwnNames(t *testing.T) {
	const local, open = "127.0.0.1:7072", "192.0.2.1:7072"
	down := check("postgres", errors.New("database 0 at db-1:5432 does not answer"))
	for _, c := range []struct {
		address, token, host string
		served               bool
	}{
		{local, "", "localhost", true}, {local, "", "LocalHost:7072", true},
		{local, "", "127.0.0.1", true}, {local, "", "127.8.9.1:7072", true},
		{local, "", "[::1]", true}, {local, "", "[::1]:7072", true}, {"[::1]:7072", "", "localhost:7072", true},
		{local, "", "evil.example", false}, {local, "", "evil.example:7072", false}, {"[::1]:7072", "", "evil.example", false},
		{local, "", "localhost.evil.example", false}, {local, "", "127.0.0.1.evil.example:7072", false},
		{local, "", "192.0.2.1:7072", false}, {local, "", "", false},
		{open, "", "taskd.example:7072", true}, // the configuration says whether that is allowed
		{local, "0123456789abcdef", "taskd.example:7072", true},
	} {
		ops := NewOps(at{AddrPort: netip.MustParseAddrPort(c.address)}, NewRegistry(), []Check{down}, OpsOptions{Token: c.token, Profiles: true}, slog.New(slog.DiscardHandler))
		get := func(path string) (int, string) {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
			r.Host = c.host
			if c.token != "" {
				r.Header.Set("Authorization", "Bearer "+c.token)
			}
			w := httptest.NewRecorder()
			ops.http.Handler.ServeHTTP(w, r)
			return w.Code, w.Body.String()
		}
		for _, path := range []string{"/metrics", "/debug/pprof/cmdline"} {
			code, body := get(path)
			if c.served != (code == http.StatusOK) || !c.served && (code != http.StatusMisdirectedRequest || !strings.Contains(body, "set ops.token")) {
				t.Errorf("%s asked as %q for %s: %d %.200s", c.address, c.host, path, code, body)
			}
		}
		if code, _ := get("/healthz"); code != http.StatusOK {
			t.Errorf("%s asked as %q: /healthz: %d", c.address, c.host, code)
		}
		if code, body := get("/readyz"); code != http.StatusServiceUnavailable || strings.Contains(body, "db-1") != c.served {
			t.Errorf("%s asked as %q: /readyz: %d %q", c.address, c.host, code, body)
		}
	}
}

// TestWhatAnAlertWatchesTheFirstIncreaseOfIsThereFromTheStart: Prometheus sees no increase in a
// series that begins with 1.
func TestWhatAnAlertWatchesTheFirstIncreaseOfIsThereFromTheStart(t *testing.T) {
	r := prometheus.NewPedanticRegistry()
	NewDatabases(r)
	NewAudit(r)
	all, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	series := map[string]int{}
	for _, m := range all {
		series[m.GetName()] = len(m.GetMetric())
	}
	for name, want := range map[string]int{"perceptor_database_adoptions_total": task.Databases, "perceptor_audit_events_dropped_total": 3} {
		if series[name] != want {
			t.Errorf("%s has %d series before anything has happened, want %d", name, series[name], want)
		}
	}
}

// TestOneAddressHasAPartOfTheConnections: anybody may connect, without a token, and every connection is a
// descriptor that the program needs for its databases.
func TestOneAddressHasAPartOfTheConnections(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ops := NewOps(listener, NewRegistry(), nil, OpsOptions{}, slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- ops.Run(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	// alive asks on a connection of its own, which stays open.
	alive := func() (net.Conn, bool) {
		c, err := new(net.Dialer).DialContext(t.Context(), "tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		_, _ = c.Write([]byte("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")) // it may be closed already
		n, _ := c.Read(make([]byte, 1))
		return c, n == 1
	}
	var last net.Conn
	for i := range opsConnections / 2 {
		c, ok := alive()
		if !ok {
			t.Fatalf("connection %d was closed", i+1)
		}
		last = c
	}
	if _, ok := alive(); ok {
		t.Error("one address has more than half of the connections")
	}
	_ = last.Close()
	for ok := false; !ok && t.Context().Err() == nil; { // the server notices the end by itself
		_, ok = alive()
	}
}

// A caller that takes no answer must not keep its connection: anybody may ask whether the program is alive.
func TestACallerThatTakesNoAnswerLosesItsConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer far.Close()
		l := &oneConn{conn: make(chan net.Conn, 1), closed: make(chan struct{})}
		l.conn <- near
		ops := NewOps(l, NewRegistry(), nil, OpsOptions{}, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- ops.Run(ctx) }()
		if _, err := far.Write([]byte("GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute) // until the next look
		if n, err := far.Read(make([]byte, 1)); err == nil {
			t.Errorf("%d bytes can be read after a minute", n)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// oneConn is a listener with one connection.
type oneConn struct {
	conn   chan net.Conn
	closed chan struct{}
}

func (l *oneConn) Accept() (net.Conn, error) {
	select {
	case c := <-l.conn:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *oneConn) Close() error {
	close(l.closed)
	return nil
}

func (l *oneConn) Addr() net.Addr { return &net.TCPAddr{} }

// connFrom is a connection from an address.
type connFrom struct {
	net.Conn
	from   string
	closed bool
}

func (c *connFrom) RemoteAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(c.from), 1234))
}

func (c *connFrom) Close() error {
	c.closed = true
	return nil
}

func TestAddressesDoNotShareTheirConnections(t *testing.T) {
	p := newOpsPlaces()
	connect := func(from string) bool {
		c := &connFrom{from: from}
		p.follow(c, http.StateNew)
		return !c.closed
	}
	for connect("2001:db8::1") { // until it has its part
	}
	if connect("2001:db8::2") {
		t.Error("an address of the same network has a connection")
	}
	for _, other := range []string{"2001:db8:0:1::1", "192.0.2.1"} {
		if !connect(other) {
			t.Errorf("%s has no connection", other)
		}
	}
}
