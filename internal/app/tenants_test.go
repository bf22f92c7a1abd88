package app

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/perceptor/perceptor/internal/config"
	"github.com/perceptor/perceptor/server"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/control"
	"github.com/perceptor/perceptor/store/storetest"
	"github.com/perceptor/perceptor/task"
)

// A taskd that dies after it has marked the tenant, or a database that is away then, must not leave a tenant that nobody
// can use, and whose name nobody can have.
func TestADeletionThatWasCutShortGoesOnWithoutAnotherCall(t *testing.T) {
	dsn := storetest.DSN(t)
	before := control.New(storetest.OpenDSN(t, dsn), quiet)
	gone, err := before.CreateTenant(t.Context(), control.Tenant{Name: "gone", ParamsBytes: 1000, Retention: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	yes := true
	if _, err := before.UpdateTenant(t.Context(), "gone", control.TenantChange{Rates: task.RatesChange{Paused: &yes, Deleting: &yes}}); err != nil {
		t.Fatal(err)
	}
	d := startTaskd(t, dsn, newAuthority(t), func(*config.Taskd) {})
	operations := fmt.Sprintf("SELECT count(*) FROM %s.bulk_operation WHERE tenant_id = $1 AND action = $2", store.SchemaName(int(gone.ID)%task.Databases))
	var n int
	for deadline := time.Now().Add(20 * time.Second); n == 0 && time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if err := d.cluster.Pool(0).QueryRow(t.Context(), operations, gone.ID, int16(task.BulkDeleteTenant)).Scan(&n); err != nil {
			t.Fatal(err)
		}
	}
	if n != 1 {
		t.Errorf("%d operations remove the data of the tenant, want 1", n)
	}
	admin := &tenants{store: d.API.control, shards: d.shards}
	if _, err := admin.CreateTenant(t.Context(), server.Tenant{Name: "gone"}); task.CodeOf(err) != task.AlreadyExists || !strings.Contains(err.Error(), "is being deleted") {
		t.Errorf("CreateTenant = %v, want that the tenant is being deleted", err)
	}
}
