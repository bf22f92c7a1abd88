package console

import (
	"context"
	"html"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"regexp"
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

// TestATenantThatIsBeingDeletedIsShownAsSuch and not as one that is paused, which could be resumed.
func TestATenantThatIsBeingDeletedIsShownAsSuch(t *testing.T) {
	t.Parallel()
	b := newBrowser(t, "admin-secret")
	b.api.answers["GetTenant"] = func(context.Context, proto.Message) (proto.Message, error) {
		return &perceptorv1.Tenant{Name: "acme", Paused: true, Deleting: true}, nil
	}
	if _, page := b.get("tenants/acme"); !strings.Contains(page, "Being deleted") || strings.Contains(page, `commandfor="resume"`) || strings.Contains(page, ">Paused</span>") {
		t.Errorf("the page is that of a paused tenant:\n%s", page)
	}
}
