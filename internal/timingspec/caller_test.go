package timingspec

import (
	"time"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/task"
)

// must returns what a call about a task returned.
func must[T any](e *stage) func(T, error) T {
	return func(v T, err error) T {
		e.Helper()
		if err != nil {
			e.Fatal(err)
		}
		return v
	}
}

// pausedUntil530 pauses an hourly task from 0:30 to 5:30 and goes on to 6:30.
func pausedUntil530(e *stage, t client.Task) int64 {
	id := e.add(t)
	e.until("30m")
	must[*client.TaskInfo](e)(e.tenant.PauseTask(e.Context(), id))
	e.until("5h30m")
	e.fired("0s")
	must[*client.TaskInfo](e)(e.tenant.ResumeTask(e.Context(), id))
	e.until("6h30m")
	return id
}

// edit changes a task.
func (e *stage) edit(id int64, t client.Task) {
	e.Helper()
	must[*client.TaskInfo](e)(e.tenant.UpdateTask(e.Context(), id, t, client.UpdateOptions{}))
}

func (e *stage) trigger(id int64) {
	e.Helper()
	must[int64](e)(e.tenant.TriggerTask(e.Context(), id))
}

var callerStories = []story{
	{"a paused task goes on by FIRE_ONCE", "timing: T11.1 T11.2", func(e *stage) {
		id := pausedUntil530(e, hourly(client.NonBlocking))
		e.fired("0s 1h@5h30m 6h")
		e.is(id, client.Scheduled, 3, 4)
	}},
	{"a paused task goes on by SKIP", "timing: T11.2", func(e *stage) {
		id := pausedUntil530(e, client.Task{Type: client.NonBlocking, Interval: time.Hour, Misfire: client.SkipMissed})
		e.fired("0s 6h")
		e.is(id, client.Scheduled, 2, 5)
	}},
	{"a paused task goes on by FIRE_ALL", "timing: T11.2 T11.3", func(e *stage) {
		id := pausedUntil530(e, client.Task{Type: client.NonBlocking, Interval: time.Hour, Misfire: client.FireAll, MisfireLimit: 2})
		e.fired("0s 4h@5h30m0.1s 5h@5h30m0.2s 6h")
		e.is(id, client.Scheduled, 4, 3)
	}},
	{"the run after a resume knows what was missed", "timing: T11.4", func(e *stage) {
		for _, c := range []struct {
			change func(*client.Task)
			fired  string
			missed int64
		}{
			{func(*client.Task) {}, "0s 1h@5h30m 6h", 4},
			{func(t *client.Task) { t.Misfire, t.MisfireLimit = client.FireAll, 1 }, "0s 5h@5h30m0.1s 6h", 4},
			{func(t *client.Task) { t.Misfire, t.MisfireGrace = client.SkipMissed, 40*time.Minute }, "0s 5h@5h30m 6h", 4},
		} {
			e.log.mu.Lock()
			e.log.calls = nil
			e.log.mu.Unlock()
			t := hourly(client.NonBlocking)
			c.change(&t)
			id := pausedUntil530(e, t)
			e.fired(c.fired)
			e.is(id, client.Scheduled, 3, 4)
			if calls := e.log.all(); len(calls) == 3 && calls[1].Missed != c.missed {
				e.Errorf("policy %d: the run knows of %d missed, want %d", t.Misfire, calls[1].Missed, c.missed)
			}
			must[*client.TaskInfo](e)(e.tenant.CancelTask(e.Context(), id))
			e.begin(e.zero.Add(24 * time.Hour))
		}
	}},
	{"a trigger does not disturb", "timing: T12.1 T12.2", func(e *stage) {
		id := e.add(hourly(client.NonBlocking))
		e.until("20m")
		e.trigger(id)
		e.until("1h30m")
		e.fired("0s 20m 1h")
	}},
	{"a trigger of a BLOCKING by cron does not disturb", "timing: T12.2", func(e *stage) {
		id := e.add(client.Task{Type: client.Blocking, Cron: cron("0 * * * *")})
		e.until("20m")
		e.trigger(id)
		e.until("2h30m")
		e.fired("0s 20m 1h 2h")
	}},
	{"a trigger of a paused BLOCKING does not disturb", "timing: T12.2", func(e *stage) {
		id := e.add(hourly(client.Blocking))
		e.until("10m")
		must[*client.TaskInfo](e)(e.tenant.PauseTask(e.Context(), id))
		e.until("5h20m")
		e.trigger(id)
		e.until("5h30m")
		must[*client.TaskInfo](e)(e.tenant.ResumeTask(e.Context(), id))
		e.until("6h15m")
		e.fired("0s 5h20m 1h@5h30m")
		e.is(id, client.Scheduled, 3, 0)
	}},
	{"a triggered run says when the next one is", "timing: T12.5", func(e *stage) {
		for _, typ := range []client.Type{client.NonBlocking, client.Blocking} {
			e.log.mu.Lock()
			e.log.calls = nil
			e.log.mu.Unlock()
			e.answers(next(2, e.at("40m")))
			id := e.add(hourly(typ))
			e.until("20m")
			e.trigger(id)
			e.until("2h")
			e.fired("0s 20m 40m 1h40m")
			e.is(id, client.Scheduled, 4, 0)
			must[*client.TaskInfo](e)(e.tenant.CancelTask(e.Context(), id))
			e.begin(e.zero.Add(24 * time.Hour))
		}
	}},
	{"an instant that passes during a triggered run", "timing: T12.6", func(e *stage) {
		task := client.Task{Type: client.Blocking, Interval: time.Hour, AckTimeout: 24 * time.Hour}
		once := e.add(task)
		task.Misfire, task.MisfireGrace = client.SkipMissed, time.Minute
		skips := e.add(task)
		e.until("50m")
		finish := e.open("1h10m", func() { e.trigger(once) }, func() { e.trigger(skips) })
		finish()
		e.until("2h5m")
		e.fired("0s 0s 50m 50m 1h@1h10m 2h")
		e.is(once, client.Scheduled, 3, 0)
		e.is(skips, client.Scheduled, 3, 1)
	}},
	{"a triggered run counts", "timing: T12.3", func(e *stage) {
		id := e.add(client.Task{Type: client.Blocking, Interval: time.Hour, MaxCount: 2})
		e.until("20m")
		e.trigger(id)
		e.until("3h")
		e.fired("0s 20m")
		e.is(id, client.Completed, 2, 0)
	}},
	{"a paused task can be triggered", "timing: T12.4", func(e *stage) {
		id := e.add(hourly(client.NonBlocking))
		e.until("10m")
		must[*client.TaskInfo](e)(e.tenant.PauseTask(e.Context(), id))
		e.until("20m")
		e.trigger(id)
		e.until("3h")
		e.fired("0s 20m")
	}},
	{"a new interval counts from the edit", "timing: T13.1", func(e *stage) {
		id := e.add(hourly(client.NonBlocking))
		e.until("30m")
		e.edit(id, client.Task{Interval: 20 * time.Minute})
		e.until("1h15m")
		e.fired("0s 50m 1h10m")
	}},
	{"a new expression counts from the edit", "timing: T13.2", func(e *stage) {
		id := e.add(hourly(client.Blocking))
		e.until("30m")
		e.edit(id, client.Task{Cron: cron("15 * * * *")})
		e.until("2h30m")
		e.fired("0s 1h15m 2h15m")
	}},
	{"a task can be moved", "timing: T13.3", func(e *stage) {
		id := e.add(client.Task{Type: client.OneShot, Begin: e.at("2h")})
		e.until("30m")
		e.edit(id, client.Task{Begin: e.at("1h")})
		e.until("3h")
		e.fired("1h")
	}},
	{"new params are those of later runs", "timing: T13.4", func(e *stage) {
		id := e.add(client.Task{Type: client.NonBlocking, Interval: time.Hour, Params: map[string]string{"n": "1"}})
		e.until("30m")
		e.edit(id, client.Task{Params: map[string]string{"n": "2"}})
		e.until("1h30m")
		if calls := e.log.all(); len(calls) != 2 || calls[0].Params["n"] != "1" || calls[1].Params["n"] != "2" {
			e.Errorf("%+v", calls)
		}
	}},
	{"a cancelled task is claimed no more", "timing: T14.1", func(e *stage) {
		id := e.add(hourly(client.NonBlocking))
		e.until("30m")
		must[*client.TaskInfo](e)(e.tenant.CancelTask(e.Context(), id))
		e.until("3h")
		e.fired("0s")
		e.is(id, client.Cancelled, 1, 0)
	}},
	{"a paused tenant fires nothing until it is resumed", "timing: T15.2", func(e *stage) {
		skipping := hourly(client.NonBlocking)
		skipping.Misfire = client.SkipMissed
		once, skips := e.add(hourly(client.NonBlocking)), e.add(skipping)
		e.until("30m")
		yes, no := true, false
		e.tenant.SetRates(e.T, task.RatesChange{Paused: &yes})
		defer e.tenant.SetRates(e.T, task.RatesChange{Paused: &no})
		e.away("5h30m")
		e.fired("0s 0s")
		e.tenant.SetRates(e.T, task.RatesChange{Paused: &no})
		e.until("6h30m")
		e.fired("0s 0s 1h@5h30m 6h 6h")
		e.is(once, client.Scheduled, 3, 4)
		e.is(skips, client.Scheduled, 2, 5)
	}},
}
