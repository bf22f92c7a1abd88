package console

import (
	"context"
	"html"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

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
