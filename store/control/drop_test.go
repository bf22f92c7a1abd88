package control

import (
	"fmt"
	"testing"

	"github.com/perceptor/perceptor/task"
)

func TestADroppedTenantIsGoneEverywhereAndItsNumberIsNotUsedAgain(t *testing.T) {
	s, cluster := setup(t)
	tenant(t, s, "a")
	gone := tenant(t, s, "b")
	_, secret := token(t, s, Token{Scopes: TenantScope, Tenant: "b"})
	_, kept := token(t, s, Token{Scopes: TenantScope, Tenant: "a"})
	const used = `INSERT INTO token_bucket VALUES (%[1]d, 1, 0); INSERT INTO cap_lease (tenant_id, kind, epoch, expires_at) VALUES (%[1]d, 'k', 1, 0); INSERT INTO cap_fence (tenant_id, kind, epoch, part, cap) VALUES (%[1]d, 'k', 1, 0, 4);
		INSERT INTO capped_run VALUES (%[1]d, 'k', 512, 1)`
	for d := range task.Databases {
		in(t, cluster, d, fmt.Sprintf(used, 1)+";"+fmt.Sprintf(used, gone.ID))
	}
	yes := true
	if _, err := s.UpdateTenant(t.Context(), "b", TenantChange{Rates: task.RatesChange{Deleting: &yes}}); err != nil {
		t.Fatal(err)
	}
	_, err := s.Authenticate(t.Context(), secret)
	wantCode(t, err, task.NotFound)
	no := false
	_, err = s.UpdateTenant(t.Context(), "b", TenantChange{Rates: task.RatesChange{Paused: &no}})
	wantCode(t, err, task.NotFound)
	_, _, err = s.CreateToken(t.Context(), Token{Scopes: TenantScope, Tenant: "b", ExpiresAt: task.Never})
	wantCode(t, err, task.NotFound)
	if _, err := s.UpdateTenant(t.Context(), "b", TenantChange{Rates: task.RatesChange{Deleting: &yes}}); err != nil {
		t.Errorf("the deletion cannot be repeated: %v", err)
	}
	for range 2 {
		if err := s.DropTenant(t.Context(), gone.ID); err != nil {
			t.Fatal(err)
		}
	}
	for id, want := range map[int32]bool{1: false, gone.ID: true, 77: false} {
		if deleted, err := s.Deleted(t.Context(), id); err != nil || deleted != want {
			t.Errorf("Deleted(%d) = %v, %v, want %v", id, deleted, err, want)
		}
	}
	if n := count(t, cluster, "tenant WHERE name = 'b'"); n != everywhere(0) {
		t.Errorf("rows by database: %v", n)
	}
	if n := count(t, cluster, "token"); n != everywhere(1) {
		t.Errorf("tokens by database: %v", n)
	}
	for _, table := range []string{"token_bucket", "cap_lease", "cap_fence", "capped_run"} {
		if n := count(t, cluster, table); n != everywhere(1) {
			t.Errorf("%s has rows by database: %v, want those of the other tenant", table, n)
		}
	}
	// A database that was restored from an old copy does not bring it back.
	in(t, cluster, 5, "DELETE FROM deleted_tenant; INSERT INTO tenant (id, name, max_params_bytes, default_retention_ms, created_at, history, version) VALUES (2, 'b', 1, 1, 1, 1, 9)")
	_ = s.Sync(t.Context())
	if n := count(t, cluster, "tenant WHERE name = 'b'"); n[0] != 0 || n[4] != 0 {
		t.Errorf("rows by database: %v", n)
	}
	in(t, cluster, 5, "DELETE FROM tenant WHERE id = 2")
	if again := tenant(t, s, "b"); again.ID != 3 {
		t.Errorf("the new tenant has the number %d", again.ID)
	}
	if _, err := s.Authenticate(t.Context(), kept); err != nil {
		t.Error(err)
	}
}
