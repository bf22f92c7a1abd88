package move_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
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

// TestAServerThatIsKilledAtEveryPointStopsNoMove: the old one, and then, on the way back, what
// is the old one then is the new one of the first move.
func TestAServerThatIsKilledAtEveryPointStopsNoMove(t *testing.T) {
	for i, which := range []string{"old", "new"} {
		t.Run(which, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			killed := map[string]bool{}
			r.run(1, func(point string) error {
				if killed[point] || !slices.Contains(chosen(), point) {
					return nil
				}
				killed[point] = true
				if err := r.servers[i].Kill(); err != nil {
					return err
				}
				return r.servers[i].Restart(t.Context())
			})
			for _, point := range chosen() {
				if !killed[point] && !slices.Contains([]string{"opened", "told", "cleaned"}, point) {
					t.Errorf("%s was not reached", point)
				}
			}
			r.verify(1, "perceptor_03_moved_2")
		})
	}
}

// TestACopyThatIsStuckBeginsAgain: a crash of the new server has left a table that is copied, and whose slot is gone.
func TestACopyThatIsStuckBeginsAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	subscribed := 0
	r.run(1, func(point string) error {
		if point != "subscribed" {
			return nil
		}
		if subscribed++; subscribed > 1 {
			return nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		conn := r.connect(1)
		for stuck := int64(0); stuck == 0; time.Sleep(10 * time.Millisecond) {
			tag, err := conn.Exec(ctx, `UPDATE pg_subscription_rel SET srsubstate = 'f' WHERE srrelid = (SELECT min(srrelid) FROM pg_subscription_rel WHERE srsubstate = 'r')`)
			if err != nil {
				return err
			}
			stuck = tag.RowsAffected()
		}
		return nil
	})
	if subscribed != 2 {
		t.Errorf("the copy was begun %d times, want 2", subscribed)
	}
	r.verify(1, "perceptor_03_moved_2")
}

// TestAPauseThatEndsDuringAStatementIsFollowedByAnother: first a statement at the new server takes longer than the pause, then one at
// the old server.
func TestAPauseThatEndsDuringAStatementIsFollowedByAnother(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	slow := []struct {
		server int
		table  string
	}{{1, "database_place"}, {0, "move_mark"}}
	var holder *pgx.Conn
	result, err := r.mover(1, func(point string) (err error) {
		switch {
		case point == "paused" && holder != nil: // the next pause
			_, err = holder.Exec(t.Context(), `ROLLBACK`)
			holder = nil
		case point == "locked" && len(slow) > 0:
			holder = r.connect(slow[0].server)
			_, err = holder.Exec(t.Context(), `BEGIN; LOCK TABLE perceptor_03.`+slow[0].table+` IN EXCLUSIVE MODE`)
			slow = slow[1:]
		}
		return err
	}).Run(t.Context())
	if err != nil || result.Attempts < 3 {
		t.Fatalf("after %d pauses: %v", result.Attempts, err)
	}
	r.verify(1, "perceptor_03_moved_2")
}

// TestAMoveWhoseSlotIsGoneCopiesAgain: after a fail-over of the old server, or if somebody drops the slot of a move that was left
// unfinished, the subscription has missed what was written without the slot.
func TestAMoveWhoseSlotIsGoneCopiesAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	old, ctx := r.connect(0), t.Context()
	exec := func(statement string) {
		t.Helper()
		if _, err := old.Exec(ctx, statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	exec(`INSERT INTO perceptor_03.task_key (shard, tenant_id, key, first_id, n, body_hash, expires_at) VALUES (96, 2, 'changed', 1, 1, '', 1)`)
	dropped := false
	_, err := r.mover(1, func(point string) error {
		if point == "copied" && !dropped {
			dropped = true
			r.dropSlots(old)
		}
		return nil
	}).Run(ctx)
	if err == nil || !strings.Contains(err.Error(), "the slot of the move is gone") {
		t.Fatalf("without the slot: %v", err)
	}
	exec(`UPDATE perceptor_03.task_key SET n = 7 WHERE key = 'changed'`)
	r.run(1, nil)
	var n int
	if err := r.connect(1).QueryRow(ctx, `SELECT n FROM perceptor_03.task_key WHERE key = 'changed'`).Scan(&n); err != nil || n != 7 {
		t.Errorf("the row that was changed without the slot has %d, %v, want 7", n, err)
	}
	if n := r.left(0) + r.left(1); n > 0 {
		t.Errorf("%d slots, publications and subscriptions are left", n)
	}
	r.verify(1, "perceptor_03_moved_2")
}

// dropSlots drops all slots of a server, and ends who uses them.
func (r *rig) dropSlots(conn *pgx.Conn) {
	r.t.Helper()
	for left := 1; left > 0; {
		err := conn.QueryRow(r.t.Context(), `WITH ended AS MATERIALIZED (SELECT s.slot_name, s.active_pid IS NULL OR pg_terminate_backend(s.active_pid, 5000) AS done FROM pg_replication_slots s)
			SELECT count(*) - count(CASE WHEN e.done THEN pg_drop_replication_slot(e.slot_name)::text END) FROM ended e`).Scan(&left)
		if e := new(pgconn.PgError); errors.As(err, &e) && e.Code == "55006" { // the subscriber was faster
			continue
		}
		if err != nil {
			r.t.Fatal(err)
		}
	}
}

// TestABackupDelaysAMoveAndNoProgram: it reads tables that the begin and an abort of a move need for themselves.
func TestABackupDelaysAMoveAndNoProgram(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	stop := errors.New("stopped")
	r.besideABackup(func() error {
		_, err := r.mover(1, func(point string) error {
			if point == "announced" {
				return stop
			}
			return nil
		}).Run(t.Context())
		if errors.Is(err, stop) {
			return nil
		}
		return fmt.Errorf("the move was not begun: %w", err)
	})
	r.besideABackup(func() error {
		_, err := r.mover(1, nil).Abort(t.Context())
		return err
	})
}

// besideABackup calls f while a backup reads the database. When f has tried to lock a table that the backup reads, and programs have
// written since, the backup ends; then f must succeed.
func (r *rig) besideABackup(f func() error) {
	r.t.Helper()
	backup, ctx := r.connect(0), r.t.Context()
	if _, err := backup.Exec(ctx, `BEGIN; SELECT count(*) FROM perceptor_03.counter_delta`); err != nil {
		r.t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- f() }()
	waits := r.connect(0)
	for tried := false; !tried; time.Sleep(5 * time.Millisecond) {
		select {
		case err := <-done:
			r.t.Fatalf("it did not need the table: %v", err)
		default:
		}
		if err := waits.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_locks WHERE relation = 'perceptor_03.counter_delta'::regclass AND mode = 'AccessExclusiveLock' AND NOT granted)`).Scan(&tried); err != nil {
			r.t.Fatal(err)
		}
	}
	r.progress(10 * time.Second)
	if _, err := backup.Exec(ctx, `COMMIT`); err != nil {
		r.t.Fatal(err)
	}
	if err := <-done; err != nil {
		r.t.Fatal(err)
	}
}

// TestACommandThatStopsAtEveryPointIsAbortedOrResumed: first it is interrupted and aborted at each
// point before the switch, then it is killed at each point and resumed, each time by another process.
func TestACommandThatStopsAtEveryPointIsAbortedOrResumed(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, point := range chosen()[:slices.Index(chosen(), "committed")] {
		r.abortAt(point)
	}
	for _, point := range chosen() {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), "MOVE_UNTIL="+point, "MOVE_FROM="+r.dsns[0], "MOVE_TO="+r.dsns[1])
		out, err := cmd.CombinedOutput()
		if state := cmd.ProcessState; state == nil || state.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Fatalf("%s was not reached: %v, %s", point, err, out)
		}
	}
	r.run(1, nil)
	if n := r.left(0) + r.left(1); n > 0 {
		t.Errorf("%d slots, publications and subscriptions are left", n)
	}
	number, _ := r.cluster.Place(database)
	r.verify(1, fmt.Sprintf("perceptor_03_moved_%d", number))
}

// TestACommandThatContinuesAfterAnotherHasEndedTheMoveHarmsNothing: it was suspended, and its session at the old server, which made
// it the only one, has ended meanwhile.
func TestACommandThatContinuesAfterAnotherHasEndedTheMoveHarmsNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	suspended := false
	_, err := r.mover(1, func(point string) error {
		if point != "slot" || suspended {
			return nil
		}
		suspended = true
		if _, err := r.connect(0).Exec(t.Context(), `SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'perceptorctl move'`); err != nil {
			return err
		}
		r.run(1, nil)
		return nil
	}).Run(t.Context())
	if err == nil || !strings.Contains(err.Error(), "the copy is not that of this move any more") {
		t.Errorf("the suspended command: %v", err)
	}
	r.verify(1, "perceptor_03_moved_2")
}

// abortAt interrupts a move at a point and aborts it. Nothing of it is left.
func (r *rig) abortAt(point string) {
	r.t.Helper()
	ctx, interrupt := context.WithCancel(r.t.Context())
	defer interrupt()
	_, err := r.mover(1, func(at string) error {
		if at == point {
			interrupt()
		}
		return nil
	}).Run(ctx)
	if ctx.Err() == nil || err == nil {
		r.t.Fatalf("%s: %v", point, err)
	}
	warnings, err := r.mover(1, nil).Abort(r.t.Context())
	if point == "checked" {
		if !errors.Is(err, move.ErrNone) {
			r.t.Fatalf("%s: %v, want %v", point, err, move.ErrNone)
		}
		return
	}
	if err != nil || len(warnings) > 0 {
		r.t.Fatalf("abort at %s: %v, %v", point, err, warnings)
	}
	if n := r.left(0) + r.left(1); n > 0 {
		r.t.Fatalf("%s: %d slots, publications and subscriptions are left", point, n)
	}
}

// TestAMoveToAServerThatHasGoneIsAbortedAlsoIfItHasAnotherDatabase: databases are moved one after the other.
func TestAMoveToAServerThatHasGoneIsAbortedAlsoIfItHasAnotherDatabase(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	gone := errors.New("gone")
	if _, err := r.mover(1, func(point string) error {
		if point == "slot" {
			return gone
		}
		return nil
	}).Run(t.Context()); !errors.Is(err, gone) {
		t.Fatal(err)
	}
	if err := r.servers[1].Kill(); err != nil {
		t.Fatal(err)
	}
	const other = 5
	r.cluster = storetest.OpenDSN(t, "", func(c *store.Config) {
		c.Servers = servers(r.dsns[0], r.dsns[1])
		c.Servers[0].Databases = slices.DeleteFunc(c.Servers[0].Databases, func(d int) bool { return d == other })
		c.Servers[1].Databases = []int{other}
	})
	warnings, err := r.mover(1, nil).Abort(t.Context())
	if err != nil || len(warnings) != 2 || !strings.Contains(warnings[1], fmt.Sprintf("database %d at ", other)) {
		t.Errorf("abort: %v, warnings %q", err, warnings)
	}
	if _, _, to, err := move.Under(t.Context(), r.cluster, database); err != nil || to != "" {
		t.Errorf("after the abort the database is being moved to %q, %v", to, err)
	}
	if n := r.left(0); n > 0 {
		t.Errorf("%d slots and publications are left", n)
	}
	r.progress(30 * time.Second)
}

// refusal returns why a move cannot begin.
func refusal(t *testing.T, c move.Config) string {
	t.Helper()
	m, err := move.New(c)
	if err != nil {
		t.Fatal(err)
	}
	_, err = m.Run(t.Context())
	var refused *move.Refused
	if !errors.As(err, &refused) {
		t.Fatalf("got %v, want a refusal", err)
	}
	return err.Error()
}

func TestWhatIsMissingIsRefusedByName(t *testing.T) {
	t.Parallel()
	from, to := storetest.DSN(t), testenv.Database(t)
	sized := func(storage int64) *store.Cluster {
		return storetest.OpenDSN(t, "", func(c *store.Config) { c.Servers = servers(from, to); c.Servers[1].Storage = storage })
	}
	// Both are databases of one server here, whose disk is that of the larger number.
	for _, c := range []struct {
		free, storage int64
		want          string
		ok            bool
	}{
		{free: 1, storage: 1 << 50, want: "disk: "},
		{storage: 1 << 20, want: "of the 1048576 bytes of "},
		{storage: 1 << 50, want: "disk: ", ok: true},
		{want: "disk: ", ok: true},
		{free: 1 << 50, storage: 1, want: "disk: ", ok: true}, // who gives the free space knows it
	} {
		text := refusal(t, move.Config{Cluster: sized(c.storage), Database: database, Target: to, Free: c.free})
		for _, part := range []string{"wal_level of", "set it to logical"} {
			if !strings.Contains(text, part) {
				t.Errorf("%q is not in %q", part, text)
			}
		}
		if strings.Contains(text, c.want) == c.ok {
			t.Errorf("free %d of %d: %q in %q, want %t", c.free, c.storage, c.want, text, !c.ok)
		}
	}
	hasty := storetest.OpenDSN(t, "", func(c *store.Config) { c.Servers = servers(from+"&statement_timeout=90000", to) })
	if text := refusal(t, move.Config{Cluster: hasty, Database: database, Target: to}); !strings.Contains(text, "statement_timeout of the role at") || !strings.Contains(text, "is 1m30s") {
		t.Errorf("no statement_timeout in %q", text)
	}
	m, err := move.New(move.Config{Cluster: storetest.OpenDSN(t, from), Database: database, Target: from})
	if err == nil {
		_, err = m.Run(t.Context())
	}
	if !errors.Is(err, move.ErrThere) {
		t.Errorf("to the same place: %v", err)
	}
}

// TestASchemaInTheWayIsRefusedBeforeTheMoveIsAnnounced: it may be that of another installation.
func TestASchemaInTheWayIsRefusedBeforeTheMoveIsAnnounced(t *testing.T) {
	t.Parallel()
	from, used, other := storetest.DSN(t), storetest.DSN(t), testenv.Database(t)
	cluster := storetest.OpenDSN(t, from)
	conn, err := pgx.Connect(t.Context(), other)
	if err == nil {
		_, err = conn.Exec(t.Context(), `CREATE SCHEMA perceptor_03; CREATE TABLE perceptor_03.something ()`)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background()) //nolint:errcheck // the test has ended
	for to, want := range map[string]string{used: "holds a database that is in use", other: "has 1 tables"} {
		if text := refusal(t, move.Config{Cluster: cluster, Database: database, Target: to}); !strings.Contains(text, want) {
			t.Errorf("%q is not in %q", want, text)
		}
		if _, _, target, err := move.Under(t.Context(), cluster, database); err != nil || target != "" {
			t.Errorf("the move to %q is announced, %v", target, err)
		}
	}
}

// TestTheAdministratorOfAManagedServiceMayMove: it has neither attribute, but is in roles of the
// service that give these rights. The role of the programs is told to leave it to the owner.
func TestTheAdministratorOfAManagedServiceMayMove(t *testing.T) {
	t.Parallel()
	from, to := storetest.DSN(t), testenv.Database(t)
	conn, err := pgx.Connect(t.Context(), from)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background()) //nolint:errcheck // the test has ended
	own := conn.Config().User
	const administrator = "perceptor_test_administrator"
	exec := func(statement string) {
		t.Helper()
		if _, err := conn.Exec(context.Background(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
	const programs = "perceptor_test_programs"
	exec("DROP ROLE IF EXISTS " + administrator + ", " + programs + ", rds_replication, rds_superuser")
	exec("CREATE ROLE " + programs + " LOGIN PASSWORD 'p' IN ROLE pg_read_all_data")
	exec("CREATE ROLE " + administrator + " LOGIN PASSWORD 'p' IN ROLE " + pgx.Identifier{own}.Sanitize())
	exec("CREATE ROLE rds_replication; CREATE ROLE rds_superuser")
	defer exec("DROP ROLE " + administrator + ", " + programs + ", rds_replication, rds_superuser")
	whyAs := func(role string) string {
		as := func(dsn string) string {
			u, err := url.Parse(dsn)
			if err != nil {
				t.Fatal(err)
			}
			u.User = url.UserPassword(role, "p")
			return u.String()
		}
		return refusal(t, move.Config{Cluster: storetest.OpenDSN(t, as(from)), Database: database, Target: as(to)})
	}
	if text := whyAs(programs); !strings.Contains(text, "does not own all tables of the schema: run the command as their owner") || !strings.Contains(text, "lacks CREATE") {
		t.Errorf("as the programs: %q", text)
	}
	why := func() string { return whyAs(administrator) }
	for _, missing := range []string{"lacks REPLICATION", "may not subscribe"} {
		if text := why(); !strings.Contains(text, missing) {
			t.Errorf("without rights: %q is not in %q", missing, text)
		}
	}
	exec("GRANT rds_replication, rds_superuser TO " + administrator)
	for _, missing := range []string{"lacks REPLICATION", "may not subscribe"} {
		if text := why(); strings.Contains(text, missing) {
			t.Errorf("with the roles of the service: %q is in %q", missing, text)
		}
	}
}
