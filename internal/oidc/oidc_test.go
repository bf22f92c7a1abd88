package oidc

import (
	"context"
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
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"go.uber.org/goleak"

	"github.com/perceptor/perceptor/internal/oidc/oidctest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// verifier returns a verifier of the issuer's tokens with a clock of its own.
func verifier(t *testing.T, i *oidctest.Issuer) (*Verifier, *atomic.Int64) {
	t.Helper()
	var ahead atomic.Int64
	v, err := New(Config{
		Issuer: i.URL, Audience: "perceptor", Algorithms: []string{"RS256", "ES256", "EdDSA"}, Skew: 30 * time.Second, Client: i.Client(),
		Now: func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	return v, &ahead
}

func TestTokensOfTheIssuerAreAcceptedWithTheirClaims(t *testing.T) {
	t.Parallel()
	i := oidctest.New(t)
	v, _ := verifier(t, i)
	for _, a := range []jose.SignatureAlgorithm{jose.RS256, jose.ES256, jose.EdDSA} {
		key := i.Key("key-"+string(a), a)
		v, _ := verifier(t, i)
		got, err := v.Verify(t.Context(), oidctest.Sign(t, key, a, i.Claims(nil)))
		if err != nil || got.Subject != "worker-7" || got.Text("tenant") != "acme" || !slices.Contains(got.Words("scope"), "perceptor:add") ||
			got.Left < time.Hour || got.Left > time.Hour+31*time.Second {
			t.Errorf("%s: %+v, %v", a, got, err)
		}
	}
	key := i.Keys[0]
	lists := map[string]any{"aud": []string{"else", "perceptor"}, "scope": []string{"a", "b"}, "tenant": 7}
	got, err := v.Verify(t.Context(), oidctest.Sign(t, key, jose.RS256, i.Claims(lists)))
	if err != nil || !slices.Equal(got.Words("scope"), []string{"a", "b"}) || got.Text("tenant") != "" || got.Words("nothing") != nil {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestBadTokensAreRefusedForTheirReason(t *testing.T) {
	t.Parallel()
	i := oidctest.New(t)
	good := i.Key("rsa", jose.RS256)
	weak, err := rsa.GenerateKey(rand.Reader, 1024) //nolint:gosec // it must be refused
	if err == nil {
		i.Set(func(s *oidctest.State) { s.Keys = append(s.Keys, jose.JSONWebKey{Key: weak, KeyID: "weak"}) })
	}
	v, _ := verifier(t, i)
	at := func(d time.Duration) any { return time.Now().Add(d).Unix() }
	with := func(changes map[string]any) string { return oidctest.Sign(t, good, jose.RS256, i.Claims(changes)) }
	private := good.Key.(*rsa.PrivateKey)
	public, err := x509.MarshalPKIXPublicKey(private.Public())
	if err != nil {
		t.Fatal(err)
	}
	confused := func(secret []byte) string {
		return oidctest.Sign(t, jose.JSONWebKey{Key: secret, KeyID: "rsa"}, jose.HS256, i.Claims(nil))
	}
	raw := func(header string) string {
		body, err := json.Marshal(i.Claims(nil))
		if err != nil {
			t.Fatal(err)
		}
		return base64.RawURLEncoding.EncodeToString([]byte(header)) + "." + base64.RawURLEncoding.EncodeToString(body) + "."
	}
	ok := with(nil)
	parts := strings.Split(ok, ".")
	other := oidctest.NewKey(t, "rsa", jose.RS256)
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
		{"an algorithm that is not allowed", oidctest.Sign(t, jose.JSONWebKey{Key: private, KeyID: "rsa"}, jose.RS512, i.Claims(nil)), Algorithm},
		{"the key of another algorithm", oidctest.Sign(t, oidctest.NewKey(t, "rsa", jose.ES256), jose.ES256, i.Claims(nil)), UnknownKey},
		{"an unknown key", oidctest.Sign(t, oidctest.NewKey(t, "mine", jose.RS256), jose.RS256, i.Claims(nil)), UnknownKey},
		{"no key id", oidctest.Sign(t, private, jose.RS256, i.Claims(nil)), UnknownKey},
		{"another key of the same id", oidctest.Sign(t, other, jose.RS256, i.Claims(nil)), Signature},
		{"other claims under the signature", parts[0] + "." + strings.Split(with(map[string]any{"tenant": "rival"}), ".")[1] + "." + parts[2], Signature},
		{"no signature", parts[0] + "." + parts[1] + ".", Signature},
		{"claims that are no object", oidctest.Sign(t, good, jose.RS256, []int{1}), Malformed},
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
		}{"a key of 1024 bits", oidctest.Sign(t, jose.JSONWebKey{Key: weak, KeyID: "weak"}, jose.RS256, i.Claims(nil)), UnknownKey})
	}
	for _, c := range cases {
		if got, err := v.Verify(t.Context(), c.token); got != nil || !errors.Is(err, c.want) {
			t.Errorf("%s: %v, %v, want %s", c.name, got, err, c.want)
		}
	}
	if _, err := v.Verify(t.Context(), ok); err != nil {
		t.Errorf("the good one: %v", err)
	}
	if n := i.Requests.Load(); n != 2 {
		t.Errorf("the issuer got %d requests, want 2: unknown keys must not flood it", n)
	}
}

func TestClocksMayDifferByTheSkew(t *testing.T) {
	t.Parallel()
	i := oidctest.New(t)
	key := i.Key("rsa", jose.RS256)
	v, ahead := verifier(t, i)
	token := oidctest.Sign(t, key, jose.RS256, i.Claims(map[string]any{"exp": time.Now().Add(time.Minute).Unix()}))
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

// TestATokenHasTimeLeftWhenItIsAccepted verifies one at the last instants: an identity with no
// time left would count as one that does not end.
func TestATokenHasTimeLeftWhenItIsAccepted(t *testing.T) {
	t.Parallel()
	i := oidctest.New(t)
	key := i.Key("rsa", jose.RS256)
	ends := time.Now().Add(time.Minute).Truncate(time.Second)
	token := oidctest.Sign(t, key, jose.RS256, i.Claims(map[string]any{"exp": ends.Unix()}))
	for left, want := range map[time.Duration]error{1: nil, 0: Expired, -1: Expired} {
		now := ends.Add(30*time.Second - left)
		v, err := New(Config{Issuer: i.URL, Audience: "perceptor", Algorithms: Algorithms, Skew: 30 * time.Second, Client: i.Client(), Now: func() time.Time { return now }})
		if err != nil {
			t.Fatal(err)
		}
		if c, err := v.Verify(t.Context(), token); !errors.Is(err, want) || err == nil && c.Left != left {
			t.Errorf("%s before the end: %+v, %v, want %v", left, c, err, want)
		}
	}
}

func TestNewKeysAreFoundAndOldOnesForgotten(t *testing.T) {
	t.Parallel()
	i := oidctest.New(t)
	old := i.Key("old", jose.RS256)
	v, ahead := verifier(t, i)
	was := oidctest.Sign(t, old, jose.RS256, i.Claims(nil))
	if _, err := v.Verify(t.Context(), was); err != nil {
		t.Fatal(err)
	}
	i.Set(func(s *oidctest.State) { s.Keys = nil })
	next := i.Key("next", jose.ES256)
	now := oidctest.Sign(t, next, jose.ES256, i.Claims(nil))
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

// TestANewKeyWithoutANewIDIsFound: the key has no id, or that of the key before.
func TestANewKeyWithoutANewIDIsFound(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"", "the same"} {
		i := oidctest.New(t)
		old := i.Key(id, jose.RS256)
		v, ahead := verifier(t, i)
		if _, err := v.Verify(t.Context(), oidctest.Sign(t, old, jose.RS256, i.Claims(nil))); err != nil {
			t.Fatal(err)
		}
		i.Set(func(s *oidctest.State) { s.Keys = nil })
		now := oidctest.Sign(t, i.Key(id, jose.RS256), jose.RS256, i.Claims(nil))
		before := i.Requests.Load()
		if _, err := v.Verify(t.Context(), now); !errors.Is(err, Signature) || i.Requests.Load() != before {
			t.Errorf("key %q, within %s of the last request: %v", id, refreshGap, err)
		}
		ahead.Store(int64(refreshGap))
		if _, err := v.Verify(t.Context(), now); err != nil {
			t.Errorf("the new key %q: %v", id, err)
		}
		ahead.Store(int64(2 * refreshGap))
		if _, err := v.Verify(t.Context(), oidctest.Sign(t, old, jose.RS256, i.Claims(nil))); !errors.Is(err, Signature) {
			t.Errorf("the old key %q: %v", id, err)
		}
	}
}

func TestCallersAtTheSameTimeWaitForANewKey(t *testing.T) {
	t.Parallel()
	i := oidctest.New(t)
	old := i.Key("old", jose.RS256)
	v, ahead := verifier(t, i)
	if _, err := v.Verify(t.Context(), oidctest.Sign(t, old, jose.RS256, i.Claims(nil))); err != nil {
		t.Fatal(err)
	}
	now := oidctest.Sign(t, i.Key("next", jose.ES256), jose.ES256, i.Claims(nil))
	ahead.Store(int64(refreshGap))
	before, wait := i.Requests.Load(), make(chan struct{})
	i.Set(func(s *oidctest.State) { s.Wait = wait })
	first := make(chan error)
	go func() { _, err := v.Verify(t.Context(), now); first <- err }()
	for i.Requests.Load() == before {
		runtime.Gosched() // the first caller has asked
	}
	impatient, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := v.Verify(impatient, now); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller is answered while the keys are read: %v", err)
	}
	close(wait)
	if err := <-first; err != nil {
		t.Error(err)
	}
}

func TestKnownKeysSurviveAnIssuerThatIsAwayForAnHour(t *testing.T) {
	t.Parallel()
	i := oidctest.New(t)
	key := i.Key("rsa", jose.RS256)
	v, ahead := verifier(t, i)
	token := oidctest.Sign(t, key, jose.RS256, i.Claims(map[string]any{"exp": time.Now().Add(9 * time.Hour).Unix()}))
	i.Set(func(s *oidctest.State) { s.Down = true })
	if _, err := v.Verify(t.Context(), token); !errors.Is(err, ErrUnavailable) {
		t.Errorf("before any key is known: %v", err)
	}
	i.Set(func(s *oidctest.State) { s.Down = false })
	ahead.Store(int64(refreshGap))
	if _, err := v.Verify(t.Context(), token); err != nil {
		t.Fatal(err)
	}
	i.Set(func(s *oidctest.State) { s.Down = true })
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
	i := oidctest.New(t)
	i.Set(func(s *oidctest.State) { s.Named = "https://else" })
	key := i.Key("rsa", jose.RS256)
	v, _ := verifier(t, i)
	if _, err := v.Verify(t.Context(), oidctest.Sign(t, key, jose.RS256, i.Claims(nil))); !errors.Is(err, ErrUnavailable) {
		t.Error(err)
	}
}

func TestRunReadsTheKeysBeforeTheFirstToken(t *testing.T) {
	t.Parallel()
	i := oidctest.New(t)
	key := i.Key("rsa", jose.RS256)
	v, _ := verifier(t, i)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- v.Run(ctx) }()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if _, fresh, _ := v.keys.lookup("rsa", jose.RS256); fresh {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("no keys")
		}
	}
	i.Set(func(s *oidctest.State) { s.Down = true })
	if _, err := v.Verify(t.Context(), oidctest.Sign(t, key, jose.RS256, i.Claims(nil))); err != nil {
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
