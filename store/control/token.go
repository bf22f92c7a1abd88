package control

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/perceptor/perceptor/store/control/sql"
	"github.com/perceptor/perceptor/task"
)

const (
	tokenPrefix = "pct_"
	idChars     = 12
	secretBytes = 32
	secretChars = 43
)

// storedToken is a row of the table.
type storedToken struct {
	Token
	hash   []byte
	tenant *string // the UID
}

// newSecret draws a token's id and its secret, which begins with it.
func newSecret() (id, secret string) {
	id = tokenPrefix + strings.ToLower(rand.Text()[:idChars])
	var random [secretBytes]byte
	rand.Read(random[:]) //nolint:errcheck // never fails
	return id, id + "_" + base64.RawURLEncoding.EncodeToString(random[:])
}

// idOf returns the id that a secret begins with, or "" if the secret has another form.
func idOf(secret string) string {
	const idLen = len(tokenPrefix) + idChars
	if len(secret) != idLen+1+secretChars || !strings.HasPrefix(secret, tokenPrefix) || secret[idLen] != '_' {
		return ""
	}
	for _, c := range []byte(secret) {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == '-':
		default:
			return ""
		}
	}
	return secret[:idLen]
}

// CreateToken stores a token and returns it with its secret; ID and CreatedAt
// are filled in. Errors: [task.NotFound] when there is no such tenant;
// [task.InvalidArgument] when the expiry has passed, by the clock of database 0;
// [task.Unavailable] when a database is away: nobody gets the secret then, so
// what was stored is revoked.
func (s *Store) CreateToken(ctx context.Context, t Token) (Token, string, error) {
	id, secret := newSecret()
	hash := sha256.Sum256([]byte(secret))
	t.ID, t.RevokedAt = id, task.Never
	row := storedToken{Token: t, hash: hash[:]}
	known := copies{}
	if t.Scope == TenantScope {
		known = s.copiesOf(ctx, t.Tenant)
	}
	err := s.decide(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if err := known.putBack(ctx, tx); err != nil {
			return err
		}
		return row.insert(ctx, tx)
	})
	if err != nil {
		return Token{}, "", err
	}
	put := func(ctx context.Context, _ int, tx pgx.Tx) error { return putTokens(ctx, tx, []storedToken{row}) }
	if err := s.copyOut(ctx, "the token was not created", put); err != nil {
		if _, err := s.RevokeToken(context.WithoutCancel(ctx), id); err != nil {
			s.log.Warn("token whose creation failed cannot be revoked", "token", id, "err", err)
		}
		return Token{}, "", task.Errorf(task.ReasonDatabaseUnavailable,
			"the token was not created: not all databases answer; try again").CausedBy(errors.Unwrap(err))
	}
	return row.Token, secret, nil
}

// insert stores a new token in the database that decides.
func (t *storedToken) insert(ctx context.Context, tx pgx.Tx) error {
	err := sql.NewToken.QueryRow(ctx, tx, t.ID, t.hash, int16(t.Scope), t.Tenant, t.Description, nullable(t.ExpiresAt)).
		Scan(&t.tenant, &t.CreatedAt)
	if !errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	if t.Scope == TenantScope {
		rows, err := sql.TenantByName.Query(ctx, tx, t.Tenant)
		if err != nil {
			return err
		}
		if _, err = pgx.CollectExactlyOneRow(rows, scanTenant); errors.Is(err, pgx.ErrNoRows) {
			return noTenant()
		} else if err != nil {
			return err
		}
	}
	return &task.Error{Code: task.InvalidArgument, Message: "the token is not valid", Faults: []task.Fault{
		{Field: "token.expire_time", Message: t.ExpiresAt.String() + " has passed"},
	}}
}

// Tokens returns up to limit tokens whose id is after the given one, by id; only
// those of a tenant unless that is empty.
func (s *Store) Tokens(ctx context.Context, tenant, after string, limit int) ([]Token, error) {
	return read(ctx, s, func(ctx context.Context, pool *pgxpool.Pool) ([]Token, error) {
		stored, err := tokensAfter(ctx, pool, tenant, after, limit)
		tokens := make([]Token, len(stored))
		for i := range stored {
			tokens[i] = stored[i].Token
		}
		return tokens, err
	})
}

func tokensAfter(ctx context.Context, pool *pgxpool.Pool, tenant, after string, limit int) ([]storedToken, error) {
	rows, err := sql.TokensAfter.Query(ctx, pool, after, tenant, limit)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scanToken)
}

// RevokeToken ends a token and returns it; a revoked one stays as it is. Errors:
// [task.NotFound]; [task.Unavailable] when database 0 is away (nothing has
// changed) or others are (see the package comment).
func (s *Store) RevokeToken(ctx context.Context, id string) (Token, error) {
	var row storedToken
	revoke := func(ctx context.Context, tx pgx.Tx) error {
		rows, err := sql.RevokeToken.Query(ctx, tx, id)
		if err != nil {
			return err
		}
		row, err = pgx.CollectExactlyOneRow(rows, scanToken)
		if errors.Is(err, pgx.ErrNoRows) {
			return noToken()
		}
		return err
	}
	err := s.decide(ctx, revoke)
	if task.CodeOf(err) == task.NotFound && s.Sync(ctx) == nil { // database 0 may have lost it
		err = s.decide(ctx, revoke)
	}
	if err != nil {
		return Token{}, err
	}
	return row.Token, s.copyOut(ctx, "the token is revoked", func(ctx context.Context, _ int, tx pgx.Tx) error {
		return putTokens(ctx, tx, []storedToken{row})
	})
}

func scanToken(row pgx.CollectableRow) (storedToken, error) {
	var t storedToken
	var expires, revoked *int64
	var tenant *string
	err := row.Scan(&t.ID, &t.hash, (*int16)(&t.Scope), &t.tenant, &t.Description, &t.CreatedAt, &expires, &revoked, &tenant)
	t.ExpiresAt, t.RevokedAt = instant(expires), instant(revoked)
	if tenant != nil {
		t.Tenant = *tenant
	}
	return t, err
}

// putTokens inserts missing tokens and the revocations of others.
func putTokens(ctx context.Context, tx pgx.Tx, tokens []storedToken) error {
	n := len(tokens)
	ids, hashes, scopes := make([]string, n), make([][]byte, n), make([]int16, n)
	tenants, descriptions, created := make([]*string, n), make([]string, n), make([]int64, n)
	expires, revoked := make([]*int64, n), make([]*int64, n)
	for i, t := range tokens {
		ids[i], hashes[i], scopes[i], tenants[i], descriptions[i] = t.ID, t.hash, int16(t.Scope), t.tenant, t.Description
		created[i], expires[i], revoked[i] = int64(t.CreatedAt), nullable(t.ExpiresAt), nullable(t.RevokedAt)
	}
	_, err := sql.PutTokens.Exec(ctx, tx, ids, hashes, scopes, tenants, descriptions, created, expires, revoked)
	return err
}

// Authenticate returns the holder of a secret. It returns the same [task.NotFound] for
// every fault of the secret, and [task.Unavailable] if no database answers.
func (s *Store) Authenticate(ctx context.Context, secret string) (Identity, error) {
	id := idOf(secret)
	if id == "" {
		return Identity{}, noToken()
	}
	hash := sha256.Sum256([]byte(secret))
	return read(ctx, s, func(ctx context.Context, pool *pgxpool.Pool) (Identity, error) {
		who, stored, good, err := identityOf(ctx, pool, id)
		if errors.Is(err, pgx.ErrNoRows) {
			return Identity{}, noToken()
		}
		if err != nil {
			return Identity{}, err
		}
		if subtle.ConstantTimeCompare(stored, hash[:]) != 1 || !good || who.Tenant.Rates.Deleting {
			return Identity{}, noToken()
		}
		return who, nil
	})
}

// identityOf reads a token. good is true if it is neither revoked nor expired.
func identityOf(ctx context.Context, pool *pgxpool.Pool, id string) (who Identity, hash []byte, good bool, err error) {
	who.TokenID = id
	var tenantID *int32
	var uid, name *string
	var params *int
	var retention, created *int64
	var history *int16
	var version *int64
	var rates *task.Rates
	err = sql.Authenticate.QueryRow(ctx, pool, id).
		Scan(&hash, (*int16)(&who.Scope), &good, &tenantID, &uid, &name, &params, &retention, &created, &history, &rates, &version)
	if err != nil || who.Scope != TenantScope {
		return who, hash, good, err
	}
	if tenantID == nil {
		// The token was copied here before its tenant: not valid yet.
		return who, hash, false, nil
	}
	who.Tenant = Tenant{
		ID: *tenantID, UID: *uid, Name: *name, ParamsBytes: *params,
		Retention: time.Duration(*retention) * time.Millisecond, CreatedAt: task.Instant(*created),
		History: task.HistoryLevel(*history), Rates: *rates, Version: *version,
	}
	return who, hash, good, nil
}
