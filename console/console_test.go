package console

import (
	"context"
	"html"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// fakeAPI answers calls by their method, and remembers them.
type fakeAPI struct {
	mu      sync.Mutex
	answers map[string]func(ctx context.Context, request proto.Message) (proto.Message, error)
	calls   []fakeCall
}

type fakeCall struct {
	method, token, tenant string
	request               proto.Message
}

func (f *fakeAPI) Invoke(ctx context.Context, full string, args, reply any, _ ...grpc.CallOption) error {
	md, _ := metadata.FromOutgoingContext(ctx)
	method := full[strings.LastIndexByte(full, '/')+1:]
	f.mu.Lock()
	f.calls = append(f.calls, fakeCall{method, strings.Join(md.Get("authorization"), ","), strings.Join(md.Get("perceptor-tenant"), ","), args.(proto.Message)})
	answer := f.answers[method]
	f.mu.Unlock()
	if answer == nil {
		return nil
	}
	m, err := answer(ctx, args.(proto.Message))
	if err == nil {
		proto.Merge(reply.(proto.Message), m)
	}
	return err
}

func (f *fakeAPI) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, status.Error(codes.Unimplemented, "no streams")
}

// called returns the calls of a method.
func (f *fakeAPI) called(method string) (calls []fakeCall) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.calls {
		if c.method == method {
			calls = append(calls, c)
		}
	}
	return calls
}

const hostile = `<script>alert("x")</script>`

var (
	all        = []perceptorv1.Token_Scope{scopeRead, scopeOperate, scopeAdd}
	identities = map[string]*perceptorv1.Identity{
		"acme-secret":   {Name: "t1", Tenant: "acme", Scopes: all},
		"reader-secret": {Name: "t2", Tenant: "acme", Scopes: []perceptorv1.Token_Scope{scopeRead}},
		"admin-secret":  {Name: "a1", Scopes: []perceptorv1.Token_Scope{scopeAdmin, scopeAdminRead}},
		"look-secret":   {Name: "i1", Scopes: []perceptorv1.Token_Scope{scopeInspect}},
	}
)

func newFakeAPI() *fakeAPI {
	task := &perceptorv1.Task{
		Id: 513, Kind: hostile, Type: perceptorv1.Task_NON_BLOCKING, State: perceptorv1.Task_SCHEDULED, Tags: []string{hostile},
		Params: map[string]string{hostile: hostile}, Payload: &perceptorv1.Payload{Data: []byte(hostile), ContentType: "text/html"}, Schedule: &perceptorv1.Task_Interval{Interval: durationpb.New(time.Hour)},
		IdempotencyKey: hostile, DueTime: timestamppb.New(time.Now().Add(time.Hour)), Version: 3,
		RetryPolicy: &perceptorv1.RetryPolicy{MaxAttempts: 5, InitialBackoff: durationpb.New(time.Second)},
	}
	dead := &perceptorv1.DeadRun{RunId: "513-7", TaskId: 513, Seq: 7, Kind: hostile, Error: hostile, Reason: perceptorv1.DeadRun_PERMANENT, Params: task.Params, Payload: task.Payload, Tags: task.Tags}
	event := &perceptorv1.AuditEvent{Tenant: "acme", Actor: hostile, Source: hostile, Action: hostile, Object: hostile, Result: hostile, EventTime: timestamppb.Now(), Changes: []*perceptorv1.AuditEvent_Change{{Field: hostile, Before: hostile, After: hostile}}}
	figures := &perceptorv1.TenantFigures{Tenant: hostile, LastMinute: &perceptorv1.FigurePoint{Seconds: 60}, UnhandledKinds: []*perceptorv1.UnhandledKind{{Kind: hostile}}}
	is := func(m proto.Message) func(context.Context, proto.Message) (proto.Message, error) {
		return func(context.Context, proto.Message) (proto.Message, error) { return m, nil }
	}
	return &fakeAPI{answers: map[string]func(context.Context, proto.Message) (proto.Message, error){
		"GetIdentity": func(ctx context.Context, _ proto.Message) (proto.Message, error) {
			md, _ := metadata.FromOutgoingContext(ctx)
			if id := identities[strings.TrimPrefix(md.Get("authorization")[0], "Bearer ")]; id != nil {
				return id, nil
			}
			return nil, status.Error(codes.Unauthenticated, "the call needs the header \"authorization: Bearer TOKEN\" with a valid token")
		},
		"ListTasks": is(&perceptorv1.ListTasksResponse{Tasks: []*perceptorv1.Task{task}, NextPageToken: "next&1"}),
		"GetTask":   is(task), "UpdateTask": is(&perceptorv1.Task{Version: 4}),
		"ExplainTask":           is(&perceptorv1.ExplainTaskResponse{Task: task, Reasons: []*perceptorv1.Reason{{Code: perceptorv1.Reason_NOT_DUE, Text: hostile, LastError: hostile}}}),
		"ListRunEvents":         is(&perceptorv1.ListRunEventsResponse{Events: []*perceptorv1.RunEvent{{Type: perceptorv1.RunEvent_FAILED, Seq: 1, Detail: hostile, EventTime: timestamppb.Now(), ClaimTime: timestamppb.Now(), ReceiveTime: timestamppb.Now(), Dispatcher: hostile, Listener: &perceptorv1.Listener{Name: hostile, Host: hostile, Version: hostile}}}}),
		"ListTenantAuditEvents": is(&perceptorv1.ListAuditEventsResponse{Events: []*perceptorv1.AuditEvent{event}}),
		"ListAuditEvents":       is(&perceptorv1.ListAuditEventsResponse{Events: []*perceptorv1.AuditEvent{event}}),
		"ListDeadRuns":          is(&perceptorv1.ListDeadRunsResponse{DeadRuns: []*perceptorv1.DeadRun{dead}}), "GetDeadRun": is(dead),
		"ReplayDeadRun":       is(&perceptorv1.ReplayDeadRunResponse{TaskId: 600}),
		"GetBulkOperation":    is(&perceptorv1.BulkOperation{Id: 9, DryRun: true, Action: perceptorv1.BulkOperation_CANCEL, State: perceptorv1.BulkOperation_DONE, Matched: 1234, Creator: hostile, CreateTime: timestamppb.Now(), Filter: &perceptorv1.TaskFilter{Kind: hostile, Tags: []string{hostile}}, Parts: []*perceptorv1.BulkOperation_Part{{Error: hostile}}}),
		"CreateBulkOperation": is(&perceptorv1.BulkOperation{Id: 10}),
		"ListBulkOperations":  is(&perceptorv1.ListBulkOperationsResponse{Operations: []*perceptorv1.BulkOperation{{Id: 9, Creator: hostile}}}),
		"GetImport":           is(&perceptorv1.Import{Id: 9, Description: hostile, Options: hostile, State: perceptorv1.Import_OPEN, AddedCount: 1234, StoredChunks: []*perceptorv1.ChunkRange{{First: 1, Last: 3}, {First: 5, Last: 5}}, Creator: hostile, CreateTime: timestamppb.Now()}),
		"ListImports":         is(&perceptorv1.ListImportsResponse{Imports: []*perceptorv1.Import{{Id: 9, Description: hostile, Creator: hostile}}}),
		"ListCalendars":       is(&perceptorv1.ListCalendarsResponse{Calendars: []*perceptorv1.Calendar{{Name: hostile, TimeZone: hostile, RangeCount: 3}}}),
		"GetCalendar":         is(&perceptorv1.Calendar{Name: hostile, TimeZone: "Europe/Berlin", RangeCount: 5, Version: 2, Ranges: calendarRanges}),
		"GetTenant":           is(&perceptorv1.Tenant{Name: "acme", PausedKinds: []string{hostile}, KindCaps: map[string]int32{hostile: 3}, Topic: hostile, Weight: 1}),
		"ListTokens":          is(&perceptorv1.ListTokensResponse{Tokens: []*perceptorv1.Token{{Id: "abc", Description: hostile}}}),
		"ListTenantFigures":   is(&perceptorv1.ListTenantFiguresResponse{Tenants: []*perceptorv1.TenantFigures{figures}, Total: figures, TenantCount: 1}),
		"GetTenantFigures":    is(figures),
		"GetClusterFigures":   is(&perceptorv1.ClusterFigures{Processes: []*perceptorv1.ProcessFigures{{Name: hostile, Host: hostile, Version: hostile}}, BrokenTopics: []string{hostile}, Findings: []*perceptorv1.Finding{{Severity: perceptorv1.Finding_FAILED, Part: hostile, Text: hostile, Cure: hostile}}, Databases: []*perceptorv1.DatabaseFigures{{Answers: true, Server: hostile, MoveTarget: hostile, MoveStep: hostile, AdoptReason: hostile, AdoptTime: timestamppb.Now()}}}),
		"GetAssignment":       is(&perceptorv1.Assignment{Members: []*perceptorv1.AssignmentMember{{Id: "m1", Name: hostile, Host: hostile, Address: hostile, Held: hostile}}, Strategy: &perceptorv1.Strategy{Drained: []string{"x" + hostile}, Pins: map[string]string{hostile: hostile}, PausedItems: hostile}, Faults: []string{hostile}, Rebalances: []*perceptorv1.Rebalance{{Writer: hostile}}}),
		"GetForecast":         is(&perceptorv1.Forecast{Minutes: []*perceptorv1.ForecastSpan{{StartTime: timestamppb.Now(), Next: 3, Projected: 4}}}),
		"PreviewSchedule":     is(&perceptorv1.PreviewScheduleResponse{Expression: hostile, Instants: []*timestamppb.Timestamp{timestamppb.Now(), timestamppb.Now()}}),
	}}
}

// browser is a user of a console.
type browser struct {
	t       *testing.T
	api     *fakeAPI
	console *Console
	server  *httptest.Server
	client  *http.Client
	now     time.Time
	mu      sync.Mutex
}

func newBrowser(t *testing.T, tokens ...string) *browser {
	t.Helper()
	return newBrowserWith(t, Config{}, tokens...)
}

func newBrowserWith(t *testing.T, c Config, tokens ...string) *browser {
	t.Helper()
	b := &browser{t: t, api: newFakeAPI(), now: time.Now()}
	c.Now, c.Log = b.clock, slog.New(slog.NewTextHandler(t.Output(), nil))
	var err error
	b.console, err = New(c)
	if err != nil {
		t.Fatal(err)
	}
	b.server = httptest.NewServer(b.console.Serve(b.api))
	t.Cleanup(b.server.Close)
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	b.client = &http.Client{Jar: jar, Transport: b.server.Client().Transport}
	for _, token := range tokens {
		if code, body := b.post("login", url.Values{"token": {token}}); strings.Contains(body, `name="token"`) {
			t.Fatalf("login: %d %s", code, body)
		}
	}
	return b
}

func (b *browser) clock() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.now
}

func (b *browser) wait(d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.now = b.now.Add(d)
}

func (b *browser) do(r *http.Request) (int, string) {
	b.t.Helper()
	a, err := b.client.Do(r)
	if err != nil {
		b.t.Fatal(err)
	}
	defer a.Body.Close()
	body, err := io.ReadAll(a.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return a.StatusCode, string(body)
}

func (b *browser) request(method, path string, body io.Reader) *http.Request {
	b.t.Helper()
	r, err := http.NewRequestWithContext(b.t.Context(), method, b.server.URL+root+path, body)
	if err != nil {
		b.t.Fatal(err)
	}
	return r
}

func (b *browser) get(path string) (int, string) {
	b.t.Helper()
	return b.do(b.request(http.MethodGet, path, nil))
}

// post sends a form as a page of the console does.
func (b *browser) post(path string, form url.Values) (int, string) {
	b.t.Helper()
	r := b.request(http.MethodPost, path, strings.NewReader(form.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Sec-Fetch-Site", "same-origin")
	return b.do(r)
}

var csrfValue = regexp.MustCompile(`name="csrf" value="([^"]+)"`)

// csrf returns the token of the forms of a page.
func (b *browser) csrf() string {
	b.t.Helper()
	_, page := b.get("schedule")
	m := csrfValue.FindStringSubmatch(page)
	if m == nil {
		b.t.Fatalf("no token in %s", page)
	}
	return m[1]
}

// TestEveryPageEscapesWhatComesFromTasks opens all pages with hostile texts in all answers.
func TestEveryPageEscapesWhatComesFromTasks(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, "admin-secret", "acme-secret")
	paths := []string{"?tenant=acme", "tasks?q=" + url.QueryEscape(hostile), "schedule?expression=" + url.QueryEscape(hostile), "bulk/new?kind=" + url.QueryEscape(hostile), "calendar?name=" + url.QueryEscape(hostile), "calendars", "forecast?tenant=acme", "login?next=" + url.QueryEscape(hostile), "link?code=" + url.QueryEscape(hostile)}
	for _, p := range pages {
		paths = append(paths, strings.NewReplacer("{$}", "", "{id}", "513", "{run}", "513-7", "{name}", "acme").Replace(p.path))
	}
	for _, path := range paths {
		code, body := b.get(path)
		if code != http.StatusOK {
			t.Errorf("%s: %d %s", path, code, body)
		}
		if strings.Contains(body, "<script>") || strings.Contains(body, "alert(\"x\")") {
			t.Errorf("%s is not escaped:\n%s", path, body)
		}
		for _, inline := range []string{" style=", " onclick=", "javascript:", "<style"} {
			if strings.Contains(body, inline) {
				t.Errorf("%s has %q, which the policy forbids", path, inline)
			}
		}
	}
}

func TestAPayloadIsShownOnThePagesOfItsTaskAndItsDeadRun(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, "acme-secret")
	for _, path := range []string{"tasks/513", "dead/513-7"} {
		if _, body := b.get(path); !strings.Contains(body, "text/html, 27 bytes") || !strings.Contains(body, "<pre>"+html.EscapeString(hostile)) {
			t.Errorf("%s does not show the payload:\n%s", path, body)
		}
	}
}

func TestPagesNeedASession(t *testing.T) {
	t.Parallel()
	b := newBrowser(t)
	for _, p := range pages {
		path := strings.NewReplacer("{$}", "", "{id}", "513", "{run}", "513-7", "{name}", "acme").Replace(p.path)
		if _, body := b.get(path); !strings.Contains(body, `name="token"`) {
			t.Errorf("%s is shown without a login", path)
		}
	}
	if n := len(b.api.calls); n > 0 {
		t.Errorf("%d calls without a login", n)
	}
}

func TestLoginsAreCheckedByTheAPIAndLeadBack(t *testing.T) {
	t.Parallel()
	b := newBrowser(t)
	if code, body := b.post("login", url.Values{"token": {"wrong"}}); code != http.StatusUnauthorized || !strings.Contains(body, "The token is not accepted") || !strings.Contains(body, "The token is unknown, expired or revoked.") || strings.Contains(body, "the call needs the header") {
		t.Errorf("a wrong token: %d %s", code, body)
	}
	if code, body := b.post("login", url.Values{"token": {" Bearer acme-secret\n"}, "next": {root + "tasks?kind=mail"}}); code != http.StatusOK || !strings.Contains(body, `value="mail"`) {
		t.Errorf("it does not lead back: %d %s", code, body)
	}
	for _, c := range b.api.called("ListTasks") {
		if c.token != "Bearer acme-secret" || c.tenant != "acme" {
			t.Errorf("called with %q for %q", c.token, c.tenant)
		}
	}
	for _, given := range []string{"https://evil.example/", "//evil.example/", `/\evil.example`, "/console/../../x", "/other", "/console/logout"} {
		if got := next(given); !strings.HasPrefix(got, root) || strings.HasPrefix(got, root+"logout") || strings.Contains(got, "..") {
			t.Errorf("next(%q) leads to %q", given, got)
		}
	}
}

func TestSessionsEnd(t *testing.T) {
	t.Parallel()
	loggedIn := func(b *browser) bool {
		_, body := b.get("tasks")
		return !strings.Contains(body, `name="token"`)
	}
	t.Run("after half an hour without the user", func(t *testing.T) {
		t.Parallel()
		b := newBrowser(t, "acme-secret")
		for range 3 {
			b.wait(20 * time.Minute)
			if !loggedIn(b) {
				t.Fatal("it has ended too early")
			}
		}
		for range 2 { // a live page does not keep it alive
			b.wait(16 * time.Minute)
			r := b.request(http.MethodGet, "tasks/513", nil)
			r.Header.Set(liveHeader, "1")
			if code, _ := b.do(r); code != http.StatusOK && code != http.StatusUnauthorized {
				t.Errorf("live: %d", code)
			}
		}
		if loggedIn(b) {
			t.Error("it has not ended")
		}
	})
	t.Run("after twelve hours", func(t *testing.T) {
		t.Parallel()
		b := newBrowser(t, "acme-secret")
		for i := range 37 {
			b.wait(20 * time.Minute)
			if got, want := loggedIn(b), i < 36; got != want {
				t.Fatalf("after %d times 20 minutes: logged in is %v", i+1, got)
			}
		}
	})
	t.Run("by the user", func(t *testing.T) {
		t.Parallel()
		b := newBrowser(t, "acme-secret")
		b.post("logout", url.Values{"csrf": {b.csrf()}})
		if loggedIn(b) {
			t.Error("it has not ended")
		}
	})
	t.Run("when the token is refused", func(t *testing.T) {
		t.Parallel()
		b := newBrowser(t, "acme-secret")
		b.api.answers["ListTasks"] = func(context.Context, proto.Message) (proto.Message, error) {
			return nil, status.Error(codes.Unauthenticated, "revoked")
		}
		if loggedIn(b) {
			t.Error("it has not ended")
		}
	})
}

func TestAFormThatMeetsAnEndedSessionSaysSoAndLeadsBack(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, "acme-secret")
	form := url.Values{"csrf": {b.csrf()}, "kind": {"mail"}}
	b.wait(idleTimeout + time.Second)
	for from, next := range map[string]string{
		b.server.URL + root + "tasks/513?tenant=acme": `name="next" value="/console/tasks/513?tenant=acme"`,
		"https://evil.example/x":                      `name="next" value="/console/"`,
		"":                                            `name="next" value="/console/"`,
	} {
		r := b.request(http.MethodPost, "tasks/513/cancel", strings.NewReader(form.Encode()))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Sec-Fetch-Site", "same-origin")
		r.Header.Set("Referer", from)
		if code, body := b.do(r); code != http.StatusOK || !strings.Contains(body, "Your session has ended") || !strings.Contains(body, "nothing was changed") || !strings.Contains(body, next) {
			t.Errorf("from %q: %d %s", from, code, body)
		}
	}
	if n := len(b.api.called("CancelTask")); n > 0 {
		t.Errorf("%d calls", n)
	}
	if _, body := b.get("tasks"); strings.Contains(body, "nothing was changed") {
		t.Errorf("a page: %s", body)
	}
}

func TestARefusedLoginLeavesTheOthersInTheSession(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, "admin-secret", "acme-secret")
	refuse := func(context.Context, proto.Message) (proto.Message, error) {
		return nil, status.Error(codes.Unauthenticated, "revoked")
	}
	b.api.answers["ListTasks"], b.api.answers["CancelTask"] = refuse, refuse
	if _, body := b.get("tasks?tenant=acme"); !strings.Contains(body, "One of your logins has ended") || !strings.Contains(body, `name="next" value="/console/tasks?tenant=acme"`) {
		t.Errorf("the user is not asked for a new token: %s", body)
	}
	if code, body := b.get("tenants"); code != http.StatusOK || strings.Contains(body, `name="token"`) {
		t.Errorf("the operator's login has gone: %d %s", code, body)
	}
	if code, _ := b.get("tasks?tenant=acme"); code != http.StatusForbidden {
		t.Errorf("the tenant's login is still used: %d", code)
	}
	b.post("login", url.Values{"token": {"acme-secret"}})
	if _, body := b.post("tasks/513/cancel?tenant=acme", url.Values{"csrf": {b.csrf()}}); !strings.Contains(body, "One of your logins has ended") {
		t.Errorf("a form: %s", body)
	}
	if code, body := b.get("tenants"); code != http.StatusOK || strings.Contains(body, `name="token"`) {
		t.Errorf("after a form the operator's login has gone: %d %s", code, body)
	}
}

func TestALongRefusalFitsIntoItsCookie(t *testing.T) {
	t.Parallel()
	for _, text := range []string{strings.Repeat("<", 5000), strings.Repeat("\x01", 5000), strings.Repeat("€", 5000), strings.Repeat("😀", 5000), strings.Repeat("x", 5000)} {
		b := newBrowser(t, "acme-secret")
		b.api.answers["CancelTask"] = func(context.Context, proto.Message) (proto.Message, error) {
			return nil, status.Error(codes.InvalidArgument, text)
		}
		form := url.Values{"csrf": {b.csrf()}}
		b.client.CheckRedirect = func(r *http.Request, _ []*http.Request) error {
			for _, c := range r.Response.Cookies() {
				if n := len(c.Name) + len(c.Value); n > 4096 {
					t.Errorf("%.9q: the cookie %s has %d bytes, which browsers do not store", text, c.Name, n)
				}
			}
			return nil
		}
		begin := "The request is not valid: " + html.EscapeString(string([]rune(text)[:50]))
		if _, body := b.post("tasks/513/cancel", form); !strings.Contains(body, begin) || !strings.Contains(body, "…") {
			t.Errorf("%.9q is not shown: %s", text, body)
		}
	}
}

func TestFormsOfOtherPagesDoNothing(t *testing.T) {
	t.Parallel()
	b, other := newBrowser(t, "acme-secret"), newBrowser(t, "acme-secret")
	for name, form := range map[string]url.Values{"without a token": {}, "with a token of another session": {"csrf": {other.csrf()}}, "with a part of it": {"csrf": {b.csrf()[:20]}}} {
		if code, _ := b.post("tasks/513/cancel", form); code != http.StatusForbidden {
			t.Errorf("%s: %d", name, code)
		}
	}
	good := url.Values{"csrf": {b.csrf()}}
	r := b.request(http.MethodPost, "tasks/513/cancel", strings.NewReader(good.Encode()))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Sec-Fetch-Site", "cross-site")
	if code, _ := b.do(r); code != http.StatusForbidden {
		t.Errorf("of another site: %d", code)
	}
	if n := len(b.api.called("CancelTask")); n > 0 {
		t.Errorf("%d tasks were cancelled", n)
	}
	if code, body := b.post("tasks/513/cancel", good); code != http.StatusOK || !strings.Contains(body, "Task 513 is cancelled") {
		t.Errorf("its own form: %d %s", code, body)
	}
}

func TestALoginReplacesTheSecretOfForms(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, "acme-secret")
	old := b.csrf()
	b.post("login", url.Values{"token": {"admin-secret"}})
	if code, _ := b.post("tasks/513/cancel", url.Values{"csrf": {old}}); code != http.StatusForbidden {
		t.Errorf("a form of before the login is answered with %d", code)
	}
	if code, body := b.post("tasks/513/cancel", url.Values{"csrf": {b.csrf()}}); code != http.StatusOK || !strings.Contains(body, "Task 513 is cancelled") {
		t.Errorf("a form of after it: %d %s", code, body)
	}
}

// arriving is a request's end at the server: it counts what is read of the body, and has the
// deadline of the reads.
type arriving struct {
	*httptest.ResponseRecorder
	from  io.Reader
	bytes int
	until time.Time
}

func (a *arriving) Read(p []byte) (int, error) {
	n, err := a.from.Read(p)
	a.bytes += n
	return n, err
}

func (a *arriving) SetReadDeadline(until time.Time) error {
	a.until = until
	return nil
}

func TestWhoHasNoSessionGetsLittleMemoryAndTime(t *testing.T) {
	t.Parallel()
	b, _ := withIssuer(t)
	const form, parts = "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"
	const part = "--x\r\nContent-Disposition: form-data; name=\"next\"\r\n\r\n"
	for _, c := range []struct{ method, path, kind, begins string }{
		{"POST", "login", form, "token="}, {"POST", "link", form, "code="}, {"POST", "logout", form, "csrf="},
		{"POST", "login", parts, part}, {"GET", "login", parts, part}, {"GET", "link", parts, part},
		{"GET", "login/issuer", parts, part}, {"GET", "login/issuer/back", parts, part}, {"GET", "login/issuer/end", parts, part},
		{"POST", "tasks/513/cancel", form, "csrf="},
	} {
		a := &arriving{ResponseRecorder: httptest.NewRecorder(), from: io.MultiReader(strings.NewReader(c.begins), strings.NewReader(strings.Repeat("x", 1<<20-1000)))}
		r := httptest.NewRequestWithContext(t.Context(), c.method, root+c.path, a)
		r.Header.Set("Content-Type", c.kind)
		b.server.Config.Handler.ServeHTTP(a, r)
		if a.bytes > 16<<10+1 {
			t.Errorf("%s %s: %d bytes of %s are read", c.method, c.path, a.bytes, c.kind)
		}
		if left := time.Until(a.until); left <= 0 || left > callTimeout {
			t.Errorf("%s %s may arrive for %v", c.method, c.path, left)
		}
		if c.kind == form && !strings.HasPrefix(c.path, "tasks") && (a.Code != http.StatusBadRequest || a.Header().Get("Connection") != "close") {
			t.Errorf("%s %s: %d %v", c.method, c.path, a.Code, a.Header())
		}
	}
}

// slow is a browser that takes nothing of a page until it is told to.
type slow struct {
	*httptest.ResponseRecorder
	writing sync.Once
	begun   func()
	take    <-chan struct{}
}

func (s *slow) Write(p []byte) (int, error) {
	s.writing.Do(s.begun)
	<-s.take
	return s.ResponseRecorder.Write(p)
}

// asked is a request for a page by the user of b, who waits until ctx ends.
func (b *browser) asked(ctx context.Context, path string) *http.Request {
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, root+path, nil)
	for _, c := range b.client.Jar.Cookies(b.request(http.MethodGet, path, nil).URL) {
		r.AddCookie(c)
	}
	return r
}

func TestPagesThatAreNotTakenLeavePlacesToOtherTenants(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, "acme-secret")
	handler := b.server.Config.Handler
	take := make(chan struct{})
	var begun, ended sync.WaitGroup
	for range maxPages / 2 {
		begun.Add(1)
		ended.Go(func() {
			handler.ServeHTTP(&slow{ResponseRecorder: httptest.NewRecorder(), begun: begun.Done, take: take}, b.asked(t.Context(), "tasks"))
		})
	}
	begun.Wait()
	impatient, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	one := httptest.NewRecorder()
	handler.ServeHTTP(one, b.asked(impatient, "tasks"))
	if one.Code != http.StatusTooManyRequests {
		t.Errorf("one page more of the tenant: %d %s", one.Code, one.Body)
	}
	b.client.Jar, _ = cookiejar.New(nil)
	if _, body := b.post("login", url.Values{"token": {"admin-secret"}}); !strings.Contains(body, "What needs attention") {
		t.Errorf("an operator gets no page meanwhile: %s", body)
	}
	close(take)
	ended.Wait()
	if free := b.console.places.Free(); free != maxPages {
		t.Errorf("%d places of %d are free in the end", free, maxPages)
	}
}

// TestPagesAskForTheirPartsAtOnce: a server that hangs delays a page once, not for each part.
func TestPagesAskForTheirPartsAtOnce(t *testing.T) {
	t.Parallel()
	for page, calls := range map[string][]string{"": {"ListTenantFigures", "GetClusterFigures"}, "cluster": {"GetClusterFigures", "GetAssignment"}} {
		b := newBrowser(t, "admin-secret")
		var begun sync.WaitGroup
		begun.Add(len(calls))
		for _, name := range calls {
			b.api.answers[name] = func(ctx context.Context, _ proto.Message) (proto.Message, error) {
				begun.Done()
				all := make(chan struct{})
				go func() { begun.Wait(); close(all) }()
				select {
				case <-all:
				case <-time.After(time.Minute):
					t.Errorf("page %q: %s waits for others", page, name)
				}
				return nil, status.Error(codes.Unavailable, "no database answers")
			}
		}
		if code, body := b.get(page); code != http.StatusOK || !strings.Contains(body, "no database answers") {
			t.Errorf("page %q: %d %s", page, code, body)
		}
	}
}

func TestAnAddressThatIsTooLongIsNotRepeatedInAPage(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, "acme-secret")
	if code, body := b.get("tasks?x=" + strings.Repeat("x", maxQuery)); code != http.StatusRequestURITooLong || len(body) > 1000 {
		t.Errorf("%d, %d bytes", code, len(body))
	}
}

func TestTheOverviewShowsTheWorstFindingsAndIsBounded(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, "admin-secret")
	c := &perceptorv1.ClusterFigures{}
	for range 500 { // as many tenants
		c.Findings = append(c.Findings, &perceptorv1.Finding{Severity: perceptorv1.Finding_WARNING, Part: "topics", Text: "one replica"})
	}
	c.Findings = append(c.Findings, &perceptorv1.Finding{Severity: perceptorv1.Finding_OK, Part: "clocks"}, &perceptorv1.Finding{Severity: perceptorv1.Finding_FAILED, Part: "shards", Text: "no owner"})
	b.api.answers["GetClusterFigures"] = func(context.Context, proto.Message) (proto.Message, error) { return c, nil }
	_, body := b.get("")
	if worst, first := strings.Index(body, "no owner"), strings.Index(body, "one replica"); worst < 0 || worst > first {
		t.Errorf("the failure is at %d, the first warning at %d", worst, first)
	}
	if n := strings.Count(body, "one replica"); n != shownFindings-1 || !strings.Contains(body, "481 more") {
		t.Errorf("%d warnings are shown", n)
	}
}

func TestTasksAreFoundByIdAndByKey(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, "acme-secret")
	for _, q := range []string{"513", "order-77"} {
		if _, body := b.get("tasks?q=" + q); !strings.Contains(body, "<title>Task 513") {
			t.Errorf("%s does not lead to the task", q)
		}
	}
	calls := b.api.called("ExplainTask")
	if n := len(calls); n != 4 || calls[2].request.(*perceptorv1.ExplainTaskRequest).IdempotencyKey != "order-77" {
		t.Errorf("%d calls: %v", n, calls)
	}
}

func TestARunIsFoundByItsId(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, "acme-secret")
	task := mustTask(t, b)
	b.api.answers["ExplainTask"] = func(_ context.Context, m proto.Message) (proto.Message, error) {
		switch r := m.(*perceptorv1.ExplainTaskRequest); {
		case r.Id == 513:
			return &perceptorv1.ExplainTaskResponse{Task: task}, nil
		case r.IdempotencyKey == "513-9": // keys may look like runs
			return &perceptorv1.ExplainTaskResponse{Task: &perceptorv1.Task{Id: 1025}}, nil
		case r.Id == 0 || r.Id == 1025:
			return &perceptorv1.ExplainTaskResponse{}, nil
		}
		return nil, status.Error(codes.InvalidArgument, "there is no such id")
	}
	b.api.answers["ListRunEvents"] = func(_ context.Context, m proto.Message) (proto.Message, error) {
		r, list := m.(*perceptorv1.ListRunEventsRequest), &perceptorv1.ListRunEventsResponse{}
		for seq := int64(9); seq > 6 && r.TaskId == 513; seq-- {
			list.Events = append(list.Events, &perceptorv1.RunEvent{Type: perceptorv1.RunEvent_FAILED, Seq: seq, EventTime: timestamppb.Now()})
		}
		return list, nil
	}
	if _, body := b.get("tasks?q=513-7"); !strings.Contains(body, "<title>Task 513") || !strings.Contains(body, `<details id="run-7" open`) || strings.Contains(body, `<details id="run-8" open`) || strings.Contains(body, "no event of run") {
		t.Errorf("the run is not shown: %s", body)
	}
	if _, body := b.get("tasks?q=513-2"); !strings.Contains(body, "no event of run") {
		t.Errorf("a run without events: %s", body)
	}
	for _, q := range []string{"1025-1", "512-1", "513-0", "513--7", "513-x", "-1", "513-7-7"} {
		if code, body := b.get("tasks?q=" + q); code != http.StatusOK || !strings.Contains(body, "No task has the id, run or key") {
			t.Errorf("%s: %d %s", q, code, body)
		}
	}
	b.get("tasks?q=513-9")
	if calls := b.api.called("ExplainTask"); calls[len(calls)-1].request.(*perceptorv1.ExplainTaskRequest).Id != 1025 {
		t.Errorf("a key that looks like a run leads to %v", calls[len(calls)-1].request)
	}
}

func TestLinksRepeatOnlyWhatTheirPageKnows(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, "admin-secret", "acme-secret")
	list := &perceptorv1.ListTasksResponse{NextPageToken: "next"}
	for i := range 50 {
		task := &perceptorv1.Task{Id: int64(i + 1)}
		for j := range 16 {
			task.Tags = append(task.Tags, strings.Repeat("t", j+1))
		}
		list.Tasks = append(list.Tasks, task)
	}
	b.api.answers["ListTasks"] = func(context.Context, proto.Message) (proto.Message, error) { return list, nil }
	_, plain := b.get("tasks?tenant=acme&kind=mail")
	long := strings.Repeat("%26", 1300)
	for _, query := range []string{"foo=" + long, "kind=" + long, "q=&q=" + long, "page=&page=" + long, "sort=" + long, "from=" + long, "type=" + strings.Repeat("%20", 1300)} {
		if _, body := b.get("tasks?tenant=acme&kind=mail&" + query); len(body) > len(plain)+64<<10 {
			t.Errorf("%.10s makes a page of %d bytes, without it %d", query, len(body), len(plain))
		}
	}
	for path, links := range map[string][]string{
		"tasks?tenant=acme&kind=mail&state=RUNNING&type=BLOCKING&tags=a&from=2027-01-01T00:00:00Z&until=2027-01-02T00:00:00Z&sort=due&page=p": {
			"from=2027-01-01T00%3A00%3A00Z&kind=mail&page=p&sort=-due&state=RUNNING&tags=a&tenant=acme&type=BLOCKING&until=2027-01-02T00%3A00", "page=next&sort=due",
		},
		"dead?tenant=acme&kind=mail&reason=SILENT&tags=a&from=2027-01-01T00:00:00Z&page=p":          {"from=2027-01-01T00%3A00%3A00Z&kind=mail&reason=SILENT&tags=a&tenant=acme"},
		"tenants?q=a&order=BACKLOG&page=p":                                                          {"order=BACKLOG&q=a"},
		"audit?scope=tenant&tenant=acme&actor=a&action=b&object=c&from=2027-01-01T00:00:00Z&page=p": {"action=b&actor=a&from=2027-01-01T00%3A00%3A00Z&object=c&scope=tenant&tenant=acme"},
		"audit?about=acme&page=p": {"about=acme"},
	} {
		_, body := b.get(path)
		for _, link := range links {
			if !strings.Contains(html.UnescapeString(body), "?"+link) && !strings.Contains(html.UnescapeString(body), "&"+link) {
				t.Errorf("%s has no link with %s", path, link)
			}
		}
	}
}

func TestAFilterThatIsUnknownIsAFaultAndNotLeftOut(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, "admin-secret", "acme-secret")
	for path, want := range map[string]string{
		"tasks?state=XX": `state "XX" is unknown`, "tasks?type=blocking": `type "blocking" is unknown`, "tasks?sort=-XX": `sort "-XX" is unknown`,
		"dead?reason=XX": `reason "XX" is unknown`, "tenants?order=XX": `order "XX" is unknown`,
	} {
		if _, body := b.get(path); !strings.Contains(body, html.EscapeString(want)) {
			t.Errorf("%s does not say %s: %s", path, want, body)
		}
	}
	for field, action := range map[string]string{"state": "CANCEL", "type": "CANCEL", "reason": "PURGE_DEAD"} {
		code, body := b.post("bulk/new", url.Values{"csrf": {b.csrf()}, "action": {action}, field: {"XX"}})
		if want := html.EscapeString(field + ` "XX" is unknown`); code != http.StatusBadRequest || !strings.Contains(body, want) {
			t.Errorf("a bulk operation: %d without %s: %s", code, want, body)
		}
	}
	for _, method := range []string{"ListTasks", "ListDeadRuns", "CreateBulkOperation"} {
		if n := len(b.api.called(method)); n > 0 {
			t.Errorf("%d calls of %s", n, method)
		}
	}
	if _, body := b.get("bulk/new"); !strings.Contains(body, "Purge finished") || !strings.Contains(body, "to purge: finished") {
		t.Errorf("the default of a purge is not named: %s", body)
	}
}

func TestAnEditSendsOnlyWhatHasChanged(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, "acme-secret")
	_, page := b.get("tasks/513/edit")
	form := url.Values{"csrf": {b.csrf()}}
	v := (&view{Zone: time.UTC})
	for _, f := range v.taskFields(mustTask(t, b)) {
		form.Set(f.Name, f.Value)
	}
	form.Set("interval", "2h")
	form.Set("tags", "a, b")
	if code, body := b.post("tasks/513/edit", form); code != http.StatusOK || !strings.Contains(body, "version 4 now. Changed: interval, tags") {
		t.Errorf("%d %s\n%s", code, body, page)
	}
	calls := b.api.called("UpdateTask")
	if len(calls) != 1 {
		t.Fatalf("%d calls", len(calls))
	}
	r := calls[0].request.(*perceptorv1.UpdateTaskRequest)
	if got := strings.Join(r.UpdateMask.Paths, " "); got != "interval tags" || r.Version != 3 || r.Task.GetInterval().AsDuration() != 2*time.Hour {
		t.Errorf("sent %v", r)
	}
}

func TestAnEditKeepsWhatOthersHaveChanged(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, "acme-secret")
	task := proto.CloneOf(mustTask(t, b))
	task.MisfirePolicy, task.Overlap, task.Params = perceptorv1.Task_SKIP, perceptorv1.Task_Overlap_ALLOW, map[string]string{"a": "1"}
	task.BeginTime = timestamppb.New(time.Date(2030, 1, 1, 12, 0, 0, 5e8, time.UTC))
	b.api.answers["GetTask"] = func(context.Context, proto.Message) (proto.Message, error) { return task, nil }
	_, page := b.get("tasks/513/edit")
	form := b.filled(page)
	form.Set("interval", "2h")
	// Meanwhile somebody else changes other terms.
	task = proto.CloneOf(task)
	task.Version, task.Tags, task.Params, task.BeginTime = 4, []string{"x"}, map[string]string{"a": "2"}, timestamppb.New(time.Date(2031, 1, 1, 12, 0, 0, 0, time.UTC))
	if code, body := b.post("tasks/513/edit", form); code != http.StatusOK || !strings.Contains(body, "Changed: interval.") {
		t.Errorf("%d %s", code, body)
	}
	calls := b.api.called("UpdateTask")
	if len(calls) != 1 || calls[0].request.(*perceptorv1.UpdateTaskRequest).Version != 4 {
		t.Errorf("sent %v", calls)
	}
	form.Set("tags", "y")
	form.Set("params", "a=3")
	code, body := b.post("tasks/513/edit", form)
	if code != http.StatusConflict || !strings.Contains(body, "Somebody else has changed this to &#34;x&#34;") || !strings.Contains(body, "Somebody else has changed this since") {
		t.Errorf("a change of the same terms: %d %s", code, body)
	}
	if n := len(b.api.called("UpdateTask")); n != 1 {
		t.Errorf("%d changes were sent", n)
	}
	// The form that is shown again has what was typed, and what others have changed in the other fields.
	again := b.filled(body)
	if again.Get("tags") != "y" || again.Get("params") != "a=3" || again.Get("interval") != "2h" || again.Get("begin_time") != "2031-01-01T12:00:00" {
		t.Errorf("the form has %v", again)
	}
	if code, body := b.post("tasks/513/edit", again); code != http.StatusOK || !strings.Contains(body, "Changed: interval, tags, params.") {
		t.Errorf("saved again: %d %s", code, body)
	}
}

var (
	inputValue    = regexp.MustCompile(`<input[^>]* name="([^"]+)" value="([^"]*)"`)
	textareaValue = regexp.MustCompile(`<textarea[^>]* name="([^"]+)"[^>]*>([^<]*)</textarea>`)
	selectValue   = regexp.MustCompile(`<select[^>]* name="([^"]+)"[^>]*>([^\n]*)</select>`)
	optionValue   = regexp.MustCompile(`<option value="([^"]*)" selected>`)
)

// filled returns the form of a page as a browser sends it.
func (b *browser) filled(page string) url.Values {
	b.t.Helper()
	_, page, found := strings.Cut(page, "<main")
	if !found {
		b.t.Fatalf("no page: %s", page)
	}
	form := url.Values{}
	for _, m := range slices.Concat(inputValue.FindAllStringSubmatch(page, -1), textareaValue.FindAllStringSubmatch(page, -1)) {
		form.Set(m[1], html.UnescapeString(m[2]))
	}
	for _, m := range selectValue.FindAllStringSubmatch(page, -1) {
		if o := optionValue.FindStringSubmatch(m[2]); o != nil {
			form.Set(m[1], o[1])
		}
	}
	return form
}

func TestAnEditOfATenantKeepsWhatOthersHaveChanged(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, "admin-secret")
	tenant := &perceptorv1.Tenant{Name: "acme", Weight: 1, AddRate: 100, PausedKinds: []string{"mail"}}
	b.api.answers["GetTenant"] = func(context.Context, proto.Message) (proto.Message, error) { return tenant, nil }
	form := url.Values{"csrf": {b.csrf()}}
	_, page := b.get("tenants/acme/edit")
	for _, f := range tenantFields(tenant) {
		if hidden := `name="was_` + f.Name + `" value="` + f.Value + `"`; !strings.Contains(page, hidden) {
			t.Fatalf("the form lacks %s:\n%s", hidden, page)
		}
		form.Set(f.Name, f.Value)
		form.Set("was_"+f.Name, f.Value)
	}
	form.Set("weight", "5")
	// Meanwhile another operator pauses a kind.
	tenant = &perceptorv1.Tenant{Name: "acme", Weight: 1, AddRate: 100, PausedKinds: []string{"mail", "pay"}}
	if code, body := b.post("tenants/acme/edit", form); code != http.StatusOK || !strings.Contains(body, "Changed: weight.") {
		t.Errorf("%d %s", code, body)
	}
	calls := b.api.called("UpdateTenant")
	if len(calls) != 1 || strings.Join(calls[0].request.(*perceptorv1.UpdateTenantRequest).UpdateMask.Paths, " ") != "weight" {
		t.Errorf("sent %v", calls)
	}
	form.Set("paused_kinds", "")
	if code, body := b.post("tenants/acme/edit", form); code != http.StatusConflict || !strings.Contains(body, "Somebody else has changed this to &#34;mail, pay&#34;") {
		t.Errorf("a change of the same setting: %d %s", code, body)
	}
	if n := len(b.api.called("UpdateTenant")); n != 1 {
		t.Errorf("%d changes were sent", n)
	}
	form.Set("was_paused_kinds", "mail, pay") // as the form has it now
	if code, body := b.post("tenants/acme/edit", form); code != http.StatusOK || !strings.Contains(body, "Changed: weight, paused_kinds.") {
		t.Errorf("saved again: %d %s", code, body)
	}
}

func TestTheFaultsOfAFormAreToldAtItsTopAndToScreenReaders(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, "admin-secret", "acme-secret")
	for path, texts := range map[string][2]string{"tasks/513/edit?tenant=acme": {"interval", "initial_backoff"}, "tenants/acme/edit": {"weight", "default_retention"}} {
		_, page := b.get(path)
		form := b.filled(page)
		for name, was := range form { // what the API of the test leaves out
			if now, ok := strings.CutPrefix(name, "was_"); ok && !form.Has(now) {
				form[now] = was
			}
		}
		form.Set(texts[0], "x1")
		form.Set(texts[1], "x2")
		_, body := b.post(path, form)
		if !strings.Contains(body, `role="alert"><h2>Nothing was changed</h2><p>2 fields need another look: <a href="#f-`+texts[0]) {
			t.Errorf("%s has no summary: %s", path, body)
		}
		for _, name := range texts {
			if strings.Contains(body, "This is malformed: <") || !strings.Contains(body, `aria-describedby="n-`+name+`" aria-invalid="true"`) || !strings.Contains(body, `<p class="fault" id="n-`+name+`">`) {
				t.Errorf("the fault of %s does not belong to its field: %s", name, body)
			}
		}
	}
}

func TestAFormStaysWhenAServerDoesNotAnswer(t *testing.T) {
	t.Parallel()
	for _, code := range []codes.Code{codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted} {
		b := newBrowser(t, "admin-secret", "acme-secret")
		for _, method := range []string{"UpdateTask", "UpdateTenant", "CreateBulkOperation"} {
			b.api.answers[method] = func(context.Context, proto.Message) (proto.Message, error) {
				return nil, status.Error(code, "took too long")
			}
		}
		for path, changed := range map[string]string{"tasks/513/edit?tenant=acme": "interval", "tenants/acme/edit": "default_retention", "bulk/new?tenant=acme": "max_rate"} {
			_, page := b.get(path)
			form := b.filled(page)
			for name, was := range form { // what the API of the test leaves out
				if now, ok := strings.CutPrefix(name, "was_"); ok && !form.Has(now) {
					form[now] = was
				}
			}
			form.Set(changed, "77")
			if changed != "max_rate" {
				form.Set(changed, "77m")
			}
			if _, body := b.post(path, form); !strings.Contains(body, "took too long") || b.filled(body).Get(changed) != form.Get(changed) {
				t.Errorf("%s after %v: %s", path, code, body)
			}
		}
	}
}

// TestALinkWithTimesMeansTheSameInEveryZone searches in one zone and opens the address in another.
func TestALinkWithTimesMeansTheSameInEveryZone(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, "acme-secret")
	var address string
	b.client.CheckRedirect = func(r *http.Request, _ []*http.Request) error {
		address = strings.TrimPrefix(r.URL.RequestURI(), root)
		return nil
	}
	want := []string{"2026-06-30T22:00:00Z", "2026-07-01T10:30:15Z"}
	for page, c := range map[string]struct {
		method string
		times  func(proto.Message) []*timestamppb.Timestamp
	}{
		"tasks?": {"ListTasks", func(m proto.Message) []*timestamppb.Timestamp {
			r := m.(*perceptorv1.ListTasksRequest)
			return []*timestamppb.Timestamp{r.DueFrom, r.DueUntil}
		}},
		"dead?": {"ListDeadRuns", func(m proto.Message) []*timestamppb.Timestamp {
			r := m.(*perceptorv1.ListDeadRunsRequest)
			return []*timestamppb.Timestamp{r.DiedFrom, r.DiedUntil}
		}},
		"audit?": {"ListTenantAuditEvents", func(m proto.Message) []*timestamppb.Timestamp {
			r := m.(*perceptorv1.ListTenantAuditEventsRequest)
			return []*timestamppb.Timestamp{r.From, r.Until}
		}},
		"schedule?expression=@daily&after=2026-07-01T00:00&": {"PreviewSchedule", func(m proto.Message) []*timestamppb.Timestamp {
			return []*timestamppb.Timestamp{m.(*perceptorv1.PreviewScheduleRequest).AfterTime}
		}},
	} {
		b.zone("Europe/Berlin")
		address = page + "from=2026-07-01T00:00&until=2026-07-01T12:30:15"
		_, here := b.get(address)
		b.zone("America/New_York")
		_, there := b.get(address)
		if !strings.Contains(here, `value="2026-07-01T00:00:00"`) || !strings.Contains(there, `value="2026-06-30T18:00:00"`) {
			t.Errorf("%s shows other times", page)
		}
		for i, call := range b.api.called(c.method) {
			for k, at := range c.times(call.request) {
				if got := at.AsTime().Format(time.RFC3339); got != want[k] {
					t.Errorf("%s, call %d: %s instead of %s", page, i, got, want[k])
				}
			}
		}
	}
	if _, body := b.get("tasks?from=tomorrow"); !strings.Contains(body, `value="tomorrow"`) || !strings.Contains(body, "due from is not an instant") {
		t.Errorf("what is no instant: %s", body)
	}
}

func TestASettingThatDoesNotFitIsMalformed(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, "admin-secret")
	_, page := b.get("tenants/acme/edit")
	for _, name := range []string{"dispatch_rate", "dispatch_burst", "weight", "add_rate", "max_params_bytes", "max_backlog"} {
		for _, value := range []string{"4294967296", "-4294967295", "99999999999999999999"} {
			if name == "max_backlog" && len(value) < 20 {
				continue // it has 64 bits
			}
			form := b.filled(page)
			form.Set("history", form.Get("was_history"))
			form.Set(name, value)
			code, body := b.post("tenants/acme/edit", form)
			if code != http.StatusBadRequest || strings.Count(body, "This is malformed") != 1 {
				t.Errorf("%s %s: %d", name, value, code)
			}
		}
	}
	if calls := b.api.called("UpdateTenant"); len(calls) != 0 {
		t.Errorf("sent %v", calls)
	}
}

func TestParamsAreReadAsTheyAreWritten(t *testing.T) {
	t.Parallel()
	for _, params := range []map[string]string{
		{}, {"a": "1", "z": "ends with spaces  "}, {" begins with one": "  x"}, {"a=b": "c=d", `c\`: `\n`}, {"two\nlines": "1\n2\r\n", `a\=`: ""},
		{"a": "tab\t", "b": "\n"},
	} {
		text := paramLines(params)
		if got, ok := readParams(text); !ok || !maps.Equal(got, params) {
			t.Errorf("%q are written\n%s\nand read as %q", params, text, got)
		}
	}
}

// TestAnEditOfOneParamKeepsTheOthers sends the form as browsers do: with CR LF, and without seconds that are 0.
func TestAnEditOfOneParamKeepsTheOthers(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, "acme-secret")
	task := proto.CloneOf(mustTask(t, b))
	task.Params = map[string]string{"a": "1", "b=c": "2", "z": "3 "}
	task.BeginTime = timestamppb.New(time.Date(2030, 1, 1, 12, 0, 0, 5e8, time.UTC))
	b.api.answers["GetTask"] = func(context.Context, proto.Message) (proto.Message, error) { return task, nil }
	form := url.Values{"csrf": {b.csrf()}}
	for _, f := range (&view{Zone: time.UTC}).taskFields(task) {
		form.Set(f.Name, strings.ReplaceAll(f.Value, "\n", "\r\n"))
	}
	form.Set("begin_time", strings.TrimSuffix(form.Get("begin_time"), ":00"))
	form.Set("params", strings.Replace(form.Get("params"), "a=1", "a=4", 1))
	if code, body := b.post("tasks/513/edit", form); code != http.StatusOK || !strings.Contains(body, "Changed: params.") {
		t.Errorf("%d %s", code, body)
	}
	want := map[string]string{"a": "4", "b=c": "2", "z": "3 "}
	if calls := b.api.called("UpdateTask"); len(calls) != 1 || !maps.Equal(calls[0].request.(*perceptorv1.UpdateTaskRequest).Task.Params, want) {
		t.Errorf("sent %v", calls)
	}
}

// TestAFormKeepsTheZoneInWhichItWasShown sends a form after the zone of the browser has changed.
func TestAFormKeepsTheZoneInWhichItWasShown(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, "acme-secret")
	task := proto.CloneOf(mustTask(t, b))
	task.BeginTime = timestamppb.New(time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC))
	b.api.answers["GetTask"] = func(context.Context, proto.Message) (proto.Message, error) { return task, nil }
	b.zone("Europe/Berlin")
	_, page := b.get("tasks/513/edit")
	zone := regexp.MustCompile(`name="times_in" value="([^"]+)"`).FindStringSubmatch(page)
	if zone == nil || !strings.Contains(page, `value="2030-01-01T13:00:00"`) {
		t.Fatalf("the form does not say its zone: %s", page)
	}
	form := url.Values{"csrf": {b.csrf()}, "times_in": zone[1:]}
	for _, f := range (&view{Zone: mustZone(t, "Europe/Berlin")}).taskFields(task) {
		form.Set(f.Name, f.Value)
	}
	b.zone("America/New_York")
	if code, body := b.post("tasks/513/edit", form); code != http.StatusOK || !strings.Contains(body, "Nothing was changed") {
		t.Errorf("%d %s", code, body)
	}
	form.Set("begin_time", "2030-01-01T14:00:00")
	b.post("tasks/513/edit", form)
	want := time.Date(2030, 1, 1, 13, 0, 0, 0, time.UTC)
	if calls := b.api.called("UpdateTask"); len(calls) != 1 || !calls[0].request.(*perceptorv1.UpdateTaskRequest).Task.BeginTime.AsTime().Equal(want) {
		t.Errorf("sent %v", calls)
	}
}

func mustZone(t *testing.T, name string) *time.Location {
	t.Helper()
	zone, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return zone
}

// zone sets the zone of the browser, as the script of the pages does.
func (b *browser) zone(name string) {
	b.t.Helper()
	at, err := url.Parse(b.server.URL + root)
	if err != nil {
		b.t.Fatal(err)
	}
	b.client.Jar.SetCookies(at, []*http.Cookie{{Name: "perceptor-zone", Value: url.QueryEscape(name), Path: root}})
}

func TestListsAreReadAsTheyAreWritten(t *testing.T) {
	t.Parallel()
	for _, names := range [][]string{
		nil, {"a", "b"}, {"a,b", "c"}, {",", ",,"}, {`\`, `a\`, `\,`}, {" x", "y ", "a b", "\u00a0z"}, {" "}, {"last "}, {`=\ `},
	} {
		text := commaText(names)
		for _, text := range []string{text, strings.TrimSpace(text)} { // as given, and as browsers and [view.given] send it
			if got := commaList(text); !slices.Equal(got, names) {
				t.Errorf("%q are written %q and read as %q", names, text, got)
			}
		}
	}
	for text, want := range map[string]string{"a , ,b\t,": "a|b", `a\b`: `a\b`, "": ""} {
		if got := strings.Join(commaList(text), "|"); got != want {
			t.Errorf("%q is read as %s, want %s", text, got, want)
		}
	}
}

// TestATagWithACommaStaysOneTag follows the link of a tag, and adds a tag to the task.
func TestATagWithACommaStaysOneTag(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, "acme-secret")
	task := proto.CloneOf(mustTask(t, b))
	task.Kind, task.Tags = " mail", []string{"a,b", " c"}
	b.api.answers["GetTask"] = func(context.Context, proto.Message) (proto.Message, error) { return task, nil }
	b.api.answers["ExplainTask"] = func(context.Context, proto.Message) (proto.Message, error) {
		return &perceptorv1.ExplainTaskResponse{Task: task}, nil
	}
	b.api.answers["ListTasks"] = func(context.Context, proto.Message) (proto.Message, error) {
		return &perceptorv1.ListTasksResponse{Tasks: []*perceptorv1.Task{task}}, nil
	}
	for _, page := range []string{"tasks", "tasks/513"} {
		_, body := b.get(page)
		link := regexp.MustCompile(`class="tag" href="` + root + `([^"]*)">a,b<`).FindStringSubmatch(body)
		if link == nil {
			t.Fatalf("%s has no link for the tag: %s", page, body)
		}
		b.get(html.UnescapeString(link[1]))
		calls := b.api.called("ListTasks")
		if got := calls[len(calls)-1].request.(*perceptorv1.ListTasksRequest).Tags; !slices.Equal(got, []string{"a,b"}) {
			t.Errorf("the link of %s lists tasks with the tags %q", page, got)
		}
	}
	form := url.Values{"csrf": {b.csrf()}}
	for _, f := range (&view{Zone: time.UTC}).taskFields(task) {
		form.Set(f.Name, f.Value)
	}
	form.Set("tags", form.Get("tags")+", d")
	if code, body := b.post("tasks/513/edit", form); code != http.StatusOK || !strings.Contains(body, "Changed: tags.") {
		t.Errorf("%d %s", code, body)
	}
	if calls := b.api.called("UpdateTask"); len(calls) != 1 || !slices.Equal(calls[0].request.(*perceptorv1.UpdateTaskRequest).Task.Tags, []string{"a,b", " c", "d"}) {
		t.Errorf("sent %v", calls)
	}
}

func mustTask(t *testing.T, b *browser) *perceptorv1.Task {
	t.Helper()
	m, err := b.api.answers["GetTask"](t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return m.(*perceptorv1.Task)
}

// calendarRanges are, by the clock of Berlin, a day that has passed, two days over a change of the clock, a day and hours.
var calendarRanges = func() (list []*perceptorv1.Calendar_Range) {
	for _, r := range [][2]string{
		{"2001-12-24T23:00:00Z", "2001-12-25T23:00:00Z"}, {"2998-03-24T23:00:00Z", "2998-03-26T22:00:00Z"},
		{"2998-12-24T23:00:00Z", "2998-12-25T23:00:00Z"}, {"2999-01-01T08:00:00Z", "2999-01-01T10:30:00Z"},
	} {
		from, _ := time.Parse(time.RFC3339, r[0])
		until, _ := time.Parse(time.RFC3339, r[1])
		list = append(list, &perceptorv1.Calendar_Range{StartTime: timestamppb.New(from), EndTime: timestamppb.New(until)})
	}
	return list
}()

func TestACalendarIsShownByDaysOfItsZone(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, "acme-secret")
	_, body := b.get("calendar?name=holidays")
	for _, want := range []string{
		"of which 1 have passed", "<h2>2998</h2>", "<h2>2999</h2>", "Sun 25 Mar 2998 – Mon 26 Mar 2998", "2 days", "Tue 25 Dec 2998<", "1 day<",
		"Tue 1 Jan 2999 09:00:00 CET – Tue 1 Jan 2999 11:30:00 CET", "2 h 30 min",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if r := b.api.called("GetCalendar")[0].request.(*perceptorv1.GetCalendarRequest); r.Name != "holidays" {
		t.Errorf("asked for %v", r)
	}
	if _, body := b.get("calendars"); !strings.Contains(body, "calendar?name=") {
		t.Errorf("the list is shown as %s", body)
	}
}

func TestABackfillIsCreatedFromItsDryRun(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, "acme-secret")
	form := url.Values{"csrf": {b.csrf()}, "action": {"BACKFILL"}, "kind": {"mail"}, "backfill_from": {"2026-01-30T00:00"}}
	if _, body := b.post("bulk/new", form); !strings.Contains(body, "first instant and end of the range") || len(b.api.called("CreateBulkOperation")) > 0 {
		t.Errorf("half a range: %s", body)
	}
	form.Set("backfill_until", "2026-01-31T00:00")
	form.Set("one_at_a_time", "1")
	b.post("bulk/new", form)
	calls := b.api.called("CreateBulkOperation")
	if len(calls) != 1 {
		t.Fatalf("%d calls", len(calls))
	}
	dry := calls[0].request.(*perceptorv1.CreateBulkOperationRequest).Operation
	if !dry.DryRun || dry.Action != perceptorv1.BulkOperation_BACKFILL || dry.BackfillUntil.AsTime().Sub(dry.BackfillFrom.AsTime()) != 24*time.Hour || !dry.OneAtATime || dry.Filter.Kind != "mail" {
		t.Errorf("sent %v", dry)
	}
	counted := proto.Clone(dry).(*perceptorv1.BulkOperation)
	counted.Id, counted.Matched, counted.State = 9, 24, perceptorv1.BulkOperation_DONE
	b.api.answers["GetBulkOperation"] = func(context.Context, proto.Message) (proto.Message, error) { return counted, nil }
	if _, body := b.get("bulk/9"); !strings.Contains(body, "these 24 runs") || !strings.Contains(body, "one after another") {
		t.Errorf("the dry run is shown as %s", body)
	}
	b.post("bulk/9/confirm", url.Values{"csrf": {b.csrf()}, "count": {"24"}})
	made := b.api.called("CreateBulkOperation")[2].request.(*perceptorv1.CreateBulkOperationRequest).Operation
	if made.DryRun || !proto.Equal(made.BackfillFrom, dry.BackfillFrom) || !proto.Equal(made.BackfillUntil, dry.BackfillUntil) || !made.OneAtATime {
		t.Errorf("sent %v", made)
	}
}

func TestACountOfOneIsSingular(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, "acme-secret")
	for want, o := range map[string]*perceptorv1.BulkOperation{
		"1 task": {Action: perceptorv1.BulkOperation_CANCEL, Filter: &perceptorv1.TaskFilter{}}, "1 dead run": {Action: perceptorv1.BulkOperation_REPLAY, DeadFilter: &perceptorv1.DeadRunFilter{}}, "1 run": {Action: perceptorv1.BulkOperation_BACKFILL},
	} {
		o.Id, o.DryRun, o.State, o.Matched = 9, true, perceptorv1.BulkOperation_DONE, 1
		b.api.answers["GetBulkOperation"] = func(context.Context, proto.Message) (proto.Message, error) { return o, nil }
		if _, body := b.get("bulk/9"); !strings.Contains(body, ">"+want+"<") || !strings.Contains(body, " this "+strings.TrimPrefix(want, "1 ")+". Those") {
			t.Errorf("%s: %s", want, body)
		}
	}
}

func TestABulkOperationNeedsTheCountOfItsDryRun(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, "acme-secret")
	if _, body := b.get("bulk/9"); !strings.Contains(body, "data-guarded>") || strings.Contains(body, " disabled") {
		t.Errorf("without scripts nobody can press the button: %s", body)
	}
	form := url.Values{"csrf": {b.csrf()}, "count": {"1235"}}
	if _, body := b.post("bulk/9/confirm", form); !strings.Contains(body, "nothing was changed") || len(b.api.called("CreateBulkOperation")) > 0 {
		t.Errorf("another count: %s", body)
	}
	form.Set("count", "1,234")
	b.post("bulk/9/confirm", form)
	calls := b.api.called("CreateBulkOperation")
	if len(calls) != 2 {
		t.Fatalf("%d calls", len(calls))
	}
	if again := calls[0].request.(*perceptorv1.CreateBulkOperationRequest).Operation; !again.DryRun || again.Filter.AddedUntil == nil {
		t.Errorf("counted again by %v", again)
	}
	r := calls[1].request.(*perceptorv1.CreateBulkOperationRequest)
	if r.Operation.DryRun || r.Operation.Filter.Kind != hostile || r.Operation.Filter.AddedUntil == nil || r.RequestId != "console-9" {
		t.Errorf("sent %v", r)
	}
}

// TestABulkOperationDoesNotChangeMoreThanWasCounted confirms a count after more tasks have come to match.
func TestABulkOperationDoesNotChangeMoreThanWasCounted(t *testing.T) {
	t.Parallel()
	for name, counts := range map[string][]int64{"at once": {1235}, "later": {0, 1000, 2000}} {
		b := newBrowser(t, "acme-secret")
		shown := b.api.answers["GetBulkOperation"]
		asked := 0
		b.api.answers["GetBulkOperation"] = func(ctx context.Context, m proto.Message) (proto.Message, error) {
			r, err := shown(ctx, m)
			if m.(*perceptorv1.GetBulkOperationRequest).Id != 10 {
				return r, err
			}
			now := proto.CloneOf(r.(*perceptorv1.BulkOperation))
			now.Id, now.Matched, now.State = 10, counts[min(asked, len(counts)-1)], perceptorv1.BulkOperation_RUNNING
			asked++
			return now, nil
		}
		if _, body := b.post("bulk/9/confirm", url.Values{"csrf": {b.csrf()}, "count": {"1,234"}}); !strings.Contains(body, `class="notice failed"><p>Not begun: more than these 1,234 tasks match by now.`) || !strings.Contains(body, "bulk/10/abort") {
			t.Errorf("%s: %s", name, body)
		}
		for _, c := range b.api.called("CreateBulkOperation") {
			if !c.request.(*perceptorv1.CreateBulkOperationRequest).Operation.DryRun {
				t.Errorf("%s: changes begin: %v", name, c.request)
			}
		}
	}
}

func TestABulkOperationWaitsForItsNewCountOnlySoLong(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, "acme-secret")
	shown := b.api.answers["GetBulkOperation"]
	b.api.answers["GetBulkOperation"] = func(ctx context.Context, m proto.Message) (proto.Message, error) {
		r, err := shown(ctx, m)
		if m.(*perceptorv1.GetBulkOperationRequest).Id != 10 {
			return r, err
		}
		return &perceptorv1.BulkOperation{Id: 10, State: perceptorv1.BulkOperation_RUNNING, Matched: 1000}, nil
	}
	if _, body := b.post("bulk/9/confirm", url.Values{"csrf": {b.csrf()}, "count": {"1234"}}); !strings.Contains(body, "Operation 10 has begun.") {
		t.Errorf("it has not begun: %s", body)
	}
	calls := b.api.called("CreateBulkOperation")
	if len(calls) != 2 || calls[1].request.(*perceptorv1.CreateBulkOperationRequest).Operation.DryRun || len(b.api.called("AbortBulkOperation")) != 1 {
		t.Errorf("sent %v", calls)
	}
}

func TestARollbackNeedsTheCountOfItsImport(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, "acme-secret")
	if _, body := b.get("imports/9"); !strings.Contains(body, "1–3, 5") || !strings.Contains(body, "imports/9/abort") {
		t.Errorf("the import is shown as %s", body)
	}
	form := url.Values{"csrf": {b.csrf()}, "count": {"1235"}}
	if _, body := b.post("imports/9/rollback", form); !strings.Contains(body, "nothing was changed") || len(b.api.called("RollbackImport")) > 0 {
		t.Errorf("another count: %s", body)
	}
	form.Set("count", "1,234")
	b.post("imports/9/rollback", form)
	b.post("imports/9/abort", form)
	if n, m := len(b.api.called("RollbackImport")), len(b.api.called("AbortImport")); n != 1 || m != 1 {
		t.Errorf("%d rollbacks and %d aborts", n, m)
	}
}

func TestAReaderSeesNoButtonsAndAnOperatorNoTasks(t *testing.T) {
	t.Parallel()
	reader := newBrowser(t, "reader-secret")
	for _, path := range []string{"tasks/513", "dead", "bulk/9", "imports/9"} {
		if _, body := reader.get(path); strings.Contains(body, "/rollback") || strings.Contains(body, "/abort") || strings.Contains(body, "/cancel") || strings.Contains(body, "/replay") || strings.Contains(body, "/confirm") {
			t.Errorf("%s has buttons", path)
		}
	}
	admin := newBrowser(t, "admin-secret")
	if code, body := admin.get("tasks?tenant=acme"); code != http.StatusForbidden || !strings.Contains(body, "Add a login") {
		t.Errorf("an admin: %d %s", code, body)
	}
	look := newBrowser(t, "look-secret")
	if code, body := look.get("tasks?tenant=acme"); code != http.StatusOK || !strings.Contains(body, "inspecting acme") {
		t.Errorf("an inspector: %d %s", code, body)
	}
	if _, body := look.get("tasks"); !strings.Contains(body, "inspecting acme") {
		t.Errorf("the tenant is forgotten: %s", body)
	}
}

func TestALinkLogsInOnce(t *testing.T) {
	t.Parallel()
	b := newBrowser(t)
	code := strings.TrimPrefix(b.console.Link("admin-secret", "acme-secret"), root+"link?code=")
	if _, body := b.get("link?code=" + code); strings.Contains(body, "acme-secret") || !strings.Contains(body, code) {
		t.Errorf("the page of the link: %s", body)
	}
	if _, body := b.post("link", url.Values{"code": {code}}); !strings.Contains(body, "What needs attention") {
		t.Errorf("it does not log in: %s", body)
	}
	other := newBrowser(t)
	other.console.links.all = b.console.links.all
	if status, _ := b.post("link", url.Values{"code": {code}}); status != http.StatusForbidden {
		t.Errorf("it works twice: %d", status)
	}
	late := strings.TrimPrefix(b.console.Link("acme-secret"), root+"link?code=")
	b.wait(11 * time.Minute)
	if status, _ := b.post("link", url.Values{"code": {late}}); status != http.StatusForbidden {
		t.Errorf("it works late: %d", status)
	}
}

func TestFilesAreKeptForEverAndTheFirstPageIsSmall(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, "admin-secret", "acme-secret")
	_, page := b.get("?tenant=acme")
	total := 0
	fetch := func(path string) {
		r := b.request(http.MethodGet, strings.TrimPrefix(path, root), nil)
		r.Header.Set("Accept-Encoding", "gzip") // the client then does not decompress
		a, err := b.client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer a.Body.Close()
		body, err := io.ReadAll(a.Body)
		if err != nil || a.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s %v", path, a.Status, err)
		}
		total += len(body)
		if strings.Contains(path, "/static/") && !strings.Contains(a.Header.Get("Cache-Control"), "immutable") {
			t.Errorf("%s: %v", path, a.Header)
		}
		if p := a.Header.Get("Content-Security-Policy"); !strings.Contains(p, "script-src 'self';") || strings.Contains(p, "unsafe") {
			t.Errorf("%s: policy %q", path, p)
		}
	}
	fetch(root + "?tenant=acme")
	for _, m := range regexp.MustCompile(`(?:src|href)="(/console/static/[^"]+)"`).FindAllStringSubmatch(page, -1) {
		fetch(m[1])
	}
	if total > 150<<10 {
		t.Errorf("the first page has %d bytes", total)
	}
	t.Logf("the first page has %d bytes", total)
}

func TestDurationsAreReadAsTheyAreWritten(t *testing.T) {
	t.Parallel()
	for _, d := range []time.Duration{time.Millisecond, 1500 * time.Millisecond, 90 * time.Second, time.Hour, 90 * time.Minute, 36 * time.Hour, 49*time.Hour + time.Second, 24 * time.Hour} {
		text := plainDuration(durationpb.New(d))
		if got, ok := parseDuration(text); !ok || got.AsDuration() != d {
			t.Errorf("%s is written %q and read as %v", d, text, got.AsDuration())
		}
	}
}

func TestDurationsAreReadWithTheirSign(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{
		"-1d12h": -36 * time.Hour, "-10m": -10 * time.Minute, "1 d 12 h": 36 * time.Hour, "5min": 5 * time.Minute, "-2d": -48 * time.Hour,
	} {
		if got, ok := parseDuration(text); !ok || got.AsDuration() != want {
			t.Errorf("%q is read as %v", text, got.AsDuration())
		}
	}
	for _, text := range []string{"1d-12h", "NaNd", "1e300d", "106751d99999h", "d", "x"} {
		if got, ok := parseDuration(text); ok {
			t.Errorf("%q is read as %v", text, got.AsDuration())
		}
	}
}

func TestTheClusterPageShowsWhereEachDatabaseIsAndWhereItGoes(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, "admin-secret")
	b.api.answers["GetClusterFigures"] = func(context.Context, proto.Message) (proto.Message, error) {
		return &perceptorv1.ClusterFigures{Databases: []*perceptorv1.DatabaseFigures{
			{Database: 3, Answers: true, Server: "db1:5432", PlaceNumber: 1, MoveTarget: "db2:5432/perceptor", MoveStep: "copying"},
			{Database: 4, Answers: true, Server: "db3:5432", PlaceNumber: 2},
			{Database: 5, Server: "db4:5432"},
		}}, nil
	}
	_, page := b.get("cluster")
	for _, want := range []string{
		`<code>db1:5432</code><br><span class="badge warn">moving</span> to <code>db2:5432/perceptor</code><br><span class="mute small">copying</span></td><td class="n">1</td>`,
		`<code>db3:5432</code></td><td class="n">2</td>`,
		`<code>db4:5432</code></td><td class="n"><span class="none">–</span></td><td><span class="badge bad">does not answer</span></td>`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %s:\n%s", want, page)
		}
	}
}
