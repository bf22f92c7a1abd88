package control

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/perceptor/perceptor/store/control/sql"
	"github.com/perceptor/perceptor/task"
)

// Refusal is why a secret was refused, for metrics and logs. Callers must not learn it, so
// the error of [Store.Authenticate] has it, but not in its text.
type Refusal string

// The refusals.
const (
	Malformed   Refusal = "malformed"
	Unknown     Refusal = "unknown"
	WrongSecret Refusal = "wrong_secret" // the id exists
	Expired     Refusal = "expired"
	Revoked     Refusal = "revoked"
	NoTenant    Refusal = "no_tenant" // it is being deleted, or not copied yet
)

// Err returns the error of [Store.Authenticate] for a secret that is refused.
func (r Refusal) Err() error { return &refused{noToken(), r} }

// refused is the error for a secret that is refused.
type refused struct {
	error
	why Refusal
}

func (r *refused) Unwrap() error { return r.error }

// Refusal returns why the secret was refused.
func (r *refused) Refusal() string { return string(r.why) }

// Authenticate returns the holder of a secret. It returns the same [task.NotFound] for
// every fault of the secret, with a method Refusal that tells the fault, and
// [task.Unavailable] if no database answers.
func (s *Store) Authenticate(ctx context.Context, secret string) (Identity, error) {
	id := idOf(secret)
	if id == "" {
		return Identity{}, Malformed.Err()
	}
	hash := sha256.Sum256([]byte(secret))
	who, err := read(ctx, s, func(ctx context.Context, pool *pgxpool.Pool) (Identity, error) {
		h, err := s.holderOf(ctx, pool, id)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			return Identity{}, Unknown.Err()
		case err != nil:
			return Identity{}, err
		}
		if refusal := h.check(hash[:]); refusal != "" {
			return Identity{}, refusal.Err()
		}
		return h.Identity, nil
	})
	if err == nil {
		s.uses.note(id, time.Now())
	}
	return who, err
}

// holder is what is stored about the holder of a secret.
type holder struct {
	Identity
	hash []byte
	// expiresIn and revokedIn are in ms; nil: never.
	expiresIn, revokedIn *int64
	ofTenant, hasTenant  bool
}

// check returns why the secret with the hash is refused, or "".
func (h *holder) check(hash []byte) Refusal {
	switch {
	case subtle.ConstantTimeCompare(h.hash, hash) != 1:
		return WrongSecret
	case h.revokedIn != nil && *h.revokedIn <= 0:
		return Revoked
	case h.expiresIn != nil && *h.expiresIn <= 0:
		return Expired
	case h.ofTenant && !h.hasTenant, h.Tenant.Rates.Deleting:
		return NoTenant
	}
	return ""
}

// holderOf reads a token and its tenant.
func (s *Store) holderOf(ctx context.Context, pool *pgxpool.Pool, id string) (h holder, err error) {
	h.TokenID = id
	var tenantID *int32
	var owner, uid, name *string
	var params *int
	var retention, created *int64
	var history *int16
	var version *int64
	var rates *task.Rates
	var keys *[]Key
	var now task.Instant
	asked := time.Now()
	err = sql.Authenticate.QueryRow(ctx, pool, id).Scan(&h.hash, (*int32)(&h.Scopes), &owner, &h.expiresIn, &h.revokedIn,
		&tenantID, &uid, &name, &params, &retention, &created, &history, &rates, &keys, &version, &now)
	s.clock.set(now, asked)
	h.ofTenant, h.hasTenant = owner != nil, tenantID != nil
	for _, ms := range []*int64{h.expiresIn, h.revokedIn} {
		if ms != nil && (h.Left == 0 || *ms < h.Left.Milliseconds()) {
			h.Left = time.Duration(*ms) * time.Millisecond
		}
	}
	if err != nil || !h.hasTenant {
		return h, err
	}
	h.Tenant = Tenant{
		ID: *tenantID, UID: *uid, Name: *name, ParamsBytes: *params,
		Retention: time.Duration(*retention) * time.Millisecond, CreatedAt: task.Instant(*created),
		History: task.HistoryLevel(*history), Rates: *rates, Keys: *keys, Version: *version,
	}
	return h, nil
}
