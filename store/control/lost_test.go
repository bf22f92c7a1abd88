package control

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/perceptor/perceptor/internal/testenv"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/task"
)

// adopt does what an adoption of database 0 does here.
func adopt(t *testing.T, c *store.Cluster) {
	t.Helper()
	in(t, c, 0, "UPDATE database_identity SET incarnation = 1700000000000; UPDATE settings SET tenant_floor = 5000")
}

func TestANumberThatDatabase0HasForgottenIsNotGivenToAnotherTenant(t *testing.T) {
	s, cluster := setup(t)
	tenant(t, s, "first")
	alice := tenant(t, s, "alice")
	_, secret := token(t, s, Token{Scopes: TenantScope, Tenant: "alice"})
	in(t, cluster, 0, "DELETE FROM token; DELETE FROM tenant WHERE name = 'alice'")
	bob := tenant(t, s, "bob")
	if bob.ID == alice.ID {
		t.Errorf("alice and bob have the number %d", bob.ID)
	}
	_, err := s.CreateTenant(t.Context(), Tenant{Name: "alice", ParamsBytes: 1})
	wantCode(t, err, task.AlreadyExists)
	if err := s.Sync(t.Context()); err != nil {
		t.Error(err)
	}
	who, err := s.Authenticate(t.Context(), secret)
	if err != nil || who.Tenant.Name != "alice" || who.Tenant.ID != alice.ID {
		t.Errorf("alice's token is that of %+v, %v", who.Tenant, err)
	}
	if n := count(t, cluster, "tenant"); n != everywhere(3) {
		t.Errorf("tenants by database: %v", n)
	}
}

func TestNumbersLeapAfterAnAdoption(t *testing.T) {
	s, cluster := setup(t)
	tenant(t, s, "first")
	adopt(t, cluster)
	if made := tenant(t, s, "second"); made.ID != 5001 {
		t.Errorf("the number is %d, want the one after the floor", made.ID)
	}
}

// pausedIn counts the databases in which a tenant is paused.
func pausedIn(t *testing.T, c *store.Cluster, name string) [task.Databases]int {
	t.Helper()
	return count(t, c, fmt.Sprintf("tenant WHERE name = '%s' AND rates ->> 'paused' = 'true'", name))
}

func TestAPauseIsInForceEverywhereAfterDatabase0HasLostAChange(t *testing.T) {
	s, cluster := setup(t)
	tenant(t, s, "acme")
	keep, yes := 2*time.Minute, true
	if _, err := s.UpdateTenant(t.Context(), "acme", TenantChange{Retention: &keep}); err != nil {
		t.Fatal(err)
	}
	in(t, cluster, 0, "UPDATE tenant SET version = 1, default_retention_ms = 3600000")
	if _, err := s.UpdateTenant(t.Context(), "acme", TenantChange{Rates: task.RatesChange{Paused: &yes}}); err != nil {
		t.Fatal(err)
	}
	if n := pausedIn(t, cluster, "acme"); n != everywhere(1) {
		t.Errorf("paused in the databases %v", n)
	}
	if got, err := s.Tenant(t.Context(), "acme"); err != nil || got.Retention != keep {
		t.Errorf("the lost change of the retention is not put back: %v, %v", got.Retention, err)
	}
}

func TestALostPauseIsPutBackBeforeTheNextChange(t *testing.T) {
	s, cluster := setup(t)
	tenant(t, s, "acme")
	keep, yes := 2*time.Minute, true
	if _, err := s.UpdateTenant(t.Context(), "acme", TenantChange{Rates: task.RatesChange{Paused: &yes}}); err != nil {
		t.Fatal(err)
	}
	in(t, cluster, 0, "UPDATE tenant SET version = 1, rates = '{}'")
	adopt(t, cluster)
	changed, err := s.UpdateTenant(t.Context(), "acme", TenantChange{Retention: &keep})
	if err != nil || !changed.Rates.Paused || changed.Version < 1700000000000 {
		t.Errorf("changed %+v, %v", changed, err)
	}
	if n := pausedIn(t, cluster, "acme"); n != everywhere(1) {
		t.Errorf("paused in the databases %v", n)
	}
}

func TestSettingsThatDifferUnderOneVersionAreToldAndSettled(t *testing.T) {
	s, cluster := setup(t)
	tenant(t, s, "acme")
	in(t, cluster, 0, `UPDATE tenant SET version = 2, rates = '{"paused": true}'`)
	for d := 1; d < task.Databases; d++ {
		in(t, cluster, d, "UPDATE tenant SET version = 2, default_retention_ms = 1")
	}
	if differ, err := s.Compare(t.Context()); !differ || err == nil {
		t.Errorf("compared: %v, %v", differ, err)
	}
	if err := s.Sync(t.Context()); err == nil || !strings.Contains(err.Error(), "other settings of the same version") {
		t.Errorf("got %v", err)
	}
	if n := pausedIn(t, cluster, "acme"); n != everywhere(1) {
		t.Errorf("paused in the databases %v, want the settings of database 0 everywhere", n)
	}
	if s.Conflicts() == 0 {
		t.Error("no conflict is counted")
	}
	if err := s.Sync(t.Context()); err != nil {
		t.Errorf("the second time: %v", err)
	}
	if differ, err := s.Compare(t.Context()); differ || err != nil {
		t.Errorf("compared: %v, %v", differ, err)
	}
}

func TestOfTwoTenantsWithOneNumberTheYoungerGetsAnother(t *testing.T) {
	s, cluster := setup(t)
	alice := tenant(t, s, "alice")
	_, hers := token(t, s, Token{Scopes: TenantScope, Tenant: "alice"})
	const usurper = `DELETE FROM tenant; DELETE FROM token; INSERT INTO tenant (id, uid, name, max_params_bytes, default_retention_ms, created_at, history, version)
		VALUES (%d, 'a0000000-0000-4000-8000-000000000000', 'bob', 1, 1, %d, 1, 1)`
	in(t, cluster, 0, fmt.Sprintf(usurper, alice.ID, alice.CreatedAt+1000))
	_, err := s.Authenticate(t.Context(), hers)
	wantCode(t, err, task.NotFound) // not as bob
	if err := s.Sync(t.Context()); err == nil || !strings.Contains(err.Error(), `is both "alice" and "bob"`) {
		t.Errorf("got %v", err)
	}
	if who, err := s.Authenticate(t.Context(), hers); err != nil || who.Tenant.Name != "alice" || who.Tenant.ID != alice.ID {
		t.Errorf("alice's token is that of %+v, %v", who.Tenant, err)
	}
	if bob, err := s.Tenant(t.Context(), "bob"); err != nil || bob.ID == alice.ID {
		t.Errorf("bob is %+v, %v", bob, err)
	}
	if n := count(t, cluster, "tenant"); n != everywhere(2) {
		t.Errorf("tenants by database: %v", n)
	}
	if err := s.Sync(t.Context()); err != nil {
		t.Errorf("the second time: %v", err)
	}
}

func TestARestoredDatabase0DoesNotReviveADeletedTenant(t *testing.T) {
	s, cluster := setup(t)
	tenant(t, s, "kept")
	gone := tenant(t, s, "gone")
	_, secret := token(t, s, Token{Scopes: TenantScope, Tenant: "gone"})
	in(t, cluster, 0, "CREATE TABLE old_tenant AS SELECT * FROM tenant; CREATE TABLE old_token AS SELECT * FROM token")
	if err := s.DropTenant(t.Context(), gone.ID); err != nil {
		t.Fatal(err)
	}
	in(t, cluster, 0, `DELETE FROM tenant; DELETE FROM token; DELETE FROM deleted_tenant;
		INSERT INTO tenant SELECT * FROM old_tenant; INSERT INTO token SELECT * FROM old_token`)
	if err := s.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := count(t, cluster, "tenant"); n != everywhere(1) {
		t.Errorf("tenants by database: %v", n)
	}
	_, err := s.Authenticate(t.Context(), secret)
	wantCode(t, err, task.NotFound)
	if n := count(t, cluster, "token"); n != everywhere(0) {
		t.Errorf("tokens by database: %v", n)
	}
	// Its tasks came back with it.
	if n := count(t, cluster, fmt.Sprintf("bulk_operation WHERE tenant_id = %d AND state = 1", gone.ID)); n[0] != 1 || n[1] != 0 {
		t.Errorf("deletions by database: %v, want one in database 0", n)
	}
	if again := tenant(t, s, "gone"); again.ID == gone.ID || again.UID == gone.UID {
		t.Errorf("the new tenant has the number %d of the deleted one", again.ID)
	}
}

func TestARevocationThatDatabase0HasLostIsHeeded(t *testing.T) {
	s, cluster := setup(t)
	revoked, secret := token(t, s, Token{Scopes: AdminScope})
	if _, err := s.RevokeToken(t.Context(), revoked.ID, 0); err != nil {
		t.Fatal(err)
	}
	lost, _ := token(t, s, Token{Scopes: AdminScope})
	in(t, cluster, 0, "UPDATE token SET revoked_at = NULL; DELETE FROM token WHERE id = '"+lost.ID+"'")
	if _, err := s.RevokeToken(t.Context(), lost.ID, 0); err != nil {
		t.Errorf("a token that database 0 has lost cannot be revoked: %v", err)
	}
	_, err := s.Authenticate(t.Context(), secret)
	wantCode(t, err, task.NotFound)
	if n := count(t, cluster, "token WHERE revoked_at IS NOT NULL"); n != everywhere(2) {
		t.Errorf("revoked by database: %v", n)
	}
}

func TestChangesWaitUntilARestoredDatabase0IsComparedWithAllCopies(t *testing.T) {
	away := testenv.NewPostgres(t)
	s, cluster := open(t, store.Server{DSN: testenv.Database(t), Databases: []int{0, 1, 2, 3, 4, 5, 6, 7}},
		store.Server{DSN: away.DSN(), Databases: []int{8, 9, 10, 11, 12, 13, 14, 15}})
	createTables(t, cluster)
	tenant(t, s, "acme")
	stop(t, away)
	adopt(t, cluster)
	keep := time.Minute
	_, err := s.UpdateTenant(t.Context(), "acme", TenantChange{Retention: &keep})
	wantCode(t, err, task.Unavailable)
	if err == nil || !strings.Contains(err.Error(), "database 0 was restored") {
		t.Error(err)
	}
	var stored int
	if err := cluster.Pool(0).QueryRow(t.Context(), "SELECT count(*) FROM tenant WHERE version > 1").Scan(&stored); err != nil || stored != 0 {
		t.Errorf("database 0 has stored the change: %v", err)
	}
	if err := away.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		_, err := s.UpdateTenant(t.Context(), "acme", TenantChange{Retention: &keep})
		return err
	})
}
