package console

import (
	"context"
	"errors"
	"html"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"
)

// fakeIssuer is an issuer whose users have the token acme-secret.
type fakeIssuer struct {
	t                      *testing.T
	state, nonce, verifier string
	away                   bool
}

func (i *fakeIssuer) Issuer() string { return "https://login.example.com/realm" }

func (i *fakeIssuer) Begin(_ context.Context, state, nonce, verifier string) (string, error) {
	i.state, i.nonce, i.verifier = state, nonce, verifier
	if i.away {
		return "", errors.New("no route to the issuer")
	}
	return "https://login.example.com/authorize?state=" + state, nil
}

func (i *fakeIssuer) End(_ context.Context, code, nonce, verifier string) (string, error) {
	if nonce != i.nonce || verifier != i.verifier {
		i.t.Errorf("the login ends with %q, %q, and began with %q, %q", nonce, verifier, i.nonce, i.verifier)
	}
	if code != "good" {
		return "", errors.New("the issuer has refused the code")
	}
	return "acme-secret", nil
}

func withIssuer(t *testing.T, tokens ...string) (*browser, *fakeIssuer) {
	t.Helper()
	i := &fakeIssuer{t: t}
	b := newBrowserWith(t, Config{Issuer: i}, tokens...)
	stop := b.client.CheckRedirect
	b.client.CheckRedirect = func(r *http.Request, via []*http.Request) error {
		if r.URL.Host == "login.example.com" {
			return http.ErrUseLastResponse
		}
		if stop != nil {
			return stop(r, via)
		}
		return nil
	}
	return b, i
}

var followed = regexp.MustCompile(`<a href="([^"]+)" data-follow-at-once>`)

// back comes from the issuer, and follows the link of the page.
func (b *browser) back(q url.Values) (int, string) {
	b.t.Helper()
	_, body := b.get("login/issuer/back?" + q.Encode())
	link := followed.FindStringSubmatch(body)
	if link == nil {
		b.t.Fatalf("the page has no link:\n%s", body)
	}
	return b.get(strings.TrimPrefix(html.UnescapeString(link[1]), root))
}

func TestPeopleLogInAtTheIssuer(t *testing.T) {
	t.Parallel()
	b, i := withIssuer(t)
	if _, body := b.get("login?next=" + url.QueryEscape(root+"tasks?kind=mail")); !strings.Contains(body, "Log in with login.example.com") || !strings.Contains(body, `login/issuer?next=%2fconsole%2ftasks%3fkind%3dmail`) {
		t.Fatalf("the form does not offer the issuer:\n%s", body)
	}
	if code, _ := b.get("login/issuer?next=" + url.QueryEscape(root+"tasks?kind=mail")); code != http.StatusSeeOther {
		t.Fatalf("the browser is not sent to the issuer: %d", code)
	}
	if code, body := b.back(url.Values{"state": {i.state}, "code": {"good"}}); code != http.StatusOK || !strings.Contains(body, `value="mail"`) {
		t.Errorf("it does not lead back: %d %s", code, body)
	}
	if code, body := b.back(url.Values{"state": {i.state}, "code": {"good"}}); code != http.StatusForbidden || !strings.Contains(body, "This login has ended") {
		t.Errorf("the same answer again: %d %s", code, body)
	}
}

func TestALoginAtTheIssuerBeginsAlsoFromALongAddress(t *testing.T) {
	t.Parallel()
	b, _ := withIssuer(t)
	r := b.request(http.MethodGet, "login/issuer?next="+url.QueryEscape(root+"tasks?tags="+strings.Repeat("x", 3500)), nil)
	a, err := b.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	if c := a.Cookies(); len(c) != 1 || c[0].Value == "" || len(c[0].Name)+len(c[0].Value) > 4096 {
		t.Errorf("the browser does not store the cookie of the login: %d cookies, %v", len(c), c)
	}
}

func TestALoginAtTheIssuerKeepsTheOtherLogins(t *testing.T) {
	t.Parallel()
	b, i := withIssuer(t, "admin-secret")
	b.get("login/issuer")
	b.back(url.Values{"state": {i.state}, "code": {"good"}})
	if _, body := b.get(""); !strings.Contains(body, "operator") || !strings.Contains(body, "acme") {
		t.Errorf("the session has not both logins:\n%s", body)
	}
}

func TestAnswersOfTheIssuerThatAreNotForThisBrowserAreRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		prepare func(*browser, *fakeIssuer) url.Values
		code    int
		text    string
	}{
		"no login was begun": {func(*browser, *fakeIssuer) url.Values { return url.Values{"state": {"x"}, "code": {"good"}} }, http.StatusForbidden, "This login has ended"},
		"another state": {func(b *browser, _ *fakeIssuer) url.Values {
			b.get("login/issuer")
			return url.Values{"state": {"of somebody else"}, "code": {"good"}}
		}, http.StatusForbidden, "This login has ended"},
		"too late": {func(b *browser, i *fakeIssuer) url.Values {
			b.get("login/issuer")
			b.wait(11 * time.Minute)
			return url.Values{"state": {i.state}, "code": {"good"}}
		}, http.StatusForbidden, "This login has ended"},
		"a code that the issuer refuses": {func(b *browser, i *fakeIssuer) url.Values {
			b.get("login/issuer")
			return url.Values{"state": {i.state}, "code": {"bad"}}
		}, http.StatusBadGateway, "login.example.com did not log you in"},
	} {
		t.Run(name, func(t *testing.T) {
			b, i := withIssuer(t)
			if code, body := b.back(c.prepare(b, i)); code != c.code || !strings.Contains(body, c.text) {
				t.Errorf("%d %s", code, body)
			}
			if _, body := b.get("tasks"); !strings.Contains(body, `name="token"`) {
				t.Error("there is a session")
			}
		})
	}
}

func TestARefusalOfTheIssuerIsShownAsText(t *testing.T) {
	t.Parallel()
	b, _ := withIssuer(t)
	code, body := b.get("login/issuer/back?error=access_denied&error_description=" + url.QueryEscape("<script>alert(1)</script>"+strings.Repeat("x", 1000)))
	if code != http.StatusForbidden || !strings.Contains(body, "access_denied: &lt;script&gt;") || strings.Contains(body, "<script>alert") || strings.Contains(body, strings.Repeat("x", 400)) {
		t.Errorf("%d %s", code, body)
	}
}

func TestAnIssuerThatIsAwayHoldsUpNoOtherLogin(t *testing.T) {
	t.Parallel()
	b, i := withIssuer(t)
	i.away = true
	if code, body := b.get("login/issuer"); code != http.StatusBadGateway || !strings.Contains(body, `name="token"`) || strings.Contains(body, "no route") {
		t.Errorf("%d %s", code, body)
	}
	i.away = false
	local, other := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("192.0.2.1")
	for range maxIssuerCalls / 2 {
		b.console.issuerCalls.Take(local, 1)
	}
	if code, _ := b.get("login/issuer"); code != http.StatusSeeOther {
		t.Errorf("a login cannot begin while others end: %d", code)
	}
	if code, _ := b.back(url.Values{"state": {i.state}, "code": {"good"}}); code != http.StatusTooManyRequests {
		t.Errorf("one call too many is answered with %d", code)
	}
	if !b.console.issuerCalls.Take(other, 1) {
		t.Error("an address that asks often leaves no place to another")
	}
	if _, body := b.post("login", url.Values{"token": {"acme-secret"}}); strings.Contains(body, `name="token"`) {
		t.Error("a login with a token waits for the issuer")
	}
}

func TestWithoutAnIssuerThereIsNoWayToIt(t *testing.T) {
	t.Parallel()
	b := newBrowser(t)
	if _, body := b.get("login"); strings.Contains(body, "login/issuer") {
		t.Error("the form offers an issuer")
	}
	if code, _ := b.get("login/issuer/end?state=&code="); code == http.StatusBadGateway {
		t.Error("an issuer is asked")
	}
}
