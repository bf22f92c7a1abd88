package console

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"time"

	"github.com/klauspost/compress/gzhttp"
	"google.golang.org/grpc"

	"github.com/perceptor/perceptor/internal/share"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// root is the path of the console.
const root = "/console/"

const (
	// callTimeout bounds the calls of one page together.
	callTimeout = 10 * time.Second
	// maxForm bounds the body of a POST, in bytes. The largest has the params of a task.
	maxForm = 1 << 20
	// maxLoginForm bounds it where nobody has logged in. The largest has a token.
	maxLoginForm = 16 << 10
	// maxQuery bounds the query of an address, in bytes. Links of a list repeat what its page knows of it.
	maxQuery = 4 << 10
	// maxPages bounds the pages that are made, or that browsers have not taken yet. One tenant
	// has half of them. A further page waits for pageWait at most.
	maxPages = 128
	pageWait = 5 * time.Second
)

// Config configures a [Console].
type Config struct {
	// Secret is what the keys of sessions are derived from. All processes that serve the
	// same users need the same. Default: random, sessions end with the process.
	Secret []byte
	// Secure says that browsers reach the console by TLS.
	Secure bool
	// Version is the version of the program, for the footer.
	Version string
	// Issuer lets people log in at an OpenID Connect issuer. nil: with tokens only.
	Issuer Issuer
	// Log gets what the console cannot tell the user. Default: [slog.Default].
	Log *slog.Logger
	// Now is the clock of sessions. Default: [time.Now].
	Now func() time.Time
}

// Console serves the pages. Create it with [New].
type Console struct {
	config Config
	sealer *sealer
	links  links
	files  *files
	views  templates
	// issuerCalls has a place for each request to the issuer for a token, by the address of the browser.
	issuerCalls *share.Pool[netip.Addr]
	// places has a place for each page, by the tenant that asks for it; "": operators.
	places *share.Pool[string]

	tasks      perceptorv1.TaskServiceClient
	dead       perceptorv1.DeadLetterServiceClient
	bulk       perceptorv1.BulkServiceClient
	imports    perceptorv1.ImportServiceClient
	calendars  perceptorv1.CalendarServiceClient
	admin      perceptorv1.AdminServiceClient
	audit      perceptorv1.AuditServiceClient
	assignment perceptorv1.AssignmentServiceClient
	identity   perceptorv1.IdentityServiceClient
	monitoring perceptorv1.MonitoringServiceClient
}

// New returns a console. Call [Console.Serve] before its handler is used.
func New(c Config) (*Console, error) {
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	s, err := newSealer(c.Secret)
	if err != nil {
		return nil, err
	}
	f, err := loadFiles()
	if err != nil {
		return nil, err
	}
	views, err := parseTemplates(f)
	if err != nil {
		return nil, err
	}
	return &Console{config: c, sealer: s, files: f, views: views, links: links{now: c.Now}, issuerCalls: share.NewPool[netip.Addr](maxIssuerCalls, 0), places: share.NewPool[string](maxPages, 0)}, nil
}

// Serve returns the handler of all paths under /console/. It calls the API by api, with
// the context of the request and the credentials of the session.
func (c *Console) Serve(api grpc.ClientConnInterface) http.Handler {
	api = calls{api}
	c.tasks = perceptorv1.NewTaskServiceClient(api)
	c.dead = perceptorv1.NewDeadLetterServiceClient(api)
	c.bulk = perceptorv1.NewBulkServiceClient(api)
	c.imports = perceptorv1.NewImportServiceClient(api)
	c.calendars = perceptorv1.NewCalendarServiceClient(api)
	c.admin = perceptorv1.NewAdminServiceClient(api)
	c.audit = perceptorv1.NewAuditServiceClient(api)
	c.assignment = perceptorv1.NewAssignmentServiceClient(api)
	c.identity = perceptorv1.NewIdentityServiceClient(api)
	c.monitoring = perceptorv1.NewMonitoringServiceClient(api)
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+root+"static/{file}", c.files.serve)
	c.routeLogins(mux)
	for i := range pages {
		for _, method := range pages[i].methods() {
			mux.HandleFunc(method+" "+root+pages[i].path, c.servePage(&pages[i]))
		}
	}
	for _, a := range actions {
		mux.HandleFunc("POST "+root+a.path, c.serveAction(a))
	}
	mux.HandleFunc(root, c.servePage(&unknownPage))
	return c.guard(gzhttp.GzipHandler(mux))
}

// policy is the Content-Security-Policy of all answers.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// guard bounds requests, refuses POSTs of other origins, and sets headers that restrict
// what browsers do with the answer.
func (c *Console) guard(next http.Handler) http.Handler {
	foreign := http.NewCrossOriginProtection()
	foreign.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "This request came from a page of another site, so it was refused.", http.StatusForbidden)
	}))
	return foreign.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("X-Frame-Options", "DENY")
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=()")
		h.Set("Cache-Control", "no-store")
		ctx, cancel := context.WithTimeout(r.Context(), callTimeout)
		defer cancel()
		r.Body = http.MaxBytesReader(w, r.Body, maxForm)
		// A form that arrives slowly must not hold its memory for longer than a page may take.
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(callTimeout))
		next.ServeHTTP(w, r.WithContext(ctx))
	}))
}

// servePage answers with a page.
func (c *Console) servePage(p *page) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v, ok := c.open(w, r, p)
		if !ok {
			return
		}
		defer v.leave()
		if to := v.zoned(); to != "" {
			http.Redirect(w, r, to, http.StatusSeeOther)
			return
		}
		data, err := p.show(v)
		if to, ok := data.(redirectTo); ok && err == nil {
			http.Redirect(w, r, string(to), http.StatusSeeOther)
			return
		}
		v.render(data, err)
	}
}

// serveAction does what a form asks for and redirects to a page that shows the result.
func (c *Console) serveAction(a action) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v, ok := c.open(w, r, &page{})
		if !ok {
			return
		}
		defer v.leave()
		done, err := a.do(v)
		if v.ended(err) {
			return
		}
		n := notice{Kind: "done", Text: done.text, Link: done.link, LinkText: done.linkText}
		if done.refused {
			n.Kind = "failed"
		}
		to := done.to
		if err != nil {
			p := problemOf(err)
			n = notice{Kind: "failed", Text: p.line()}
		}
		if to == "" || err != nil {
			to = v.back(a.back)
		}
		c.setNotice(w, n)
		http.Redirect(w, r, to, http.StatusSeeOther)
	}
}

// open returns the view of a request, which its caller leaves. If there is no session, no place
// for the page, or the form is not of this session, it answers and returns false.
func (c *Console) open(w http.ResponseWriter, r *http.Request, p *page) (*view, bool) {
	s, err := c.session(r)
	if err != nil {
		why := ""
		if errors.Is(err, errSessionEnded) {
			why = sessionEnded
		}
		c.toLogin(w, r, why)
		return nil, false
	}
	if len(r.URL.RawQuery) > maxQuery {
		http.Error(w, "The address is too long.", http.StatusRequestURITooLong)
		return nil, false
	}
	if r.Method == http.MethodPost {
		if err := r.ParseForm(); err != nil {
			refuseForm(w)
			return nil, false
		}
		if !s.owns(r.PostFormValue("csrf")) {
			http.Error(w, "The form does not belong to this session. Go back, reload the page, and try again.", http.StatusForbidden)
			return nil, false
		}
	}
	tenant, ok := c.enter(r.Context(), s)
	if !ok {
		w.Header().Set("Retry-After", "5")
		http.Error(w, "Too many pages are open at once. Try again in a moment.", http.StatusTooManyRequests)
		return nil, false
	}
	v := c.newView(w, r, s, p)
	v.leave = func() { c.places.Give(tenant, 1) }
	if r.Header.Get(liveHeader) == "" {
		c.renew(w, s)
	}
	return v, true
}

// enter takes a place for a page of a session, for the tenant of its newest login. A page is in memory
// until its browser has taken it, and a browser may be slow on purpose.
func (c *Console) enter(ctx context.Context, s *session) (tenant string, ok bool) {
	tenant = s.Logins[len(s.Logins)-1].Tenant
	ctx, cancel := context.WithTimeout(ctx, pageWait)
	defer cancel()
	return tenant, c.places.Wait(ctx, tenant, 1) == nil
}
