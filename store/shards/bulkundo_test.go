package shards

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/perceptor/perceptor/store/shards/bulk"
	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// create creates an operation as a caller does.
func (b *bundle) create(action task.BulkAction, terms task.BulkTerms) (*task.BulkOperation, error) {
	b.t.Helper()
	b.adds++
	return b.CreateBulk(b.t.Context(), b.tenant, action, terms, fmt.Sprint("request ", b.adds), []byte("hash"))
}

func (b *bundle) mustCreate(action task.BulkAction, terms task.BulkTerms) *bulk.Row {
	b.t.Helper()
	o, err := b.create(action, terms)
	if err != nil {
		b.t.Fatal(err)
	}
	return &bulk.Row{Tenant: b.tenant, ID: o.ID}
}

// endElsewhere ends an operation in the databases that the test does not run.
func (b *bundle) endElsewhere(op *bulk.Row) {
	b.t.Helper()
	for d := range task.Databases {
		if d == b.d {
			continue
		}
		if _, err := b.db.Pool(d).Exec(b.t.Context(), `UPDATE bulk_operation SET state = 3, finished_at = 1 WHERE tenant_id = $1 AND id = $2 AND state = 1`, op.Tenant, op.ID); err != nil {
			b.t.Fatal(err)
		}
	}
}

// pausedTasks counts the paused tasks.
func (b *bundle) pausedTasks() (n int) {
	b.t.Helper()
	for id := range b.listAll(task.ListQuery{Tenant: b.tenant, Limit: 1000}, func() {}) {
		s, err := b.Get(b.t.Context(), b.tenant, id)
		if err != nil {
			b.t.Fatal(err)
		}
		if s.Paused {
			n++
		}
	}
	return n
}

// TestAResumeUnderWayResumesNothingThatALaterPauseStops has tasks in both tiers. The process that creates the PAUSE
// dies in one case before it has told the other databases.
func TestAResumeUnderWayResumesNothingThatALaterPauseStops(t *testing.T) {
	for name, dies := range map[string]bool{"told": false, "not told": true} {
		for _, homeHere := range []bool{true, false} {
			t.Run(fmt.Sprint(name, " home here ", homeHere), func(t *testing.T) {
				crash := false
				b := setup(t, nearOnly, func(c *Config) {
					c.Failpoint = func(p string, _ int) error {
						if crash && p == "create:"+kernel.AfterCommit {
							return errors.New("crash")
						}
						return nil
					}
				})
				if homeHere {
					b.tenant += int32((b.d - kernel.Home(b.tenant) + task.Databases) % task.Databases)
				} else {
					b.tenant += int32((b.d + 1 - kernel.Home(b.tenant) + task.Databases) % task.Databases)
				}
				own := b.chores()
				all := len(b.spread())
				stopped := b.mustCreate(task.BulkPause, task.BulkTerms{})
				b.endElsewhere(stopped)
				b.finishBulk(own, stopped, func() { b.advance(time.Minute) })
				resume := b.mustCreate(task.BulkResume, task.BulkTerms{MaxRate: 64})
				for range 3 {
					if step, err := b.Bulk(t.Context(), b.d, own, true); err != nil || step.Err != nil {
						t.Fatalf("%+v, %v", step, err)
					}
					b.advance(time.Second)
				}
				if n := b.pausedTasks(); n == 0 || n == all {
					t.Fatalf("%d of %d tasks are paused in the middle of the RESUME", n, all)
				}
				crash = dies
				pause, err := b.create(task.BulkPause, task.BulkTerms{Filter: task.Filter{State: task.Scheduled}})
				if crash = false; dies == (err == nil) {
					t.Fatal(err)
				}
				if dies { // the owner of the home database tells the others
					rows, err := bulk.Read(t.Context(), b.db.Pool(kernel.Home(b.tenant)), sql.BulkUnspread, 10)
					if err != nil {
						t.Fatal(err)
					}
					for _, r := range rows {
						if r.Action == task.BulkPause {
							if err := b.SpreadBulk(t.Context(), r); err != nil {
								t.Fatal(err)
							}
							pause = &task.BulkOperation{ID: r.ID}
						}
					}
				}
				b.finishBulk(own, &bulk.Row{Tenant: b.tenant, ID: pause.ID}, func() { b.advance(time.Second) })
				for range 100 {
					if _, err := b.Bulk(t.Context(), b.d, own, true); err != nil {
						t.Fatal(err)
					}
					b.advance(time.Second)
				}
				if n := b.pausedTasks(); n != all {
					t.Errorf("%d of %d tasks are paused after the PAUSE", n, all)
				}
				if p := b.part(resume); p.State != task.BulkAborted || !strings.Contains(p.Error, fmt.Sprintf("operation %d, a later PAUSE", pause.ID)) {
					t.Errorf("the RESUME is %+v", p)
				}
			})
		}
	}
}

func TestAResumeIsRefusedWhileWhatItWouldUndoIsOpen(t *testing.T) {
	b := setup(t, nearOnly)
	own := b.chores()
	b.add(b.spec(task.OneShot, b.inHours(1)))
	mail := task.BulkTerms{Filter: task.Filter{Kind: "mail"}}
	for _, action := range []task.BulkAction{task.BulkPause, task.BulkCancel} {
		stop := b.mustCreate(action, mail)
		_, err := b.create(task.BulkResume, task.BulkTerms{})
		var known *task.Error
		if !errors.As(err, &known) || known.Reason != task.ReasonOperationOpposed || !strings.Contains(err.Error(), fmt.Sprintf("operation %d, a %s,", stop.ID, action)) {
			t.Errorf("RESUME beside %s: %v", action, err)
		}
		for name, terms := range map[string]task.BulkTerms{
			"of others": {Filter: task.Filter{Kind: "report"}}, "that only counts": {DryRun: true},
		} {
			if _, err := b.create(task.BulkResume, terms); err != nil {
				t.Errorf("RESUME %s beside %s: %v", name, action, err)
			}
		}
		if p := b.part(stop); p.State != task.BulkRunning {
			t.Errorf("%s = %+v", action, p)
		}
		b.endElsewhere(stop)
		b.finishBulk(own, stop, func() { b.advance(time.Minute) })
		again := b.mustCreate(task.BulkResume, task.BulkTerms{})
		b.mustCreate(task.BulkPause, task.BulkTerms{DryRun: true})
		if p := b.part(again); p.State != task.BulkRunning {
			t.Errorf("RESUME beside a PAUSE that only counts = %+v", p)
		}
	}
}

// TestARepeatedRequestEndsNothing repeats the creation of a PAUSE after a RESUME has been created.
func TestARepeatedRequestEndsNothing(t *testing.T) {
	b := setup(t, nearOnly)
	create := func(action task.BulkAction, id string) *bulk.Row {
		t.Helper()
		o, err := b.CreateBulk(context.WithoutCancel(t.Context()), b.tenant, action, task.BulkTerms{}, id, []byte("hash"))
		if err != nil {
			t.Fatal(err)
		}
		return &bulk.Row{Tenant: b.tenant, ID: o.ID}
	}
	pause := create(task.BulkPause, "pause")
	b.endElsewhere(pause)
	b.finishBulk(b.chores(), pause, func() { b.advance(time.Minute) })
	resume := create(task.BulkResume, "resume")
	create(task.BulkPause, "pause")
	if p := b.part(resume); p.State != task.BulkRunning {
		t.Errorf("RESUME = %+v", p)
	}
	if _, err := b.AbortBulk(t.Context(), b.tenant, resume.ID); err != nil {
		t.Fatal(err)
	}
	create(task.BulkPause, "pause again")
	if create(task.BulkResume, "resume"); b.part(resume).State != task.BulkAborted {
		t.Error("the repeated RESUME is not the one that was aborted")
	}
}

// TestAResumeUnderWayResumesNothingThatACallHasPausedSince pauses tasks of both tiers: one that was paused already, and
// one that was not.
func TestAResumeUnderWayResumesNothingThatACallHasPausedSince(t *testing.T) {
	for _, packed := range []bool{false, true} {
		t.Run(fmt.Sprint("packed ", packed), func(t *testing.T) {
			b := setup(t, func(c *Config) { c.Horizon = time.Minute })
			own := b.chores()
			ids := b.add(b.spec(task.OneShot, b.inHours(100)), b.spec(task.OneShot, b.inHours(100)), b.spec(task.OneShot, b.inHours(100)))
			for _, id := range ids[:2] {
				if _, err := b.Pause(t.Context(), b.tenant, id); err != nil {
					t.Fatal(err)
				}
			}
			if packed {
				if _, err := b.Demote(t.Context(), b.d, own, 0); err != nil || len(b.rows()) > 0 {
					t.Fatalf("%d rows are left, %v", len(b.rows()), err)
				}
			}
			resume := b.bulk(task.BulkResume, task.BulkTerms{})
			for _, id := range ids[1:] {
				if got, err := b.Pause(t.Context(), b.tenant, id); err != nil || !got.Paused {
					t.Fatalf("%+v, %v", got, err)
				}
			}
			if sum := b.finishBulk(own, resume, func() { b.advance(time.Minute) }); sum != (task.BulkSum{Matched: 1, Done: 1}) {
				t.Errorf("resumed %+v, want one task", sum)
			}
			for i, id := range ids {
				if got, err := b.Get(t.Context(), b.tenant, id); err != nil || got.Paused != (i > 0) {
					t.Errorf("task %d is paused: %+v, %v", i, got, err)
				}
			}
			b.finishBulk(own, b.bulk(task.BulkResume, task.BulkTerms{}), func() { b.advance(time.Minute) })
			if n := b.pausedTasks(); n > 0 {
				t.Errorf("a later RESUME leaves %d tasks paused", n)
			}
			if found, err := b.Recount(t.Context(), b.d, b.tenant, false); err != nil || len(found) != 0 {
				t.Errorf("recount %+v, %v", found, err)
			}
		})
	}
}

func TestAPauseIsAcceptedBesideAsManyOperationsAsThereMayBe(t *testing.T) {
	b := setup(t, nearOnly)
	b.tenant += int32((b.d - kernel.Home(b.tenant) + task.Databases) % task.Databases)
	for range task.MaxOpenBulk {
		b.bulk(task.BulkReschedule, task.BulkTerms{Shift: time.Second})
	}
	if _, err := b.create(task.BulkCancel, task.BulkTerms{}); task.CodeOf(err) != task.ResourceExhausted {
		t.Errorf("one more CANCEL: %v", err)
	}
	for range task.MorePauses {
		b.mustCreate(task.BulkPause, task.BulkTerms{})
	}
	if _, err := b.create(task.BulkPause, task.BulkTerms{}); task.CodeOf(err) != task.ResourceExhausted {
		t.Errorf("too many PAUSEs: %v", err)
	}
}
