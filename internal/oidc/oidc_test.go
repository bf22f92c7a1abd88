package oidc

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// issuer is an OpenID Connect issuer: it serves its discovery document and its keys, and
// signs tokens.
type issuer struct {
	t *testing.T
	*httptest.Server
	requests atomic.Int64

	mu   sync.Mutex
	keys []jose.JSONWebKey
	down bool
	// named is the issuer in the document; "": its URL.
	named string
}

func newIssuer(t *testing.T) *issuer {
	i := &issuer{t: t}
	i.Server = httptest.NewTLSServer(i)
	i.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	t.Cleanup(i.Close)
	return i
}

func (i *issuer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	i.requests.Add(1)
	i.mu.Lock()
	defer i.mu.Unlock()
	var answer any
	switch {
	case i.down:
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	case r.URL.Path == "/.well-known/openid-configuration":
		name := i.named
		if name == "" {
			name = i.URL
		}
		answer = map[string]string{"issuer": name, "jwks_uri": i.URL + "/keys"}
	case r.URL.Path == "/keys":
		set := map[string]any{"keys": []any{map[string]string{"kty": "of the future", "kid": "x"}}}
		for _, k := range i.keys {
			set["keys"] = append(set["keys"].([]any), k.Public())
		}
		answer = set
	default:
		http.NotFound(w, r)
		return
	}
	if err := json.NewEncoder(w).Encode(answer); err != nil {
		i.t.Error(err)
	}
}

// set changes the issuer.
func (i *issuer) set(change func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	change()
}

// key makes a key and publishes it.
func (i *issuer) key(id string, a jose.SignatureAlgorithm) jose.JSONWebKey {
	i.t.Helper()
	k := newKey(i.t, id, a)
	i.set(func() { i.keys = append(i.keys, k) })
	return k
}

func newKey(t *testing.T, id string, a jose.SignatureAlgorithm) jose.JSONWebKey {
	t.Helper()
	var private crypto.PrivateKey
	var err error
	switch a {
	case jose.ES256:
		private, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case jose.EdDSA:
		_, private, err = ed25519.GenerateKey(rand.Reader)
	default:
		private, err = rsa.GenerateKey(rand.Reader, minRSABits)
	}
	if err != nil {
		t.Fatal(err)
	}
	return jose.JSONWebKey{Key: private, KeyID: id, Algorithm: string(a), Use: "sig"}
}

// claims are good ones, with changes.
func (i *issuer) claims(changes map[string]any) map[string]any {
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

func sign(t *testing.T, key any, a jose.SignatureAlgorithm, claims any) string {
	t.Helper()
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: a, Key: key}, (&jose.SignerOptions{}).WithType("JWT"))
	if err != nil {
		t.Fatal(err)
	}
	payload, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := s.Sign(payload)
	if err != nil {
		t.Fatal(err)
	}
	text, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// verifier returns a verifier of the issuer's tokens with a clock of its own.
func (i *issuer) verifier() (*Verifier, *atomic.Int64) {
	i.t.Helper()
	var ahead atomic.Int64
	v, err := New(Config{
		Issuer: i.URL, Audience: "perceptor", Algorithms: []string{"RS256", "ES256", "EdDSA"}, Skew: 30 * time.Second, Client: i.Client(),
		Now: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		i.t.Fatal(err)
	}
	return v, &ahead
}

func TestTokensOfTheIssuerAreAcceptedWithTheirClaims(t *testing.T) {
	t.Parallel()
	i := newIssuer(t)
	v, _ := i.verifier()
	for _, a := range []jose.SignatureAlgorithm{jose.RS256, jose.ES256, jose.EdDSA} {
		key := i.key("key-"+string(a), a)
		v, _ := i.verifier()
		got, err := v.Verify(t.Context(), sign(t, key, a, i.claims(nil)))
		if err != nil || got.Subject != "worker-7" || got.Text("tenant") != "acme" || !slices.Contains(got.Words("scope"), "perceptor:add") ||
			got.Left < time.Hour || got.Left > time.Hour+31*time.Second {
			t.Errorf("%s: %+v, %v", a, got, err)
		}
	}
	key := i.keys[0]
	lists := map[string]any{"aud": []string{"else", "perceptor"}, "scope": []string{"a", "b"}, "tenant": 7}
	got, err := v.Verify(t.Context(), sign(t, key, jose.RS256, i.claims(lists)))
	if err != nil || !slices.Equal(got.Words("scope"), []string{"a", "b"}) || got.Text("tenant") != "" || got.Words("nothing") != nil {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestBadTokensAreRefusedForTheirReason(t *testing.T) {
	t.Parallel()
	i := newIssuer(t)
	good := i.key("rsa", jose.RS256)
	weak, err := rsa.GenerateKey(rand.Reader, 1024) //nolint:gosec // it must be refused
	if err == nil {
		i.set(func() { i.keys = append(i.keys, jose.JSONWebKey{Key: weak, KeyID: "weak"}) })
	}
	v, _ := i.verifier()
	at := func(d time.Duration) any { return time.Now().Add(d).Unix() }
	with := func(changes map[string]any) string { return sign(t, good, jose.RS256, i.claims(changes)) }
	private := good.Key.(*rsa.PrivateKey)
	public, err := x509.MarshalPKIXPublicKey(private.Public())
	if err != nil {
		t.Fatal(err)
	}
	confused := func(secret []byte) string {
		return sign(t, jose.JSONWebKey{Key: secret, KeyID: "rsa"}, jose.HS256, i.claims(nil))
	}
	raw := func(header string) string {
		body, err := json.Marshal(i.claims(nil))
		if err != nil {
			t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString([]byte(header)) + "." + base64.RawURLEncoding.EncodeToString(body) + "."
	}
	ok := with(nil)
	parts := strings.Split(ok, ".")
	other := newKey(t, "rsa", jose.RS256)
	cases := []struct {
		name, token string
		want        Refusal
	}{
		{"expired", with(map[string]any{"exp": at(-31 * time.Second)}), Expired},
		{"expired long ago", with(map[string]any{"exp": at(-1000 * time.Hour)}), Expired},
		{"not yet valid", with(map[string]any{"nbf": at(time.Minute)}), NotYetValid},
		{"issued in the future", with(map[string]any{"iat": at(time.Minute)}), NotYetValid},
		{"without an expiry", with(map[string]any{"exp": nil}), NoExpiry},
		{"for another audience", with(map[string]any{"aud": "else"}), Audience},
		{"without an audience", with(map[string]any{"aud": nil}), Audience},
		{"of another issuer", with(map[string]any{"iss": "https://else"}), Issuer},
		{"without an issuer", with(map[string]any{"iss": nil}), Issuer},
		{"alg none", raw(`{"alg":"none","typ":"JWT"}`), Algorithm},
		{"alg None", raw(`{"alg":"None","kid":"rsa"}`), Algorithm},
		{"no alg", raw(`{"kid":"rsa"}`), Algorithm},
		{"HS256 with the public key as PEM", confused(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})), Algorithm},
		{"HS256 with the public key as DER", confused(public), Algorithm},
		{"an algorithm that is not allowed", sign(t, jose.JSONWebKey{Key: private, KeyID: "rsa"}, jose.RS512, i.claims(nil)), Algorithm},
		{"the key of another algorithm", sign(t, newKey(t, "rsa", jose.ES256), jose.ES256, i.claims(nil)), UnknownKey},
		{"an unknown key", sign(t, newKey(t, "mine", jose.RS256), jose.RS256, i.claims(nil)), UnknownKey},
		{"no key id", sign(t, private, jose.RS256, i.claims(nil)), UnknownKey},
		{"another key of the same id", sign(t, other, jose.RS256, i.claims(nil)), Signature},
		{"other claims under the signature", parts[0] + "." + strings.Split(with(map[string]any{"tenant": "rival"}), ".")[1] + "." + parts[2], Signature},
		{"no signature", parts[0] + "." + parts[1] + ".", Signature},
		{"claims that are no object", sign(t, good, jose.RS256, []int{1}), Malformed},
		{"a time that is no number", with(map[string]any{"exp": "tomorrow"}), Malformed},
		{"too long", with(map[string]any{"filler": strings.Repeat("x", maxTokenBytes)}), TooLong},
		{"garbage", "a.b.c", Malformed},
		{"empty", "", Malformed},
		{"two parts", parts[0] + "." + parts[1], Malformed},
	}
	if weak != nil {
		cases = append(cases, struct {
			name, token string
			want        Refusal
		}{"a key of 1024 bits", sign(t, jose.JSONWebKey{Key: weak, KeyID: "weak"}, jose.RS256, i.claims(nil)), UnknownKey})
	}
	for _, c := range cases {
		if got, err := v.Verify(t.Context(), c.token); got != nil || !errors.Is(err, c.want) {
			t.Errorf("%s: %v, %v, want %s", c.name, got, err, c.want)
		}
	}
	if _, err := v.Verify(t.Context(), ok); err != nil {
		t.Errorf("the good one: %v", err)
	}
	if n := i.requests.Load(); n != 2 {
		t.Errorf("the issuer got %d requests, want 2: unknown keys must not flood it", n)
	}
}

func TestClocksMayDifferByTheSkew(t *testing.T) {
	t.Parallel()
	i := newIssuer(t)
	key := i.key("rsa", jose.RS256)
	v, ahead := i.verifier()
	token := sign(t, key, jose.RS256, i.claims(map[string]any{"exp": time.Now().Add(time.Minute).Unix()}))
	for d, want := range map[time.Duration]error{-25 * time.Second: nil, -40 * time.Second: NotYetValid, 80 * time.Second: nil, 100 * time.Second: Expired} {
		ahead.Store(0)
		if _, err := v.Verify(t.Context(), token); err != nil {
			t.Fatal(err)
		}
		ahead.Store(int64(d))
		if _, err := v.Verify(t.Context(), token); !errors.Is(err, want) {
			t.Errorf("%s ahead: %v, want %v", d, err, want)
		}
	}
}

func TestNewKeysAreFoundAndOldOnesForgotten(t *testing.T) {
	t.Parallel()
	i := newIssuer(t)
	old := i.key("old", jose.RS256)
	v, ahead := i.verifier()
	was := sign(t, old, jose.RS256, i.claims(nil))
	if _, err := v.Verify(t.Context(), was); err != nil {
		t.Fatal(err)
	}
	i.set(func() { i.keys = nil })
	next := i.key("next", jose.ES256)
	now := sign(t, next, jose.ES256, i.claims(nil))
	if _, err := v.Verify(t.Context(), now); !errors.Is(err, UnknownKey) {
		t.Errorf("within %s of the last request: %v", refreshGap, err)
	}
	ahead.Store(int64(refreshGap))
	if _, err := v.Verify(t.Context(), now); err != nil {
		t.Errorf("the new key: %v", err)
	}
	if _, err := v.Verify(t.Context(), was); !errors.Is(err, UnknownKey) {
		t.Errorf("the old key: %v", err)
	}
}

func TestKnownKeysSurviveAnIssuerThatIsAwayForAnHour(t *testing.T) {
	t.Parallel()
	i := newIssuer(t)
	key := i.key("rsa", jose.RS256)
	v, ahead := i.verifier()
	token := sign(t, key, jose.RS256, i.claims(map[string]any{"exp": time.Now().Add(9 * time.Hour).Unix()}))
	i.set(func() { i.down = true })
	if _, err := v.Verify(t.Context(), token); !errors.Is(err, ErrUnavailable) {
		t.Errorf("before any key is known: %v", err)
	}
	i.set(func() { i.down = false })
	ahead.Store(int64(refreshGap))
	if _, err := v.Verify(t.Context(), token); err != nil {
		t.Fatal(err)
	}
	i.set(func() { i.down = true })
	ahead.Store(int64(refreshGap + 59*time.Minute))
	if _, err := v.Verify(t.Context(), token); err != nil {
		t.Errorf("after 59 minutes: %v", err)
	}
	ahead.Store(int64(refreshGap + time.Hour))
	if _, err := v.Verify(t.Context(), token); !errors.Is(err, ErrUnavailable) {
		t.Errorf("after an hour: %v", err)
	}
}

func TestTheDiscoveryDocumentMustBeThatOfTheIssuer(t *testing.T) {
	t.Parallel()
	i := newIssuer(t)
	i.named = "https://else"
	key := i.key("rsa", jose.RS256)
	v, _ := i.verifier()
	if _, err := v.Verify(t.Context(), sign(t, key, jose.RS256, i.claims(nil))); !errors.Is(err, ErrUnavailable) {
		t.Error(err)
	}
}

func TestRunReadsTheKeysBeforeTheFirstToken(t *testing.T) {
	t.Parallel()
	i := newIssuer(t)
	key := i.key("rsa", jose.RS256)
	v, _ := i.verifier()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- v.Run(ctx) }()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if _, fresh, _ := v.keys.lookup("rsa", jose.RS256); fresh {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("no keys")
		}
	}
	i.set(func() { i.down = true })
	if _, err := v.Verify(t.Context(), sign(t, key, jose.RS256, i.claims(nil))); err != nil {
		t.Error(err)
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestWrongConfigurationsAreRefused(t *testing.T) {
	for _, c := range []Config{
		{}, {Issuer: "https://x", Audience: "y"}, {Issuer: "https://x", Audience: "y", Algorithms: []string{"HS256"}},
		{Issuer: "https://x", Audience: "y", Algorithms: []string{"none"}},
	} {
		if v, err := New(c); err == nil {
			t.Errorf("%+v is accepted: %v", c, v)
		}
	}
}

func FuzzVerify(f *testing.F) {
	f.Add("a.b.c")
	f.Add(fmt.Sprintf("%s.%s.", base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`)), base64.RawURLEncoding.EncodeToString([]byte(`{}`))))
	away := &http.Client{Transport: http.NewFileTransport(http.Dir("/nonexistent"))}
	v, err := New(Config{Issuer: "https://x.invalid", Audience: "y", Algorithms: Algorithms, Client: away, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, token string) {
		if c, err := v.Verify(t.Context(), token); err == nil || c != nil {
			t.Errorf("accepted %+v", c)
		}
	})
}
