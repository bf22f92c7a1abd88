package timingspec

import (
	"time"

	"github.com/perceptor/perceptor/client"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// outage is away from 0:30 to 5:30, with a task that fires every hour from 0:00 on,
// by an interval or by cron; then the clock goes on to 6:30.
func outage(e *stage, fired string, missed int64, change func(*client.Task)) {
	outageUntil(e, "5h30m", fired, missed, change)
}

// outageUntil is outage with another end.
func outageUntil(e *stage, end, fired string, missed int64, change func(*client.Task)) {
	for _, byCron := range []bool{false, true} {
		e.log.mu.Lock()
		e.log.calls = nil
		e.log.mu.Unlock()
		t := hourly(client.NonBlocking)
		if byCron {
			t.Interval, t.Cron = 0, cron("0 * * * *")
			e.begin(e.zero.Add(24 * time.Hour))
		}
		change(&t)
		id := e.add(t)
		e.until("30m")
		e.away(end)
		e.until("6h30m")
		e.fired(fired)
		if got := e.task(id); got.MissedCount != missed {
			e.Errorf("by cron %t: %d missed, want %d", byCron, got.MissedCount, missed)
		}
		if _, err := e.tenant.CancelTask(e.Context(), id); err != nil {
			e.Fatal(err)
		}
	}
}

var misfireStories = []story{
	{"FIRE_ONCE fires one for all", "timing: T7.1 T7.9", func(e *stage) {
		outage(e, "0s 1h@5h30m 6h", 4, func(*client.Task) {})
		if c := e.log.all()[1]; c.Missed != 4 {
			e.Errorf("the run knows of %d missed", c.Missed)
		}
	}},
	{"FIRE_ALL fires each", "timing: T7.2 T7.9", func(e *stage) {
		outage(e, "0s 1h@5h30m 2h@5h30m0.1s 3h@5h30m0.2s 4h@5h30m0.3s 5h@5h30m0.4s 6h", 0, func(t *client.Task) { t.Misfire = client.FireAll })
		for _, c := range e.log.all() {
			if c.Missed != 0 {
				e.Errorf("run %d knows of %d missed", c.Seq, c.Missed)
			}
		}
	}},
	{"FIRE_ALL has a limit", "timing: T7.3 T7.9", func(e *stage) {
		outage(e, "0s 4h@5h30m 5h@5h30m0.1s 6h", 3, func(t *client.Task) { t.Misfire, t.MisfireLimit = client.FireAll, 2 })
	}},
	{"SKIP fires nothing late", "timing: T7.4 T7.9", func(e *stage) {
		outage(e, "0s 6h", 5, func(t *client.Task) { t.Misfire = client.SkipMissed })
	}},
	{"SKIP fires within the grace", "timing: T7.5 T7.9", func(e *stage) {
		outage(e, "0s 5h@5h30m 6h", 4, func(t *client.Task) { t.Misfire, t.MisfireGrace = client.SkipMissed, 40*time.Minute })
	}},
	{"SKIP fires all within the grace", "timing: T7.13", func(e *stage) {
		outage(e, "0s 3h@5h30m 4h@5h30m0.1s 5h@5h30m0.2s 6h", 2, func(t *client.Task) { t.Misfire, t.MisfireGrace = client.SkipMissed, 160*time.Minute })
	}},
	{"an instant at the return fires", "timing: T7.14", func(e *stage) {
		outageUntil(e, "5h", "0s 1h@5h 5h@5h0m0.001s 6h", 3, func(*client.Task) {})
	}},
	{"an instant at the return is one of the limit", "timing: T7.14", func(e *stage) {
		outageUntil(e, "5h", "0s 4h@5h 5h@5h0m0.1s 6h", 3, func(t *client.Task) { t.Misfire, t.MisfireLimit = client.FireAll, 2 })
	}},
	{"SKIP fires at the return", "timing: T7.14", func(e *stage) {
		outageUntil(e, "5h", "0s 5h 6h", 4, func(t *client.Task) { t.Misfire, t.MisfireGrace = client.SkipMissed, client.NoGrace })
	}},
	{"the last run misses nothing", "timing: T7.15", func(e *stage) {
		outage(e, "0s 1h@5h30m", 0, func(t *client.Task) { t.MaxCount = 2 })
	}},
	{"FIRE_ALL chooses before the count", "timing: T7.15", func(e *stage) {
		outage(e, "0s 3h@5h30m 4h@5h30m0.1s", 2, func(t *client.Task) { t.Misfire, t.MisfireLimit, t.MaxCount = client.FireAll, 3, 3 })
	}},
	{"a skipped ONE_SHOT has no run", "timing: T7.6", func(e *stage) {
		id := e.add(client.Task{Type: client.OneShot, Begin: e.at("1h"), Misfire: client.SkipMissed})
		e.away("5h30m")
		e.fired("")
		e.is(id, client.Completed, 0, 1)
	}},
	{"a skipped BLOCKING goes on", "timing: T7.7", func(e *stage) {
		id := e.add(client.Task{Type: client.Blocking, Interval: time.Hour, Misfire: client.SkipMissed})
		e.until("30m")
		e.away("5h30m")
		e.until("7h30m")
		e.fired("0s 6h 7h")
		e.is(id, client.Scheduled, 3, 5)
	}},
	{"a BLOCKING misses nothing", "timing: T7.8", func(e *stage) {
		for _, policy := range []client.Misfire{client.FireOnce, client.FireAll} {
			e.add(client.Task{Type: client.Blocking, Interval: time.Hour, Misfire: policy, MaxCount: 3})
		}
		e.until("30m")
		e.away("5h30m")
		e.until("7h")
		e.fired("0s 0s 1h@5h30m 1h@5h30m 6h30m 6h30m")
	}},
	{"skipped instants are no runs", "timing: T7.10 T7.11", func(e *stage) {
		id := e.add(client.Task{Type: client.NonBlocking, Interval: time.Hour, MaxCount: 2, Misfire: client.SkipMissed})
		e.until("30m")
		e.away("5h30m")
		e.is(id, client.Scheduled, 1, 5)
		e.until("9h")
		e.fired("0s 6h")
		e.is(id, client.Completed, 2, 5)
	}},
	{"missed instants are told", "timing: T7.11", func(e *stage) {
		before := e.missedMetric()
		id := e.add(client.Task{Type: client.NonBlocking, Interval: time.Hour, Misfire: client.SkipMissed})
		e.until("30m")
		e.away("5h30m")
		e.is(id, client.Scheduled, 1, 5)
		if got := e.missedMetric() - before; got != 5 {
			e.Errorf("the metric has %v, want 5", got)
		}
		var skipped []string
		for _, event := range e.history(id) {
			if event.GetType() == perceptorv1.RunEvent_SKIPPED {
				skipped = append(skipped, event.GetDetail())
			}
		}
		if len(skipped) != 1 || skipped[0] != "5" {
			e.Errorf("SKIPPED %q in the history, want 5", skipped)
		}
	}},
	{"what waits for its turn is not missed", "timing: T7.12 T15.1", func(e *stage) {
		rate, burst, none := int32(1), int32(1), int32(0)
		e.tenant.SetRates(e.T, task.RatesChange{DispatchRate: &rate, DispatchBurst: &burst})
		defer e.tenant.SetRates(e.T, task.RatesChange{DispatchRate: &none, DispatchBurst: &none})
		tasks := make([]client.Task, 5) // one call: they are in one database, and wait for each other
		for i := range tasks {
			tasks[i] = client.Task{Kind: e.kind, Type: client.OneShot, Begin: e.at("1h"), Misfire: client.SkipMissed, MisfireGrace: client.NoGrace}
			tasks[i].Retention = 7 * 24 * time.Hour
		}
		for _, added := range must[[]client.AddResult](e)(e.tenant.AddTasks(e.Context(), tasks)) {
			e.ids = append(e.ids, added.ID)
		}
		e.until("2h")
		calls := e.log.all()
		if len(calls) != 5 {
			e.Fatalf("%d of 5 have fired", len(calls))
		}
		if last := calls[4].At.Sub(e.at("1h")); last < 3*time.Second || last > time.Minute {
			e.Errorf("at 1 a second the last of 5 fires after %s", last)
		}
		for _, id := range e.ids {
			e.is(id, client.Completed, 1, 0)
		}
	}},
}
