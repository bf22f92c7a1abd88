package control

import (
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
