package shards

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perceptor/perceptor/store/pack"
	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/task"
)

// TestTasksOfEachTierMoveToWhatAChangeOpens changes the only calendar, after the next instants of
// tasks were computed. Tasks without it, and those that begin later, stay.
func TestTasksOfEachTierMoveToWhatAChangeOpens(t *testing.T) {
	var closed atomic.Pointer[[]task.Range]
	b := setup(t, nearOnly, func(c *Config) {
		c.Windows = func(int32, []string, []string) (*task.Windows, task.MissingCalendar) {
			return task.NewWindows([][]task.Range{slices.Clone(*closed.Load())}, nil), task.MissingCalendar{}
		}
	})
	own, day := b.chores(), b.now
	before := []task.Range{{From: day.Add(30 * time.Minute), Until: day.Add(48*time.Hour + 30*time.Minute)}}
	closed.Store(&before)
	excluding := func(s *task.Spec) { s.Interval, s.Exclude, s.Begin = time.Hour, []string{"days"}, day.Add(time.Hour) }
	var moving []task.ID
	for _, p := range everyPlace {
		ids := b.add(b.spec(task.NonBlocking, excluding), b.spec(task.Blocking, excluding), b.spec(task.NonBlocking, byCron("0 * * * *", "UTC"), func(s *task.Spec) { s.Exclude, s.Begin = []string{"days"}, day.Add(time.Hour) }))
		b.put(p, pack.Hour, ids[:2]...) // a pack has tasks of one hour
		b.put(p, pack.Hour, ids[2])
		moving = append(moving, ids...)
	}
	plain := b.add(b.spec(task.NonBlocking, b.inHours(49)))[0]
	later := b.add(b.spec(task.Blocking, excluding, func(s *task.Spec) { s.Begin = day.Add(72 * time.Hour) }))[0]
	var none []task.Range
	var now task.Instant
	if err := b.db.Pool(kernel.Home(b.tenant)).QueryRow(t.Context(), "SELECT now_ms()").Scan(&now); err != nil {
		t.Fatal(err)
	}
	if at, err := b.RecomputeCalendar(t.Context(), b.tenant, "other", before, "test"); err != nil || at <= now || at > now.Add(5*time.Second) {
		t.Errorf("its change must be stored before %s, %v: it is %s, and processes need 10 s before the operation begins", at, err, now)
	}
	op := b.bulk(task.BulkRecompute, task.BulkTerms{Calendar: "days", Changed: task.ChangedRanges(before, none, day)})
	closed.Store(&none)
	b.advance(10 * time.Second)
	if step, err := b.Bulk(t.Context(), b.d, own, false); err != nil || step.Matched > 0 {
		t.Fatalf("it does not wait until all processes know the change: %+v, %v", step, err)
	}
	b.advance(10 * time.Second)
	if sum := b.finishBulk(own, op, func() { b.advance(time.Minute) }); sum != (task.BulkSum{Matched: 9, Done: 9}) {
		t.Errorf("%+v, want 9", sum)
	}
	for _, id := range moving {
		s, err := b.Get(t.Context(), b.tenant, id)
		if err != nil {
			t.Fatal(err)
		}
		if s.ScheduledAt <= day || s.ScheduledAt > day.Add(2*time.Hour) || s.DueAt != s.ScheduledAt {
			t.Errorf("task %d: at %s, due %s", id, s.ScheduledAt, s.DueAt)
		}
	}
	for id, want := range map[task.ID]task.Instant{plain: day.Add(49 * time.Hour), later: day.Add(72 * time.Hour)} {
		if r := b.rows()[kernel.KeyOf(b.tenant, id, 0)]; r == nil || r.ScheduledAt != want {
			t.Errorf("task %d: %+v, want %s", id, r, want)
		}
	}
}
