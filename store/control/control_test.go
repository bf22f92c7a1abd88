package control

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/internal/testenv"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/task"
)

func TestMain(m *testing.M) { testenv.MainWithoutLeaks(m) }

func open(t *testing.T, servers ...store.Server) (*Store, *store.Cluster) {
	t.Helper()
	cluster, err := store.Open(t.Context(), store.Config{Servers: servers, MaxConns: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	return New(cluster, nil), cluster
}

func setup(t *testing.T) (*Store, *store.Cluster) {
	t.Helper()
	s, cluster := open(t, store.Server{DSN: testenv.Database(t)})
	createTables(t, cluster)
	return s, cluster
}

// createTables makes what this package needs of the schema, and no more: that
// takes a hundredth of the time.
func createTables(t *testing.T, c *store.Cluster) {
	t.Helper()
	clock := part(t, "00001_tasks.sql", `(?s)CREATE FUNCTION now_ms.*?\$\$;`)
	identity := part(t, "00001_tasks.sql", `(?s)CREATE TABLE database_identity .*?FROM server_identity\(\) s;`)
	tables := part(t, "00002_control.sql", `(?s)-- \+goose Up(.*)-- \+goose Down`)
	bulk := part(t, "00005_bulk.sql", `(?s)-- \+goose Up(.*)-- \+goose Down`)
	owner := "CREATE TABLE owner (item int2, epoch int8, nonce int8, name text, hint_addr text, hint_key bytea);"
	for d := range task.Databases {
		in(t, c, d, "CREATE SCHEMA "+store.SchemaName(d)+";"+clock+identity+owner+tables+bulk)
	}
}

// part returns the first match in a migration.
func part(t *testing.T, file, pattern string) string {
	t.Helper()
	text, err := os.ReadFile("../../migrations/sql/" + file)
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(pattern).Find(text)
	if found == nil {
		t.Fatalf("%s has nothing like %s", file, pattern)
	}
	return string(found)
}

func tenant(t *testing.T, s *Store, name string) Tenant {
	t.Helper()
	created, err := s.CreateTenant(t.Context(), Tenant{Name: name, ParamsBytes: 100, Retention: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	return created
}

func token(t *testing.T, s *Store, want Token) (Token, string) {
	t.Helper()
	if want.ExpiresAt == 0 {
		want.ExpiresAt = task.Never
	}
	created, secret, err := s.CreateToken(t.Context(), want)
	if err != nil {
		t.Fatal(err)
	}
	return created, secret
}

func wantCode(t *testing.T, err error, want task.ErrorCode) {
	t.Helper()
	if err == nil || task.CodeOf(err) != want {
		t.Errorf("got the error %v with code %d, want code %d", err, task.CodeOf(err), want)
	}
}

// in runs a statement in one database.
func in(t *testing.T, c *store.Cluster, d int, sql string) {
	t.Helper()
	if _, err := c.Pool(d).Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
}

// count counts rows in every database.
func count(t *testing.T, c *store.Cluster, from string) (counts [task.Databases]int) {
	t.Helper()
	for d := range counts {
		if err := c.Pool(d).QueryRow(t.Context(), "SELECT count(*) FROM "+from).Scan(&counts[d]); err != nil {
			t.Fatal(err)
		}
	}
	return counts
}

func everywhere(n int) (counts [task.Databases]int) {
	for d := range counts {
		counts[d] = n
	}
	return counts
}

func TestTenantsAreInEveryDatabaseUnderDenseIDs(t *testing.T) {
	s, cluster := setup(t)
	for i, name := range []string{"b", "a", "c"} {
		created := tenant(t, s, name)
		if created.ID != int32(i+1) || created.CreatedAt <= 0 {
			t.Errorf("tenant %s: got id %d created at %s", name, created.ID, created.CreatedAt)
		}
	}
	if got := count(t, cluster, "tenant WHERE max_params_bytes = 100 AND default_retention_ms = 60000"); got != everywhere(3) {
		t.Errorf("rows by database: %v", got)
	}
	got, err := s.Tenant(t.Context(), "a")
	if err != nil || got.ID != 2 || got.Retention != time.Minute || got.ParamsBytes != 100 {
		t.Errorf("got %+v, %v", got, err)
	}
	if byID, err := s.TenantByID(t.Context(), 2); err != nil || !reflect.DeepEqual(byID, got) {
		t.Errorf("by id: got %+v, %v", byID, err)
	}
	page, err := s.Tenants(t.Context(), "a", 1)
	if err != nil || len(page) != 1 || page[0].Name != "b" {
		t.Errorf("the page after a: got %+v, %v", page, err)
	}
}

func TestTenantsCreatedAtTheSameTimeHaveDifferentIDs(t *testing.T) {
	s, cluster := setup(t)
	errs := make(chan error)
	for i := range 4 {
		go func() {
			var err error
			for range 50 { // Unavailable: the others were faster for as long as a lock is waited for
				_, err = s.CreateTenant(t.Context(), Tenant{Name: fmt.Sprint("t", i), ParamsBytes: 1})
				if err == nil || task.CodeOf(err) != task.Unavailable {
					break
				}
			}
			errs <- err
		}()
	}
	for range 4 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if got := count(t, cluster, "tenant"); got != everywhere(4) {
		t.Errorf("rows by database: %v", got)
	}
}

func TestATakenTenantNameIsRefused(t *testing.T) {
	s, _ := setup(t)
	tenant(t, s, "a")
	_, err := s.CreateTenant(t.Context(), Tenant{Name: "a", ParamsBytes: 1})
	wantCode(t, err, task.AlreadyExists)
}

func TestUnknownTenantIsNotFound(t *testing.T) {
	s, _ := setup(t)
	_, err := s.Tenant(t.Context(), "a")
	wantCode(t, err, task.NotFound)
	if !strings.Contains(err.Error(), "no such tenant: a") {
		t.Errorf("the error does not name the tenant: %v", err)
	}
	_, _, err = s.CreateToken(t.Context(), Token{Scopes: TenantScope, Tenant: "a", ExpiresAt: task.Never})
	wantCode(t, err, task.NotFound)
	_, err = s.RevokeToken(t.Context(), "pct_nothing", 0)
	wantCode(t, err, task.NotFound)
}

func TestSecretTellsWhoCalls(t *testing.T) {
	s, cluster := setup(t)
	owner := tenant(t, s, "a")
	created, secret := token(t, s, Token{Scopes: TenantScope, Tenant: "a", Description: "test"})
	if !strings.HasPrefix(secret, created.ID+"_") || len(secret) != len(created.ID)+44 {
		t.Errorf("the secret of %s has %d characters", created.ID, len(secret))
	}
	who, err := s.Authenticate(t.Context(), secret)
	if err != nil || who.TokenID != created.ID || who.Scopes != TenantScope || !reflect.DeepEqual(who.Tenant, owner) {
		t.Errorf("got %+v, %v", who, err)
	}
	_, admin := token(t, s, Token{Scopes: AdminScope})
	who, err = s.Authenticate(t.Context(), admin)
	if err != nil || who.Scopes != AdminScope || who.Tenant.ID != 0 {
		t.Errorf("admin: got %+v, %v", who, err)
	}
	// Only the hash is stored.
	hash := sha256.Sum256([]byte(secret))
	where := fmt.Sprintf("token WHERE secret_hash = '\\x%x'", hash)
	if got := count(t, cluster, where); got != everywhere(1) {
		t.Errorf("hashes by database: %v", got)
	}
	if got := count(t, cluster, "token t WHERE t::text LIKE '%"+secret[len(created.ID):]+"%'"); got != everywhere(0) {
		t.Errorf("secrets by database: %v", got)
	}
}

func TestBadSecretsAreAnsweredAlike(t *testing.T) {
	s, cluster := setup(t)
	tenant(t, s, "a")
	good, secret := token(t, s, Token{Scopes: TenantScope, Tenant: "a"})
	revoked, revokedSecret := token(t, s, Token{Scopes: AdminScope})
	if _, err := s.RevokeToken(t.Context(), revoked.ID, 0); err != nil {
		t.Fatal(err)
	}
	expired, expiredSecret := token(t, s, Token{Scopes: AdminScope, ExpiresAt: task.At(time.Now().Add(time.Hour))})
	for d := range task.Databases {
		in(t, cluster, d, "UPDATE token SET expires_at = now_ms() WHERE id = '"+expired.ID+"'")
	}
	last := "A"
	if strings.HasSuffix(secret, last) {
		last = "B"
	}
	var first string
	for name, bad := range map[string]string{
		"empty":          "",
		"garbage":        strings.Repeat("x", len(secret)),
		"with NUL":       secret[:len(secret)-1] + "\x00",
		"not UTF-8":      secret[:len(secret)-1] + "\xff",
		"id alone":       good.ID,
		"last char":      secret[:len(secret)-1] + last,
		"unknown id":     "pct_aaaaaaaaaaaa" + secret[len(good.ID):],
		"another's rest": revoked.ID + secret[len(good.ID):],
		"revoked":        revokedSecret,
		"expired":        expiredSecret,
	} {
		_, err := s.Authenticate(t.Context(), bad)
		wantCode(t, err, task.NotFound)
		if first == "" {
			first = err.Error()
		}
		if err == nil || err.Error() != first {
			t.Errorf("%s: got %q, others get %q", name, err, first)
		}
	}
	if _, err := s.Authenticate(t.Context(), secret); err != nil {
		t.Errorf("the good one: %v", err)
	}
}

func TestAnExpiryInThePastIsRefused(t *testing.T) {
	s, cluster := setup(t)
	_, _, err := s.CreateToken(t.Context(), Token{Scopes: AdminScope, ExpiresAt: 1000})
	wantCode(t, err, task.InvalidArgument)
	if !strings.Contains(err.Error(), "token.expire_time: 1970-01-01T00:00:01.000Z has passed") {
		t.Error(err)
	}
	if got := count(t, cluster, "token"); got != everywhere(0) {
		t.Errorf("tokens by database: %v", got)
	}
}

func TestTokensAreListedByTenant(t *testing.T) {
	s, _ := setup(t)
	tenant(t, s, "a")
	tenant(t, s, "b")
	mine, _ := token(t, s, Token{Scopes: TenantScope, Tenant: "a", Description: "x"})
	token(t, s, Token{Scopes: TenantScope, Tenant: "b"})
	token(t, s, Token{Scopes: AdminScope})
	got, err := s.Tokens(t.Context(), "a", "", 10)
	if err != nil || len(got) != 1 || got[0] != mine {
		t.Errorf("got %+v, %v; want %+v", got, err, mine)
	}
	all, err := s.Tokens(t.Context(), "", "", 10)
	if err != nil || len(all) != 3 {
		t.Fatalf("got %+v, %v", all, err)
	}
	rest, err := s.Tokens(t.Context(), "", all[0].ID, 1)
	if err != nil || len(rest) != 1 || rest[0] != all[1] {
		t.Errorf("the page after the first: got %+v, %v", rest, err)
	}
}

func TestARevokedTokenStaysAsItWasRevokedFirst(t *testing.T) {
	s, cluster := setup(t)
	created, _ := token(t, s, Token{Scopes: AdminScope})
	first, err := s.RevokeToken(t.Context(), created.ID, 0)
	if err != nil || first.RevokedAt == task.Never {
		t.Fatalf("got %+v, %v", first, err)
	}
	version := func() (v string) {
		if err := cluster.Pool(0).QueryRow(t.Context(), "SELECT xmin::text FROM token WHERE id = $1", created.ID).Scan(&v); err != nil {
			t.Fatal(err)
		}
		return v
	}
	before := version()
	again, err := s.RevokeToken(t.Context(), created.ID, 0)
	if err != nil || again != first {
		t.Errorf("got %+v, %v; want %+v", again, err, first)
	}
	if version() != before {
		t.Error("a token that is revoked already was written again")
	}
	if got := count(t, cluster, fmt.Sprintf("token WHERE revoked_at = %d", -first.RevokedAt)); got != everywhere(1) {
		t.Errorf("revocations by database: %v", got)
	}
}

func TestSyncMakesAllDatabasesTheUnion(t *testing.T) {
	s, cluster := setup(t)
	tenant(t, s, "a")
	tenant(t, s, "b")
	one, secret := token(t, s, Token{Scopes: TenantScope, Tenant: "a"})
	token(t, s, Token{Scopes: TenantScope, Tenant: "b"})
	if _, err := s.RevokeToken(t.Context(), one.ID, 0); err != nil {
		t.Fatal(err)
	}
	in(t, cluster, 0, "DELETE FROM token")
	in(t, cluster, 3, "DELETE FROM tenant WHERE name = 'a'")
	in(t, cluster, 5, "UPDATE token SET revoked_at = NULL")
	in(t, cluster, 6, "UPDATE token SET revoked_at = -9000000000000 WHERE id = '"+one.ID+"'")
	if err := s.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := count(t, cluster, "tenant"); got != everywhere(2) {
		t.Errorf("tenants by database: %v", got)
	}
	if got := count(t, cluster, "token"); got != everywhere(2) {
		t.Errorf("tokens by database: %v", got)
	}
	if got := count(t, cluster, "token WHERE revoked_at = -9000000000000"); got != everywhere(1) {
		t.Errorf("revocations by database: %v", got)
	}
	_, err := s.Authenticate(t.Context(), secret)
	wantCode(t, err, task.NotFound)
}

func TestSyncReportsATenantNumberWithTwoNames(t *testing.T) {
	s, cluster := setup(t)
	tenant(t, s, "a")
	in(t, cluster, 7, "UPDATE tenant SET name = 'z'")
	if err := s.Sync(t.Context()); err == nil || !strings.Contains(err.Error(), "tenant 1 is") {
		t.Errorf("got %v", err)
	}
}

// TestOneServerAway takes the server of half of the databases away.
// TestADatabaseThatHasJustMovedIsAway: this process has not heard of the move. The other databases know all tenants and tokens.
func TestADatabaseThatHasJustMovedIsAway(t *testing.T) {
	s, cluster := setup(t)
	tenant(t, s, "alice")
	_, secret := token(t, s, Token{Scopes: TenantScope, Tenant: "alice"})
	in(t, cluster, 0, "ALTER SCHEMA perceptor_00 RENAME TO perceptor_00_moved_2")
	if who, err := s.Authenticate(t.Context(), secret); err != nil || who.Tenant.Name != "alice" {
		t.Errorf("alice's token is that of %q, %v", who.Tenant.Name, err)
	}
	_, err := s.CreateTenant(t.Context(), Tenant{Name: "bob", ParamsBytes: 1})
	wantCode(t, err, task.Unavailable)
}

func TestOneServerAway(t *testing.T) {
	away := testenv.NewPostgres(t)
	upper := []int{8, 9, 10, 11, 12, 13, 14, 15}
	lower := []int{0, 1, 2, 3, 4, 5, 6, 7}
	s, cluster := open(t, store.Server{DSN: testenv.Database(t), Databases: lower}, store.Server{DSN: away.DSN(), Databases: upper})
	createTables(t, cluster)
	tenant(t, s, "a")
	victim, victimSecret := token(t, s, Token{Scopes: TenantScope, Tenant: "a"})
	_, secret := token(t, s, Token{Scopes: TenantScope, Tenant: "a"})
	stop(t, away)

	if _, err := s.Authenticate(t.Context(), secret); err != nil {
		t.Errorf("authentication must not need every server: %v", err)
	}
	_, err := s.CreateTenant(t.Context(), Tenant{Name: "b", ParamsBytes: 1})
	wantCode(t, err, task.Unavailable)
	if err == nil || !strings.Contains(err.Error(), "the tenant is created, but not in all databases yet; it completes without another call when they recover: ") {
		t.Error(err)
	}
	_, _, err = s.CreateToken(t.Context(), Token{Scopes: AdminScope, Description: "nobody has it", ExpiresAt: task.Never})
	wantCode(t, err, task.Unavailable)
	_, err = s.RevokeToken(t.Context(), victim.ID, 0)
	wantCode(t, err, task.Unavailable)
	_, err = s.Authenticate(t.Context(), victimSecret)
	wantCode(t, err, task.NotFound)
	if err := s.Sync(t.Context()); err == nil {
		t.Error("Sync says that all is well")
	}

	if err := away.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error { return s.Sync(t.Context()) })
	if got := count(t, cluster, "tenant"); got != everywhere(2) {
		t.Errorf("tenants by database: %v", got)
	}
	if got := count(t, cluster, "token WHERE revoked_at IS NOT NULL"); got != everywhere(2) {
		t.Errorf("revoked by database: %v", got)
	}
}

// TestADatabaseThatWasAwayIsAskedLast: it comes back without a revocation that
// the others have.
func TestADatabaseThatWasAwayIsAskedLast(t *testing.T) {
	first := testenv.NewPostgres(t)
	rest := make([]int, 15)
	for i := range rest {
		rest[i] = i + 1
	}
	s, cluster := open(t, store.Server{DSN: first.DSN(), Databases: []int{0}}, store.Server{DSN: testenv.Database(t), Databases: rest})
	createTables(t, cluster)
	victim, secret := token(t, s, Token{Scopes: AdminScope})
	stop(t, first)
	if _, err := s.Authenticate(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	_, err := s.RevokeToken(t.Context(), victim.ID, 0)
	wantCode(t, err, task.Unavailable)
	for _, d := range rest {
		in(t, cluster, d, "UPDATE token SET revoked_at = 1")
	}
	if err := first.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err = s.Authenticate(t.Context(), secret)
	wantCode(t, err, task.NotFound)
	eventually(t, func() error { return s.Sync(t.Context()) })
	if got := count(t, cluster, "token WHERE revoked_at = 1"); got != everywhere(1) {
		t.Errorf("revoked by database: %v", got)
	}
}

func TestSettingsOfATenantChangeEverywhere(t *testing.T) {
	s, cluster := setup(t)
	made := tenant(t, s, "a")
	if made.History != task.HistorySlow || made.Version != 1 {
		t.Fatalf("made %+v", made)
	}
	_, secret := token(t, s, Token{Scopes: TenantScope, Tenant: "a"})
	all, params := task.HistoryAll, 7
	got, err := s.UpdateTenant(t.Context(), "a", TenantChange{History: &all, ParamsBytes: &params})
	if err != nil || got.History != all || got.ParamsBytes != 7 || got.Retention != made.Retention || got.Version != 2 || got.ID != made.ID {
		t.Fatalf("changed %+v, %v", got, err)
	}
	if n := count(t, cluster, "tenant WHERE history = 2 AND max_params_bytes = 7 AND version = 2"); n != everywhere(1) {
		t.Errorf("changed by database: %v", n)
	}
	if who, err := s.Authenticate(t.Context(), secret); err != nil || !reflect.DeepEqual(who.Tenant, got) {
		t.Errorf("authenticated %+v, %v; want %+v", who.Tenant, err, got)
	}
	bound, sample := int64(1500), int32(7)
	if _, err = s.UpdateTenant(t.Context(), "a", TenantChange{Rates: task.RatesChange{HistorySlowMs: &bound, HistorySample: &sample}}); err != nil {
		t.Fatal(err)
	}
	policies, err := s.HistoryPolicies(t.Context())
	if want := (task.HistoryPolicy{Level: all, SlowAfter: 1500 * time.Millisecond, Sample: 7}); err != nil || len(policies) != 1 || policies[made.ID] != want {
		t.Errorf("policies = %v, %v", policies, err)
	}
	_, err = s.UpdateTenant(t.Context(), "b", TenantChange{History: &all})
	wantCode(t, err, task.NotFound)
}

func TestSyncBringsTheNewestSettingsEverywhere(t *testing.T) {
	s, cluster := setup(t)
	tenant(t, s, "a")
	in(t, cluster, 3, "UPDATE tenant SET history = 3, version = 5")
	in(t, cluster, 4, "UPDATE tenant SET history = 2, version = 4")
	if err := s.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := count(t, cluster, "tenant WHERE history = 3 AND version = 5"); n != everywhere(1) {
		t.Errorf("newest settings by database: %v", n)
	}
}

func TestRunReturnsNilWhenItIsCancelled(t *testing.T) {
	s, _ := setup(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func stop(t *testing.T, server *testenv.PostgresServer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := server.Stop(ctx); err != nil {
		t.Fatal(err)
	}
}

func eventually(t *testing.T, step func() error) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		err := step()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}
