package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/client/clienttest"
	"github.com/perceptor/perceptor/internal/testenv"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// patience is how long tests wait for what must happen.
const patience = 3 * time.Minute

// bench is a database with an outbox, and a service in memory.
type bench struct {
	*testing.T
	dsn  string
	pool *pgxpool.Pool
	api  *clienttest.Client

	mu    sync.Mutex
	calls []any // requests that change tasks, in the order in which they were answered
	lose  func(method string) bool
	hold  func(ctx context.Context, method string)
	most  int // bytes of a request that the service accepts; 0: all
}

func setup(t *testing.T) *bench {
	t.Helper()
	t.Parallel()
	b := &bench{T: t, dsn: testenv.Database(t)}
	pool, err := pgxpool.New(t.Context(), b.dsn)
	b.must(err)
	t.Cleanup(pool.Close)
	b.pool = pool
	b.must(Migrate(t.Context(), pool))
	b.api = clienttest.New(t, clienttest.WithConfig(client.Config{
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(b.intercept)}, CallTimeout: 5 * time.Second,
	}))
	return b
}

// intercept records calls, and loses answers.
func (b *bench) intercept(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	b.mu.Lock()
	lose, hold, most := b.lose, b.hold, b.most
	b.mu.Unlock()
	if size := proto.Size(req.(proto.Message)); most > 0 && size > most {
		return status.Errorf(codes.ResourceExhausted, "grpc: received message larger than max (%d vs. %d)", size, most)
	}
	if hold != nil {
		hold(ctx, method)
	}
	err := invoke(ctx, method, req, reply, cc, opts...)
	if err == nil {
		b.mu.Lock()
		b.calls = append(b.calls, req)
		b.mu.Unlock()
	}
	if lose != nil && lose(method) {
		return status.Error(codes.Unavailable, "the answer was lost")
	}
	return err
}

func (b *bench) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// within runs f in a transaction and commits it.
func (b *bench) within(f func(tx pgx.Tx) error) {
	b.Helper()
	b.must(pgx.BeginFunc(b.Context(), b.pool, f))
}

func (b *bench) config() RelayConfig {
	cfg, err := pgxpool.ParseConfig(b.dsn)
	b.must(err)
	return RelayConfig{Postgres: cfg, Client: b.api.Client, Lease: time.Second}
}

// relay runs a relay until the test ends, or until stop is called.
func (b *bench) relay(change ...func(*Relay)) (stop func()) {
	b.Helper()
	r, err := NewRelay(b.config())
	b.must(err)
	for _, f := range change {
		f(r)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			b.Error(err)
		}
	})
	b.Cleanup(stop)
	return stop
}

// eventually waits until ok returns true.
func (b *bench) eventually(what string, ok func() bool) {
	b.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			b.Fatalf("after %s: not %s; added: %d", patience, what, len(b.api.Added()))
		}
	}
}

// drained waits until the outbox is empty.
func (b *bench) drained() {
	b.Helper()
	b.eventually("drained", func() bool { return b.rows() == 0 })
}

// rows returns how many operations are in the outbox.
func (b *bench) rows() (n int) {
	b.Helper()
	b.must(b.pool.QueryRow(b.Context(), "SELECT count(*) FROM perceptor_outbox.operation").Scan(&n))
	return n
}

// tags counts the added tasks by their param n.
func (b *bench) added() map[string]int {
	counts := map[string]int{}
	for _, t := range b.api.Added() {
		counts[t.Params["n"]]++
	}
	return counts
}

func oneShot(n any) client.Task {
	return client.Task{Kind: "remind", Type: client.OneShot, Begin: time.Now().Add(time.Hour), Params: map[string]string{"n": fmt.Sprint(n)}}
}

func keyed(key string, n any) client.Task {
	t := oneShot(n)
	t.IdempotencyKey = key
	return t
}

func TestOnlyCommittedTransactionsAddTasks(t *testing.T) {
	b := setup(t)
	b.relay()
	db, err := sql.Open("pgx", b.dsn)
	b.must(err)
	defer db.Close()
	b.within(func(tx pgx.Tx) error { return AddTask(t.Context(), tx, oneShot("pgx")) })
	std, err := db.BeginTx(t.Context(), nil)
	b.must(err)
	b.must(AddTasks(t.Context(), SQL(std), []client.Task{oneShot("std-1"), keyed("a'\"\\{k}", "std-2")}))
	b.must(std.Commit())
	failed := errors.New("rolled back")
	err = pgx.BeginFunc(t.Context(), b.pool, func(tx pgx.Tx) error {
		b.must(AddTask(t.Context(), tx, oneShot("lost")))
		b.must(AddTasks(t.Context(), tx, []client.Task{keyed("lost", "lost")}))
		return failed
	})
	if !errors.Is(err, failed) {
		t.Fatal(err)
	}
	b.drained()
	b.eventually("three tasks", func() bool { return len(b.api.Added()) == 3 })
	for n, times := range b.added() {
		if times != 1 || n == "lost" {
			t.Errorf("task %s was added %d times", n, times)
		}
	}
	if _, err := b.api.ByKey("a'\"\\{k}").Get(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestWhatBreaksARuleIsRefusedBeforeItIsWritten(t *testing.T) {
	b := setup(t)
	for name, c := range map[string]struct {
		write func(tx Tx) error
		want  string
	}{
		"kind":         {func(tx Tx) error { return AddTask(t.Context(), tx, client.Task{Type: client.OneShot}) }, "kind: is missing"},
		"type":         {func(tx Tx) error { return AddTask(t.Context(), tx, client.Task{Kind: "k"}) }, "type: is missing: one of"},
		"no schedule":  {func(tx Tx) error { return AddTask(t.Context(), tx, client.Task{Kind: "k", Type: client.Blocking}) }, "perceptor: AddTask: invalid argument: interval: is missing: a BLOCKING task needs one, or a cron expression"},
		"two faults":   {func(tx Tx) error { return AddTask(t.Context(), tx, client.Task{}) }, "type: "},
		"key":          {func(tx Tx) error { return AddTask(t.Context(), tx, keyed("ä", 1)) }, "idempotency_key: "},
		"fraction":     {func(tx Tx) error { x := oneShot(1); x.Spread = 1; return AddTask(t.Context(), tx, x) }, "spread: 1ns is not a whole number"},
		"second of":    {func(tx Tx) error { return AddTasks(t.Context(), tx, []client.Task{oneShot(1), {Kind: "k"}}) }, "tasks[1]: "},
		"many":         {func(tx Tx) error { return AddTasks(t.Context(), tx, make([]client.Task, 1001)) }, "1001 tasks; at most 1000"},
		"params":       {func(tx Tx) error { return AddTask(t.Context(), tx, oneShot(strings.Repeat("x", 1<<19))) }, "params: "},
		"cancel":       {func(tx Tx) error { return CancelTask(t.Context(), tx, ByID(-1)) }, "neither by a key nor by a positive id"},
		"trigger":      {func(tx Tx) error { return TriggerTask(t.Context(), tx, ByKey(strings.Repeat("k", 129))) }, "129 bytes"},
		"update":       {func(tx Tx) error { return UpdateTask(t.Context(), tx, ByKey("k"), client.Task{Kind: "\xff"}) }, "kind: "},
		"not by a key": {func(tx Tx) error { return UpdateTask(t.Context(), tx, Ref{}, client.Task{Kind: "k"}) }, "neither by a key"},
	} {
		t.Run(name, func(t *testing.T) {
			b.within(func(tx pgx.Tx) error {
				if err := c.write(tx); err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("error %v, want one with %q", err, c.want)
				}
				return nil // the transaction is still usable
			})
		})
	}
	var n int
	b.must(b.pool.QueryRow(t.Context(), "SELECT count(*) FROM perceptor_outbox.operation").Scan(&n))
	if n != 0 {
		t.Errorf("%d rows were written", n)
	}
}

func TestOperationsOnATaskTakeEffectInTheOrderOfTheirCalls(t *testing.T) {
	b := setup(t)
	b.within(func(tx pgx.Tx) error {
		ctx, k := t.Context(), ByKey("order-1")
		return errors.Join(
			AddTask(ctx, tx, client.Task{Kind: "a", Type: client.NonBlocking, Interval: time.Hour, IdempotencyKey: "order-1"}),
			UpdateTask(ctx, tx, k, client.Task{Kind: "b", Interval: 2 * time.Hour}),
			UpdateTask(ctx, tx, k, client.Task{Kind: "c"}, "kind", "interval"), // is refused: an interval is needed
			TriggerTask(ctx, tx, k),
			UpdateTask(ctx, tx, k, client.Task{Kind: "d"}),
			CancelTask(ctx, tx, k),
			TriggerTask(ctx, tx, k), // is refused: the task has ended
			CancelTask(ctx, tx, ByKey("unknown")),
		)
	})
	b.relay()
	b.drained()
	info, err := b.api.ByKey("order-1").Get(t.Context())
	b.must(err)
	if info.State != client.Cancelled || info.Kind != "d" || info.Interval != 2*time.Hour || info.RunCount != 1 {
		t.Errorf("state %s, kind %s, interval %s, %d runs; want CANCELLED, d, 2h and 1", info.State, info.Kind, info.Interval, info.RunCount)
	}
	list, err := standard.ListRefused(t.Context(), b.pool, 0, 10)
	b.must(err)
	if len(list) != 2 || list[0].Op != opUpdate || list[1].Op != opTrigger || list[1].Reason != "TASK_FINISHED" || list[1].Key != "order-1" {
		t.Errorf("refused: %+v", list)
	}
}

// The lock on a key lasts until the transaction ends, so the numbers, which are drawn under it, have the
// order of the commits.
func TestOperationsOnAKeyHaveTheOrderOfCommits(t *testing.T) {
	b := setup(t)
	const writers, each, keys = 8, 15, 3
	_, err := b.pool.Exec(t.Context(), "CREATE TABLE drawn (key text PRIMARY KEY, n int NOT NULL); INSERT INTO drawn SELECT 'k' || k, 0 FROM generate_series(0, 2) k")
	b.must(err)
	for k := range keys {
		b.within(func(tx pgx.Tx) error { return AddTask(t.Context(), tx, keyed(fmt.Sprintf("k%d", k), 0)) })
	}
	b.relay()
	b.relay()
	var group sync.WaitGroup
	for w := range writers {
		group.Go(func() {
			for i := range each {
				key := fmt.Sprintf("k%d", (w+i)%keys)
				b.within(func(tx pgx.Tx) error {
					if err := TriggerTask(t.Context(), tx, ByKey(key)); err != nil {
						return err
					}
					var n int
					if err := tx.QueryRow(t.Context(), "UPDATE drawn SET n = n + 1 WHERE key = $1 RETURNING n", key).Scan(&n); err != nil {
						return err
					}
					return UpdateTask(t.Context(), tx, ByKey(key), client.Task{Params: map[string]string{"n": fmt.Sprint(n)}})
				})
			}
		})
	}
	group.Wait()
	b.drained()
	last := map[string]int{}
	for _, q := range b.recorded() {
		u, ok := q.(*perceptorv1.UpdateTaskRequest)
		if !ok {
			continue
		}
		var n int
		_, err := fmt.Sscan(u.GetTask().GetParams()["n"], &n)
		b.must(err)
		key := u.GetTask().GetIdempotencyKey()
		if n != last[key]+1 {
			t.Errorf("key %s: update %d came after %d", key, n, last[key])
		}
		last[key] = n
	}
	if sum := last["k0"] + last["k1"] + last["k2"]; sum != writers*each {
		t.Errorf("%d updates, want %d", sum, writers*each)
	}
}

func (b *bench) recorded() []any {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]any(nil), b.calls...)
}

func TestATransactionThatHasNothingToDoWithTheOutboxDelaysNothing(t *testing.T) {
	b := setup(t)
	b.relay()
	foreign, err := b.pool.Begin(t.Context())
	b.must(err)
	_, err = foreign.Exec(t.Context(), "CREATE TABLE elsewhere (n int)") // it has an id, and holds back the horizon
	b.must(err)
	for n := range 5 {
		b.within(func(tx pgx.Tx) error {
			return errors.Join(AddTask(t.Context(), tx, oneShot(n)), AddTask(t.Context(), tx, keyed(fmt.Sprint("k", n), n)))
		})
		b.eventually("moved", func() bool { return len(b.api.Added()) == 2*n+2 })
	}
	b.must(foreign.Rollback(t.Context()))
}

// A claim passes the positions of transactions that are still open: older ones and newer ones than those
// whose rows it takes, with savepoints, and of every isolation level.
func TestTransactionsThatCommitLateAreNotPassedOver(t *testing.T) {
	b := setup(t)
	b.relay()
	levels := []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.RepeatableRead, pgx.Serializable}
	var open []pgx.Tx
	for n := range 9 {
		conn, err := pgx.Connect(t.Context(), b.dsn)
		b.must(err)
		defer conn.Close(context.Background()) //nolint:errcheck // the test is over
		tx, err := conn.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: levels[n%3]})
		b.must(err)
		b.must(AddTask(t.Context(), tx, oneShot(fmt.Sprint("late-", n))))
		b.must(pgx.BeginFunc(t.Context(), tx, func(save pgx.Tx) error { return AddTask(t.Context(), save, oneShot(fmt.Sprint("saved-", n))) }))
		open = append(open, tx)
		b.must(AddTask(t.Context(), b.pool, oneShot(fmt.Sprint("early-", n))))
		b.eventually("the early one", func() bool { return b.added()[fmt.Sprint("early-", n)] == 1 })
	}
	want := 9
	for n, tx := range open {
		if n%3 == 1 {
			b.must(tx.Rollback(t.Context()))
			continue
		}
		b.must(tx.Commit(t.Context()))
		want += 2
		b.eventually("the late one", func() bool { return b.added()[fmt.Sprint("saved-", n)] == 1 })
	}
	b.drained()
	if got := b.added(); len(got) != want {
		t.Errorf("%d tasks, want %d: %v", len(got), want, got)
	}
}

func TestWritersNeedTheRightsOfTheGuideAndNoOther(t *testing.T) {
	b := setup(t)
	ctx := t.Context()
	role := fmt.Sprintf("writer_%d", time.Now().UnixNano())
	exec := func(text string) {
		t.Helper()
		_, err := b.pool.Exec(ctx, strings.ReplaceAll(text, "shop", role))
		b.must(err)
	}
	guide, err := os.ReadFile("../../docs/outbox.md")
	b.must(err)
	_, grants, _ := strings.Cut(string(guide), "```sql\nGRANT")
	grants, _, _ = strings.Cut(grants, "```")
	exec("CREATE ROLE shop")
	defer exec("DROP OWNED BY shop; DROP ROLE shop")
	exec("GRANT" + grants)
	tx, err := b.pool.Begin(ctx)
	b.must(err)
	_, err = tx.Exec(ctx, "SET LOCAL ROLE "+role)
	b.must(err)
	b.must(AddTask(ctx, tx, oneShot(1)))
	b.must(AddTasks(ctx, tx, []client.Task{oneShot(2), keyed("k", 3)}))
	b.must(CancelTask(ctx, tx, ByKey("k")))
	_, err = tx.Exec(ctx, "SELECT perceptor_outbox.perceptor_add('k', '{}', now(), '{}')")
	b.must(err)
	save, err := tx.Begin(ctx)
	b.must(err)
	if _, err := save.Exec(ctx, "SELECT body FROM perceptor_outbox.operation"); err == nil {
		t.Error("a writer may read what others have written")
	}
	b.must(save.Rollback(ctx))
	b.must(tx.Commit(ctx))
}
