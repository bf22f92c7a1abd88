package console

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// liveHeader marks requests that a live page makes by itself. They get the main part only,
// and do not keep the session alive.
const liveHeader = "X-Console-Live"

// view is one request as pages and templates see it.
type view struct {
	*Console
	w       http.ResponseWriter
	r       *http.Request
	ctx     context.Context
	session *session // nil: the page needs none
	page    *page
	status  int
	// leave returns the place of the page when it is written.
	leave func()

	// Tenant is the tenant that the page is about; "": none is chosen.
	Tenant string
	Zone   *time.Location
	Now    time.Time
	Theme  string
	Notice *notice
	// Problem is why there is no data. It may be nil.
	Problem *problem
	Data    any
	csrf    string
}

func (c *Console) newView(w http.ResponseWriter, r *http.Request, s *session, p *page) *view {
	v := &view{Console: c, w: w, r: r, ctx: r.Context(), session: s, page: p, status: http.StatusOK, Now: time.Now(), Zone: browserZone(r)}
	if cookie, err := r.Cookie("perceptor-theme"); err == nil && (cookie.Value == "dark" || cookie.Value == "light") {
		v.Theme = cookie.Value
	}
	if s != nil {
		if zone := namedZone(r.PostFormValue(formZone)); zone != nil {
			v.Zone = zone
		}
		v.csrf = s.formToken()
		v.Tenant = r.FormValue("tenant")
		v.rememberTenant()
		if r.Method == http.MethodGet && r.Header.Get(liveHeader) == "" {
			v.Notice = c.takeNotice(w, r)
		}
	}
	return v
}

// formZone is the field of a form with the zone in which it was shown. The zone of the browser may be
// another one when the form is sent, and must not move what the form has.
const formZone = "times_in"

// browserZone returns the zone of the browser, or UTC.
func browserZone(r *http.Request) *time.Location {
	if cookie, err := r.Cookie("perceptor-zone"); err == nil {
		if name, err := url.QueryUnescape(cookie.Value); err == nil {
			if zone := namedZone(name); zone != nil {
				return zone
			}
		}
	}
	return time.UTC
}

// namedZone returns the zone with a name, or nil.
func namedZone(name string) *time.Location {
	if name == "" || name == "Local" || len(name) >= 64 {
		return nil
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		return nil
	}
	return zone
}

// rememberTenant chooses the tenant of the page: that of the address, the last one, or that of
// the newest login.
func (v *view) rememberTenant() {
	last := ""
	if cookie, err := v.r.Cookie(v.cookieName("tenant")); err == nil && len(cookie.Value) < 64 {
		last = cookie.Value
	}
	switch {
	case v.Tenant == "":
		v.Tenant = last
		if last == "" || v.session.of(last) == nil && !v.session.of("").has(scopeInspect) {
			v.Tenant = v.session.firstTenant()
		}
	case v.Tenant != last && len(v.Tenant) < 64:
		v.setCookie(v.w, "tenant", v.Tenant, 0)
	}
}

// firstTenant returns the tenant of the newest login of a tenant, or "".
func (s *session) firstTenant() string {
	for i := len(s.Logins) - 1; i >= 0; i-- {
		if s.Logins[i].Tenant != "" {
			return s.Logins[i].Tenant
		}
	}
	return ""
}

var (
	errUnknownPage = status.Error(codes.NotFound, "there is no such page")
	errNoTenant    = status.Error(codes.FailedPrecondition, "choose a tenant first")
	errNoLogin     = status.Error(codes.PermissionDenied, "none of your logins may see this; add another login")
)

// tenantLogin returns the login for calls about the page's tenant: its own, or that of an
// operator who inspects it. It may be nil.
func (v *view) tenantLogin() *login {
	if v.session == nil {
		return nil
	}
	if l := v.session.of(v.Tenant); l != nil && l.Tenant != "" {
		return l
	}
	if l := v.session.of(""); l.has(scopeInspect) {
		return l
	}
	return nil
}

// asTenant returns the context of calls about the page's tenant.
func (v *view) asTenant() (context.Context, error) {
	if v.Tenant == "" {
		return nil, errNoTenant
	}
	l := v.tenantLogin()
	if l == nil {
		return nil, errNoLogin
	}
	return metadata.AppendToOutgoingContext(v.ctx, "authorization", "Bearer "+l.Secret, "perceptor-tenant", v.Tenant), nil
}

// asTenantOf is asTenant with the id in the path.
func (v *view) asTenantOf() (context.Context, int64, error) {
	id, err := v.id()
	if err != nil {
		return nil, 0, err
	}
	ctx, err := v.asTenant()
	return ctx, id, err
}

// asOperator returns the context of calls about the installation.
func (v *view) asOperator() (context.Context, error) {
	l := v.session.of("")
	if l == nil {
		return nil, errNoLogin
	}
	return metadata.AppendToOutgoingContext(v.ctx, "authorization", "Bearer "+l.Secret), nil
}

// asAdmin returns the context of calls about a tenant's settings: of an operator, or of the
// tenant's own administrator.
func (v *view) asAdmin() (context.Context, error) {
	if ctx, err := v.asOperator(); err == nil && v.session.of("").has(scopeAdminRead) {
		return ctx, nil
	}
	return v.asTenant()
}

// May reports whether the login of the page's tenant has a scope, such as "OPERATE".
func (v *view) May(scope string) bool {
	return v.tenantLogin().has(perceptorv1.Token_Scope(perceptorv1.Token_Scope_value[scope]))
}

// Admin reports whether the session may change the installation.
func (v *view) Admin() bool { return v.session != nil && v.session.of("").has(scopeAdmin) }

// Operator reports whether the session has a login of the installation.
func (v *view) Operator() bool { return v.session != nil && v.session.of("") != nil }

// Inspecting reports whether an operator looks at the tasks of a tenant.
func (v *view) Inspecting() bool {
	l := v.tenantLogin()
	return l != nil && l.Tenant == "" && v.Tenant != ""
}

// ended reports whether an error says that a login is not valid any more. Then the login leaves
// the session, the others stay, and the answer is a request to log in again.
func (v *view) ended(err error) bool {
	var refused *refusedLogin
	if !errors.As(err, &refused) {
		return false
	}
	v.session.remove(refused.secret)
	if len(v.session.Logins) == 0 {
		v.setCookie(v.w, "session", "", -time.Second)
		v.toLogin(v.w, v.r, sessionEnded)
		return true
	}
	_ = v.store(v.w, v.session) // it was stored before with one more, so it is not too large
	v.toLogin(v.w, v.r, loginRefused)
	return true
}

// render answers with the page: its data, or the error.
func (v *view) render(data any, err error) {
	if v.ended(err) {
		return
	}
	v.Data = data
	if err != nil {
		p := problemOf(err)
		v.Problem, v.status = &p, p.Status
		if p.Status >= http.StatusInternalServerError && p.Status != http.StatusServiceUnavailable {
			v.config.Log.WarnContext(v.r.Context(), "page cannot be shown", "path", v.r.URL.Path, "err", err)
		}
	}
	part := "layout"
	if v.r.Header.Get(liveHeader) != "" {
		part = "live"
	}
	var out bytes.Buffer
	if err := v.views.execute(&out, v, part); err != nil {
		v.config.Log.ErrorContext(v.r.Context(), "page cannot be rendered", "path", v.r.URL.Path, "err", err)
		http.Error(v.w, "This page cannot be shown.", http.StatusInternalServerError)
		return
	}
	v.w.Header().Set("Content-Type", "text/html; charset=utf-8")
	v.w.WriteHeader(v.status)
	_, _ = v.w.Write(visible(out.Bytes())) // the browser may have gone
}

// back returns the page to which a failed action leads.
func (v *view) back(pattern string) string {
	parts := strings.Split(pattern, "/")
	for i, p := range parts {
		if name, ok := strings.CutPrefix(p, "{"); ok {
			parts[i] = url.PathEscape(v.r.PathValue(strings.TrimSuffix(name, "}")))
		}
	}
	return v.URL(strings.Join(parts, "/"))
}

// URL returns the address of a page below /console/, with the page's tenant and pairs of
// names and values. Empty values are left out.
func (v *view) URL(path string, pairs ...any) string {
	q := url.Values{}
	if v.Tenant != "" && v.session != nil && (len(v.session.Logins) > 1 || v.Operator()) {
		q.Set("tenant", v.Tenant)
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		if value := text(pairs[i+1]); value != "" {
			q.Set(text(pairs[i]), value)
		}
	}
	if len(q) == 0 {
		return root + path
	}
	return root + path + "?" + q.Encode()
}

// With returns the address of this page with some parameters replaced. It has those of the page only,
// each once: a list has hundreds of links, and who asks for it must not choose how long each one is.
func (v *view) With(pairs ...any) string {
	given, q := v.r.URL.Query(), url.Values{}
	for _, name := range append([]string{"tenant", "page"}, v.page.query...) {
		if value := strings.TrimSpace(given.Get(name)); value != "" {
			q.Set(name, value)
		}
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		q.Del(text(pairs[i]))
		if value := text(pairs[i+1]); value != "" {
			q.Set(text(pairs[i]), value)
		}
	}
	if len(q) == 0 {
		return v.r.URL.EscapedPath()
	}
	return v.r.URL.EscapedPath() + "?" + q.Encode()
}

// Here is the address of this page.
func (v *view) Here() string { return v.r.URL.RequestURI() }

// Query returns a parameter of the address or a value of the form.
func (v *view) Query(name string) string { return strings.TrimSpace(v.r.FormValue(name)) }

// id returns the number in the path, or an error.
func (v *view) id() (int64, error) {
	id, err := strconv.ParseInt(v.r.PathValue("id"), 10, 64)
	if err != nil || id <= 0 {
		return 0, status.Error(codes.NotFound, "an id is a positive number")
	}
	return id, nil
}

// What the layout shows.

// Title is the title of the page.
func (v *view) Title() string { return v.page.title }

// Name is the name of the page's template.
func (v *view) Name() string { return v.page.name }

// Live is how often the page is fetched again, in seconds; 0: never. What has settled does not change.
func (v *view) Live() int {
	if v.Problem != nil && v.status < http.StatusInternalServerError {
		return 0
	}
	if d, ok := v.Data.(interface{ Settled() bool }); ok && d.Settled() {
		return 0
	}
	return v.page.live
}

// Posted says that the page answers a form, so it cannot just be loaded again.
func (v *view) Posted() bool { return v.r.Method == http.MethodPost }

// Charts says that the page has pictures.
func (v *view) Charts() bool { return v.page.charts }

// CSRF is the token for the page's forms.
func (v *view) CSRF() string { return v.csrf }

// Version is the version of the program.
func (v *view) Version() string { return v.config.Version }

// Logins are those of the session.
func (v *view) Logins() []login {
	if v.session == nil {
		return nil
	}
	return v.session.Logins
}

// Entry is an entry of the navigation.
type Entry struct {
	Title, URL, Icon string
	Here             bool
}

// Navigation returns the entries that the session may open.
func (v *view) Navigation() (entries []Entry) {
	if v.session == nil {
		return nil
	}
	for _, s := range sections {
		operator := v.session.of("").has(s.operator...)
		if !operator && !v.tenantLogin().has(s.tenant...) {
			continue
		}
		e := Entry{Title: s.Title, URL: v.URL(s.path), Icon: s.name, Here: v.page.section == s.name}
		if operator && v.session.of("").has(scopeAdminRead) && !s.ofTenant() {
			e.URL = root + s.path
		}
		entries = append(entries, e)
	}
	return entries
}

// Tenants are the tenants among which the user can choose without a call.
func (v *view) Tenants() (names []string) {
	for _, l := range v.Logins() {
		if l.Tenant != "" {
			names = append(names, l.Tenant)
		}
	}
	return names
}
