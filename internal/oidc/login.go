package oidc

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/sync/singleflight"
)

// Login lets people log in at an issuer with a browser: the authorization code flow of OpenID
// Connect with a proof key (RFC 6749, RFC 7636). It is safe for concurrent use.
type Login struct {
	c       LoginConfig
	client  *http.Client
	flights singleflight.Group

	mu sync.Mutex
	// found is what the issuer said of itself, or failed is why it said nothing; until then
	// it is not asked again.
	found  document
	failed error
	until  time.Time
}

// LoginConfig configures a [Login].
type LoginConfig struct {
	// Issuer is the issuer's URL.
	Issuer string
	// ClientID and ClientSecret are what the issuer knows this program by. A public client has
	// no secret.
	ClientID, ClientSecret string
	// RedirectURL is where the issuer sends the browser back to.
	RedirectURL string
	// Scopes are asked for, besides openid.
	Scopes []string
	// AccessToken: the caller gets the access token, which must be a JSON Web Token then, and
	// not the ID token.
	AccessToken bool
	// Client makes the requests to the issuer. Default: [http.DefaultClient]'s transport.
	Client *http.Client
	// Now is the clock. Default: [time.Now].
	Now func() time.Time
}

// NewLogin returns a login. It makes no request.
func NewLogin(c LoginConfig) *Login {
	if c.Now == nil {
		c.Now = time.Now
	}
	return &Login{c: c, client: limited(c.Client)}
}

// Issuer returns the URL of the issuer.
func (l *Login) Issuer() string { return l.c.Issuer }

// ErrNonce says that an issuer has answered with the token of another login.
var ErrNonce = errors.New("the token belongs to another login")

// flow returns what the issuer says of its endpoints.
func (l *Login) flow(ctx context.Context) (*oauth2.Config, error) {
	d, err := l.document(ctx)
	if err != nil {
		return nil, err
	}
	for _, endpoint := range []string{d.Authorization, d.Token} {
		if endpoint == "" || strings.HasPrefix(l.c.Issuer, "https://") && !strings.HasPrefix(endpoint, "https://") {
			return nil, fmt.Errorf("the endpoint %q of %s cannot be used", endpoint, l.c.Issuer)
		}
	}
	return &oauth2.Config{
		ClientID: l.c.ClientID, ClientSecret: l.c.ClientSecret, RedirectURL: l.c.RedirectURL, Scopes: append([]string{"openid"}, l.c.Scopes...),
		Endpoint: oauth2.Endpoint{AuthURL: d.Authorization, TokenURL: d.Token},
	}, nil
}

// document returns what the issuer says of itself. Callers at the same time share one request,
// and the answer is used for a while: anybody can begin a login, and must not make this program
// send a request each time. An issuer that fails is left alone for a moment for the same reason.
func (l *Login) document(ctx context.Context) (document, error) {
	if d, known, err := l.known(); known {
		return d, err
	}
	// The request outlives the caller who began it: others wait for it.
	done := l.flights.DoChan("", func() (any, error) { return l.ask(context.WithoutCancel(ctx)) })
	select {
	case <-ctx.Done():
		return document{}, ctx.Err()
	case r := <-done:
		d, _ := r.Val.(document)
		return d, r.Err
	}
}

// known returns the last answer of the issuer, unless it is time to ask again.
func (l *Login) known() (d document, known bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.found, l.c.Now().Before(l.until), l.failed
}

// ask reads the document, unless somebody has done so meanwhile, and keeps the answer.
func (l *Login) ask(ctx context.Context) (document, error) {
	if d, known, err := l.known(); known {
		return d, err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	d, err := discover(ctx, l.client, l.c.Issuer)
	keep := refreshEvery
	if err != nil {
		keep = refreshGap
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.found, l.failed, l.until = d, err, l.c.Now().Add(keep)
	return d, err
}

// Begin returns the address at the issuer to which the browser goes. The issuer sends it back
// with state and a code.
func (l *Login) Begin(ctx context.Context, state, nonce, verifier string) (string, error) {
	f, err := l.flow(ctx)
	if err != nil {
		return "", err
	}
	return f.AuthCodeURL(state, oauth2.S256ChallengeOption(verifier), oauth2.SetAuthURLParam("nonce", nonce)), nil
}

// End returns the token for a code, with the nonce and the verifier of its Begin. The token is
// not verified: [Verifier.Verify] does that.
func (l *Login) End(ctx context.Context, code, nonce, verifier string) (string, error) {
	f, err := l.flow(ctx)
	if err != nil {
		return "", err
	}
	got, err := f.Exchange(context.WithValue(ctx, oauth2.HTTPClient, l.client), code, oauth2.VerifierOption(verifier))
	var refused *oauth2.RetrieveError
	switch {
	case errors.As(err, &refused):
		return "", fmt.Errorf("the issuer has refused the code: %s %s", refused.ErrorCode, refused.ErrorDescription) // not its body, which may have secrets
	case err != nil:
		return "", fmt.Errorf("ask the issuer for a token: %w", err)
	}
	id, _ := got.Extra("id_token").(string)
	if nonceOf(id) != nonce {
		return "", ErrNonce
	}
	if l.c.AccessToken {
		return got.AccessToken, nil
	}
	return id, nil
}

// nonceOf returns the nonce of a token that is not verified. It came from the issuer itself, over
// a connection that this program has opened.
func nonceOf(token string) string {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return ""
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return ""
	}
	var claims struct{ Nonce string }
	if json.Unmarshal(payload, &claims) != nil {
		return ""
	}
	return claims.Nonce
}
