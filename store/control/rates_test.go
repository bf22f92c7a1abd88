package control

import (
	"context"
	"reflect"
	"sync"
	"testing"

	"github.com/perceptor/perceptor/task"
)

func TestRatesAreChangedInEveryDatabaseAndRaiseItsVersion(t *testing.T) {
	s, cluster := setup(t)
	tenant(t, s, "a")
	before := count(t, cluster, "settings WHERE version = 2")
	if before != everywhere(1) {
		t.Errorf("the creation of a tenant raised the version in these databases: %v", before)
	}
	rate, caps := int32(7), map[string]int32{"mail": 3}
	if _, err := s.UpdateTenant(t.Context(), "a", TenantChange{Rates: task.RatesChange{DispatchRate: &rate, KindCaps: &caps}}); err != nil {
		t.Fatal(err)
	}
	got, err := s.UpdateTenant(t.Context(), "a", TenantChange{Rates: task.RatesChange{PauseKind: "report"}})
	want := task.Rates{DispatchRate: 7, KindCaps: caps, PausedKinds: []string{"report"}}
	if err != nil || !reflect.DeepEqual(got.Rates, want) {
		t.Errorf("got %+v, %v, want %+v", got.Rates, err, want)
	}
	if n := count(t, cluster, `tenant WHERE rates = '{"dispatch_rate": 7, "kind_caps": {"mail": 3}, "paused_kinds": ["report"]}'`); n != everywhere(1) {
		t.Errorf("rows by database: %v", n)
	}
	if n := count(t, cluster, "settings WHERE version = 4"); n != everywhere(1) {
		t.Errorf("versions by database: %v", n)
	}
}

func TestKindsPausedAtTheSameTimeAreAllPaused(t *testing.T) {
	s, _ := setup(t)
	tenant(t, s, "a")
	var pausing sync.WaitGroup
	kinds := []string{"a", "b", "c", "d"}
	for _, k := range kinds {
		pausing.Go(func() {
			for range 50 { // Unavailable: the others were faster for as long as a lock is waited for
				_, err := s.UpdateTenant(t.Context(), "a", TenantChange{Rates: task.RatesChange{PauseKind: k}})
				if err == nil {
					return
				}
				if task.CodeOf(err) != task.Unavailable {
					t.Error(err)
					return
				}
			}
		})
	}
	pausing.Wait()
	got, err := s.Tenant(t.Context(), "a")
	if err != nil || !reflect.DeepEqual(got.Rates.PausedKinds, kinds) {
		t.Errorf("paused are %v, %v, want %v", got.Rates.PausedKinds, err, kinds)
	}
	if _, err := s.UpdateTenant(t.Context(), "a", TenantChange{Rates: task.RatesChange{ResumeKind: "b"}}); err != nil {
		t.Fatal(err)
	}
	if got, _ = s.Tenant(t.Context(), "a"); !reflect.DeepEqual(got.Rates.PausedKinds, []string{"a", "c", "d"}) {
		t.Errorf("after b was resumed paused are %v", got.Rates.PausedKinds)
	}
}

func TestAChangeThatChangesNothingWaitsForNoClaimAndWritesNothing(t *testing.T) {
	s, c := setup(t)
	tenant(t, s, "acme")
	yes := true
	change := TenantChange{Rates: task.RatesChange{Paused: &yes, PauseKind: "k"}}
	before, err := s.UpdateTenant(t.Context(), "acme", change)
	if err != nil {
		t.Fatal(err)
	}
	for d := range task.Databases { // as a claim does while it runs
		tx, err := c.Pool(d).Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(context.Background()) //nolint:errcheck // it changes nothing
		if _, err := tx.Exec(t.Context(), `SET LOCAL idle_in_transaction_session_timeout = 0`); err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), `SELECT pg_advisory_xact_lock_shared($1, $2)`, settingsLock, d); err != nil {
			t.Fatal(err)
		}
	}
	for range 50 {
		after, err := s.UpdateTenant(t.Context(), "acme", change)
		if err != nil || after.Version != before.Version {
			t.Fatalf("version %d after %d: %v", after.Version, before.Version, err)
		}
	}
	if _, err := s.UpdateTenant(t.Context(), "acme", TenantChange{Rates: task.RatesChange{ResumeKind: "k"}}); err == nil {
		t.Error("a real change has not waited for the claims")
	}
}
