package oidc

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"golang.org/x/sync/singleflight"

	"github.com/perceptor/perceptor/internal/ctxtime"
)

const (
	// refreshEvery is the time between two reads of the keys by [Verifier.Run], and of the
	// document by a [Login].
	refreshEvery = 10 * time.Minute
	// refreshGap is the least time between two reads that tokens cause, and after a read of
	// the document that failed.
	refreshGap = 10 * time.Second
	// keepKeys is how long keys are used while the issuer does not answer.
	keepKeys       = time.Hour
	requestTimeout = 5 * time.Second
	maxAnswerBytes = 1 << 20
	minRSABits     = 2048
)

// keys are the issuer's keys.
type keys struct {
	c       *Config
	client  *http.Client
	flights singleflight.Group

	mu sync.Mutex
	// set is what was read at readAt. triedAt is when a read last ended.
	set             jose.JSONWebKeySet
	readAt, triedAt time.Time
}

func newKeys(c *Config) *keys {
	return &keys{c: c, client: limited(c.Client)}
}

// run reads the keys at once and every 10 minutes, or sooner while the issuer does not answer.
func (k *keys) run(ctx context.Context) error {
	for failing := false; ; {
		err := k.refresh(ctx)
		wait := refreshEvery
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			wait = refreshGap
			if !failing {
				k.c.Log.WarnContext(ctx, "keys of the issuer of tokens cannot be read; trying again", "err", err)
			}
		case failing:
			k.c.Log.InfoContext(ctx, "keys of the issuer of tokens can be read again")
		}
		failing = err != nil
		if !ctxtime.Sleep(ctx, wait) {
			return nil
		}
	}
}

// find returns the public key with an id for an algorithm. If it is unknown or too old, find
// asks the issuer, unless somebody has just done so.
func (k *keys) find(ctx context.Context, id string, a jose.SignatureAlgorithm) (any, error) {
	key, fresh, due := k.lookup(id, a)
	if key != nil && fresh {
		return key, nil
	}
	if due {
		if err := k.ask(ctx); err != nil {
			return nil, err
		}
		key, fresh, _ = k.lookup(id, a)
	}
	switch {
	case !fresh:
		return nil, ErrUnavailable
	case key == nil:
		return nil, UnknownKey
	}
	return key, nil
}

// replaced returns the key that an issuer has now instead of one that find returned and that has not signed a token, as keys
// may have no id or keep it; nil if there is none. It asks the issuer, unless somebody has just done so.
func (k *keys) replaced(ctx context.Context, id string, a jose.SignatureAlgorithm) any {
	if _, _, due := k.lookup(id, a); !due || k.ask(ctx) != nil {
		return nil
	}
	key, _, _ := k.lookup(id, a)
	return key
}

// ask reads the keys once for all who wait for them. Its error is that of the context.
func (k *keys) ask(ctx context.Context) error {
	done := k.flights.DoChan("", func() (any, error) { return nil, k.refresh(context.WithoutCancel(ctx)) })
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-done:
		return nil
	}
}

// lookup returns a key, or nil. fresh says that the keys are not too old to be used, due that
// the issuer may be asked again.
func (k *keys) lookup(id string, a jose.SignatureAlgorithm) (key any, fresh, due bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.c.Now()
	fresh = !k.readAt.IsZero() && now.Sub(k.readAt) < keepKeys
	due = k.triedAt.IsZero() || now.Sub(k.triedAt) >= refreshGap
	for _, candidate := range k.set.Keys {
		named := candidate.KeyID == id && (id != "" || len(k.set.Keys) == 1)
		if named && suits(&candidate, a) {
			return candidate.Key, fresh, due
		}
	}
	return nil, fresh, due
}

// suits reports whether a key is meant and fit for signatures by an algorithm.
func suits(k *jose.JSONWebKey, a jose.SignatureAlgorithm) bool {
	if k.Use != "" && k.Use != "sig" || k.Algorithm != "" && k.Algorithm != string(a) {
		return false
	}
	switch key := k.Key.(type) {
	case *rsa.PublicKey:
		return (strings.HasPrefix(string(a), "RS") || strings.HasPrefix(string(a), "PS")) && key.N.BitLen() >= minRSABits
	case *ecdsa.PublicKey:
		return strings.HasPrefix(string(a), "ES")
	case ed25519.PublicKey:
		return a == jose.EdDSA
	}
	return false // a secret, or a private key that was published by mistake
}

// refresh reads the keys.
func (k *keys) refresh(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	began := k.c.Now()
	set, err := k.read(ctx)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.triedAt = k.c.Now() // until then all who need a new key wait for it
	if err != nil {
		return err
	}
	k.set, k.readAt = set, began
	return nil
}

// read returns the keys that the issuer's discovery document names.
func (k *keys) read(ctx context.Context) (set jose.JSONWebKeySet, err error) {
	document, err := discover(ctx, k.client, k.c.Issuer)
	if err != nil {
		return set, err
	}
	if strings.HasPrefix(k.c.Issuer, "https://") && !strings.HasPrefix(document.Keys, "https://") {
		return set, fmt.Errorf("the keys of %s are at %q, which is not https", k.c.Issuer, document.Keys)
	}
	var published struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := get(ctx, k.client, document.Keys, &published); err != nil {
		return set, err
	}
	for _, text := range published.Keys {
		var key jose.JSONWebKey
		if json.Unmarshal(text, &key) == nil { // others are of types that this program does not know
			set.Keys = append(set.Keys, key)
		}
	}
	if len(set.Keys) == 0 {
		return set, fmt.Errorf("%s has no keys", document.Keys)
	}
	return set, nil
}
