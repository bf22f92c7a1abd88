// Package oidctest is an OpenID Connect issuer for tests.
package oidctest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
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
	// Named is the issuer in the document; "": its URL.
	Named string
}

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
		answer = map[string]string{"issuer": name, "jwks_uri": i.URL + "/keys"}
	case r.URL.Path == "/keys":
		set := map[string]any{"keys": []any{map[string]string{"kty": "of the future", "kid": "x"}}}
		for _, k := range i.Keys {
			set["keys"] = append(set["keys"].([]any), k.Public())
		}
		answer = set
	default:
		http.NotFound(w, r)
		return
	}
	if err := json.NewEncoder(w).Encode(answer); err != nil {
		i.tb.Error(err)
	}
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
