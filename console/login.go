package console

import (
	"crypto/rand"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/metadata"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// routeLogins adds the paths that need no session.
func (c *Console) routeLogins(mux *http.ServeMux) {
	mux.HandleFunc("GET "+root+"login", ofAnybody(c.showLogin))
	mux.HandleFunc("POST "+root+"login", ofAnybody(c.doLogin))
	mux.HandleFunc("POST "+root+"logout", ofAnybody(c.doLogout))
	mux.HandleFunc("GET "+root+"link", ofAnybody(c.showLink))
	mux.HandleFunc("POST "+root+"link", ofAnybody(c.doLink))
	c.routeIssuer(mux)
}

// ofAnybody serves requests that need no session, so their forms may have little memory. The
// form is read here, because a handler that asks for a value would read bodies of other types
// and of a GET, too.
func ofAnybody(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, maxLoginForm)
		if err := r.ParseForm(); err != nil && r.Method == http.MethodPost {
			refuseForm(w)
			return
		}
		next(w, r)
	}
}

// refuseForm answers a form that cannot be read. The connection ends, because the rest of the
// form may still be on its way.
func refuseForm(w http.ResponseWriter) {
	w.Header().Set("Connection", "close")
	http.Error(w, "The form is too large or malformed, or did not arrive in time.", http.StatusBadRequest)
}

// loginData is the data of the page for logins.
type loginData struct {
	Next    string
	Problem *problem
	// Ended says that a session has ended, Refused that one of its logins has, Added that there
	// is one already.
	Ended, Refused, Added bool
	// Unsent says that a form was sent, which did nothing.
	Unsent bool
	// Code is that of a link.
	Code string
	// Issuer is the name of the issuer at which people can log in; "": none.
	Issuer string
}

var (
	loginPage = page{path: "login", name: "login", title: "Log in"}
	linkPage  = page{path: "link", name: "link", title: "Log in"}
)

// Why the page for logins is shown to somebody who had logged in, as its address says it.
const (
	sessionEnded = "ended"
	loginRefused = "refused"
	formUnsent   = "unsent" // they had sent a form
)

// toLogin asks for a login; why may be empty. A live page learns from the status that it has ended.
func (c *Console) toLogin(w http.ResponseWriter, r *http.Request, why string) {
	if r.Header.Get(liveHeader) != "" {
		http.Error(w, "The session has ended.", http.StatusUnauthorized)
		return
	}
	q, from := url.Values{}, r.URL.RequestURI()
	if r.Method == http.MethodPost {
		from = "" // the path of an action is no page: what leads back is the page with the form
		if page, err := url.Parse(r.Referer()); err == nil {
			from = next(page.RequestURI())
		}
		q.Set(formUnsent, "1")
	}
	if from != "" && from != root {
		q.Set("next", from)
	}
	if why != "" {
		q.Set(why, "1")
	}
	http.Redirect(w, r, root+"login?"+q.Encode(), http.StatusSeeOther)
}

func (c *Console) showLogin(w http.ResponseWriter, r *http.Request) {
	s, _ := c.session(r)
	d := loginData{Next: next(r.FormValue("next")), Ended: r.FormValue(sessionEnded) != "", Refused: s != nil && r.FormValue(loginRefused) != "", Added: s != nil, Unsent: r.FormValue(formUnsent) != "", Issuer: c.issuerName()}
	c.newView(w, r, nil, &loginPage).render(d, nil)
}

func (c *Console) doLogin(w http.ResponseWriter, r *http.Request) {
	to := next(r.PostFormValue("next"))
	token := strings.TrimSpace(r.PostFormValue("token"))
	c.logInTo(w, r, to, strings.TrimPrefix(token, "Bearer ")) // as it stands in the header that somebody has copied
}

// logInTo logs in and goes on to an address, or shows the form again with the problem.
func (c *Console) logInTo(w http.ResponseWriter, r *http.Request, to string, secrets ...string) {
	if err := c.logIn(w, r, secrets...); err != nil {
		p := problemOf(err)
		if p.Status == http.StatusUnauthorized { // the answer is about a header, of which a person knows nothing
			p.Text = "The token is unknown, expired or revoked."
		}
		c.refuseLogin(w, r, to, &p)
		return
	}
	http.Redirect(w, r, to, http.StatusSeeOther)
}

// refuseLogin shows the form for logins with a problem.
func (c *Console) refuseLogin(w http.ResponseWriter, r *http.Request, to string, p *problem) {
	v := c.newView(w, r, nil, &loginPage)
	v.status = p.Status
	v.render(loginData{Next: to, Problem: p, Issuer: c.issuerName()}, nil)
}

// logIn adds the logins of secrets to the session, or begins one. The API checks the
// secrets, with the limit on bad ones and the event that it has for every caller.
func (c *Console) logIn(w http.ResponseWriter, r *http.Request, secrets ...string) error {
	now := c.config.Now()
	s, err := c.session(r)
	if err != nil {
		s = &session{Began: now}
	}
	// Who knew the secret of the forms before must not know it with the rights of the new login.
	s.CSRF = make([]byte, 16)
	rand.Read(s.CSRF) //nolint:errcheck // never fails
	for _, secret := range secrets {
		ctx := metadata.AppendToOutgoingContext(r.Context(), "authorization", "Bearer "+secret)
		id, err := c.identity.GetIdentity(ctx, &perceptorv1.GetIdentityRequest{})
		if err != nil {
			return err
		}
		s.add(login{Secret: secret, Name: id.Name, Tenant: id.Tenant, Scopes: id.Scopes})
	}
	return c.store(w, s)
}

func (c *Console) doLogout(w http.ResponseWriter, r *http.Request) {
	if s, err := c.session(r); err == nil && !s.owns(r.PostFormValue("csrf")) {
		http.Error(w, "The form does not belong to this session.", http.StatusForbidden)
		return
	}
	c.setCookie(w, "session", "", -time.Second)
	http.Redirect(w, r, root+"login", http.StatusSeeOther)
}

// next returns the page to which a login leads. Only paths of the console are allowed.
func next(given string) string {
	u, err := url.Parse(given)
	if err != nil || u.IsAbs() || u.Host != "" || !strings.HasPrefix(u.Path, root) || strings.Contains(given, `\`) || strings.Contains(u.Path, "..") || strings.HasPrefix(u.Path, root+"log") {
		return root
	}
	return u.RequestURI()
}

const (
	linkAge  = 10 * time.Minute
	maxLinks = 16
)

// links are the links that log in once, by code.
type links struct {
	now func() time.Time
	mu  sync.Mutex
	all []link
}

type link struct {
	code    string
	until   time.Time
	secrets []string
}

// Link returns the path of a page that logs in with secrets, once, within ten minutes and
// from the same machine only.
func (c *Console) Link(secrets ...string) string {
	l := link{code: rand.Text(), until: c.config.Now().Add(linkAge), secrets: secrets}
	c.links.mu.Lock()
	defer c.links.mu.Unlock()
	if len(c.links.all) == maxLinks {
		c.links.all = c.links.all[1:]
	}
	c.links.all = append(c.links.all, l)
	return root + "link?code=" + l.code
}

// take returns the secrets of a code, and forgets it.
func (l *links) take(code string) (secrets []string, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	l.all = slices.DeleteFunc(l.all, func(x link) bool {
		if x.code == code && now.Before(x.until) {
			secrets, ok = x.secrets, true
		}
		return x.code == code || !now.Before(x.until)
	})
	return secrets, ok
}

// showLink asks the browser to send the code of a link. A program that only looks at the
// link, such as a chat that previews it, does not use it up.
func (c *Console) showLink(w http.ResponseWriter, r *http.Request) {
	c.newView(w, r, nil, &linkPage).render(loginData{Code: r.FormValue("code")}, nil)
}

func (c *Console) doLink(w http.ResponseWriter, r *http.Request) {
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	local := err == nil && from.Addr().Unmap().IsLoopback()
	var secrets []string
	if local {
		secrets, local = c.links.take(r.PostFormValue("code"))
	}
	if !local {
		c.refuseLogin(w, r, root, &problem{
			Status: http.StatusForbidden, Title: "This link does not work", Text: "It works once, for ten minutes, and from the machine of taskd only. Log in with a token.",
		})
		return
	}
	c.logInTo(w, r, root, secrets...)
}
