package move_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/perceptor/perceptor/store/move"
	"github.com/perceptor/perceptor/store/move/sql"
)

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

// TestALateStatementOfAMoveDoesNothingAtAPlaceOfAnother: its command was suspended just before the statement.
func TestALateStatementOfAMoveDoesNothingAtAPlaceOfAnother(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.run(1, nil)
	conn := r.connect(1)
	exec := func(text string, args ...any) int64 {
		t.Helper()
		tag, err := conn.Exec(t.Context(), text, append([]any{pgx.QueryExecModeExec}, args...)...)
		if err != nil {
			t.Fatal(err)
		}
		return tag.RowsAffected()
	}
	exec("SET search_path = perceptor_03")
	var name string
	if err := conn.QueryRow(t.Context(), "SELECT sequencename FROM pg_sequences WHERE schemaname = 'perceptor_03' LIMIT 1").Scan(&name); err != nil {
		t.Fatal(err)
	}
	for _, number := range []int64{1, 2, 3} { // 2 is in use
		if n := exec(sql.SetSequence.Text(), name, int64(1), number); n != 0 {
			t.Errorf("a sequence was set by move %d", number)
		}
	}
	for _, number := range []int64{1, 2, 4} {
		if n := exec(sql.Step.Text(), move.Copying, number); n != 0 {
			t.Errorf("move %d has written a step at a place that move 2 has opened", number)
		}
	}
	exec("UPDATE database_place SET state = 'incoming'")
	for _, number := range []int64{1, 3} {
		if n := exec(sql.Ready.Text(), move.Ready, number); n != 0 {
			t.Errorf("move %d has confirmed the copy of move 2", number)
		}
	}
	exec("UPDATE database_place SET state = 'open'")
	if n := exec(sql.Cleaned.Text(), int64(1)); n != 0 {
		t.Error("move 1 has cleaned up the place of move 2")
	}
	exec("UPDATE database_place SET target = 'next', step = 'announced'")
	if exec(sql.Cleaned.Text(), int64(2)); exec("SELECT FROM database_place WHERE step = 'announced'") != 1 {
		t.Error("move 2 has removed the step of the next one")
	}
	exec("UPDATE database_place SET target = '', step = ''")
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
