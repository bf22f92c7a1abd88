package console

import (
	"context"
	"html"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

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
