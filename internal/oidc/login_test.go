package oidc_test

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/perceptor/perceptor/internal/oidc"
	"github.com/perceptor/perceptor/internal/oidc/oidctest"
)

const redirect = "https://perceptor.example.com/console/login/issuer/back"

func newLogin(t *testing.T, change func(*oidc.LoginConfig)) (*oidc.Login, *oidctest.Issuer) {
	t.Helper()
	issuer := oidctest.New(t)
	key := issuer.Key("k", jose.ES256)
	issuer.Set(func(s *oidctest.State) {
		s.IDToken = func(nonce string) string {
			return oidctest.Sign(t, key, jose.ES256, issuer.Claims(map[string]any{"nonce": nonce}))
		}
	})
	c := oidc.LoginConfig{Issuer: issuer.URL, ClientID: oidctest.ClientID, ClientSecret: oidctest.ClientSecret, RedirectURL: redirect, Client: issuer.Client()}
	if change != nil {
		change(&c)
	}
	return oidc.NewLogin(c), issuer
}

// visit goes to the issuer as a browser does, and returns the code and the state that it
// is sent back with.
func visit(t *testing.T, issuer *oidctest.Issuer, to string) (code, state string) {
	t.Helper()
	client := *issuer.Client()
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	resp, err := client.Get(to)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // it is empty
	back, err := url.Parse(resp.Header.Get("Location"))
	if err != nil || !strings.HasPrefix(back.String(), redirect+"?") {
		t.Fatalf("the issuer answers %s and sends the browser to %q", resp.Status, back)
	}
	return back.Query().Get("code"), back.Query().Get("state")
}

func TestABrowserLogsInAtTheIssuer(t *testing.T) {
	l, issuer := newLogin(t, nil)
	to, err := l.Begin(t.Context(), "state-1", "nonce-1", "verifier-1")
	if err != nil {
		t.Fatal(err)
	}
	code, state := visit(t, issuer, to)
	if state != "state-1" {
		t.Errorf("the state is %q", state)
	}
	token, err := l.End(t.Context(), code, "nonce-1", "verifier-1")
	if err != nil {
		t.Fatal(err)
	}
	v, err := oidc.New(oidc.Config{Issuer: issuer.URL, Audience: "perceptor", Algorithms: []string{"ES256"}, Client: issuer.Client()})
	if err != nil {
		t.Fatal(err)
	}
	if c, err := v.Verify(t.Context(), token); err != nil || c.Text("tenant") != "acme" {
		t.Errorf("the token has the claims %v: %v", c, err)
	}
	if _, err := l.End(t.Context(), code, "nonce-1", "verifier-1"); err == nil {
		t.Error("a code was accepted twice")
	}
}

func TestLoginsOfOthersAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		change          func(*oidc.LoginConfig)
		nonce, verifier string
		want            string
	}{
		"another verifier": {nonce: "nonce-1", verifier: "of somebody else", want: "the issuer has refused the code: invalid_grant"},
		"another nonce":    {nonce: "of another login", verifier: "verifier-1", want: oidc.ErrNonce.Error()},
		"another secret":   {change: func(c *oidc.LoginConfig) { c.ClientSecret = "guessed" }, nonce: "nonce-1", verifier: "verifier-1", want: "the issuer has refused the code"},
		"an access token":  {change: func(c *oidc.LoginConfig) { c.AccessToken = true }, nonce: "of another login", verifier: "verifier-1", want: oidc.ErrNonce.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			l, issuer := newLogin(t, c.change)
			to, err := l.Begin(t.Context(), "state-1", "nonce-1", "verifier-1")
			if err != nil {
				t.Fatal(err)
			}
			code, _ := visit(t, issuer, to)
			token, err := l.End(t.Context(), code, c.nonce, c.verifier)
			if err == nil || !strings.Contains(err.Error(), c.want) || token != "" {
				t.Errorf("got %q and %v, want %q", token, err, c.want)
			}
			if err != nil && (strings.Contains(err.Error(), oidctest.ClientSecret) || strings.Contains(err.Error(), code)) {
				t.Errorf("the error has secrets: %v", err)
			}
		})
	}
}

func TestManyLoginsShareARequestToTheIssuer(t *testing.T) {
	var passed atomic.Int64
	l, issuer := newLogin(t, func(c *oidc.LoginConfig) {
		began := time.Now()
		c.Now = func() time.Time { return began.Add(time.Duration(passed.Load())) }
	})
	begin := func(want int64, fails bool) {
		t.Helper()
		before := issuer.Requests.Load()
		var begun sync.WaitGroup
		for range 20 {
			begun.Go(func() {
				if _, err := l.Begin(t.Context(), "s", "n", "v"); (err != nil) != fails {
					t.Errorf("a login began with %v", err)
				}
			})
		}
		begun.Wait()
		if n := issuer.Requests.Load() - before; n != want {
			t.Errorf("the issuer got %d requests, want %d", n, want)
		}
	}
	begin(1, false)
	passed.Add(int64(9 * time.Minute))
	begin(0, false)
	passed.Add(int64(2 * time.Minute))
	issuer.Set(func(s *oidctest.State) { s.Down = true })
	begin(1, true) // and it is left alone
	begin(0, true)
	passed.Add(int64(11 * time.Second))
	issuer.Set(func(s *oidctest.State) { s.Down = false })
	begin(1, false)
}

func TestALoginWaitsForTheIssuerNoLongerThanItsCaller(t *testing.T) {
	l, issuer := newLogin(t, nil)
	release := make(chan struct{})
	issuer.Set(func(s *oidctest.State) { s.Wait = release })
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := l.Begin(ctx, "s", "n", "v"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("it ends with %v", err)
	}
	close(release)
	if _, err := l.Begin(t.Context(), "s", "n", "v"); err != nil { // the request of the first goes on
		t.Error(err)
	}
	if n := issuer.Requests.Load(); n != 1 {
		t.Errorf("the issuer got %d requests", n)
	}
}

func TestALoginFailsWhileTheIssuerIsAway(t *testing.T) {
	l, issuer := newLogin(t, nil)
	issuer.Set(func(s *oidctest.State) { s.Down = true })
	if to, err := l.Begin(t.Context(), "s", "n", "v"); err == nil || to != "" {
		t.Errorf("began at %q", to)
	}
	if _, err := l.End(t.Context(), "c", "n", "v"); err == nil || errors.Is(err, oidc.ErrNonce) {
		t.Errorf("ended with %v", err)
	}
}
