package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/task"
)

func TestATokensLifetimeIsBounded(t *testing.T) {
	t.Parallel()
	s, cluster := setup(t)
	const year = 8760 * time.Hour
	create := func(expires task.Instant) (Token, error) {
		created, _, err := s.CreateTokenWithin(t.Context(), Token{Scopes: AdminScope, ExpiresAt: expires}, year)
		return created, err
	}
	created, err := create(task.Never)
	if lives := created.ExpiresAt.Sub(created.CreatedAt); err != nil || lives != year {
		t.Errorf("without an expiry: %v, lives %s", err, lives)
	}
	if got := count(t, cluster, fmt.Sprintf("token WHERE expires_at = %d", created.ExpiresAt)); got != everywhere(1) {
		t.Errorf("expiries by database: %v", got)
	}
	_, err = create(created.CreatedAt.Add(year + time.Hour))
	wantCode(t, err, task.InvalidArgument)
	if err == nil || !strings.Contains(err.Error(), "later than the maximum lifetime") {
		t.Error(err)
	}
	if _, err = create(created.CreatedAt.Add(time.Hour)); err != nil {
		t.Error(err)
	}
}

func TestATenantHasABoundedNumberOfTokens(t *testing.T) {
	t.Parallel()
	s, cluster := setup(t)
	tenant(t, s, "a")
	tenant(t, s, "b")
	in(t, cluster, 0, fmt.Sprintf(`INSERT INTO token (id, secret_hash, scopes, tenant_uid, description, created_at)
		SELECT 'x' || i, decode(repeat('00', 32), 'hex'), 2, t.uid, '', 0 FROM generate_series(1, %d) i, tenant t WHERE t.name = 'a'`, maxTokens))
	_, _, err := s.CreateToken(t.Context(), Token{Scopes: TenantScope, Tenant: "a", ExpiresAt: task.Never})
	wantCode(t, err, task.FailedPrecondition)
	for _, other := range []Token{{Scopes: TenantScope, Tenant: "b"}, {Scopes: AdminScope}} {
		token(t, s, other)
	}
}

func TestScopesOfTheWrongKindAreRefused(t *testing.T) {
	t.Parallel()
	s, _ := setup(t)
	tenant(t, s, "a")
	for _, bad := range []Token{
		{Scopes: TenantScope}, {Scopes: AdminScope, Tenant: "a"}, {Scopes: AdminScope | TenantScope, Tenant: "a"}, {Scopes: 0, Tenant: "a"}, {Scopes: 1 << 20},
	} {
		bad.ExpiresAt = task.Never
		_, _, err := s.CreateToken(t.Context(), bad)
		wantCode(t, err, task.InvalidArgument)
	}
}

func TestARotatedTokenWorksUntilTheEndOfTheOverlap(t *testing.T) {
	t.Parallel()
	s, cluster := setup(t)
	owner := tenant(t, s, "a")
	old, oldSecret := token(t, s, Token{Scopes: TenantScope, Tenant: "a", Description: "worker"})
	next, replaced, secret, err := s.RotateToken(t.Context(), Rotation{
		ID: old.ID, Tenant: owner.ID, Overlap: time.Hour, ExpiresAt: task.Never, Lifetime: 24 * time.Hour,
	})
	if err != nil || next.ID == old.ID || next.Scopes != old.Scopes || next.Tenant != "a" || next.Description != "worker" ||
		next.ExpiresAt != next.CreatedAt.Add(24*time.Hour) || replaced.ID != old.ID {
		t.Fatalf("%+v, %+v, %v", next, replaced, err)
	}
	for _, x := range []string{oldSecret, secret} {
		if _, err := s.Authenticate(t.Context(), x); err != nil {
			t.Errorf("within the overlap: %v", err)
		}
	}
	if who, err := s.Authenticate(t.Context(), oldSecret); err != nil || who.Left <= 0 || who.Left > time.Hour {
		t.Errorf("the old one has %s left: %v", who.Left, err)
	}
	if got := count(t, cluster, fmt.Sprintf("token WHERE id = '%s' AND revoked_at = %d", old.ID, replaced.RevokedAt)); got != everywhere(1) {
		t.Errorf("revocations by database: %v", got)
	}
	for d := range task.Databases { // the overlap ends
		in(t, cluster, d, "UPDATE token SET revoked_at = now_ms() WHERE id = '"+old.ID+"'")
	}
	_, err = s.Authenticate(t.Context(), oldSecret)
	wantCode(t, err, task.NotFound)
	if _, err := s.Authenticate(t.Context(), secret); err != nil {
		t.Errorf("the successor after the overlap: %v", err)
	}
	_, _, _, err = s.RotateToken(t.Context(), Rotation{ID: old.ID, ExpiresAt: task.Never})
	wantCode(t, err, task.FailedPrecondition)
}

func TestATokenOfAnotherTenantIsUnknown(t *testing.T) {
	t.Parallel()
	s, cluster := setup(t)
	tenant(t, s, "a")
	other := tenant(t, s, "b")
	mine, _ := token(t, s, Token{Scopes: TenantScope, Tenant: "a"})
	admin, _ := token(t, s, Token{Scopes: AdminScope})
	for _, id := range []string{mine.ID, admin.ID} {
		_, err := s.RevokeToken(t.Context(), id, other.ID)
		wantCode(t, err, task.NotFound)
		_, _, _, err = s.RotateToken(t.Context(), Rotation{ID: id, Tenant: other.ID, ExpiresAt: task.Never})
		wantCode(t, err, task.NotFound)
	}
	if got := count(t, cluster, "token WHERE revoked_at IS NULL"); got != everywhere(2) {
		t.Errorf("tokens by database: %v", got)
	}
}

func TestEveryFaultOfASecretHasItsReasonAndOneText(t *testing.T) {
	t.Parallel()
	s, cluster := setup(t)
	tenant(t, s, "a")
	good, secret := token(t, s, Token{Scopes: TenantScope, Tenant: "a"})
	gone, goneSecret := token(t, s, Token{Scopes: AdminScope})
	old, oldSecret := token(t, s, Token{Scopes: AdminScope})
	for d := range task.Databases {
		in(t, cluster, d, "UPDATE token SET revoked_at = now_ms() WHERE id = '"+gone.ID+"'; UPDATE token SET expires_at = now_ms() WHERE id = '"+old.ID+"'")
	}
	for want, x := range map[Refusal]string{
		Malformed: "pct_x", Unknown: "pct_aaaaaaaaaaaa" + secret[len(good.ID):], WrongSecret: good.ID + goneSecret[len(gone.ID):],
		Revoked: goneSecret, Expired: oldSecret,
	} {
		_, err := s.Authenticate(t.Context(), x)
		wantCode(t, err, task.NotFound)
		var why interface{ Refusal() string }
		if !errors.As(err, &why) || why.Refusal() != string(want) || strings.Contains(err.Error(), string(want)) {
			t.Errorf("%s: %v, %v", want, why, err)
		}
	}
}

func TestUsesAreStoredTogetherAndDoNotMakeDatabasesDiffer(t *testing.T) {
	t.Parallel()
	s, cluster := setup(t)
	first, secret := token(t, s, Token{Scopes: AdminScope})
	unused, _ := token(t, s, Token{Scopes: AdminScope})
	for range 3 {
		if _, err := s.Authenticate(t.Context(), secret); err != nil {
			t.Fatal(err)
		}
	}
	if got := count(t, cluster, "token_use"); got != everywhere(0) {
		t.Errorf("a login has written: %v", got)
	}
	if err := s.recordUses(t.Context()); err != nil {
		t.Fatal(err)
	}
	tokens, err := s.Tokens(t.Context(), "", "", 10)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range tokens {
		age := time.Since(x.LastUsedAt.Time())
		if used := x.LastUsedAt != task.Never; used != (x.ID == first.ID) || used && (age < -time.Second || age > time.Minute) {
			t.Errorf("%s, the unused one is %s: last used at %s", x.ID, unused.ID, x.LastUsedAt)
		}
	}
	if differ, err := s.Compare(t.Context()); differ || err != nil {
		t.Errorf("databases differ: %v, %v", differ, err)
	}
	for i := range maxUses + 10 {
		s.uses.note(fmt.Sprint(i), time.Now())
	}
	if n := len(s.uses.take()); n != maxUses {
		t.Errorf("%d uses are kept in memory, at most %d are allowed", n, maxUses)
	}
}

func TestTokensThatExpiredLongAgoArePurged(t *testing.T) {
	t.Parallel()
	s, cluster := setup(t)
	var ids []string
	for range 3 {
		x, _ := token(t, s, Token{Scopes: AdminScope, ExpiresAt: task.At(time.Now().Add(time.Hour))})
		ids = append(ids, x.ID)
	}
	for d := range task.Databases {
		in(t, cluster, d, fmt.Sprintf(`UPDATE token SET expires_at = now_ms() - %d WHERE id = '%s'; UPDATE token SET expires_at = now_ms() - 1 WHERE id = '%s';
			UPDATE token SET revoked_at = 1 WHERE id = '%s'`, (expiredKept+time.Minute).Milliseconds(), ids[0], ids[1], ids[2]))
	}
	if err := s.purgeTokens(t.Context()); err != nil {
		t.Fatal(err)
	}
	left, err := s.Tokens(t.Context(), "", "", 10)
	if err != nil || len(left) != 2 || slices.ContainsFunc(left, func(x Token) bool { return x.ID == ids[0] }) {
		t.Errorf("%+v, %v", left, err)
	}
	if got := count(t, cluster, "token"); got != everywhere(2) {
		t.Errorf("tokens by database: %v", got)
	}
}

func TestEveryProcessLearnsOfARevocation(t *testing.T) {
	t.Parallel()
	s, cluster := setup(t)
	other := New(cluster, nil)
	victim, _ := token(t, s, Token{Scopes: AdminScope})
	waiting, _ := token(t, s, Token{Scopes: AdminScope})
	earlier, _ := token(t, s, Token{Scopes: AdminScope})
	if _, err := s.RevokeToken(t.Context(), victim.ID, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := s.revokeIn(t.Context(), waiting.ID, 0, time.Hour); err != nil {
		t.Fatal(err)
	}
	for d := range task.Databases {
		in(t, cluster, d, "UPDATE token SET revoked_at = now_ms() - 60000 WHERE id = '"+earlier.ID+"'")
	}
	ids, all, err := other.Revoked(t.Context())
	if err != nil || all || !slices.Equal(ids, []string{victim.ID}) {
		t.Errorf("%v, %v, %v", ids, all, err)
	}
}

func TestARevokedTokenIsRefusedByEveryClock(t *testing.T) {
	t.Parallel()
	s, cluster := setup(t)
	set := func(by time.Duration) {
		t.Helper()
		for d := range task.Databases {
			in(t, cluster, d, fmt.Sprintf(`CREATE OR REPLACE FUNCTION now_ms() RETURNS int8 LANGUAGE sql STABLE
				AS $$ SELECT floor(date_part('epoch', statement_timestamp()) * 1000)::int8 + %d $$`, by.Milliseconds()))
		}
	}
	revoked, secret := token(t, s, Token{Scopes: AdminScope})
	replaced, replacedSecret := token(t, s, Token{Scopes: AdminScope})
	if _, _, _, err := s.RotateToken(t.Context(), Rotation{ID: replaced.ID, Overlap: time.Hour, ExpiresAt: task.Never}); err != nil {
		t.Fatal(err)
	}
	first, err := s.RevokeToken(t.Context(), revoked.ID, 0)
	if took := first.RevokedAt.Sub(revoked.CreatedAt); err != nil || took < 0 || took > time.Minute {
		t.Fatalf("revoked %s after its creation: %v", took, err)
	}
	if _, err := s.RevokeToken(t.Context(), replaced.ID, 0); err != nil { // within the overlap
		t.Fatal(err)
	}
	for _, by := range []time.Duration{-24 * time.Hour, 0, 24 * time.Hour} {
		set(by)
		for _, x := range []string{secret, replacedSecret} {
			if _, err := s.Authenticate(t.Context(), x); task.CodeOf(err) != task.NotFound {
				t.Errorf("clock set by %s: a revoked token is accepted: %v", by, err)
			}
		}
		if ids, _, err := s.Revoked(t.Context()); by <= 0 && (err != nil || len(ids) != 2) {
			t.Errorf("clock set by %s: caches are told of %v, %v", by, ids, err)
		}
		if again, err := s.RevokeToken(t.Context(), revoked.ID, 0); err != nil || again.RevokedAt != first.RevokedAt {
			t.Errorf("clock set by %s: revoked again at %s: %v", by, again.RevokedAt, err)
		}
	}
}

func TestARotationThatCannotBeMadeLeavesTheOldToken(t *testing.T) {
	t.Parallel()
	s, cluster := setup(t)
	old, secret := token(t, s, Token{Scopes: AdminScope})
	// Database 0 stores the successor and refuses the revocation.
	in(t, cluster, 0, `CREATE FUNCTION `+store.SchemaName(0)+`.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF new.id = '`+old.ID+`' THEN RAISE EXCEPTION 'no' USING ERRCODE = '57014'; END IF; RETURN new; END $$;
		CREATE TRIGGER refuse BEFORE UPDATE ON `+store.SchemaName(0)+`.token FOR EACH ROW EXECUTE FUNCTION `+store.SchemaName(0)+`.refuse()`)
	_, _, got, err := s.RotateToken(context.Background(), Rotation{ID: old.ID, Overlap: 0, ExpiresAt: task.Never})
	wantCode(t, err, task.Unavailable)
	if got != "" {
		t.Error("somebody got the secret of the successor")
	}
	if _, err := s.Authenticate(t.Context(), secret); err != nil {
		t.Errorf("the old token: %v", err)
	}
	if got := count(t, cluster, "token WHERE revoked_at IS NULL"); got != everywhere(1) {
		t.Errorf("living tokens by database: %v", got)
	}
}
