package console

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"net/http"
	"net/netip"
	"net/url"
	"time"

	"github.com/perceptor/perceptor/internal/share"
)

// Issuer lets people log in at an OpenID Connect issuer. Its methods may be called
// concurrently.
type Issuer interface {
	// Issuer returns the issuer's URL.
	Issuer() string
	// Begin returns the address to which the browser goes. The issuer sends it back to
	// [IssuerPath] with state and a code. Anybody can cause a call without a login, so not
	// every call may make a request to the issuer.
	Begin(ctx context.Context, state, nonce, verifier string) (string, error)
	// End returns the token for a code, with which the API is called.
	End(ctx context.Context, code, nonce, verifier string) (string, error)
}

// IssuerPath is the path to which the issuer sends the browser back.
const IssuerPath = root + "login/issuer/back"

const (
	issuerBegin = root + "login/issuer"
	issuerEnd   = root + "login/issuer/end"
	// issuerAge is how long a login at the issuer may take.
	issuerAge = 10 * time.Minute
	// maxIssuerCalls bounds the requests to the issuer for tokens at one time. One address has half of
	// them: who has begun a login can ask again and again, without a token.
	maxIssuerCalls = 16
)

// trip is a login at the issuer, in a cookie of the browser that has begun it.
type trip struct {
	State, Nonce, Verifier, Next string
	Until                        time.Time
}

func (c *Console) routeIssuer(mux *http.ServeMux) {
	if c.config.Issuer == nil {
		return
	}
	mux.HandleFunc("GET "+issuerBegin, ofAnybody(c.beginAtIssuer))
	mux.HandleFunc("GET "+IssuerPath, ofAnybody(c.backFromIssuer))
	mux.HandleFunc("GET "+issuerEnd, ofAnybody(c.endAtIssuer))
}

// issuerName returns the name of the issuer for people; "": there is none.
func (c *Console) issuerName() string {
	if c.config.Issuer == nil {
		return ""
	}
	u, err := url.Parse(c.config.Issuer.Issuer())
	if err != nil || u.Host == "" {
		return c.config.Issuer.Issuer()
	}
	return u.Host
}

// inPlace calls the issuer, unless many calls wait for it already.
func (c *Console) inPlace(r *http.Request, call func(context.Context) (string, error)) (string, *problem) {
	at, _ := netip.ParseAddrPort(r.RemoteAddr) // those without an address share the zero one
	from := share.Network(at.Addr(), share.CallerBits)
	if !c.issuerCalls.Take(from, 1) {
		return "", &problem{Status: http.StatusTooManyRequests, Title: "Many people log in right now", Text: "Try again in a moment."}
	}
	defer c.issuerCalls.Give(from, 1)
	return c.atIssuer(r, call)
}

// atIssuer calls the issuer.
func (c *Console) atIssuer(r *http.Request, call func(context.Context) (string, error)) (string, *problem) {
	ctx, cancel := context.WithTimeout(r.Context(), callTimeout)
	defer cancel()
	answer, err := call(ctx)
	if err != nil {
		c.config.Log.WarnContext(ctx, "a login at the issuer failed", "err", err)
		return "", &problem{Status: http.StatusBadGateway, Title: c.issuerName() + " did not log you in", Text: "Try again, or log in with a token. The log of taskd has the reason."}
	}
	return answer, nil
}

// beginAtIssuer sends the browser to the issuer.
func (c *Console) beginAtIssuer(w http.ResponseWriter, r *http.Request) {
	t := trip{State: rand.Text(), Nonce: rand.Text(), Verifier: rand.Text() + rand.Text(), Next: next(r.FormValue("next")), Until: c.config.Now().Add(issuerAge)}
	to, p := c.atIssuer(r, func(ctx context.Context) (string, error) {
		return c.config.Issuer.Begin(ctx, t.State, t.Nonce, t.Verifier)
	})
	if p != nil {
		c.refuseLogin(w, r, t.Next, p)
		return
	}
	sealed, err := c.sealer.seal("trip", t)
	if err == nil && len(sealed) > maxCookie { // rather another page than no login
		t.Next = root
		sealed, err = c.sealer.seal("trip", t)
	}
	if err != nil {
		c.refuseLogin(w, r, t.Next, &problem{Status: http.StatusInternalServerError, Title: "The login could not begin", Text: err.Error()})
		return
	}
	c.setCookie(w, "trip", sealed, issuerAge)
	http.Redirect(w, r, to, http.StatusSeeOther)
}

var backPage = page{path: "back", name: "back", title: "Log in"}

// backFromIssuer leads the browser to the end of the login. It comes from another site here,
// so it has not sent the cookies, which are for requests of this site only.
func (c *Console) backFromIssuer(w http.ResponseWriter, r *http.Request) {
	if reason := r.FormValue("error"); reason != "" {
		c.refuseLogin(w, r, root, &problem{
			Status: http.StatusForbidden, Title: c.issuerName() + " did not log you in", Text: short(reason+": "+r.FormValue("error_description"), 300),
		})
		return
	}
	q := url.Values{"code": {r.FormValue("code")}, "state": {r.FormValue("state")}}
	c.newView(w, r, nil, &backPage).render(issuerEnd+"?"+q.Encode(), nil)
}

// short cuts a text of others for a page, after so many characters at most.
func short(text string, most int) string {
	runes := []rune(text)
	if len(runes) <= most {
		return string(runes)
	}
	return string(runes[:most]) + "…"
}

// endAtIssuer changes the code into a token and logs in with it.
func (c *Console) endAtIssuer(w http.ResponseWriter, r *http.Request) {
	t, ok := c.takeTrip(w, r)
	if !ok || subtle.ConstantTimeCompare([]byte(t.State), []byte(r.FormValue("state"))) != 1 {
		c.refuseLogin(w, r, root, &problem{
			Status: http.StatusForbidden, Title: "This login has ended", Text: "It was begun in another browser, has been used, or took longer than ten minutes. Try again.",
		})
		return
	}
	token, p := c.inPlace(r, func(ctx context.Context) (string, error) {
		return c.config.Issuer.End(ctx, r.FormValue("code"), t.Nonce, t.Verifier)
	})
	if p != nil {
		c.refuseLogin(w, r, t.Next, p)
		return
	}
	c.logInTo(w, r, t.Next, token)
}

// takeTrip returns the login that the browser has begun, and forgets it.
func (c *Console) takeTrip(w http.ResponseWriter, r *http.Request) (t trip, ok bool) {
	cookie, err := r.Cookie(c.cookieName("trip"))
	if err != nil {
		return t, false
	}
	c.setCookie(w, "trip", "", -time.Second)
	if c.sealer.open("trip", cookie.Value, &t) != nil || c.config.Now().After(t.Until) {
		return t, false
	}
	return t, true
}
