// Package oidctest is an OpenID Connect issuer for tests.
package oidctest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// Issuer is an OpenID Connect issuer over TLS: it serves its discovery document and its keys,
// and signs tokens.
type Issuer struct {
	tb testing.TB
	*httptest.Server
	// Requests counts the requests that it got.
	Requests atomic.Int64

	mu sync.Mutex
	State
}

// State is what [Issuer.Set] changes.
type State struct {
	// Keys are published.
	Keys []jose.JSONWebKey
	// Down: every request is answered with an error.
	Down bool
	// Wait, unless it is nil, holds up every request until it is closed.
	Wait chan struct{}
	// Named is the issuer in the document; "": its URL.
	Named string
	// IDToken makes the token of a login with a browser, for the nonce of the login. nil: nobody
	// can log in.
	IDToken func(nonce string) string

	codes map[string]url.Values // the requests for which codes were given
}

// The client that the issuer knows.
const (
	ClientID     = "console"
	ClientSecret = "the secret of the console"
)

// New starts an issuer that ends with the test.
func New(tb testing.TB) *Issuer {
	tb.Helper()
	i := &Issuer{tb: tb}
	i.Server = httptest.NewTLSServer(i)
	i.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	tb.Cleanup(i.Close)
	return i
}

// ServeHTTP implements [http.Handler].
func (i *Issuer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	i.Requests.Add(1)
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.Wait != nil {
		<-i.Wait
	}
	var answer any
	switch {
	case i.Down:
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	case r.URL.Path == "/.well-known/openid-configuration":
		name := i.Named
		if name == "" {
			name = i.URL
		}
		answer = map[string]string{"issuer": name, "jwks_uri": i.URL + "/keys", "authorization_endpoint": i.URL + "/authorize", "token_endpoint": i.URL + "/token"}
	case r.URL.Path == "/keys":
		set := map[string]any{"keys": []any{map[string]string{"kty": "of the future", "kid": "x"}}}
		for _, k := range i.Keys {
			set["keys"] = append(set["keys"].([]any), k.Public())
		}
		answer = set
	case r.URL.Path == "/authorize" && i.IDToken != nil:
		i.authorize(w, r)
		return
	case r.URL.Path == "/token" && i.IDToken != nil:
		if answer = i.token(r); answer == nil {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadRequest)
			answer = map[string]string{"error": "invalid_grant", "error_description": "the code is not known"}
		} else {
			w.Header().Set("Content-Type", "application/json")
		}
	default:
		http.NotFound(w, r)
		return
	}
	if err := json.NewEncoder(w).Encode(answer); err != nil {
		i.tb.Error(err)
	}
}

// authorize sends a browser back with a code, as if its user had logged in.
func (i *Issuer) authorize(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	if q.Get("client_id") != ClientID || q.Get("response_type") != "code" || q.Get("code_challenge_method") != "S256" || q.Get("nonce") == "" {
		http.Error(w, "invalid_request", http.StatusBadRequest)
		return
	}
	code := rand.Text()
	if i.codes == nil {
		i.codes = map[string]url.Values{}
	}
	i.codes[code] = q
	back := url.Values{"code": {code}, "state": {q.Get("state")}}
	http.Redirect(w, r, q.Get("redirect_uri")+"?"+back.Encode(), http.StatusSeeOther)
}

// token returns the tokens for a code, once; nil: the request is not that of who got the code.
func (i *Issuer) token(r *http.Request) any {
	id, secret, _ := r.BasicAuth()
	asked := i.codes[r.PostFormValue("code")]
	delete(i.codes, r.PostFormValue("code"))
	proof := sha256.Sum256([]byte(r.PostFormValue("code_verifier")))
	if asked == nil || id != ClientID || secret != url.QueryEscape(ClientSecret) || r.PostFormValue("redirect_uri") != asked.Get("redirect_uri") ||
		base64.RawURLEncoding.EncodeToString(proof[:]) != asked.Get("code_challenge") {
		return nil
	}
	return map[string]any{"access_token": "of no use here", "token_type": "Bearer", "id_token": i.IDToken(asked.Get("nonce"))}
}

// Set changes the state.
func (i *Issuer) Set(change func(*State)) {
	i.mu.Lock()
	defer i.mu.Unlock()
	change(&i.State)
}

// Key makes a key and publishes it.
func (i *Issuer) Key(id string, a jose.SignatureAlgorithm) jose.JSONWebKey {
	i.tb.Helper()
	k := NewKey(i.tb, id, a)
	i.Set(func(s *State) { s.Keys = append(s.Keys, k) })
	return k
}

// NewKey makes a key that is not published.
func NewKey(tb testing.TB, id string, a jose.SignatureAlgorithm) jose.JSONWebKey {
	tb.Helper()
	var private crypto.PrivateKey
	var err error
	switch a {
	case jose.ES256:
		private, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case jose.EdDSA:
		_, private, err = ed25519.GenerateKey(rand.Reader)
	default:
		private, err = rsa.GenerateKey(rand.Reader, 2048)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return jose.JSONWebKey{Key: private, KeyID: id, Algorithm: string(a), Use: "sig"}
}

// Claims are claims of the tenant acme for the audience perceptor, with changes; nil removes
// one.
func (i *Issuer) Claims(changes map[string]any) map[string]any {
	now := time.Now()
	c := map[string]any{
		"iss": i.URL, "aud": "perceptor", "sub": "worker-7", "tenant": "acme", "scope": "openid perceptor:add perceptor:read",
		"iat": now.Unix(), "nbf": now.Unix(), "exp": now.Add(time.Hour).Unix(),
	}
	for name, value := range changes {
		if c[name] = value; value == nil {
			delete(c, name)
		}
	}
	return c
}

// Sign returns a token.
func Sign(tb testing.TB, key any, a jose.SignatureAlgorithm, claims any) string {
	tb.Helper()
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: a, Key: key}, (&jose.SignerOptions{}).WithType("JWT"))
	if err != nil {
		tb.Fatal(err)
	}
	payload, err := json.Marshal(claims)
	if err != nil {
		tb.Fatal(err)
	}
	signed, err := s.Sign(payload)
	if err != nil {
		tb.Fatal(err)
	}
	text, err := signed.CompactSerialize()
	if err != nil {
		tb.Fatal(err)
	}
	return text
}
