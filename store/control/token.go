package control

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/perceptor/perceptor/store/control/sql"
	"github.com/perceptor/perceptor/task"
)

// SecretPrefix begins the secret and the id of every token.
const SecretPrefix = "pct_"

const (
	idChars     = 12
	secretBytes = 32
	secretChars = 43
	// maxTokens is the most stored tokens of a tenant, and of the installation.
	maxTokens = 2000
	// expiredKept is how long expired tokens are kept.
	expiredKept = 30 * 24 * time.Hour
)

// storedToken is a row of the table.
type storedToken struct {
	Token
	hash   []byte
	tenant *string // the UID
	// revoked is RevokedAt as it is stored: see the package comment. nil: the token is not revoked.
	revoked *int64
}

// newSecret draws a token's id and its secret, which begins with it.
func newSecret() (id, secret string) {
	id = SecretPrefix + strings.ToLower(rand.Text()[:idChars])
	var random [secretBytes]byte
	rand.Read(random[:]) //nolint:errcheck // never fails
	return id, id + "_" + base64.RawURLEncoding.EncodeToString(random[:])
}

// HasForm reports whether a secret has the form of one, which all that [Store.CreateToken] returns have.
func HasForm(secret string) bool { return idOf(secret) != "" }

// idOf returns the id that a secret begins with, or "" if the secret has another form.
func idOf(secret string) string {
	const idLen = len(SecretPrefix) + idChars
	if len(secret) != idLen+1+secretChars || !strings.HasPrefix(secret, SecretPrefix) || secret[idLen] != '_' {
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
// are filled in. Errors: [task.NotFound] when there is no such tenant, or it is being deleted;
// [task.InvalidArgument] when the expiry has passed, by the clock of database 0;
// [task.FailedPrecondition] when the tenant, or the installation, has too many tokens;
// [task.Unavailable] when a database is away: nobody gets the secret then, so
// what was stored is revoked.
func (s *Store) CreateToken(ctx context.Context, t Token) (Token, string, error) {
	return s.CreateTokenWithin(ctx, t, 0)
}

// CreateTokenWithin is [Store.CreateToken] with a bound on the lifetime: a token without an
// expiry gets one, and a later expiry is [task.InvalidArgument]. 0: no bound.
func (s *Store) CreateTokenWithin(ctx context.Context, t Token, lifetime time.Duration) (Token, string, error) {
	id, secret := newSecret()
	hash := sha256.Sum256([]byte(secret))
	t.ID, t.RevokedAt, t.LastUsedAt = id, task.Never, task.Never
	row := storedToken{Token: t, hash: hash[:]}
	known := copies{}
	if t.Tenant != "" {
		known = s.copiesOf(ctx, t.Tenant)
	}
	if err := known.deleting(); err != nil {
		return Token{}, "", err
	}
	err := s.decide(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if err := known.putBack(ctx, tx); err != nil {
			return err
		}
		return row.insert(ctx, tx, lifetime)
	})
	if err != nil {
		return Token{}, "", err
	}
	put := func(ctx context.Context, _ int, tx pgx.Tx) error { return putTokens(ctx, tx, []storedToken{row}) }
	if err := s.copyOut(ctx, "the token was not created", put); err != nil {
		s.withdraw(ctx, id)
		return Token{}, "", task.Errorf(task.ReasonDatabaseUnavailable,
			"the token was not created: not all databases answer; try again").CausedBy(errors.Unwrap(err))
	}
	return row.Token, secret, nil
}

// withdraw revokes a token whose secret nobody gets.
func (s *Store) withdraw(ctx context.Context, id string) {
	if _, err := s.RevokeToken(context.WithoutCancel(ctx), id, 0); err != nil {
		s.log.Warn("token whose creation failed cannot be revoked", "token", id, "err", err)
	}
}

// insert stores a new token in the database that decides.
func (t *storedToken) insert(ctx context.Context, tx pgx.Tx, lifetime time.Duration) error {
	var most, expires *int64
	if lifetime > 0 {
		ms := lifetime.Milliseconds()
		most = &ms
	}
	err := sql.NewToken.QueryRow(ctx, tx, t.ID, t.hash, int32(t.Scopes), t.Tenant, t.Description, nullable(t.ExpiresAt), most, maxTokens).
		Scan(&t.tenant, &t.CreatedAt, &expires)
	if errors.Is(err, pgx.ErrNoRows) {
		return t.refused(ctx, tx, lifetime)
	}
	t.ExpiresAt = instant(expires)
	return err
}

// refused returns why the token was not stored.
func (t *storedToken) refused(ctx context.Context, tx pgx.Tx, lifetime time.Duration) error {
	var exists, passed bool
	var tokens int
	if err := sql.WhyNoToken.QueryRow(ctx, tx, t.Tenant, nullable(t.ExpiresAt)).Scan(&exists, &tokens, &passed); err != nil {
		return err
	}
	message := fmt.Sprintf("%s is later than the maximum lifetime of %s allows", t.ExpiresAt, lifetime)
	switch {
	case !exists:
		return noTenant(t.Tenant)
	case tokens >= maxTokens:
		return task.Errorf(task.ReasonTooManyTokens,
			"there are %d tokens already; revoked ones count until %d days after their expiry", tokens, expiredKept/(24*time.Hour))
	case passed:
		message = t.ExpiresAt.String() + " has passed"
	}
	return &task.Error{Code: task.InvalidArgument, Message: "the token is not valid", Faults: []task.Fault{
		{Field: "token.expire_time", Message: message},
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

// RevokeToken ends a token and returns it; a revoked one stays as it is. A tenant other than
// 0 must be the token's. Errors: [task.NotFound]; [task.Unavailable] when database 0 is away
// (nothing has changed) or others are (see the package comment).
func (s *Store) RevokeToken(ctx context.Context, id string, tenant int32) (Token, error) {
	return s.revokeIn(ctx, id, tenant, 0)
}

// revokeIn ends a token after a delay. If it returns a token with an error, the revocation is
// decided and will be completed.
func (s *Store) revokeIn(ctx context.Context, id string, tenant int32, delay time.Duration) (Token, error) {
	var row storedToken
	revoke := func(ctx context.Context, tx pgx.Tx) error {
		rows, err := sql.RevokeToken.Query(ctx, tx, id, tenant, delay.Milliseconds())
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

// Rotation says how [Store.RotateToken] replaces a token.
type Rotation struct {
	ID string
	// Tenant must be the token's, unless it is 0.
	Tenant int32
	// Overlap is how long the replaced token still works.
	Overlap time.Duration
	// ExpiresAt is the expiry of the successor, or [task.Never].
	ExpiresAt task.Instant
	// Lifetime bounds the successor's lifetime; 0: no bound.
	Lifetime time.Duration
}

// RotateToken creates a token with the scopes, the tenant and the description of another
// one, which is revoked after the overlap. Errors: those of [Store.CreateToken], with
// [task.NotFound] for an unknown token; [task.FailedPrecondition] for one that has ended. After
// an error the other token stays as it is.
func (s *Store) RotateToken(ctx context.Context, r Rotation) (successor, replaced Token, secret string, err error) {
	old, err := s.living(ctx, r.ID, r.Tenant)
	if err != nil {
		return Token{}, Token{}, "", err
	}
	successor, secret, err = s.CreateTokenWithin(ctx, Token{
		Scopes: old.Scopes, Tenant: old.Tenant, Description: old.Description, ExpiresAt: r.ExpiresAt,
	}, r.Lifetime)
	if err != nil {
		return Token{}, Token{}, "", err
	}
	replaced, err = s.revokeIn(ctx, r.ID, r.Tenant, r.Overlap)
	if err != nil && replaced.ID == "" {
		s.withdraw(ctx, successor.ID)
		return Token{}, Token{}, "", err
	}
	return successor, replaced, secret, nil
}

// living returns a token that has not ended.
func (s *Store) living(ctx context.Context, id string, tenant int32) (Token, error) {
	return read(ctx, s, func(ctx context.Context, pool *pgxpool.Pool) (Token, error) {
		rows, err := sql.TokenByID.Query(ctx, pool, id, tenant)
		if err != nil {
			return Token{}, err
		}
		var ended bool
		t, err := pgx.CollectExactlyOneRow(rows, func(row pgx.CollectableRow) (storedToken, error) { return scanTokenAfter(row, &ended) })
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			return Token{}, noToken()
		case err == nil && ended:
			return Token{}, task.Errorf(task.ReasonTokenEnded, "the token is revoked or has expired")
		}
		return t.Token, err
	})
}

func scanToken(row pgx.CollectableRow) (storedToken, error) { return scanTokenAfter(row) }

// scanTokenAfter scans columns that precede those of the token, and these.
func scanTokenAfter(row pgx.CollectableRow, before ...any) (storedToken, error) {
	var t storedToken
	var expires, used *int64
	var tenant *string
	err := row.Scan(append(before, &t.ID, &t.hash, (*int32)(&t.Scopes), &t.tenant, &t.Description, &t.CreatedAt, &expires, &t.revoked, &tenant, &used)...)
	t.ExpiresAt, t.RevokedAt, t.LastUsedAt = instant(expires), instant(t.revoked), instant(used)
	if t.RevokedAt < 0 {
		t.RevokedAt = -t.RevokedAt
	}
	if tenant != nil {
		t.Tenant = *tenant
	}
	return t, err
}

// putTokens inserts missing tokens and the revocations of others.
func putTokens(ctx context.Context, tx pgx.Tx, tokens []storedToken) error {
	n := len(tokens)
	ids, hashes, scopes := make([]string, n), make([][]byte, n), make([]int32, n)
	tenants, descriptions, created := make([]*string, n), make([]string, n), make([]int64, n)
	expires, revoked := make([]*int64, n), make([]*int64, n)
	for i, t := range tokens {
		ids[i], hashes[i], scopes[i], tenants[i], descriptions[i] = t.ID, t.hash, int32(t.Scopes), t.tenant, t.Description
		created[i], expires[i], revoked[i] = int64(t.CreatedAt), nullable(t.ExpiresAt), t.revoked
	}
	_, err := sql.PutTokens.Exec(ctx, tx, ids, hashes, scopes, tenants, descriptions, created, expires, revoked)
	return err
}
