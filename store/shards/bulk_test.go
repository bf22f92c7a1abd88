package shards

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/perceptor/perceptor/store/pack"
	"github.com/perceptor/perceptor/store/shards/bulk"
	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// bulk stores an operation in the bundle's database alone, as if the home database had
// sent it.
func (b *bundle) bulk(action task.BulkAction, terms task.BulkTerms) *bulk.Row {
	b.t.Helper()
	b.exec(`INSERT INTO bulk_operation (tenant_id, id, action, terms, body_hash, created_at, replicated_version) VALUES ($1, $2, $3, $4, '', now_ms(), 1)`,
		b.tenant, b.adds+1000, int16(action), termsOf(b.t, terms))
	b.adds++
	return &bulk.Row{Tenant: b.tenant, ID: int64(b.adds + 999)}
}

func termsOf(t testing.TB, terms task.BulkTerms) []byte {
	t.Helper()
	text, err := json.Marshal(terms)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// part returns the part of an operation in the bundle's database.
func (b *bundle) part(op *bulk.Row) task.BulkPart {
	b.t.Helper()
	rows, err := bulk.Read(b.t.Context(), b.db.Pool(b.d), sql.BulkRead, op.Tenant, []int64{op.ID})
	if err != nil || len(rows) != 1 {
		b.t.Fatal(len(rows), err)
	}
	return rows[0].Part(b.d)
}

// finishBulk executes steps until nothing is left to do, and calls between after each.
func (b *bundle) finishBulk(own task.Ownership, op *bulk.Row, between func()) task.BulkSum {
	b.t.Helper()
	for range 1000 {
		step, err := b.Bulk(b.t.Context(), b.d, own, true)
		if err != nil || step.Lost {
			b.t.Fatalf("%+v, %v", step, err)
		}
		if p := b.part(op); p.State == task.BulkDone {
			return p.BulkSum
		}
		between()
	}
	b.t.Fatal("the operation does not end")
	return task.BulkSum{}
}

func TestABulkOperationChangesEachWantedTaskOnceInBothTiers(t *testing.T) {
	red := task.Filter{Tags: []string{"red"}}
	for name, c := range map[string]struct {
		action task.BulkAction
		filter task.Filter
		done   int64
		left   task.Counts
		paused int
	}{
		"cancel by tag": {task.BulkCancel, red, 24, task.Counts{Added: 38, Scheduled: 14, Cancelled: 24}, 1},
		"cancel all":    {task.BulkCancel, task.Filter{}, 37, task.Counts{Added: 38, Scheduled: 1, Cancelled: 37}, 0},
		"pause by tag":  {task.BulkPause, red, 24, task.Counts{Added: 38, Scheduled: 38}, 25},
		"pause all":     {task.BulkPause, task.Filter{}, 36, task.Counts{Added: 38, Scheduled: 38}, 37},
		"resume":        {task.BulkResume, task.Filter{}, 1, task.Counts{Added: 38, Scheduled: 38}, 0},
		"cancel what is due": {task.BulkCancel, task.Filter{DueFrom: 1_000_000_000_000 + 3*3600_000, DueUntil: 1_000_000_000_000 + 5*3600_000}, 6,
			task.Counts{Added: 38, Scheduled: 32, Cancelled: 6}, 1},
	} {
		for _, rate := range []int32{0, 80} {
			t.Run(fmt.Sprint(name, " at ", rate), func(t *testing.T) {
				b := setup(t, nearOnly)
				own := b.chores()
				b.spread()
				paused := b.add(b.spec(task.OneShot, b.inHours(1), kept))[0]
				if _, err := b.Pause(t.Context(), b.tenant, paused); err != nil {
					t.Fatal(err)
				}
				dry := b.bulk(c.action, task.BulkTerms{Filter: c.filter, DryRun: true})
				if sum := b.finishBulk(own, dry, func() {}); sum != (task.BulkSum{Matched: c.done}) {
					t.Errorf("the dry run counted %+v, want %d", sum, c.done)
				}
				op := b.bulk(c.action, task.BulkTerms{Filter: c.filter, MaxRate: rate})
				b.advance(time.Millisecond) // what is added from now on is not meant
				b.add(b.spec(task.OneShot, b.inHours(4), tagged("red")))
				sum := b.finishBulk(own, op, func() { b.advance(time.Minute) })
				if sum != (task.BulkSum{Matched: c.done, Done: c.done}) {
					t.Errorf("sum = %+v, want %d", sum, c.done)
				}
				if diff := cmp.Diff(c.left, b.counts()); diff != "" {
					t.Errorf("counts (-want +got):\n%s", diff)
				}
				if found, err := b.Recount(t.Context(), b.d, b.tenant, false); err != nil || len(found) > 0 {
					t.Errorf("counters differ: %+v, %v", found, err)
				}
				n := 0
				for id := range b.listAll(task.ListQuery{Tenant: b.tenant, Limit: 1000}, func() {}) {
					if s, err := b.Get(t.Context(), b.tenant, id); err != nil || s.Paused {
						n++
					}
				}
				if n != c.paused {
					t.Errorf("%d tasks are paused, want %d", n, c.paused)
				}
			})
		}
	}
}

func TestABulkOperationConcernsTheTasksOfItsInstantThoughClocksDiffer(t *testing.T) {
	for _, ahead := range []time.Duration{-time.Hour, time.Hour} {
		t.Run(ahead.String(), func(t *testing.T) {
			b := setup(t, nearOnly)
			own := b.chores()
			home := (b.d + 1) % task.Databases
			b.tenant += int32((home - kernel.Home(b.tenant) + task.Databases) % task.Databases)
			if _, err := b.db.Pool(home).Exec(t.Context(), `UPDATE test_clock SET now = $1`, int64(b.now.Add(ahead))); err != nil {
				t.Fatal(err)
			}
			older := b.add(b.spec(task.OneShot, b.inHours(9)))[0]
			op, err := b.CreateBulk(t.Context(), b.tenant, task.BulkPause, task.BulkTerms{}, "", []byte("hash"))
			if err != nil {
				t.Fatal(err)
			}
			b.advance(time.Millisecond)
			newer := b.add(b.spec(task.OneShot, b.inHours(9)))[0]
			b.finishBulk(own, &bulk.Row{Tenant: b.tenant, ID: op.ID}, func() { b.advance(time.Minute) })
			for id, want := range map[task.ID]bool{older: true, newer: false} {
				if s, err := b.Get(t.Context(), b.tenant, id); err != nil || s.Paused != want {
					t.Errorf("the task that was added before the operation (%t) is paused: %t, want %t; %v", id == older, s.Paused, want, err)
				}
			}
		})
	}
}

func TestAStepTakesManyPacksThatHoldLittleAndPassesByThoseThatHoldNothing(t *testing.T) {
	b := setup(t, nearOnly)
	own := b.chores()
	for i := range bulk.MaxPacks + 2 {
		ids := b.add(b.spec(task.OneShot, b.inHours(1+i%12), tagged("red"), kept), b.spec(task.OneShot, b.inHours(1+i%12)))
		b.put(inPack, pack.Hour, ids...)
		b.put(inPack, pack.Hour, b.add(b.spec(task.OneShot, b.inHours(1+i%12)))...)
	}
	op := b.bulk(task.BulkCancel, task.BulkTerms{Filter: task.Filter{Tags: []string{"red"}}})
	var steps []int64
	for b.part(op).State != task.BulkDone && len(steps) < 20 {
		step, err := b.Bulk(t.Context(), b.d, own, false)
		if err != nil || step.Lost {
			t.Fatalf("%+v, %v", step, err)
		}
		steps = append(steps, step.Done)
	}
	if sum := b.part(op).BulkSum; steps[0] != bulk.MaxPacks || sum.Done != bulk.MaxPacks+2 || len(steps) > 5 {
		t.Errorf("steps that did %v, in all %+v; want %d first and %d in all", steps, sum, bulk.MaxPacks, bulk.MaxPacks+2)
	}
}

func TestARateIsMadeUpForWhereLooksComeLateAndNeverForLong(t *testing.T) {
	b := setup(t)
	own := b.chores()
	for range 10 {
		var specs []task.Spec
		for range 20 {
			specs = append(specs, b.spec(task.OneShot, b.inHours(1)))
		}
		b.add(specs...)
	}
	op := b.bulk(task.BulkCancel, task.BulkTerms{MaxRate: 10 * task.Databases}) // ten a second here
	for _, look := range []struct {
		after time.Duration
		done  int64
	}{{0, 30}, {1500 * time.Millisecond, 40}, {1500 * time.Millisecond, 60}, {time.Hour, 90}} {
		b.advance(look.after)
		for {
			step, err := b.Bulk(t.Context(), b.d, own, false)
			if err != nil || step.Lost {
				t.Fatalf("%+v, %v", step, err)
			}
			if step.Action == 0 {
				break
			}
		}
		if got := b.part(op).Done; got != look.done {
			t.Errorf("%v after the look before %d are done, want %d", look.after, got, look.done)
		}
	}
}

// TestABulkOperationSurvivesACrashAtAnyPoint checks that a new owner repeats a step that
// failed before or after its commit, and that no task is changed twice or missed.
func TestABulkOperationSurvivesACrashAtAnyPoint(t *testing.T) {
	for _, action := range []task.BulkAction{task.BulkCancel, task.BulkPause, task.BulkReplay} {
		for _, point := range []string{kernel.BeforeCommit, kernel.AfterCommit} {
			t.Run(fmt.Sprint(action, " ", point), func(t *testing.T) {
				crash := false
				b := setup(t, nearOnly, func(c *Config) {
					c.Failpoint = func(p string, _ int) error {
						if crash && p == "bulk:"+point {
							return errors.New("crash")
						}
						return nil
					}
				})
				want := int64(36)
				if action == task.BulkReplay {
					want = 5
					for range want {
						b.die(func(s *task.Spec) { s.Retention = 0 })
					}
				} else {
					b.spread()
				}
				op := b.bulk(action, task.BulkTerms{MaxRate: 64})
				var own task.Ownership
				for i := 0; i < 500 && b.part(op).State != task.BulkDone; i++ {
					own = b.chores() // a new owner for each step
					crash = i%2 == 0
					step, err := b.Bulk(t.Context(), b.d, own, true)
					if err != nil || crash != (step.Err != nil) && step.Action != 0 {
						t.Fatalf("step %d: %+v, %v", i, step, err)
					}
					crash = false
					b.advance(time.Minute)
				}
				if p := b.part(op); p.State != task.BulkDone || p.BulkSum != (task.BulkSum{Matched: want, Done: want}) {
					t.Errorf("sum = %+v, want %d", p, want)
				}
				if found, err := b.Recount(t.Context(), b.d, b.tenant, false); err != nil || len(found) > 0 {
					t.Errorf("counters differ: %+v, %v", found, err)
				}
			})
		}
	}
}

func TestTheErrorOfAStepIsNotedAlsoWhenItsTimeIsOver(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	b := setup(t, nearOnly, func(c *Config) {
		c.Failpoint = func(p string, _ int) error {
			if p != "bulk:"+kernel.BeforeCommit {
				return nil
			}
			cancel()
			return ctx.Err()
		}
	})
	own := b.chores()
	b.add(b.spec(task.OneShot, b.inHours(1)))
	op := b.bulk(task.BulkCancel, task.BulkTerms{})
	if step, err := b.Bulk(ctx, b.d, own, false); err != nil || step.Err == nil || !strings.Contains(step.Err.Error(), fmt.Sprintf("operation %d of tenant %d: ", op.ID, b.tenant)) || !step.More {
		t.Fatalf("the step has not failed, or the chore has: %+v, %v", step, err)
	}
	if p := b.part(op); p.Error == "" || p.Done != 0 {
		t.Errorf("part = %+v", p)
	}
}

// TestADryRunPassesOverWhatTheOperationPassesOver uses a pack that cannot be read.
func TestADryRunPassesOverWhatTheOperationPassesOver(t *testing.T) {
	for name, change := range map[string]string{
		"set aside":      `UPDATE far_pack SET quarantine_reason = 'cannot be moved' WHERE id = (SELECT min(id) FROM far_pack)`,
		"cannot be read": `UPDATE far_pack SET keys = 'x' WHERE id = (SELECT min(id) FROM far_pack)`,
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, nearOnly)
			own := b.chores()
			for i := range 2 {
				b.put(inPack, pack.Hour, b.add(b.spec(task.OneShot, b.inHours(2+i), kept))...)
			}
			b.exec(change)
			if sum := b.finishBulk(own, b.bulk(task.BulkCancel, task.BulkTerms{DryRun: true}), func() { b.advance(time.Minute) }); sum != (task.BulkSum{Matched: 1}) {
				t.Errorf("the dry run counted %+v", sum)
			}
			if sum := b.finishBulk(own, b.bulk(task.BulkCancel, task.BulkTerms{}), func() { b.advance(time.Minute) }); sum != (task.BulkSum{Matched: 1, Done: 1}) {
				t.Errorf("operation = %+v", sum)
			}
		})
	}
}

func TestARescheduledTaskIsMovedOnceWhereverItIs(t *testing.T) {
	b := setup(t, nearOnly)
	own := b.chores()
	all := b.spread()
	ended := b.add(b.spec(task.OneShot, b.inHours(1), func(s *task.Spec) { s.End = b.now.Add(2 * time.Hour) }))[0]
	op := b.bulk(task.BulkReschedule, task.BulkTerms{Shift: 90 * time.Minute})
	if sum := b.finishBulk(own, op, func() {}); sum != (task.BulkSum{Matched: 37, Done: 36, Failed: 1}) {
		t.Errorf("sum = %+v", sum)
	}
	for id, s := range all {
		got, err := b.Get(t.Context(), b.tenant, id)
		if want := s.Begin.Add(90 * time.Minute); err != nil || got.ScheduledAt != want || got.DueAt != want || got.Version != 2 {
			t.Errorf("task %d: %+v, %v, want %s", id, got, err, want)
		}
	}
	if got, err := b.Get(t.Context(), b.tenant, ended); err != nil || got.ScheduledAt != b.now.Add(time.Hour) {
		t.Errorf("task that would never fire = %+v, %v", got, err)
	}
	if n, more, err := b.Purge(t.Context(), b.d); err != nil || more || n != 37 {
		t.Errorf("%d notes are purged, more %t, %v", n, more, err)
	}
	early := b.bulk(task.BulkReschedule, task.BulkTerms{NextAt: b.now.Add(time.Minute)})
	if sum := b.finishBulk(own, early, func() {}); sum.Done != 37 {
		t.Errorf("sum = %+v", sum)
	}
	b.advance(time.Minute)
	if c := b.claim(task.RangeForm); len(c.Publications) != 37 {
		t.Errorf("%d tasks fired at the new instant", len(c.Publications))
	}
}

func TestAStaleOwnerOfTheChoresTakesNoBulkStep(t *testing.T) {
	b := setup(t)
	stale := b.chores()
	b.add(b.spec(task.OneShot, b.inHours(1)))
	op := b.bulk(task.BulkCancel, task.BulkTerms{})
	b.chores()
	step, err := b.Bulk(t.Context(), b.d, stale, false)
	if err != nil || !step.Lost {
		t.Errorf("%+v, %v", step, err)
	}
	if p := b.part(op); p.Done != 0 || p.StartedAt != task.Never {
		t.Errorf("part = %+v", p)
	}
}

func TestTasksThatAreCutMeanwhileAreCancelledOnce(t *testing.T) {
	b := setup(t, nearOnly)
	own := b.chores()
	b.spread()
	op := b.bulk(task.BulkCancel, task.BulkTerms{MaxRate: 48})
	turn := 0
	sum := b.finishBulk(own, op, func() {
		b.advance(time.Second)
		packs := b.packs()
		if turn++; len(packs) == 0 || turn%2 == 0 {
			return
		}
		before := b.rows()
		if err := b.unpack(packs[turn*7%len(packs)]); err != nil {
			t.Fatal(err)
		}
		if turn%3 == 0 {
			return // promoted
		}
		var moved []task.ID // split
		for k := range b.rows() {
			if before[k] == nil {
				moved = append(moved, k.ID)
			}
		}
		b.put(inPack, pack.Hour, moved...)
	})
	if sum != (task.BulkSum{Matched: 36, Done: 36}) {
		t.Errorf("sum = %+v", sum)
	}
	if diff := cmp.Diff(task.Counts{Added: 36, Cancelled: 36}, b.counts()); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
}

func TestNothingIsDemotedWhileABulkOperationGoesThroughTheRows(t *testing.T) {
	b := setup(t, func(c *Config) { c.Horizon = time.Minute })
	own := b.chores()
	for range 3 {
		id := b.add(b.spec(task.Blocking, func(s *task.Spec) { s.Interval = 48 * time.Hour }))[0]
		b.claim(task.RangeForm)
		b.start(7, attempt(id, 1, 1))
		b.report(success(id, 1, 1, 7))
	}
	op := b.bulk(task.BulkPause, task.BulkTerms{MaxRate: 16})
	if _, err := b.Bulk(t.Context(), b.d, own, false); err != nil {
		t.Fatal(err)
	}
	if p := b.part(op); p.Done != 1 {
		t.Fatalf("the first step did %+v", p)
	}
	if out, err := b.Demote(t.Context(), b.d, own, 0); err != nil || out.Packed != 0 {
		t.Errorf("demoted %d, %v", out.Packed, err)
	}
	if sum := b.finishBulk(own, op, func() { b.advance(time.Second) }); sum.Done != 3 {
		t.Errorf("sum = %+v", sum)
	}
}

func TestARowThatSomebodyHasIsWaitedForAndNotLeftOut(t *testing.T) {
	b := setup(t, nearOnly)
	own := b.chores()
	id := b.add(b.spec(task.OneShot, b.inHours(1)))[0]
	op := b.bulk(task.BulkPause, task.BulkTerms{})
	tx, err := b.db.Pool(b.d).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT FROM task WHERE id = $1 FOR UPDATE`, int64(id)); err != nil {
		t.Fatal(err)
	}
	if step, err := b.Bulk(t.Context(), b.d, own, false); err != nil || !step.More || step.Done != 0 {
		t.Errorf("while the row is locked: %+v, %v", step, err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.advance(time.Second)
	if sum := b.finishBulk(own, op, func() { b.advance(time.Second) }); sum.Done != 1 {
		t.Errorf("sum = %+v", sum)
	}
}

func TestFinishedTasksAndDeadRunsArePurgedByTheirFilters(t *testing.T) {
	b := setup(t)
	own := b.chores()
	var done []task.ID
	for i := range 6 {
		id := b.add(b.spec(task.OneShot, kind([]string{"a", "b"}[i%2]), func(s *task.Spec) { s.Retention = time.Hour }))[0]
		if _, err := b.Cancel(t.Context(), b.tenant, id); err != nil {
			t.Fatal(err)
		}
		done = append(done, id)
	}
	op := b.bulk(task.BulkPurgeFinished, task.BulkTerms{Filter: task.Filter{Kind: "a"}})
	if sum := b.finishBulk(own, op, func() {}); sum.Done != 3 {
		t.Errorf("purged %+v", sum)
	}
	if err := b.PurgeTask(t.Context(), b.tenant, done[0]); task.CodeOf(err) != task.NotFound {
		t.Errorf("purge of a purged task: %v", err)
	}
	if err := b.PurgeTask(t.Context(), b.tenant, done[1]); err != nil {
		t.Error(err)
	}
	living := b.add(b.spec(task.OneShot, b.inHours(1)))[0]
	if err := b.PurgeTask(t.Context(), b.tenant, living); task.CodeOf(err) != task.FailedPrecondition {
		t.Errorf("purge of a living task: %v", err)
	}
	for i := range 4 {
		b.die(kind([]string{"a", "b"}[i%2]), func(s *task.Spec) { s.Retention = 0 })
	}
	dead := b.bulk(task.BulkPurgeDead, task.BulkTerms{Dead: task.DeadFilter{Kind: "b"}})
	if sum := b.finishBulk(own, dead, func() {}); sum.Done != 2 {
		t.Errorf("purged %+v", sum)
	}
	want := task.Counts{Added: 11, Scheduled: 1, Cancelled: 2, PurgedCancelled: 4, PurgedFailed: 4, Dead: 2, Died: 4}
	if diff := cmp.Diff(want, b.counts()); diff != "" {
		t.Errorf("counts (-want +got):\n%s", diff)
	}
}

func TestAnOperationReachesAllDatabasesAndIsAbortedInAll(t *testing.T) {
	b := setup(t)
	tenant := b.tenant
	terms := task.BulkTerms{Filter: task.Filter{Kind: "k"}, MaxRate: 5}
	op, err := b.CreateBulk(t.Context(), tenant, task.BulkCancel, terms, "once", []byte("hash"))
	if err != nil || op.State != task.BulkRunning || !cmp.Equal(op.Terms, terms) {
		t.Fatalf("%+v, %v", op, err)
	}
	for _, p := range op.Parts {
		if p.Error != "" || p.State != task.BulkRunning {
			t.Errorf("part %+v", p)
		}
	}
	again, err := b.CreateBulk(t.Context(), tenant, task.BulkCancel, terms, "once", []byte("hash"))
	if err != nil || again.ID != op.ID {
		t.Errorf("the same request made %d and %d, %v", op.ID, again.ID, err)
	}
	if _, err := b.CreateBulk(t.Context(), tenant, task.BulkPause, terms, "once", []byte("other")); task.CodeOf(err) != task.AlreadyExists {
		t.Errorf("same request_id with another body: %v", err)
	}
	for i, c := range []struct {
		f    func() (*task.BulkOperation, error)
		want task.BulkState
	}{
		{func() (*task.BulkOperation, error) { return b.PauseBulk(t.Context(), tenant, op.ID) }, task.BulkPaused},
		{func() (*task.BulkOperation, error) { return b.ResumeBulk(t.Context(), tenant, op.ID) }, task.BulkRunning},
		{func() (*task.BulkOperation, error) { return b.AbortBulk(t.Context(), tenant, op.ID) }, task.BulkAborted},
		{func() (*task.BulkOperation, error) { return b.ResumeBulk(t.Context(), tenant, op.ID) }, task.BulkAborted},
		{func() (*task.BulkOperation, error) { return b.GetBulk(t.Context(), tenant, op.ID) }, task.BulkAborted},
	} {
		got, err := c.f()
		if err != nil || got.State != c.want {
			t.Fatalf("%d: %+v, %v, want %d", i, got, err, c.want)
		}
		for _, p := range got.Parts {
			if p.State != c.want {
				t.Errorf("%d: part %+v", i, p)
			}
		}
	}
	list, err := b.ListBulk(t.Context(), tenant, task.Never, 0, 10)
	if err != nil || len(list) != 1 || list[0].ID != op.ID {
		t.Errorf("listed %v, %v", list, err)
	}
	if _, err := b.GetBulk(t.Context(), tenant+1, op.ID); task.CodeOf(err) != task.NotFound {
		t.Errorf("operation of another tenant: %v", err)
	}
}

// TestADatabaseThatDidNotHearOfAnOperationIsToldByTheChoresOfItsHome: the creation
// is durable with one commit.
func TestADatabaseThatDidNotHearOfAnOperationIsToldByTheChoresOfItsHome(t *testing.T) {
	b := setup(t)
	tenant := int32(b.tenant/16*16) + int32(b.d) // at home here
	id := int64(77)
	b.exec(`INSERT INTO bulk_operation (tenant_id, id, action, terms, body_hash, created_at, replicated_version) VALUES ($1, $2, 3, '{}', '', 5, 0)`, tenant, id)
	if _, err := b.Bulk(t.Context(), b.d, b.chores(), false); err != nil {
		t.Fatal(err)
	}
	op, err := b.GetBulk(t.Context(), tenant, id)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range op.Parts {
		if p.Error != "" {
			t.Errorf("part %+v", p)
		}
	}
	if _, err := b.AbortBulk(t.Context(), tenant, id); err != nil {
		t.Fatal(err)
	}
}

// TestAnOperationThatItsHomeHasLostIsStoredThereAgain: the home was restored from a backup of before the operation.
func TestAnOperationThatItsHomeHasLostIsStoredThereAgain(t *testing.T) {
	b := setup(t, nearOnly)
	if kernel.Home(b.tenant) == b.d {
		b.tenant++
	}
	own := b.chores()
	terms := task.BulkTerms{MaxRate: task.Databases}
	for range 3 {
		b.add(b.spec(task.OneShot, b.inHours(5)))
	}
	b.advance(time.Minute)
	create := func() *task.BulkOperation {
		t.Helper()
		op, err := b.CreateBulk(t.Context(), b.tenant, task.BulkPause, terms, "once", []byte("hash"))
		if err != nil {
			t.Fatal(err)
		}
		return op
	}
	op := create()
	if _, err := b.db.Pool(kernel.Home(b.tenant)).Exec(t.Context(), `DELETE FROM bulk_operation WHERE tenant_id = $1`, b.tenant); err != nil {
		t.Fatal(err)
	}
	if _, err := b.GetBulk(t.Context(), b.tenant, op.ID); task.CodeOf(err) != task.NotFound {
		t.Fatalf("the operation is at home: %v", err)
	}
	if step, err := b.Bulk(t.Context(), b.d, own, true); err != nil || step.Done != 1 {
		t.Fatalf("%+v, %v", step, err)
	}
	if again, err := b.GetBulk(t.Context(), b.tenant, op.ID); err != nil || again.State != task.BulkRunning {
		t.Errorf("the operation is not at home: %+v, %v", again, err)
	}
	if again := create(); again.ID != op.ID {
		t.Errorf("the same request made the operations %d and %d", op.ID, again.ID)
	}
	if _, err := b.AbortBulk(t.Context(), b.tenant, op.ID); err != nil {
		t.Fatal(err)
	}
	if p := b.part(&bulk.Row{Tenant: b.tenant, ID: op.ID}); p.State != task.BulkAborted || p.Done != 1 {
		t.Errorf("the operation was aborted, and its part is %+v", p)
	}
}

// timing: T13.10
func TestARescheduledTaskGivesItsOpenRunsItsVersion(t *testing.T) {
	b := setup(t, nearOnly)
	id := b.add(b.spec(task.NonBlocking))[0]
	b.claim(task.RangeForm)
	if got := b.report(failure(id, 1, 1, 7)); got[0] != task.Accepted {
		t.Fatal(got)
	}
	b.finishBulk(b.chores(), b.bulk(task.BulkReschedule, task.BulkTerms{Shift: time.Hour}), func() {})
	b.advance(time.Minute)
	if c := b.claim(task.RangeForm); len(c.Publications) != 1 || c.Publications[0].Attempt != 2 || c.Publications[0].Version != 2 {
		t.Errorf("the retry: %+v", c.Publications)
	}
}

// TestAStepEndsWhenItHasComputedForLong: a server ends a session that computes for seconds, and the operation would
// try the same step for ever. Here the time suffices for one task; nothing is left out and nothing is done twice.
func TestAStepEndsWhenItHasComputedForLong(t *testing.T) {
	for name, c := range map[string]struct {
		action task.BulkAction
		terms  task.BulkTerms
		sum    int64
		moved  time.Duration
	}{
		"pause":      {action: task.BulkPause, sum: 9},
		"cancel":     {action: task.BulkCancel, sum: 9},
		"reschedule": {action: task.BulkReschedule, terms: task.BulkTerms{Shift: time.Minute}, sum: 9, moved: time.Minute},
		"backfill":   {action: task.BulkBackfill, sum: 27},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, nearOnly, func(c *Config) { c.stepsWithin = time.Nanosecond })
			own := b.chores()
			var ids []task.ID
			for _, p := range everyPlace {
				some := b.add(slices.Repeat([]task.Spec{b.spec(task.NonBlocking, hourlyFromDayBefore, kept)}, 3)...)
				b.put(p, pack.Hour, some...)
				ids = append(ids, some...)
			}
			begin := b.now
			b.advance(24 * time.Hour)
			if c.action == task.BulkBackfill {
				c.terms.BackfillFrom, c.terms.BackfillUntil = begin.Add(2*time.Hour), begin.Add(5*time.Hour)
			}
			steps, op := 0, b.bulk(c.action, c.terms)
			if sum := b.finishBulk(own, op, func() { steps++; b.advance(time.Second) }); sum != (task.BulkSum{Matched: c.sum, Done: c.sum}) {
				t.Errorf("the operation counted %+v, want %d", sum, c.sum)
			}
			if steps < len(ids) {
				t.Errorf("%d steps for %d tasks", steps, len(ids))
			}
			made := b.backfills()
			for _, id := range ids {
				s, err := b.Get(t.Context(), b.tenant, id)
				if err != nil || s.Paused != (c.action == task.BulkPause) || s.State.Final() != (c.action == task.BulkCancel) ||
					s.ScheduledAt != begin.Add(c.moved) || len(made[id]) != min(1, int(c.terms.BackfillUntil)) {
					t.Errorf("task %d: %+v, %d backfill tasks, %v", id, s, len(made[id]), err)
				}
			}
			if found, err := b.Recount(t.Context(), b.d, b.tenant, false); err != nil || len(found) > 0 {
				t.Errorf("counters differ: %+v, %v", found, err)
			}
		})
	}
}

// TestATenantWithManyOperationsDoesNotHoldUpAnother gives one tenant a hundred operations and another one a single
// operation of several steps, and then the first one a PAUSE.
func TestATenantWithManyOperationsDoesNotHoldUpAnother(t *testing.T) {
	b := setup(t, nearOnly)
	own := b.chores()
	add := func() {
		specs := make([]task.Spec, 450)
		for i := range specs {
			specs[i] = b.spec(task.OneShot, b.inHours(1))
		}
		b.add(specs...)
	}
	other := b.tenant + 1
	add()
	for range task.MaxOpenBulk {
		b.bulk(task.BulkReschedule, task.BulkTerms{Shift: time.Second})
	}
	mine := b.tenant
	b.tenant = other
	add()
	op := b.bulk(task.BulkCancel, task.BulkTerms{})
	steps := func(op *bulk.Row) (n int) {
		t.Helper()
		for ; b.part(op).State == task.BulkRunning && n < 60; n++ {
			if step, err := b.Bulk(t.Context(), b.d, own, true); err != nil || step.Lost || step.Err != nil {
				t.Fatalf("%+v, %v", step, err)
			}
			b.advance(10 * time.Millisecond)
		}
		return n
	}
	if n := steps(op); n > 20 {
		t.Errorf("the other tenant's operation took %d steps of the database", n)
	}
	b.tenant = mine
	if n := steps(b.bulk(task.BulkPause, task.BulkTerms{})); n > 20 {
		t.Errorf("the PAUSE took %d steps beside other operations of its tenant", n)
	}
}
