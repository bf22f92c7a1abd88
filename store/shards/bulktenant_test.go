package shards

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/perceptor/perceptor/store/pack"
	"github.com/perceptor/perceptor/store/shards/bulk"
	"github.com/perceptor/perceptor/task"
)

// fill gives the bundle's tenant rows of every kind.
func (b *bundle) fill() {
	b.t.Helper()
	for i := range 6 {
		b.put(everyPlace[i%3], pack.Hour, b.add(b.spec(task.OneShot, b.inHours(1+i)), b.spec(task.Blocking, b.inHours(1+i)))...)
	}
	b.die(kept)
	b.die()
	id := b.add(b.spec(task.NonBlocking))[0]
	b.claim(task.RangeForm)
	b.report(failure(id, 1, 1, 7)) // has a run row now
	b.exec(`INSERT INTO topic_failure VALUES ($1, 1, 1)`, b.tenant)
	b.exec(`INSERT INTO import (tenant_id, id, terms, body_hash, created_at) VALUES ($1, 1, '{}', '', 1)`, b.tenant)
	b.exec(`INSERT INTO import_part VALUES ($1, 1)`, b.tenant)
	b.exec(`INSERT INTO import_chunk VALUES ($1, 1, 1, true, 0, 0, 0, 0, 0, 0, '{}')`, b.tenant)
}

// leftovers counts the rows of a tenant in all tables of the bundle's database.
func (b *bundle) leftovers(tenant int32) map[string]int64 {
	b.t.Helper()
	out := map[string]int64{}
	for _, table := range []string{"task", "task_key", "task_done", "dead_run", "counter", "bulk_operation", "bulk_seen", "topic_failure", "import", "import_part", "import_chunk"} {
		var n int64
		if err := b.db.Pool(b.d).QueryRow(b.t.Context(), "SELECT count(*) FROM "+table+" WHERE tenant_id = $1", tenant).Scan(&n); err != nil {
			b.t.Fatal(err)
		}
		if n > 0 {
			out[table] = n
		}
	}
	census, err := b.Census(b.t.Context(), tenant)
	if err != nil {
		b.t.Fatal(err)
	}
	if census != (Census{}) {
		out["census"] = census.Scheduled + census.Running + census.RunRows + census.Finished + census.Dead
	}
	return out
}

func TestNothingOfADeletedTenantIsLeftAndNobodyElseMissesAnything(t *testing.T) {
	var dropped []int32
	refuse := true
	b := setup(t, nearOnly, func(c *Config) {
		c.DropTenant = func(_ context.Context, tenant int32) error {
			if refuse {
				refuse = false
				return errors.New("Kafka is away")
			}
			dropped = append(dropped, tenant)
			return nil
		}
	})
	own, mine := b.chores(), b.tenant/task.Databases*task.Databases+int32(b.d) // at home here
	b.tenant = mine + task.Databases
	b.fill()
	other := b.counts()
	b.tenant = mine
	b.fill()
	if _, err := b.DeleteTenant(t.Context(), mine); err != nil {
		t.Fatal(err)
	}
	for d := range task.Databases {
		if d != b.d {
			if _, err := b.db.Pool(d).Exec(t.Context(), `UPDATE bulk_operation SET state = 3, finished_at = 1 WHERE tenant_id = $1`, mine); err != nil {
				t.Fatal(err)
			}
		}
	}
	failed := 0
	for i := 0; len(dropped) == 0 && i < 300; i++ {
		if i > 1 && i%5 == 0 {
			own = b.chores() // a new owner goes on where the old one stopped
		}
		if step, err := b.Bulk(t.Context(), b.d, own, false); err != nil || step.Err != nil {
			failed++
			if failed == 1 {
				t.Log(err, step.Err)
			}
		}
		b.advance(time.Minute)
	}
	if failed != 1 || len(dropped) != 1 || dropped[0] != mine {
		t.Errorf("dropped %v after %d failures", dropped, failed)
	}
	if left := b.leftovers(mine); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
	if _, err := b.GetBulk(t.Context(), mine, 1); task.CodeOf(err) != task.NotFound {
		t.Error(err)
	}
	// A call that was under way during the deletion creates nothing.
	for d := range task.Databases {
		if _, err := b.db.Pool(d).Exec(t.Context(), `INSERT INTO deleted_tenant VALUES ($1, 1)`, mine); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.DeleteTenant(t.Context(), mine); task.CodeOf(err) != task.NotFound {
		t.Errorf("DeleteTenant after the deletion = %v, want NotFound", err)
	}
	if err := b.SpreadBulk(t.Context(), &bulk.Row{Tenant: mine, ID: 1, Action: task.BulkDeleteTenant, Terms: []byte("{}"), Wanted: 1, Version: 1}); err != nil {
		t.Error(err)
	}
	for d := range task.Databases {
		var n int
		if err := b.db.Pool(d).QueryRow(t.Context(), `SELECT count(*) FROM bulk_operation WHERE tenant_id = $1 AND state = 1`, mine).Scan(&n); err != nil || n != 0 {
			t.Errorf("database %d has %d operations of it, %v", d, n, err)
		}
	}
	b.tenant = mine + task.Databases
	if now := b.counts(); now != other {
		t.Errorf("the other tenant has %+v, had %+v", now, other)
	}
	if found, err := b.Recount(t.Context(), b.d, b.tenant, false); err != nil || len(found) > 0 {
		t.Errorf("the other tenant's counters differ: %+v, %v", found, err)
	}
}
