package shards

import (
	"testing"
	"time"

	"github.com/perceptor/perceptor/task"
)

// An upsert whose task is refused only when it is placed leaves the key to the task that has it, although that has ended (T16.1, T16.6).
func TestARefusedUpsertLeavesTheKey(t *testing.T) {
	for name, c := range map[string]struct{ first, upsert func(b *bundle, s *task.Spec) }{
		"it never fires": {
			func(*bundle, *task.Spec) {},
			func(b *bundle, s *task.Spec) {
				s.Cron = &task.Cron{Dialect: task.StandardCron, Expression: "0 0 29 2 *", Zone: "UTC"}
				s.End = b.now.Add(time.Hour)
			},
		},
		"SKIP drops its only instant": {
			func(b *bundle, s *task.Spec) { s.Begin, s.Misfire, s.Grace = b.now, task.Skip, time.Minute },
			nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t).running()
			r := b.keyedRequest(1, func(s *task.Spec) {
				s.Type, s.Interval, s.MaxCount = task.OneShot, 0, 1
				c.first(b, s)
			})
			id := b.addKey(r).Items[0].ID
			if _, err := b.Cancel(t.Context(), b.tenant, id); err != nil {
				t.Fatal(err)
			}
			b.now = b.now.Add(time.Hour)
			b.setClock(b.now)
			upsert := r
			if c.upsert != nil {
				upsert = with(r, 2, func(s *task.Spec) { c.upsert(b, s) })
			}
			upsert.Upsert = true
			if got := b.addKey(upsert); len(got.Items[0].Faults) == 0 {
				t.Fatalf("the upsert was not refused: %+v", got)
			}
			if again := b.addKey(r); again.Items[0].ID != id {
				t.Errorf("the add of task %d, repeated, was answered with %+v", id, again.Items[0])
			}
		})
	}
}
