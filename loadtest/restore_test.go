package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/internal/testenv"
	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/stack"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/task"
)

// drill is an installation on two servers that archive their logs. It does what docs/backup.md says.
type drill struct {
	*guest
	s       *stack.Stack
	servers []*testenv.PostgresServer
	backups []string
	ids     map[int64]string // keys by the ids that were ever given
	release chan struct{}    // ends the calls of slow tasks
}

// each is the number of tasks of each sort, which are in databases of both servers.
const each = 16

func newDrill(t *testing.T) *drill {
	t.Helper()
	archive := t.TempDir()
	for dir, mode := range map[string]os.FileMode{filepath.Dir(archive): 0o755, archive: 0o777} { // the server runs as another user
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
	}
	o := harness.DefaultStack()
	o.Taskds, o.Dispatchers, o.Session, o.Assignment, o.PostgresServers = 1, 2, e2eSession, stack.InPostgres, 2
	o.Progress = func(what string) { t.Log(what) }
	// The data directory of a server is named after it, and is the working directory of the commands.
	file := archive + "/$(basename $(dirname $PWD))-%f"
	for name, value := range map[string]string{
		"fsync": "off", "shared_buffers": "256MB", "archive_mode": "on", "archive_command": "cp %p " + file, "restore_command": "cp " + file + " %p",
	} {
		o.Postgres[name] = value
	}
	s := ownStack(t, o)
	d := &drill{guest: newGuest(t, s, "drill"), s: s, ids: map[int64]string{}, release: make(chan struct{})}
	for _, name := range []string{"postgres", "postgres-2"} {
		p, err := s.Part(name)
		if err != nil {
			t.Fatal(err)
		}
		d.servers = append(d.servers, p.Server.(*testenv.PostgresServer))
	}
	d.listen(map[string]client.Handler{
		"late": func(context.Context, *client.Run) error { return nil },
		"slow": func(ctx context.Context, _ *client.Run) error {
			select {
			case <-d.release:
			case <-ctx.Done():
			}
			return nil
		},
	})
	return d
}

func (d *drill) must(err error) {
	d.t.Helper()
	if err != nil {
		d.t.Fatal(err)
	}
}

// backUp makes a base backup of each server.
func (d *drill) backUp() {
	d.t.Helper()
	for _, server := range d.servers {
		dir, err := server.BackUp(d.t.Context(), "base")
		d.must(err)
		d.backups = append(d.backups, dir)
	}
}

// some adds tasks with keys and returns their ids.
func (d *drill) some(sort string, t client.Task) (ids []int64) {
	d.t.Helper()
	ids = make([]int64, each)
	var adds errgroup.Group
	for i := range ids {
		one := t
		one.IdempotencyKey, one.Retention = fmt.Sprintf("%s-%d", sort, i), time.Hour
		adds.Go(func() (err error) {
			ids[i], err = d.AddTask(d.t.Context(), one)
			return err
		})
	}
	d.must(adds.Wait())
	for i, id := range ids {
		d.ids[id] = fmt.Sprintf("%s-%d", sort, i)
	}
	return ids
}

// query scans the only row of a query at a server.
func (d *drill) query(server int, query string, into ...any) {
	d.t.Helper()
	conn, err := pgx.Connect(d.t.Context(), d.servers[server].DSN())
	d.must(err)
	defer conn.Close(context.Background()) //nolint:errcheck // the query has ended
	d.must(conn.QueryRow(d.t.Context(), query).Scan(into...))
}

// incarnations returns those of one database of each server.
func (d *drill) incarnations() (all [2]int64) {
	d.t.Helper()
	for i := range d.servers {
		d.query(i, "SELECT incarnation FROM "+store.SchemaName(i*task.Databases/2)+".database_identity", &all[i])
	}
	return all
}

// restore replaces servers by their backups with the log up to a point in time, as an operator does.
func (d *drill) restore(point time.Time, servers ...int) {
	d.t.Helper()
	for _, i := range servers {
		var file string
		d.query(i, "SELECT pg_walfile_name(pg_switch_wal())", &file)
		await(d.t, "the log is in the archive", func() (done bool) {
			d.query(i, "SELECT coalesce(right(last_archived_wal, 16) >= right('"+file+"', 16), false) FROM pg_stat_archiver", &done)
			return done
		})
		conf, err := os.OpenFile(filepath.Join(d.backups[i], "postgresql.auto.conf"), os.O_APPEND|os.O_WRONLY, 0)
		d.must(err)
		_, err = fmt.Fprintf(conf, "recovery_target_time = '%s'\nrecovery_target_action = 'promote'\n", point.UTC().Format("2006-01-02 15:04:05.999999+00"))
		d.must(errors.Join(err, conf.Close(), os.WriteFile(filepath.Join(d.backups[i], "recovery.signal"), nil, 0o644))) //nolint:gosec // the server runs as another user
		d.must(d.servers[i].RestoreData(d.t.Context(), d.backups[i]))
		await(d.t, "the server has left recovery", func() (primary bool) {
			d.query(i, "SELECT NOT pg_is_in_recovery()", &primary)
			return primary
		})
	}
}

// on reports whether a task is on one of the servers.
func on(id int64, servers []int) bool {
	for _, i := range servers {
		if int(id%task.Shards)/task.ShardsPerDatabase*2/task.Databases == i {
			return true
		}
	}
	return false
}

// times returns how often the first run of a task was called.
func (d *drill) times(kind string, id int64) (n int) {
	for _, r := range d.called(kind) {
		if r.TaskID == id && r.Seq == 1 {
			n++
		}
	}
	return n
}

// lose does things before and after a point in time, restores servers to that point, and compares what is
// there with what docs/backup.md promises.
func (d *drill) lose(name string, servers ...int) {
	d.t.Helper()
	ctx := d.t.Context()
	far := client.Task{Kind: "far", Type: client.OneShot, Begin: time.Now().Add(10 * time.Hour), Retention: time.Hour}
	kept, cancelled := d.some(name+"-kept", far), d.some(name+"-cancelled", far)
	slow := d.some(name+"-slow", client.Task{Kind: "slow", Type: client.OneShot, AckTimeout: time.Hour})
	await(d.t, "the slow handlers are called", func() bool {
		for _, id := range slow {
			if d.times("slow", id) == 0 {
				return false
			}
		}
		return true
	})
	before := d.incarnations()
	late, point := d.pointBefore(name + "-late")

	lost := d.some(name+"-lost", far)
	for _, id := range cancelled {
		_, err := d.CancelTask(ctx, id)
		d.must(err)
	}
	for range slow {
		d.release <- struct{}{}
	}
	await(d.t, "the late tasks and the slow ones are done", func() bool { return d.done(late) && d.done(slow) })
	d.restore(point, servers...)

	d.compare(servers, far, kept, cancelled, late, lost)
	after := d.incarnations()
	for i := range after {
		if restored := on(int64(i*task.Databases/2*task.ShardsPerDatabase), servers); (after[i] > before[i]) != restored {
			d.t.Errorf("%s: the incarnation of server %d was %d and is %d", name, i, before[i], after[i])
		}
	}
	d.republish(point, servers, slow)
}

// pointBefore adds tasks, and returns a point in time after that and before they are claimed. On a slow
// machine it needs several tries.
func (d *drill) pointBefore(sort string) (late []int64, point time.Time) {
	d.t.Helper()
	for delay := 5 * time.Second; delay < awaitLimit; delay *= 2 {
		begin := time.Now().Add(delay)
		late = d.some(sort+delay.String(), client.Task{Kind: "late", Type: client.OneShot, Begin: begin})
		d.query(0, "SELECT clock_timestamp() FROM pg_sleep(0.1)", &point)
		d.must(harness.Sleep(d.t.Context(), 200*time.Millisecond)) // and after it there is something
		if time.Until(begin) > 2*time.Second {
			return late, point
		}
	}
	d.t.Fatal("no point in time was found between adds and claims")
	return nil, point
}

// done reports whether all tasks have ended.
func (d *drill) done(ids []int64) bool {
	for _, id := range ids {
		info, err := d.GetTask(d.t.Context(), id)
		d.must(err)
		if info.State != client.Completed {
			return false
		}
	}
	return true
}

// patiently repeats a call until it is answered: the first connections after a restore adopt the databases.
func (d *drill) patiently(id int64) (info *client.TaskInfo, err error) {
	await(d.t, "a read is answered", func() bool {
		info, err = d.GetTask(d.t.Context(), id)
		return err == nil || errors.Is(err, client.ErrNotFound)
	})
	return info, err
}

func (d *drill) compare(servers []int, far client.Task, kept, cancelled, late, lost []int64) {
	d.t.Helper()
	for _, id := range kept {
		if _, err := d.patiently(id); err != nil {
			d.t.Errorf("task %d from before the point: %v", id, err)
		}
	}
	for _, id := range cancelled {
		info, err := d.patiently(id)
		if d.must(err); (info.State == client.Cancelled) == on(id, servers) {
			d.t.Errorf("task %d, cancelled after the point, is %v", id, info.State)
		}
	}
	for _, id := range lost {
		if _, err := d.patiently(id); errors.Is(err, client.ErrNotFound) != on(id, servers) {
			d.t.Errorf("task %d, added after the point: %v", id, err)
		}
		far.IdempotencyKey = d.ids[id]
		again := d.add(far)
		if key, given := d.ids[again]; given == on(id, servers) {
			d.t.Errorf("the key %s of task %d now has task %d, an id that %q had", d.ids[id], id, again, key)
		}
		d.ids[again] = d.ids[id]
	}
	await(d.t, "runs that fired after the point fire again", func() bool {
		for _, id := range late {
			if on(id, servers) && d.times("late", id) < 2 {
				return false
			}
		}
		return true
	})
}

// republish delivers at once the runs whose results were lost.
func (d *drill) republish(point time.Time, servers []int, slow []int64) {
	d.t.Helper()
	said, err := d.s.Perceptorctl(d.t.Context(), nil, "republish", "--since", point.Add(-time.Hour).UTC().Format(time.RFC3339))
	d.must(err)
	d.t.Log(said)
	await(d.t, "the runs whose results were lost are called again", func() bool {
		for {
			select {
			case d.release <- struct{}{}:
				continue
			case <-time.After(50 * time.Millisecond):
			}
			break
		}
		for _, id := range slow {
			if on(id, servers) && d.times("slow", id) < 2 {
				return false
			}
		}
		return true
	})
}

// TestABackupIsRestoredToAPointInTime does the drill of docs/backup.md while programs and listeners run: one of
// two servers alone, then both.
func TestABackupIsRestoredToAPointInTime(t *testing.T) {
	drilled(t)
	t.Parallel()
	d := newDrill(t)
	d.backUp()
	d.lose("one", 1)
	d.lose("all", 0, 1)
	said, err := d.s.Perceptorctl(t.Context(), nil, "doctor")
	if err != nil && !strings.Contains(said+err.Error(), "a standby was promoted") {
		t.Errorf("doctor does not tell of the adoption: %s, %v", said, err)
	}
}
