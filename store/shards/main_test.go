package shards

import (
	"context"
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/internal/testenv"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/store/storetest"
	"github.com/perceptor/perceptor/task"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// bundle is a store on a database of the test's own, with a clock that stands
// still until the test moves it.
type bundle struct {
	*Store
	t      testing.TB
	d      int
	tenant int32
	now    task.Instant
	owned  []task.Ownership
	adds   int
}

// shared is shared by all tests: with a connection of its own, each test would have to
// plan all its statements again.
var shared struct {
	sync.Mutex
	cluster *store.Cluster
	next    int
}

const application = "tests of shards"

// setup returns a bundle. Tests of this package share one PostgreSQL database;
// each has one of its 16 logical databases, emptied, and tenants of its own: that
// of the bundle and the 9,999 after it.
func setup(t testing.TB, configure ...func(*Config)) *bundle {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.cluster == nil {
		shared.cluster = open(t, testenv.PackageDatabase(t, checked()))
	}
	cfg := Config{AddSpacing: time.Millisecond, StartSpacing: time.Millisecond, ReportSpacing: time.Millisecond}
	for _, f := range configure {
		f(&cfg)
	}
	shared.next++
	t.Cleanup(func() { allReturned(t, shared.cluster) })
	b := &bundle{Store: New(shared.cluster, cfg), t: t, d: shared.next % task.Databases, tenant: int32(10_000 * shared.next), now: 1_000_000_000_000}
	b.empty()
	b.setClock(b.now)
	b.acquire()
	return b
}

// open returns a cluster that lives as long as the process.
func open(t testing.TB, dsn string) *store.Cluster {
	t.Helper()
	c, err := store.Open(context.Background(), store.Config{
		Servers: []store.Server{{DSN: dsn}}, Application: application,
		IdleInTransaction: time.Minute, // this process may get no processor for seconds
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// allReturned waits until no connection is in use.
func allReturned(t testing.TB, c *store.Cluster) {
	inUse := func() (n int32) {
		for d := range task.Databases {
			n += c.Pool(d).Stat().AcquiredConns()
		}
		return n
	}
	eventually(t, "all connections are given back", func() bool { return inUse() == 0 })
}

// eventually waits up to a minute until a condition holds.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// checked is a template of migrated databases that have the clock of tests, and
// constraints.
func checked() testenv.Template {
	migrated := storetest.Template()
	hash := fnv.New32a()
	hash.Write([]byte(testClock + constraints)) //nolint:errcheck // it never fails
	name := fmt.Sprintf("%s_checked_%08x", migrated.Name, hash.Sum32())
	return testenv.Template{Name: name, Base: &migrated, Fill: func(ctx context.Context, dsn string) error {
		c, err := store.Open(ctx, store.Config{Servers: []store.Server{{DSN: dsn}}})
		if err != nil {
			return err
		}
		defer c.Close()
		return c.Each(ctx, func(ctx context.Context, d int) error {
			_, err := c.Pool(d).Exec(ctx, `CREATE TABLE test_clock (now int8); INSERT INTO test_clock VALUES (0); `+testClock+constraints, pgx.QueryExecModeSimpleProtocol)
			return err
		})
	}}
}

// testClock stands still until a test moves it.
const testClock = `CREATE OR REPLACE FUNCTION now_ms() RETURNS int8 LANGUAGE sql STABLE AS 'SELECT now FROM test_clock'; `

// constraints are invariants of every row. The schema of installations leaves them out
// because they cost too much. The timeouts are longer, for busy machines.
const constraints = `BEGIN; SET LOCAL lock_timeout = '60s'; SET LOCAL statement_timeout = '120s';
	ALTER TABLE task
	ADD CONSTRAINT task_type          CHECK (type IN (1, 2, 3)),
	ADD CONSTRAINT task_run_row       CHECK (run = 0 OR (type = 2 AND state = 2 AND NOT paused AND open_runs = 0 AND open_rows = 0)),
	ADD CONSTRAINT task_schedule      CHECK (CASE WHEN interval_ms IS NULL THEN type = 1 OR modeled ELSE type <> 1 AND interval_ms > 0 END),
	ADD CONSTRAINT task_scheduled_due CHECK (state <> 1 OR (due_at IS NULL) = paused),
	ADD CONSTRAINT task_held_is_out   CHECK (holder IS NULL OR (out AND state = 2)),
	ADD CONSTRAINT task_paused_bits   CHECK (NOT paused OR state <> 1 OR open_runs = 0),
	ADD CONSTRAINT task_bits          CHECK (type = 2 OR (open_runs = 0 AND open_rows = 0)),
	ADD CONSTRAINT task_attempt       CHECK (CASE WHEN state = 2 AND (type <> 2 OR run > 0) THEN attempt > 0 OR NOT out ELSE attempt = 0 END);
	COMMIT`

func (b *bundle) exec(sql string, args ...any) {
	b.t.Helper()
	mode := []any{}
	if len(args) == 0 {
		mode = append(mode, pgx.QueryExecModeSimpleProtocol)
	}
	if _, err := b.db.Pool(b.d).Exec(context.Background(), sql, append(mode, args...)...); err != nil {
		b.t.Fatalf("%s: %v", sql, err)
	}
}

// empty removes all rows. DELETE, because TRUNCATE makes 36 new files.
func (b *bundle) empty() {
	b.t.Helper()
	b.exec(`DELETE FROM task; DELETE FROM task_key; DELETE FROM task_done; DELETE FROM dead_run; DELETE FROM outbox; DELETE FROM quarantined_row;
		DELETE FROM far_level0; DELETE FROM far_pack; DELETE FROM far_tombstone; DELETE FROM far_locator;
		DELETE FROM counter; DELETE FROM counter_delta; DELETE FROM run_event; DELETE FROM bulk_operation; DELETE FROM bulk_seen;
		DELETE FROM import; DELETE FROM import_part; DELETE FROM import_chunk`)
}

func (b *bundle) setClock(now task.Instant) {
	b.t.Helper()
	b.now = now
	b.exec(`UPDATE test_clock SET now = $1`, int64(now))
}

func (b *bundle) advance(d time.Duration) { b.t.Helper(); b.setClock(b.now.Add(d)) }

func (b *bundle) acquire() {
	b.t.Helper()
	var shards []task.Shard
	for i := range task.ShardsPerDatabase {
		shards = append(shards, task.Shard(b.d*task.ShardsPerDatabase+i))
	}
	owned, err := b.Acquire(context.Background(), b.d, shards, task.Owner{Name: "test"})
	if err != nil {
		b.t.Fatal(err)
	}
	b.owned = owned
}

// requestID returns a new request_id that hashes to the bundle's database.
func (b *bundle) requestID() string {
	for {
		b.adds++
		id := fmt.Sprintf("r%d", b.adds)
		if task.ShardOf(id).Database() == b.d {
			return id
		}
	}
}

// add stores specs in one request.
func (b *bundle) add(specs ...task.Spec) []task.ID {
	b.t.Helper()
	var ids []task.ID
	for i, item := range b.tryAdd(specs...) {
		if len(item.Faults) > 0 {
			b.t.Fatalf("spec %d: %v", i, item.Faults)
		}
		ids = append(ids, item.ID)
	}
	return ids
}

// tryAdd adds specs that may be refused.
func (b *bundle) tryAdd(specs ...task.Spec) []task.AddItem {
	b.t.Helper()
	a := &adding{req: task.AddRequest{Tenant: b.tenant, RequestID: b.requestID(), Specs: specs}}
	a.key = a.req.RequestID
	a.home = task.ShardOf(a.key)
	if err := b.dbs[b.d].doAdds(context.Background(), []*adding{a})[0]; err != nil {
		b.t.Fatal(err)
	}
	return a.result.Items
}

// claim claims once, from all shards of the bundle's database.
func (b *bundle) claim(form task.ClaimForm) task.Claim {
	b.t.Helper()
	return b.claimAhead(form, 0)
}

// claimAhead claims once what is due, and ahead of the clock what is scheduled.
func (b *bundle) claimAhead(form task.ClaimForm, ahead time.Duration) task.Claim {
	b.t.Helper()
	c, err := b.Claim(context.Background(), task.ClaimRequest{Database: b.d, Owned: b.owned, Form: form, Ahead: ahead, MaxRows: 1000})
	if err != nil {
		b.t.Fatal(err)
	}
	return c
}

// rows returns all rows of the bundle's tenant.
func (b *bundle) rows() map[kernel.Key]*task.Row {
	b.t.Helper()
	text := `SELECT ` + rowColumns + ` FROM task t WHERE t.tenant_id = $1`
	rows, err := b.db.Pool(b.d).Query(context.Background(), text, b.tenant)
	if err != nil {
		b.t.Fatal(err)
	}
	list, err := kernel.CollectRows(rows)
	if err != nil {
		b.t.Fatal(err)
	}
	out := map[kernel.Key]*task.Row{}
	for _, r := range list {
		out[kernel.RowKey(r)] = r
	}
	return out
}

// rowColumns are the columns that [kernel.CollectRows] reads from a row t.
var rowColumns = strings.TrimPrefix(strings.Split(sql.DumpRows.Text(), " FROM ")[0], "SELECT ")

// spec returns a valid spec of a type, beginning now.
func (b *bundle) spec(typ task.Type, change ...func(*task.Spec)) task.Spec {
	b.t.Helper()
	s := task.Spec{Terms: task.Terms{Kind: "k", Begin: task.Never, End: task.Never, Retry: task.RetryPolicy{Jitter: 0}}, Type: typ, ParamsWire: []byte{}}
	if typ != task.OneShot {
		s.Interval = time.Minute
	}
	for _, f := range change {
		f(&s)
	}
	if faults := s.Validate(task.Limits{MinInterval: time.Millisecond, MinAckTimeout: time.Millisecond, ParamsBytes: 1 << 14}); len(faults) > 0 {
		b.t.Fatal(faults)
	}
	return s
}

func attempt(id task.ID, seq int64, n int32) task.Attempt {
	return task.Attempt{RunID: task.RunID{Task: id, Seq: seq}, Attempt: n}
}

func success(id task.ID, seq int64, n int32, h task.Holder) task.Report {
	return task.Report{Attempt: attempt(id, seq, n), Holder: h, Result: task.Result{Outcome: task.Success, Next: task.Never}}
}

func failure(id task.ID, seq int64, n int32, h task.Holder) task.Report {
	return task.Report{Attempt: attempt(id, seq, n), Holder: h, Result: task.Result{Outcome: task.Fail, Next: task.Never, Error: hex.EncodeToString([]byte("no"))}}
}

// report takes results in one group.
func (b *bundle) report(rs ...task.Report) []task.Code {
	b.t.Helper()
	in := make([]reported, len(rs))
	for i, r := range rs {
		in[i] = reported{tenant: b.tenant, paramsBytes: 1 << 14, Report: r}
	}
	return codes(b.doReports(context.Background(), b.d, in))
}

func (b *bundle) start(h task.Holder, as ...task.Attempt) []task.Reply {
	return b.doStarts(context.Background(), b.d, holds(b.tenant, h, as, (*task.Machine).Start))
}

func (b *bundle) heartbeat(h task.Holder, as ...task.Attempt) []task.Reply {
	return b.doBeats(context.Background(), b.d, holds(b.tenant, h, as, (*task.Machine).Heartbeat))
}

func (b *bundle) handBack(h task.Holder, as ...task.Attempt) []task.Reply {
	return b.doBeats(context.Background(), b.d, handBacks(b.tenant, h, as, nil))
}

func codes(replies []task.Reply) []task.Code {
	out := make([]task.Code, len(replies))
	for i, r := range replies {
		out[i] = r.Code
	}
	return out
}

// placeOf returns the shard of a request of any tenant.
func placeOf(_ int32, requestID string) task.Shard { return task.ShardOf(requestID) }
