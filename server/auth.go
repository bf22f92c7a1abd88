package server

import (
	"context"
	"crypto/sha256"
	"errors"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	"google.golang.org/grpc/metadata"

	"github.com/perceptor/perceptor/task"
)

const (
	// maxSecretBytes bounds tokens, and so JSON Web Tokens.
	maxSecretBytes = 8 << 10
	// How long answers of the Authenticator are cached, counted from before it
	// was asked.
	rememberKnown   = 5 * time.Second
	rememberUnknown = time.Second
	maxRemembered   = 10_000
	authTimeout     = 5 * time.Second
)

type identityKey struct{}

// identityOf returns the identity that the gate has stored in the context.
func identityOf(ctx context.Context) *Identity {
	return ctx.Value(identityKey{}).(*Identity)
}

// tenantOf returns the calling tenant.
func tenantOf(ctx context.Context) *Tenant { return &identityOf(ctx).Tenant }

// secretFrom returns the bearer secret of a call, or "" if there is none of the
// right form.
func secretFrom(headers []string) string {
	if len(headers) != 1 {
		return ""
	}
	scheme, secret, ok := strings.Cut(headers[0], " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") || len(secret) > maxSecretBytes {
		return ""
	}
	for i := range len(secret) {
		if secret[i] <= ' ' || secret[i] > '~' {
			return ""
		}
	}
	return secret
}

// badHeader says why there is no secret of the right form.
func badHeader(headers []string) string {
	switch {
	case len(headers) == 0:
		return refusedMissing
	case len(headers) == 1 && len(headers[0]) > maxSecretBytes:
		return refusedTooLong
	}
	return refusedMalformed
}

// Why credentials are refused, besides the refusals of the Authenticator. Metrics
// and logs have these words, callers never learn them.
const (
	refusedMissing     = "missing"
	refusedTooLong     = "too_long"
	refusedMalformed   = "malformed"
	refusedUnknown     = "unknown"
	refusedRevoked     = "revoked"
	refusedCertificate = "certificate_of_another" // the certificate is bound to another tenant than the token
	// The certificate has expired since the connection began.
	refusedCertificateExpired = "certificate_expired"
)

// refusalOf returns why the Authenticator has refused credentials.
func refusalOf(err error) string {
	var r interface{ Refusal() string }
	if errors.As(err, &r) {
		return r.Refusal()
	}
	return refusedUnknown
}

// bearers caches the answers of an Authenticator. It stores secrets as hashes
// only.
type bearers struct {
	source  Authenticator
	events  *Events
	revoked *revoked
	flights singleflight.Group
	lookUps *lookUps
	known   remembered[*Identity]
	unknown remembered[string] // why they were refused
}

func newBearers(source Authenticator) *bearers {
	return &bearers{source: source, lookUps: newLookUps(source), events: &Events{}, revoked: newRevoked()}
}

// identify returns the identity for the authorization headers of a call, or the
// status to answer with.
func (b *bearers) identify(ctx context.Context, headers []string) (*Identity, error) {
	secret := secretFrom(headers)
	if secret == "" {
		return nil, b.refuse(badHeader(headers))
	}
	from, key := callSource(ctx), sha256.Sum256([]byte(secret))
	return b.lookup(ctx, key, func(ctx context.Context) (Identity, error) {
		if err := b.lookUps.allow(from, key, secret); err != nil {
			return Identity{}, err
		}
		id, err := b.source.Authenticate(ctx, secret)
		if err == nil {
			b.lookUps.valid.put(key, struct{}{}, time.Now().Add(rememberValid))
		}
		return id, err
	})
}

// refuse counts a refusal and returns its status.
func (b *bearers) refuse(why string) error {
	b.events.loginRefused(why)
	return errUnauthenticated
}

// lookup returns the identity for credentials, of which key is a hash, from the
// cache or from their source.
func (b *bearers) lookup(ctx context.Context, key [32]byte, source func(context.Context) (Identity, error)) (*Identity, error) {
	now := time.Now()
	b.revoked.use(now)
	if id, ok := b.known.get(key, now); ok && !b.revoked.has(id.TokenID) {
		return id, nil
	}
	if why, ok := b.unknown.get(key, now); ok {
		return nil, b.refuse(why)
	}
	id, err := b.ask(ctx, key, source)
	var no refusal
	if errors.As(err, &no) {
		return nil, b.refuse(string(no))
	}
	if err == nil && b.revoked.lists(id.TokenID) { // while it was looked up
		return nil, b.refuse(refusedRevoked)
	}
	return id, err
}

// refusal is the error for credentials that are refused.
type refusal string

func (r refusal) Error() string { return string(r) }

// ask asks the source once for all concurrent calls with the same credentials.
func (b *bearers) ask(ctx context.Context, key [32]byte, source func(context.Context) (Identity, error)) (*Identity, error) {
	answer := b.flights.DoChan(string(key[:]), func() (any, error) {
		asked := time.Now()
		b.revoked.asking.Add(1)
		defer func() {
			b.revoked.use(time.Now())
			b.revoked.asking.Add(-1)
		}()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), authTimeout)
		defer cancel()
		id, err := source(ctx)
		switch {
		case err == nil:
			until := asked.Add(rememberKnown)
			if id.Left > 0 && id.Left < rememberKnown {
				until = asked.Add(id.Left)
			}
			b.known.put(key, &id, until)
			return &id, nil
		case task.CodeOf(err) == task.NotFound:
			b.unknown.put(key, refusalOf(err), asked.Add(rememberUnknown))
			return nil, refusal(refusalOf(err))
		}
		return nil, err
	})
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case a := <-answer:
		if a.Err != nil {
			return nil, a.Err
		}
		return a.Val.(*Identity), nil
	}
}

// authorization returns the authorization headers of an incoming call.
func authorization(ctx context.Context) []string {
	md, _ := metadata.FromIncomingContext(ctx)
	return md.Get("authorization")
}

// remembered is a bounded map with entries that expire. The zero value is
// empty.
type remembered[V any] struct {
	mu      sync.Mutex
	entries map[[32]byte]cached[V]
}

type cached[V any] struct {
	value V
	until time.Time
}

func (r *remembered[V]) get(key [32]byte, now time.Time) (V, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m, ok := r.entries[key]
	return m.value, ok && now.Before(m.until)
}

func (r *remembered[V]) put(key [32]byte, value V, until time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.entries == nil {
		r.entries = map[[32]byte]cached[V]{}
	}
	if _, known := r.entries[key]; !known && len(r.entries) >= maxRemembered {
		r.makeRoom(time.Now())
	}
	r.entries[key] = cached[V]{value, until}
}

// clear removes all entries.
func (r *remembered[V]) clear() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.entries)
}

// makeRoom removes the expired ones of a few entries, and at least one entry.
func (r *remembered[V]) makeRoom(now time.Time) {
	looked := 0
	for k, m := range r.entries {
		if looked == 0 || !now.Before(m.until) {
			delete(r.entries, k)
		}
		if looked++; looked == 16 {
			return
		}
	}
}
