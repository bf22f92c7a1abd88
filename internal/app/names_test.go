package app

import (
	"fmt"
	"testing"
	"time"

	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/control"
	"github.com/perceptor/perceptor/store/storetest"
	"github.com/perceptor/perceptor/task"
)

// TestRecordsAreSignedWithTheKeyOfTheDatabasesClock also checks that runs come ahead by that clock.
func TestRecordsAreSignedWithTheKeyOfTheDatabasesClock(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		ahead, overlap time.Duration // the databases' clock is ahead of this process's
		want           int
		from           time.Duration // when runs begin to come ahead
	}{
		"the clock of this process is an hour behind, and a key has leaked": {time.Hour, 0, 1, 0},
		"the clock of this process is an hour ahead":                        {-time.Hour, 24 * time.Hour, 0, time.Minute},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			cluster := storetest.Open(t)
			for d := range task.Databases {
				_, err := cluster.Pool(d).Exec(t.Context(), fmt.Sprintf(`CREATE OR REPLACE FUNCTION %s.now_ms() RETURNS int8 LANGUAGE sql STABLE PARALLEL SAFE
					AS $$ SELECT floor(date_part('epoch', statement_timestamp()) * 1000)::int8 + %d $$`, store.SchemaName(d), c.ahead.Milliseconds()))
				if err != nil {
					t.Fatal(err)
				}
			}
			tenants := control.New(cluster, nil)
			acme, err := tenants.CreateTenant(t.Context(), control.Tenant{
				Name: "acme", Rates: task.Rates{Ahead: task.Ahead{From: task.At(time.Now().Add(c.ahead + c.from))}},
			})
			if err == nil {
				acme, err = tenants.RotateKey(t.Context(), "acme", c.overlap)
			}
			if err != nil {
				t.Fatal(err)
			}
			n := newNames(tenants, "perceptor", "")
			if _, err := n.Tenant(t.Context(), acme.ID); err != nil {
				t.Fatal(err)
			}
			n.refresh(t.Context(), n.ids())
			n.compared = time.Now()
			if want := c.from == 0; n.Holds(acme.ID) != want {
				t.Errorf("runs come ahead: %t, want %t", !want, want)
			}
			got, err := n.Tenant(t.Context(), acme.ID)
			if keys := n.cache[acme.ID].keys; err != nil || len(keys) != 2 || got.Key != keys[c.want].key {
				t.Errorf("%v, %d keys; the record is not signed with key %d", err, len(keys), c.want)
			}
		})
	}
}
