package shards

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/task"
)

func byCron(expression, zone string) func(*task.Spec) {
	return func(s *task.Spec) {
		s.Interval = 0
		s.Cron = &task.Cron{Dialect: task.StandardCron, Expression: expression, Zone: zone}
	}
}

// timing: T4.8
func TestAStoredExpressionThatCannotBeReadPutsItsTaskOffAndHoldsUpNoOther(t *testing.T) {
	b := setup(t, nearOnly)
	odd := b.add(b.spec(task.NonBlocking, byCron("* * * * * *", "UTC")))[0]
	plain := b.add(b.spec(task.NonBlocking, byCron("* * * * * *", "UTC")))[0]
	unknown := &task.Cron{Dialect: task.StandardCron, Expression: "* * * * * *", Zone: "Mars/Olympus"}
	b.exec(`UPDATE task SET terms = $1 WHERE id = $2`, task.Seal(&task.Terms{Cron: unknown}, &task.Origin{}), int64(odd))
	b.advance(time.Second)
	c := b.claim(task.CappedForm)
	if len(c.Publications) != 1 || c.Publications[0].Task != plain {
		t.Errorf("claimed %+v", c.Publications)
	}
	r := b.rows()[kernel.KeyOf(b.tenant, odd, 0)]
	if r.DueAt != b.now.Add(time.Hour) || r.Seq != 0 || r.State != task.Scheduled || *r.Cron != *unknown {
		t.Errorf("the task that cannot be read: %+v", r)
	}
	known := &task.Cron{Dialect: task.StandardCron, Expression: "* * * * * *", Zone: "UTC"}
	b.exec(`UPDATE task SET terms = $1 WHERE id = $2`, task.Seal(&task.Terms{Cron: known}, &task.Origin{}), int64(odd))
	b.advance(time.Hour)
	if c := b.claim(task.RangeForm); len(c.Publications) != 2 {
		t.Errorf("when it can be read: %+v", c.Publications)
	}
}

func TestAnEditTakesTheCalendarOfTheTasksID(t *testing.T) {
	b := setup(t, nearOnly)
	id := b.add(b.spec(task.Blocking))[0]
	spec := b.spec(task.Blocking, byCron("H H * * * *", "UTC"))
	edited, err := b.Update(context.Background(), b.tenant, id, task.Edit{Spec: &spec, KeepBegin: true})
	if err != nil {
		t.Fatal(err)
	}
	calendar, err := b.machines.CalendarOf(*spec.Cron, id, 0)
	if err != nil {
		t.Fatal(err)
	}
	if want, _ := calendar.Next(b.now - 1); edited.ScheduledAt != want || spec.Calendar != nil {
		t.Errorf("scheduled at %s, want %s", edited.ScheduledAt, want)
	}
	bad := b.spec(task.Blocking, byCron("0 0 H(30-31) 2 *", "UTC"))
	if _, err := b.Update(context.Background(), b.tenant, id, task.Edit{Spec: &bad}); task.CodeOf(err) != task.InvalidArgument {
		t.Errorf("an expression that never matches: %v", err)
	}
}

// BenchmarkFire compares what a fire of a task by cron takes with one by interval,
// in this process; the database's part is not in it but in the time of the whole.
func BenchmarkFire(bench *testing.B) {
	const tasks = 1000
	for name, change := range map[string]func(*task.Spec){
		"interval": func(s *task.Spec) { s.Interval = time.Second },
		"cron":     byCron("* * * * * *", "Europe/London"),
	} {
		bench.Run(name, func(bench *testing.B) {
			b := setup(bench, nearOnly)
			for range tasks / 100 {
				var specs []task.Spec
				for range 100 {
					specs = append(specs, b.spec(task.NonBlocking, change))
				}
				b.add(specs...)
			}
			fired, start := 0, processTime()
			for bench.Loop() {
				b.advance(time.Second)
				pubs := b.claim(task.RangeForm).Publications
				fired += len(pubs)
				var results []task.Report
				for _, p := range pubs {
					results = append(results, success(p.Task, p.Seq, p.Attempt, 0))
				}
				b.report(results...)
			}
			if fired < tasks {
				bench.Fatalf("%d fires", fired)
			}
			bench.ReportMetric(float64((processTime()-start).Nanoseconds())/float64(fired), "cpu-ns/fire")
			bench.ReportMetric(float64(bench.Elapsed().Nanoseconds())/float64(fired), "ns/fire")
		})
	}
}

// processTime is the CPU time of this process.
func processTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// A resume counts the instants that SKIP drops, without those that a calendar closes, alone and as a bulk operation.
func TestResumesCountOnlyOpenInstantsAsMissed(t *testing.T) {
	for name, bulk := range map[string]bool{"alone": false, "bulk": true} {
		t.Run(name, func(t *testing.T) {
			var windows *task.Windows
			b := setup(t, nearOnly, func(c *Config) {
				c.Windows = func(int32, []string, []string) (*task.Windows, task.MissingCalendar) {
					return windows, task.MissingCalendar{}
				}
			}).running()
			begin := b.now
			windows = task.NewWindows([][]task.Range{{{From: begin.Add(2 * time.Hour), Until: begin.Add(5 * time.Hour)}}}, nil)
			id := b.add(b.spec(task.NonBlocking, func(s *task.Spec) {
				s.Interval, s.Misfire, s.Grace, s.Exclude = time.Hour, task.Skip, time.Minute, []string{"x"}
				s.Begin = begin.Add(time.Hour)
			}))[0]
			if _, err := b.Pause(t.Context(), b.tenant, id); err != nil {
				t.Fatal(err)
			}
			b.advance(5*time.Hour + 30*time.Minute)
			if bulk {
				owned, err := b.Acquire(t.Context(), b.d, []task.Shard{task.ChoresShard(b.d)}, task.Owner{Name: "mover"})
				if err != nil {
					t.Fatal(err)
				}
				b.finishBulk(owned[0], b.bulk(task.BulkResume, task.BulkTerms{}), func() { b.advance(time.Second) })
			} else if _, err := b.Resume(t.Context(), b.tenant, id); err != nil {
				t.Fatal(err)
			}
			got, err := b.Get(t.Context(), b.tenant, id)
			if err != nil || got.Missed != 2 { // at one and five o'clock
				t.Errorf("missed = %d, %v; want 2", got.Missed, err)
			}
		})
	}
}

// byFarRule is a recurrence rule with an instant at at and no other for two centuries: to find that out takes long.
func byFarRule(at task.Instant) func(*task.Spec) {
	start := at.Time().UTC()
	expression := fmt.Sprintf("DTSTART:%s RRULE:FREQ=SECONDLY;INTERVAL=86413;BYHOUR=%d;BYMINUTE=%d;BYSECOND=%d",
		start.Format("20060102T150405"), start.Hour(), start.Minute(), start.Second())
	return func(s *task.Spec) {
		s.Interval, s.Retention = 0, time.Hour
		s.Cron = &task.Cron{Dialect: task.RRuleCron, Expression: expression, Zone: "UTC"}
	}
}

// addFar adds tasks with such a rule, which are due then.
func (b *bundle) addFar(kind task.Type, n int) []task.ID {
	ids := b.add(slices.Repeat([]task.Spec{b.spec(kind, byFarRule(b.now.Add(10*time.Second)))}, n)...)
	b.advance(20 * time.Second)
	return ids
}

// littleTime suffices for one or two such tasks in a transaction.
func littleTime(c *Config) { c.stepsWithin = 2 * time.Millisecond }

// TestSchedulesThatTakeLongDoNotTakeAllTheTimeOfAClaim: a server ends a session that computes for seconds, and then
// no claim of its database would ever succeed.
func TestSchedulesThatTakeLongDoNotTakeAllTheTimeOfAClaim(t *testing.T) {
	b := setup(t, nearOnly, littleTime)
	ids := b.addFar(task.NonBlocking, 20)
	called, claims := map[task.ID]int{}, 0
	for more := true; more; claims++ {
		c := b.claim(task.RangeForm)
		// A machine that stands still while the rows are read leaves rows to the next claim that are counted here.
		if n := len(c.Publications); n == 0 || c.Rows < n || c.Rows > n && !c.More {
			t.Fatalf("claim %d: %d rows, %d publications", claims, c.Rows, n)
		}
		for _, p := range c.Publications {
			called[p.Task]++
		}
		more = c.More
	}
	for _, id := range ids {
		if called[id] != 1 {
			t.Errorf("task %d was called %d times", id, called[id])
		}
	}
	if claims == 1 {
		t.Error("all were claimed at once")
	}
}

// TestResultsOfSchedulesThatTakeLongAreStoredInParts: as for claims, one transaction may not compute for seconds.
func TestResultsOfSchedulesThatTakeLongAreStoredInParts(t *testing.T) {
	b := setup(t, nearOnly, littleTime)
	ids := b.addFar(task.Blocking, 20)
	for b.claim(task.RangeForm).More { // one claim suffices unless the machine is slow
	}
	reports, started, asked := make([]task.Report, len(ids)), make([]task.Attempt, len(ids)), 0
	for i, id := range ids {
		reports[i], started[i] = success(id, 1, 1, 7), attempt(id, 1, 1)
	}
	for i, r := range b.start(7, started...) {
		if r.Code != task.Accepted {
			t.Fatalf("task %d: %s", ids[i], r.Code)
		}
	}
	for ; len(reports) > 0 && asked < 20; asked++ {
		var again []task.Report
		for i, code := range b.report(reports...) {
			switch code {
			case task.Accepted:
			case task.Retry:
				again = append(again, reports[i])
			default:
				t.Fatalf("the answer for task %d is %s", reports[i].Task, code)
			}
		}
		reports = again
	}
	if len(reports) > 0 {
		t.Errorf("%d results are not stored after %d calls", len(reports), asked)
	}
	if n := b.count(`SELECT count(*) FROM task_done`); n != len(ids) {
		t.Errorf("%d tasks have ended", n)
	}
	if n := b.count(`SELECT count(DISTINCT xmin::text) FROM task_done`); n < 2 {
		t.Errorf("the results were stored by %d transactions", n)
	}
}
