package oidc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// Config configures a [Verifier].
type Config struct {
	// Issuer is the issuer's URL, as tokens name it.
	Issuer string
	// Audience must be among the audiences of a token.
	Audience string
	// Algorithms are the allowed ones, some of [Algorithms].
	Algorithms []string
	// Skew is how far clocks may differ.
	Skew time.Duration
	// Client makes the requests to the issuer. Default: [http.DefaultClient]'s transport.
	Client *http.Client
	// Now is the clock. Default: [time.Now].
	Now func() time.Time
	// Log gets failures to read the keys. Default: [slog.Default].
	Log *slog.Logger
}

// Algorithms are the signature algorithms that can be allowed.
var Algorithms = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}

// maxTokenBytes bounds a token. Verifying a larger one would be work for whoever sends it.
const maxTokenBytes = 8 << 10

// Refusal is why a token was refused, as one word for metrics.
type Refusal string

// The refusals.
const (
	Malformed   Refusal = "malformed"
	TooLong     Refusal = "too_long"
	Algorithm   Refusal = "jwt_algorithm"
	UnknownKey  Refusal = "jwt_unknown_key"
	Signature   Refusal = "jwt_signature"
	Issuer      Refusal = "jwt_issuer"
	Audience    Refusal = "jwt_audience"
	Expired     Refusal = "expired"
	NotYetValid Refusal = "jwt_not_yet_valid"
	NoExpiry    Refusal = "jwt_no_expiry"
)

// Error implements error.
func (r Refusal) Error() string { return "the token is refused: " + string(r) }

// Refusal returns r as a word.
func (r Refusal) Refusal() string { return string(r) }

// ErrUnavailable says that a token cannot be verified because the issuer's keys are not known
// and the issuer does not answer.
var ErrUnavailable = errors.New("the issuer of tokens does not answer")

// Verifier verifies tokens. It is safe for concurrent use.
type Verifier struct {
	c          Config
	algorithms []jose.SignatureAlgorithm
	keys       *keys
}

// New returns a verifier. It makes no request; see [Verifier.Run].
func New(c Config) (*Verifier, error) {
	if c.Issuer == "" || c.Audience == "" || len(c.Algorithms) == 0 {
		return nil, errors.New("oidc: Issuer, Audience and Algorithms are required")
	}
	v := &Verifier{c: c}
	for _, a := range c.Algorithms {
		if !slices.Contains(Algorithms, a) {
			return nil, fmt.Errorf("oidc: %q is not one of the algorithms %s", a, strings.Join(Algorithms, ", "))
		}
		v.algorithms = append(v.algorithms, jose.SignatureAlgorithm(a))
	}
	if v.c.Now == nil {
		v.c.Now = time.Now
	}
	if v.c.Log == nil {
		v.c.Log = slog.Default()
	}
	v.keys = newKeys(&v.c)
	return v, nil
}

// Run reads the issuer's keys until ctx ends. Then it returns nil.
func (v *Verifier) Run(ctx context.Context) error { return v.keys.run(ctx) }

// Claims are the claims of a verified token.
type Claims struct {
	Subject string
	// Left is the time until the token is no longer accepted, more than 0.
	Left time.Duration
	all  map[string]any
}

// Text returns the claim with a name if it is a text, else "".
func (c *Claims) Text(name string) string {
	text, _ := c.all[name].(string)
	return text
}

// Has reports whether the token has a claim with a name, of whatever type.
func (c *Claims) Has(name string) bool { return c.all[name] != nil }

// Words returns the words of a claim: those of a text, separated by spaces as in the claim
// "scope" of OAuth 2.0, or the texts of a list.
func (c *Claims) Words(name string) []string {
	switch value := c.all[name].(type) {
	case string:
		return strings.Fields(value)
	case []any:
		var words []string
		for _, v := range value {
			if text, ok := v.(string); ok {
				words = append(words, text)
			}
		}
		return words
	}
	return nil
}

// Verify returns the claims of a token. It returns a [Refusal] for a token that is not
// accepted, and [ErrUnavailable].
func (v *Verifier) Verify(ctx context.Context, token string) (*Claims, error) {
	if len(token) > maxTokenBytes {
		return nil, TooLong
	}
	parsed, err := jwt.ParseSigned(token, v.algorithms)
	if err != nil {
		var algorithm *jose.ErrUnexpectedSignatureAlgorithm
		if errors.As(err, &algorithm) {
			return nil, Algorithm
		}
		return nil, Malformed
	}
	header := parsed.Headers[0]
	key, err := v.keys.find(ctx, header.KeyID, jose.SignatureAlgorithm(header.Algorithm))
	if err != nil {
		return nil, err
	}
	registered, claims := jwt.Claims{}, &Claims{}
	err = parsed.Claims(key, &registered, &claims.all)
	if errors.Is(err, jose.ErrCryptoFailure) {
		if key := v.keys.replaced(ctx, header.KeyID, jose.SignatureAlgorithm(header.Algorithm)); key != nil {
			err = parsed.Claims(key, &registered, &claims.all)
		}
	}
	if err != nil {
		if errors.Is(err, jose.ErrCryptoFailure) {
			return nil, Signature
		}
		return nil, Malformed
	}
	now := v.c.Now()
	if err := v.validate(&registered, now); err != nil {
		return nil, err
	}
	claims.Subject = registered.Subject
	if claims.Left = registered.Expiry.Time().Add(v.c.Skew).Sub(now); claims.Left <= 0 {
		return nil, Expired
	}
	return claims, nil
}

// validate checks the claims that RFC 7519 registers.
func (v *Verifier) validate(c *jwt.Claims, now time.Time) error {
	if c.Expiry == nil {
		return NoExpiry
	}
	err := c.ValidateWithLeeway(jwt.Expected{Issuer: v.c.Issuer, AnyAudience: jwt.Audience{v.c.Audience}, Time: now}, v.c.Skew)
	for known, refusal := range map[error]Refusal{
		jwt.ErrInvalidIssuer: Issuer, jwt.ErrInvalidAudience: Audience, jwt.ErrExpired: Expired,
		jwt.ErrNotValidYet: NotYetValid, jwt.ErrIssuedInTheFuture: NotYetValid,
	} {
		if errors.Is(err, known) {
			return refusal
		}
	}
	if err != nil {
		return Malformed
	}
	return nil
}
