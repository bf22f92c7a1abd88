package shards

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/perceptor/perceptor/task"
)

func withHistory(level task.HistoryLevel) func(*Config) {
	return func(c *Config) {
		c.History = func(int32) task.HistoryPolicy { return task.HistoryPolicy{Level: level} }
	}
}

// events returns the histories of tasks in words, oldest first.
func (b *bundle) events(ids ...task.ID) []string {
	b.t.Helper()
	var out []string
	for _, id := range ids {
		list, err := b.Store.History(context.Background(), b.tenant, id, task.NewestEvent, 1000)
		if err != nil {
			b.t.Fatal(err)
		}
		for i := len(list) - 1; i >= 0; i-- {
			e := list[i]
			line := fmt.Sprintf("%s run %d attempt %d", e.Event, e.Seq, e.Attempt)
			if e.Detail != "" {
				line += ": " + e.Detail
			}
			out = append(out, line)
		}
	}
	return out
}

func TestHistoryTellsWhatHappenedToRuns(t *testing.T) {
	for _, c := range []struct {
		level task.HistoryLevel
		want  []string
	}{
		{task.HistoryAll, []string{
			"CLAIMED run 1 attempt 1", "FAILED run 1 attempt 1: 6e6f", "REDELIVERY run 1 attempt 2", "SUCCEEDED run 1 attempt 2",
			"CLAIMED run 2 attempt 1", "HANDED_BACK run 2 attempt 1", "REDELIVERY run 2 attempt 2", "SUCCEEDED run 2 attempt 2",
			"CLAIMED run 3 attempt 1", "FAILED run 3 attempt 1: 6e6f", "REDELIVERY run 3 attempt 2", "FAILED run 3 attempt 2: 6e6f",
			"DEAD run 3 attempt 2: OUT_OF_ATTEMPTS: 6e6f",
		}},
		{task.HistoryFailures, []string{
			"FAILED run 1 attempt 1: 6e6f", "REDELIVERY run 1 attempt 2", "HANDED_BACK run 2 attempt 1", "REDELIVERY run 2 attempt 2",
			"FAILED run 3 attempt 1: 6e6f", "REDELIVERY run 3 attempt 2", "FAILED run 3 attempt 2: 6e6f",
			"DEAD run 3 attempt 2: OUT_OF_ATTEMPTS: 6e6f",
		}},
		{task.HistoryNone, nil},
	} {
		for _, typ := range []task.Type{task.Blocking, task.NonBlocking} {
			t.Run(c.level.String()+" "+typ.String(), func(t *testing.T) {
				b := setup(t, withHistory(c.level))
				id := b.add(b.spec(typ, func(s *task.Spec) {
					s.Retry, s.MaxCount, s.Interval = task.RetryPolicy{MaxAttempts: 2}, 3, 20*time.Minute
				}))[0]
				deliver := func(seq int64, n int32) {
					b.claim(task.RangeForm)
					if typ == task.Blocking {
						b.start(7, attempt(id, seq, n))
					}
					b.advance(time.Second)
				}
				deliver(1, 1)
				b.report(failure(id, 1, 1, 7))
				b.advance(2 * time.Minute)
				deliver(1, 2)
				b.report(success(id, 1, 2, 7))
				b.advance(20 * time.Minute)
				deliver(2, 1)
				b.handBack(7, attempt(id, 2, 1))
				b.advance(2 * time.Minute)
				deliver(2, 2)
				b.report(success(id, 2, 2, 7))
				b.advance(20 * time.Minute)
				deliver(3, 1)
				b.report(failure(id, 3, 1, 7))
				b.advance(2 * time.Minute)
				deliver(3, 2)
				b.report(failure(id, 3, 2, 7))
				if diff := cmp.Diff(c.want, b.events(id)); diff != "" {
					t.Fatal(diff)
				}
			})
		}
	}
}

func TestHistoryTellsOfSnoozesAndOfPermanentFailures(t *testing.T) {
	for _, typ := range task.Types {
		b := setup(t)
		id := b.add(b.spec(typ))[0]
		b.claim(task.RangeForm)
		if typ == task.Blocking {
			b.start(7, attempt(id, 1, 1))
		}
		b.report(task.Report{Attempt: attempt(id, 1, 1), Holder: 7, Result: task.Result{Outcome: task.Snooze, After: 90 * time.Second, Next: task.Never}})
		b.advance(90 * time.Second)
		b.claim(task.RangeForm)
		if typ == task.Blocking {
			b.start(7, attempt(id, 1, 2))
		}
		f := failure(id, 1, 2, 7)
		f.Permanent = true
		b.report(f)
		want := []string{"SNOOZED run 1 attempt 1: 1m30s", "REDELIVERY run 1 attempt 2", "FAILED run 1 attempt 2: 6e6f", "DEAD run 1 attempt 2: PERMANENT: 6e6f"}
		if diff := cmp.Diff(want, b.events(id)); diff != "" {
			t.Errorf("%s: want -, got +\n%s", typ, diff)
		}
	}
}

func TestHistoryTellsOfSuccessesThatSQLDecides(t *testing.T) {
	b := setup(t, withHistory(task.HistoryAll))
	ids := b.add(b.spec(task.OneShot), b.spec(task.NonBlocking), b.spec(task.Blocking))
	b.claim(task.RangeForm)
	b.start(7, attempt(ids[2], 1, 1))
	want := []task.Code{task.Accepted, task.Accepted, task.Accepted}
	if diff := cmp.Diff(want, b.report(success(ids[0], 1, 1, 7), success(ids[1], 1, 1, 7), success(ids[2], 1, 1, 7))); diff != "" {
		t.Fatal(diff)
	}
	for _, id := range ids {
		if diff := cmp.Diff([]string{"CLAIMED run 1 attempt 1", "SUCCEEDED run 1 attempt 1"}, b.events(id)); diff != "" {
			t.Fatal(diff)
		}
	}
}

// timely is a success of an attempt with a timeline: its run was due at an instant, its
// handler began before the report by begun, and ended when it was sent.
func timely(r task.Report, due task.Instant, begun time.Duration) task.Report {
	r.Timeline = &task.Timeline{
		ScheduledAt: due, ClaimedAt: due, PublishedAt: due + 3, ReceivedAgo: begun + time.Millisecond, BegunAgo: begun, EndedAgo: time.Microsecond,
		Arrived: time.Now(), Dispatcher: "dispatcher-1", Listener: &task.Listener{Name: "web-1", Host: "host", Version: "v1"},
	}
	return r
}

func TestHistoryTellsOfSlowRunsAlone(t *testing.T) {
	for _, typ := range task.Types {
		b := setup(t)
		ids := b.add(b.spec(typ), b.spec(typ), b.spec(typ))
		due := b.now
		b.claim(task.RangeForm)
		for _, id := range ids {
			if typ == task.Blocking {
				b.start(7, attempt(id, 1, 1))
			}
		}
		b.advance(2 * time.Second)
		b.report(timely(success(ids[0], 1, 1, 7), due, 10*time.Millisecond))
		b.advance(6 * time.Second)
		late := timely(success(ids[1], 1, 1, 7), due, 10*time.Millisecond)
		long := timely(success(ids[2], 1, 1, 7), due, 7*time.Second)
		long.Timeline.ScheduledAt += 10_000 // early enough
		b.report(late, long)
		if got := b.events(ids...); len(got) != 2 {
			t.Errorf("%s: the history has %v, want the late run and the long one", typ, got)
		}
		list, err := b.History(t.Context(), b.tenant, ids[1], task.NewestEvent, 10)
		if err != nil || len(list) != 1 {
			t.Fatalf("%s: the late run has %+v, %v", typ, list, err)
		}
		e := list[0]
		if e.ScheduledAt != due || e.ClaimedAt != due || e.PublishedAt != due+3 || e.Dispatcher != "dispatcher-1" || e.Listener != *late.Timeline.Listener ||
			e.Begun.IsZero() || e.Ended.Before(e.Begun) || e.Begun.Before(e.Received) || e.Begun.Before(e.At.Time().Add(-2*time.Second)) {
			t.Errorf("%s: the timeline is %+v", typ, e)
		}
	}
}

func TestManySlowRunsOfATenantAreRecordedInPart(t *testing.T) {
	b := setup(t)
	specs := make([]task.Spec, 3*20)
	for i := range specs {
		specs[i] = b.spec(task.OneShot)
	}
	ids, due := b.add(specs...), b.now
	b.claim(task.RangeForm)
	b.advance(time.Minute)
	var results []task.Report
	for _, id := range ids {
		results = append(results, timely(success(id, 1, 1, 7), due, time.Millisecond))
	}
	b.report(results...)
	if got := len(b.events(ids...)); got != 20 {
		t.Errorf("one transaction has recorded %d of %d slow runs, want 20", got, len(ids))
	}
}

func TestASampleOfRunsIsTheSameEverywhere(t *testing.T) {
	b := setup(t, func(c *Config) {
		c.History = func(int32) task.HistoryPolicy { return task.HistoryPolicy{Level: task.HistorySampled, Sample: 2} }
	})
	specs := make([]task.Spec, 40)
	for i := range specs {
		specs[i] = b.spec(task.OneShot)
	}
	ids := b.add(specs...)
	b.claim(task.RangeForm)
	p := task.HistoryPolicy{Level: task.HistorySampled, Sample: 2}
	want := 0
	for _, id := range ids {
		b.report(success(id, 1, 1, 7))
		if p.Samples(task.RunID{Task: id, Seq: 1}) {
			want++
		}
	}
	if got := len(b.events(ids...)); got != want || want < 8 || want > 32 {
		t.Errorf("%d of %d runs are recorded, want %d", got, len(ids), want)
	}
}

func TestHistoryTellsOfSkippedInstants(t *testing.T) {
	b := setup(t)
	id := b.add(b.spec(task.NonBlocking))[0]
	b.advance(3*time.Minute + time.Second)
	b.claim(task.RangeForm)
	if diff := cmp.Diff([]string{"SKIPPED run 1 attempt 1: 3"}, b.events(id)); diff != "" {
		t.Fatal(diff)
	}
}

func TestHistoryKnowsWhenARunWasScheduled(t *testing.T) {
	b := setup(t)
	begin := b.now
	id := b.add(b.spec(task.NonBlocking))[0]
	for range 3 {
		b.claim(task.RangeForm)
		b.advance(time.Minute)
	}
	b.report(failure(id, 2, 1, 7)) // run 2 is a bit behind the newest
	list, err := b.History(t.Context(), b.tenant, id, task.NewestEvent, 10)
	if err != nil || len(list) != 1 || list[0].ScheduledAt != begin.Add(time.Minute) || list[0].At != b.now {
		t.Fatalf("history = %+v, %v", list, err)
	}
}

func TestHistoryComesInPagesNewestFirst(t *testing.T) {
	b := setup(t, withHistory(task.HistoryAll))
	id := b.add(b.spec(task.NonBlocking, func(s *task.Spec) { s.AckTimeout = time.Hour }))[0]
	for range 5 {
		b.claim(task.RangeForm)
		b.advance(3 * time.Minute) // two instants are skipped each time, at the same moment
	}
	all, err := b.History(t.Context(), b.tenant, id, task.NewestEvent, 100)
	if err != nil || len(all) != 9 {
		t.Fatalf("%d events, %v", len(all), err)
	}
	var paged []task.RunEvent
	for at := task.NewestEvent; ; at = paged[len(paged)-1].Cursor() {
		page, err := b.History(t.Context(), b.tenant, id, at, 2)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		paged = append(paged, page...)
	}
	if diff := cmp.Diff(all, paged); diff != "" {
		t.Fatal(diff)
	}
}

func TestHistoryOfAnotherTenantIsEmpty(t *testing.T) {
	b := setup(t, withHistory(task.HistoryAll))
	id := b.add(b.spec(task.OneShot))[0]
	b.claim(task.RangeForm)
	if list, err := b.History(t.Context(), b.tenant+1, id, task.NewestEvent, 10); err != nil || len(list) != 0 {
		t.Fatalf("another tenant sees %+v, %v", list, err)
	}
}

// days returns the names of the history's partitions and where its rows are.
func (b *bundle) days() (partitions []string, rowsIn []string) {
	b.t.Helper()
	for text, out := range map[string]*[]string{
		`SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'run_event'::regclass AND $1 = 0 ORDER BY 1`: &partitions,
		`SELECT DISTINCT tableoid::regclass::text FROM run_event WHERE $1 = 0 ORDER BY 1`:                                &rowsIn,
	} {
		rows, err := b.db.Pool(b.d).Query(context.Background(), text, 0)
		if err != nil {
			b.t.Fatal(err)
		}
		var name string
		for rows.Next() {
			if err := rows.Scan(&name); err != nil {
				b.t.Fatal(err)
			}
			*out = append(*out, name)
		}
		if rows.Err() != nil {
			b.t.Fatal(rows.Err())
		}
	}
	return partitions, rowsIn
}

func TestHistoryHasAPartitionForEachDayAndLosesOldOnes(t *testing.T) {
	b := setup(t, withHistory(task.HistoryAll))
	const late = 2_900_000 // after all days that other tests have made here
	b.exec(`SELECT count(*) FROM generate_series(1, 100) WHERE run_event_drop_before($1)`, late)
	id := b.add(b.spec(task.NonBlocking, func(s *task.Spec) { s.Interval = 24 * time.Hour }))[0]
	maintain := func() {
		t.Helper()
		if err := b.MaintainHistory(t.Context(), b.d, 3); err != nil {
			t.Fatal(err)
		}
	}
	b.claim(task.RangeForm) // on a day without a partition: its rows stay where they are
	maintain()
	days, rows := b.days()
	if len(days) != 8 || days[0] != "run_event_20010910" || days[6] != "run_event_20010916" || rows[0] != "run_event_default" {
		t.Fatalf("partitions %v, rows in %v", days, rows)
	}
	maintain() // twice is as good as once
	b.advance(24 * time.Hour)
	b.claim(task.RangeForm)
	if _, rows = b.days(); len(rows) != 2 || rows[0] != "run_event_20010910" {
		t.Fatalf("rows in %v", rows)
	}
	b.advance(2 * 24 * time.Hour)
	maintain()
	if got := b.events(id); len(got) != 2 {
		t.Fatalf("events of the last three days: %v", got)
	}
	b.advance(24 * time.Hour)
	maintain()
	if _, rows = b.days(); len(rows) != 1 || rows[0] != "run_event_20010910" {
		t.Fatalf("rows in %v", rows)
	}
	b.advance(24 * time.Hour)
	maintain()
	if days, rows = b.days(); len(rows) != 0 || days[0] != "run_event_20010911" || len(days) != 12 {
		t.Fatalf("partitions %v, rows in %v", days, rows)
	}
}
