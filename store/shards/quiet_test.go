package shards

import (
	"testing"
	"time"

	"github.com/perceptor/perceptor/task"
)

// look peeks at the database of the bundle.
func (b *bundle) look() {
	b.t.Helper()
	req := task.PeekRequest{Window: 5 * time.Second, Limit: 1000}
	for _, o := range b.owned {
		req.Shards = append(req.Shards, o.Shard)
	}
	if _, err := b.Peek(b.t.Context(), b.d, req); err != nil {
		b.t.Fatal(err)
	}
}

// The rows are written here as another process writes them: this one does not know of it.
func TestADatabaseIsQuietWhileNothingWaitsThere(t *testing.T) {
	b := setup(t)
	id := b.die()
	b.exec(`DELETE FROM counter_delta; DELETE FROM outbox`)
	b.look()
	if b.Quiet(b.d) {
		t.Error("it is quiet although a dead run is to be published")
	}
	b.exec(`UPDATE dead_run SET published = true`)
	b.add(b.spec(task.OneShot, begin(b.now.Add(time.Minute))))
	b.exec(`DELETE FROM counter_delta`)
	b.look()
	if !b.Quiet(b.d) {
		t.Fatal("it is not quiet although nothing waits")
	}
	for name, waits := range map[string]struct{ begin, end string }{
		"a counter":     {`INSERT INTO counter_delta VALUES ('{1}', '{1}', '{0}', '{1}', '{1}')`, `DELETE FROM counter_delta`},
		"the outbox":    {`INSERT INTO outbox (shards, created_at, entries) VALUES ('{1}', 0, '')`, `DELETE FROM outbox`},
		"a damaged row": {`INSERT INTO quarantined_row VALUES (1, 1, 0, 0, 'damaged')`, `DELETE FROM quarantined_row`},
		"a dead run":    {`UPDATE dead_run SET published = false`, `UPDATE dead_run SET published = true`},
		"a due task":    {`UPDATE task SET due_at = due_at - 60000`, `UPDATE task SET due_at = due_at + 60000`},
	} {
		b.exec(waits.begin)
		if b.look(); b.Quiet(b.d) {
			t.Errorf("it is quiet although %s waits", name)
		}
		b.exec(waits.end)
		if b.look(); !b.Quiet(b.d) {
			t.Errorf("it is not quiet although %s waits no more", name)
		}
	}
	b.exec(`UPDATE dead_run SET published = false`)
	if list, err := b.DeadTenants(t.Context(), b.d, 0, 10); err != nil || len(list) != 0 {
		t.Errorf("%v, %v: the last look has found no dead run", list, err)
	}
	b.look()
	if list, err := b.DeadTenants(t.Context(), b.d, 0, 10); err != nil || len(list) != 1 {
		t.Errorf("%v, %v: a look has found the dead run of task %d", list, err, id.Task)
	}
}

func TestAQuietDatabaseIsAskedForABulkOperationOfWhichAHintTells(t *testing.T) {
	b := setup(t)
	own := b.chores()
	b.add(b.spec(task.OneShot, begin(b.now.Add(time.Minute))))
	b.exec(`DELETE FROM counter_delta`)
	b.look()
	if !b.Quiet(b.d) {
		t.Fatal("it is not quiet although no operation is open")
	}
	op := b.bulk(task.BulkPause, task.BulkTerms{}) // as another process does
	if step, err := b.Bulk(t.Context(), b.d, own, false); err != nil || step.Action != 0 {
		t.Errorf("%+v, %v: the last look has found no operation", step, err)
	}
	b.BulkStarted(b.d)
	if step, err := b.Bulk(t.Context(), b.d, own, false); err != nil || step.Action != task.BulkPause || step.Done != 1 {
		t.Errorf("%+v, %v; want the step of operation %d", step, err, op.ID)
	}
	b.exec(`DELETE FROM counter_delta`)
	b.bulk(task.BulkResume, task.BulkTerms{})
	if b.look(); b.Quiet(b.d) {
		t.Error("it is quiet although an operation is open")
	}
}
