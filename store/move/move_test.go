package move_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/perceptor/perceptor/internal/testenv"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/move"
	"github.com/perceptor/perceptor/store/place"
	"github.com/perceptor/perceptor/store/storetest"
	"github.com/perceptor/perceptor/task"
)

// database is the one that is moved.
const database = 3

// points are all points of a move at which something may be killed. From committed on the new
// place is in force.
var points = []string{
	"checked", "announced", "created", "published", "slot", "subscribed", "copied", "paused", "locked", "marked", "ready", "renamed",
	"committed", "opened", "told", "cleaned",
}

// decisive are those of which the fewest others are like them. Each takes seconds, so a usual run is
// content with them.
var decisive = []string{"subscribed", "locked", "renamed", "committed"}

// chosen returns the points at which something is killed in this run.
func chosen() []string {
	if os.Getenv(testenv.LongVariable) != "" {
		return points
	}
	return decisive
}

// TestMain runs the command that a test kills, if a test has started this program for that.
func TestMain(m *testing.M) {
	if point := os.Getenv("MOVE_UNTIL"); point != "" {
		moveUntil(point, os.Getenv("MOVE_FROM"), os.Getenv("MOVE_TO"))
		return
	}
	testenv.Main(m)
}

// moveUntil moves the database and kills this process at a point.
func moveUntil(point, from, to string) {
	ctx := context.Background()
	c, err := store.Open(ctx, store.Config{Servers: servers(from, to), Application: "mover"})
	if err == nil {
		var m *move.Mover
		m, err = move.New(move.Config{Cluster: c, Database: database, Target: to, Reached: func(at string) error {
			if at == point {
				_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
				select {}
			}
			return nil
		}})
		if err == nil {
			_, err = m.Run(ctx)
		}
	}
	fmt.Println(err)
	os.Exit(1)
}

// servers has all databases on the first one.
func servers(from, to string) []store.Server {
	all := store.Server{DSN: from}
	for d := range task.Databases {
		all.Databases = append(all.Databases, d)
	}
	return []store.Server{all, {DSN: to}}
}

// A rig has two servers, of which one has all databases, and programs that use one of them.
type rig struct {
	t       *testing.T
	servers [2]*testenv.PostgresServer
	dsns    [2]string
	cluster *store.Cluster
	users   []*user
	stop    context.CancelFunc
	running sync.WaitGroup
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t}
	for i, start := range []func(testing.TB, ...testenv.PostgresOption) *testenv.PostgresServer{storetest.NewServer, testenv.NewPostgres} {
		r.servers[i] = start(t, testenv.Setting("wal_level", "logical"), testenv.Setting("wal_retrieve_retry_interval", "100ms"),
			testenv.Setting("max_worker_processes", "16"), testenv.Setting("max_sync_workers_per_subscription", "4"), testenv.Setting("max_logical_replication_workers", "8"))
		r.dsns[i] = r.servers[i].DSN()
	}
	both := func(c *store.Config) { c.Servers = servers(r.dsns[0], r.dsns[1]) }
	r.cluster = storetest.OpenDSN(t, "", both)
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	for i := range 3 {
		u := &user{cluster: storetest.OpenDSN(t, "", both), name: fmt.Sprint("user", i), acknowledged: map[string]bool{}}
		r.users = append(r.users, u)
		r.running.Go(func() { u.run(ctx) })
	}
	t.Cleanup(func() { stop(); r.running.Wait() })
	return r
}

// A user is a program: it adds rows, raises a sum and draws numbers, and remembers what
// was acknowledged.
type user struct {
	cluster *store.Cluster
	name    string

	mu           sync.Mutex
	acknowledged map[string]bool
	unknown      int
	numbers      []int64
	longest      time.Duration // of a write that succeeded
	failed       int
}

func (u *user) run(ctx context.Context) {
	for n := 0; ctx.Err() == nil; n++ {
		key := fmt.Sprint(u.name, "-", n)
		began := time.Now()
		number, err := u.write(ctx, key)
		u.mu.Lock()
		switch {
		case err == nil:
			u.acknowledged[key] = true
			u.numbers = append(u.numbers, number)
			u.longest = max(u.longest, time.Since(began))
		default:
			u.failed++
			if e := new(pgconn.PgError); !errors.As(err, &e) || strings.HasPrefix(e.Code, "57") {
				u.unknown++
			}
		}
		u.mu.Unlock()
		time.Sleep(2 * time.Millisecond)
	}
}

func (u *user) write(ctx context.Context, key string) (number int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	err = pgx.BeginFunc(ctx, u.cluster.Pool(database), func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `INSERT INTO task_key (shard, tenant_id, key, first_id, n, body_hash, expires_at) VALUES (96, 1, $1, 1, 1, '', 1)`, key); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `INSERT INTO counter_delta VALUES ('{1}', '{1}', '{0}', '{1}', '{1}')`); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `DELETE FROM counter_delta WHERE ctid = (SELECT ctid FROM counter_delta LIMIT 1)`); err != nil {
			return err
		}
		return tx.QueryRow(ctx, `SELECT nextval('task_number')`).Scan(&number)
	})
	return number, err
}

// mover returns a move of the database to a server.
func (r *rig) mover(to int, reached func(string) error) *move.Mover {
	r.t.Helper()
	m, err := move.New(move.Config{Cluster: r.cluster, Database: database, Target: r.dsns[to], Reached: reached})
	if err != nil {
		r.t.Fatal(err)
	}
	return m
}

// run runs a move again until it ends.
func (r *rig) run(to int, reached func(string) error) (result move.Result) {
	r.t.Helper()
	deadline := time.Now().Add(5 * time.Minute)
	for {
		result, err := r.mover(to, reached).Run(r.t.Context())
		switch {
		case err == nil:
			return result
		case errors.Is(err, move.ErrThere):
			return result
		case time.Now().After(deadline):
			r.t.Fatal(err)
		}
		r.t.Log("again:", err)
		time.Sleep(500 * time.Millisecond)
	}
}

// progress waits until each user has written several times, and fails if one does not within limit.
func (r *rig) progress(limit time.Duration) {
	r.t.Helper()
	for _, u := range r.users {
		u.mu.Lock()
		n := len(u.acknowledged)
		u.mu.Unlock()
		for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
			u.mu.Lock()
			now := len(u.acknowledged)
			u.mu.Unlock()
			if now > n+5 {
				break
			}
			if time.Since(began) > limit {
				r.t.Fatalf("%s does not go on", u.name)
			}
		}
	}
}

// verify stops the users and compares what they know with the place in force.
func (r *rig) verify(to int, schemas ...string) {
	r.t.Helper()
	r.progress(30 * time.Second) // each writes at the new place
	r.stop()
	r.running.Wait()
	conn := r.connect(to)
	have := keys(r.t, conn, "perceptor_03")
	numbers := map[int64]string{}
	total, unknown := 0, 0
	for _, u := range r.users {
		lost := 0
		for key := range u.acknowledged {
			if !have[key] {
				lost++
			}
		}
		if lost > 0 {
			r.t.Errorf("%s: %d of %d rows are lost", u.name, lost, len(u.acknowledged))
		}
		for _, n := range u.numbers {
			if other, dup := numbers[n]; dup {
				r.t.Errorf("number %d was drawn by %s and %s", n, other, u.name)
			}
			numbers[n] = u.name
		}
		total, unknown = total+len(u.acknowledged), unknown+u.unknown
		r.t.Logf("%s: %d written, %d failed, longest %v", u.name, len(u.acknowledged), u.failed, u.longest)
		if _, address := u.cluster.Place(database); address != r.address(to) {
			r.t.Errorf("%s is at %s, want %s", u.name, address, r.address(to))
		}
	}
	if len(have) < total || len(have) > total+unknown {
		r.t.Errorf("%d rows are there; %d were acknowledged, and of %d it is not known", len(have), total, unknown)
	}
	for _, schema := range schemas { // nothing was written at the old place after the switch
		for key := range keys(r.t, r.connect(1-to), schema) {
			if !have[key] {
				r.t.Errorf("%s is in the old schema alone", key)
			}
		}
	}
}

func (r *rig) address(i int) place.Address {
	r.t.Helper()
	a, err := place.AddressOf(r.dsns[i])
	if err != nil {
		r.t.Fatal(err)
	}
	return a
}

func (r *rig) connect(i int) *pgx.Conn {
	r.t.Helper()
	conn, err := pgx.Connect(r.t.Context(), r.dsns[i])
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { conn.Close(context.Background()) }) //nolint:errcheck // the test has ended
	return conn
}

// keys returns the keys of all rows that users wrote.
func keys(t *testing.T, conn *pgx.Conn, schema string) map[string]bool {
	t.Helper()
	rows, err := conn.Query(t.Context(), "SELECT key FROM "+schema+".task_key WHERE key LIKE 'user%'")
	if err != nil {
		t.Fatal(err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	for _, key := range list {
		have[key] = true
	}
	return have
}

// left returns what of replication is on a server.
func (r *rig) left(i int) (n int) {
	r.t.Helper()
	if err := r.connect(i).QueryRow(r.t.Context(), `SELECT (SELECT count(*) FROM pg_replication_slots) + (SELECT count(*) FROM pg_publication) + (SELECT count(*) FROM pg_subscription)`).Scan(&n); err != nil {
		r.t.Fatal(err)
	}
	return n
}

func TestADatabaseMovesWhileProgramsUseIt(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	result := r.run(1, nil)
	t.Logf("%+v", result)
	if result.Number != 2 || !result.Counted || result.Rows == 0 || len(result.Warnings) > 0 || result.Pause > 2500*time.Millisecond {
		t.Errorf("the result is %+v", result)
	}
	if n := r.left(0) + r.left(1); n > 0 {
		t.Errorf("%d slots, publications and subscriptions are left", n)
	}
	r.keepsHistory(90_000)
	back := r.run(0, nil)
	r.keepsHistory(90_001)
	if back.Number != 3 || back.OldSchema != "perceptor_03_moved_3" {
		t.Errorf("back: %+v", back)
	}
	if _, err := r.mover(0, nil).Run(t.Context()); !errors.Is(err, move.ErrThere) {
		t.Errorf("again: %v, want %v", err, move.ErrThere)
	}
	r.verify(0, "perceptor_03_moved_3")
}

// keepsHistory fails unless the database can make and drop the partitions of its history. The functions that do so
// find their tables by the name of the schema, which a copy does not have from the beginning.
func (r *rig) keepsHistory(day int) {
	r.t.Helper()
	var made, dropped bool
	if err := r.cluster.Pool(database).QueryRow(r.t.Context(), `SELECT run_event_make_day($1), run_event_drop_before(-1)`, day).Scan(&made, &dropped); err != nil || !made || dropped {
		r.t.Errorf("a partition was made: %v, dropped: %v, %v", made, dropped, err)
	}
}

// TestAMoveCleansUpTheOneBefore: the former command was killed after the switch, and nobody has resumed it.
func TestAMoveCleansUpTheOneBefore(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	killed := errors.New("killed")
	if _, err := r.mover(1, func(point string) error {
		if point == "committed" {
			return killed
		}
		return nil
	}).Run(t.Context()); !errors.Is(err, killed) {
		t.Fatal(err)
	}
	back := r.run(0, func(point string) error {
		if point == "announced" {
			r.told(place.Place{Database: database, Number: 2, Address: r.address(1), Moving: true})
		}
		return nil
	})
	if n := r.left(0) + r.left(1); n > 0 {
		t.Errorf("%d slots, publications and subscriptions are left", n)
	}
	if !strings.Contains(fmt.Sprint(back.Warnings), "perceptor_03_moved_2 at "+string(r.address(0))) {
		t.Errorf("the old rows of the move before are not named: %q", back.Warnings)
	}
	r.verify(0, "perceptor_03_moved_3")
}

// told fails unless all databases know this place.
func (r *rig) told(want place.Place) {
	r.t.Helper()
	for d := range task.Databases {
		all, err := place.All(r.t.Context(), r.cluster.Pool(d))
		if err != nil || !slices.Contains(all, want) {
			r.t.Errorf("database %d knows the places %+v, %v, want %+v", d, all, err, want)
		}
	}
}
