package shards

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/perceptor/perceptor/store/shards/bulk"
	"github.com/perceptor/perceptor/task"
)

// TestAnOperationChangesNoMoreThanWasCounted adds tasks after the count that match, too, as an edit would make them match.
func TestAnOperationChangesNoMoreThanWasCounted(t *testing.T) {
	for _, action := range []task.BulkAction{task.BulkPause, task.BulkCancel, task.BulkReschedule, task.BulkReplay} {
		for _, more := range []int{0, 1} {
			t.Run(fmt.Sprint(action, " ", more, " more"), func(t *testing.T) {
				b := setup(t, nearOnly)
				own := b.chores()
				some := func() { b.add(b.spec(task.OneShot, b.inHours(5))) }
				if action == task.BulkReplay {
					some = func() { b.die(func(s *task.Spec) { s.Retention = 0 }) }
				} else {
					b.spread()
				}
				some()
				some()
				shift := time.Duration(0)
				if action == task.BulkReschedule {
					shift = time.Hour
				}
				counted := b.finishBulk(own, b.bulk(action, task.BulkTerms{DryRun: true, Shift: shift}), func() { b.advance(time.Minute) }).Matched
				if counted < 2 {
					t.Fatalf("counted %d", counted)
				}
				for range more {
					some()
				}
				b.advance(time.Minute)
				parts := make([]int64, task.Databases)
				parts[b.d] = counted
				op := b.mustCreate(action, task.BulkTerms{MaxRate: 10 * task.Databases, Shift: shift, CountedBy: 9, Counted: parts})
				b.endElsewhere(op)
				b.finishOrAbort(own, op)
				p, want := b.part(op), task.BulkDone
				if more > 0 {
					want = task.BulkAborted
				}
				if p.State != want || p.Matched > counted || (p.Matched < counted) != (more > 0) || strings.Contains(p.Error, "the dry run 9 counted") != (more > 0) {
					t.Errorf("%d were counted; the operation is %+v", counted, p)
				}
				if found, err := b.Recount(t.Context(), b.d, b.tenant, false); err != nil || len(found) != 0 {
					t.Errorf("recount %+v, %v", found, err)
				}
			})
		}
	}
}

// TestADatabaseThatHasMoreThanWasCountedTakesWhatTheOthersLeave counts some tasks there, and some in another database, which has fewer by now.
func TestADatabaseThatHasMoreThanWasCountedTakesWhatTheOthersLeave(t *testing.T) {
	for _, left := range []int64{2, 3} {
		t.Run(fmt.Sprint(left, " left for 3"), func(t *testing.T) {
			b := setup(t, nearOnly)
			own, other := b.chores(), (b.d+task.Databases-1)%task.Databases // mostly with a lower number
			b.spread()
			counted := b.finishBulk(own, b.bulk(task.BulkPause, task.BulkTerms{DryRun: true}), func() { b.advance(time.Minute) }).Matched
			for range 3 {
				b.add(b.spec(task.OneShot, b.inHours(5)))
			}
			b.advance(time.Minute)
			parts := make([]int64, task.Databases)
			parts[b.d], parts[other] = counted, 10
			op := b.mustCreate(task.BulkPause, task.BulkTerms{CountedBy: 9, Counted: parts})
			in := func(change string, args ...any) {
				t.Helper()
				if _, err := b.db.Pool(other).Exec(t.Context(), `UPDATE bulk_operation SET `+change+` WHERE tenant_id = $1 AND id = $2`, append([]any{op.Tenant, op.ID}, args...)...); err != nil {
					t.Fatal(err)
				}
			}
			steps := func() task.BulkPart {
				t.Helper()
				for range 5 {
					if step, err := b.Bulk(t.Context(), b.d, own, true); err != nil || step.Lost {
						t.Fatalf("%+v, %v", step, err)
					}
					b.advance(time.Minute)
				}
				return b.part(op)
			}
			b.endElsewhere(op)
			in("state = 1, finished_at = NULL")
			waiting := steps()
			if waiting.State != task.BulkRunning || waiting.Matched > counted || !strings.Contains(waiting.Error, "waiting for what other databases leave") {
				t.Fatalf("%d were counted, and another database may need its own: %+v", counted, waiting)
			}
			in("matched = $3, error = $4", 10-left, waiting.Error)
			if other < b.d {
				if p := steps(); p.State != task.BulkRunning {
					t.Errorf("a database with a lower number waits, too, and this one goes before: %+v", p)
				}
			}
			in("state = 3, finished_at = 1, error = ''")
			p, want := steps(), task.BulkDone
			if left < 3 {
				want = task.BulkAborted
			}
			if p.State != want || p.Matched > counted+left || (p.Matched == counted+left) != (want == task.BulkDone) {
				t.Errorf("%d were counted here, and %d are left elsewhere; the operation is %+v", counted, left, p)
			}
		})
	}
}

// finishOrAbort executes steps until the operation has ended in the bundle's database.
func (b *bundle) finishOrAbort(own task.Ownership, op *bulk.Row) {
	b.t.Helper()
	for range 1000 {
		if step, err := b.Bulk(b.t.Context(), b.d, own, true); err != nil || step.Lost {
			b.t.Fatalf("%+v, %v", step, err)
		}
		if b.part(op).State != task.BulkRunning {
			return
		}
		b.advance(time.Minute)
	}
	b.t.Fatal("the operation does not end")
}
