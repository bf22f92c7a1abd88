package timingspec

import (
	"context"
	"time"

	"github.com/perceptor/perceptor/client"
)

// beside is a task that fires every hour from 0:00 on, with an overlap policy. Its first
// run is open until an instant.
func beside(e *stage, overlap client.Overlap, until string, change func(*client.Task)) (id int64, finish func()) {
	e.Helper()
	t := hourly(client.NonBlocking)
	t.Overlap, t.AckTimeout = overlap, 24*time.Hour
	change(&t)
	finish = e.open("10m", func() { id = e.add(t) })
	e.meanwhile(until)
	e.fired("0s")
	return id, finish
}

func asItIs(*client.Task) {}

// overlapStories show what instants do that come while a run is open.
var overlapStories = []story{
	{"SKIP fires nothing beside an open run", "timing: T18.1", func(e *stage) {
		before := e.missedMetric()
		id, finish := beside(e, client.SkipOverlap, "2h30m", asItIs)
		e.is(id, client.Scheduled, 1, 2)
		if got := e.missedMetric() - before; got != 2 {
			e.Errorf("the metric has %v, want 2", got)
		}
		finish()
		e.until("3h30m")
		e.fired("0s 3h")
		e.is(id, client.Scheduled, 2, 2)
	}},
	{"BUFFER_ONE fires one when the run has ended", "timing: T18.2", func(e *stage) {
		id, finish := beside(e, client.BufferOne, "2h30m", asItIs)
		finish()
		e.until("3h30m")
		e.fired("0s 1h@2h30m 3h")
		e.is(id, client.Scheduled, 3, 1)
		if c := e.log.all()[1]; c.Missed != 1 {
			e.Errorf("the run knows of %d missed", c.Missed)
		}
	}},
	{"overlap by cron", "timing: T18.1 T18.2", func(e *stage) {
		id, finish := beside(e, client.BufferOne, "2h30m", func(t *client.Task) { t.Interval, t.Cron = 0, cron("0 * * * *") })
		finish()
		e.until("3h30m")
		e.fired("0s 1h@2h30m 3h")
		e.is(id, client.Scheduled, 3, 1)
	}},
	{"a retry keeps its run open", "timing: T18.3", func(e *stage) {
		e.answers(fails(1, errNo))
		policy := retry(5)
		policy.InitialBackoff = 90 * time.Minute
		id := e.add(client.Task{Type: client.NonBlocking, Interval: time.Hour, Overlap: client.SkipOverlap, Retry: policy})
		e.until("2h30m")
		e.fired("0s 0s@1h30m 2h")
		e.is(id, client.Scheduled, 2, 1)
	}},
	{"a dead run is not open", "timing: T18.3", func(e *stage) {
		e.answers(fails(1, errNo))
		id := e.add(client.Task{Type: client.NonBlocking, Interval: time.Hour, Overlap: client.SkipOverlap, Retry: retry(1)})
		e.until("1h30m")
		e.fired("0s 1h")
		e.is(id, client.Scheduled, 2, 0)
	}},
	{"one of the missed instants fires", "timing: T18.5", func(e *stage) {
		outage(e, "0s 3h@5h30m 6h", 4, func(t *client.Task) {
			t.Overlap, t.Misfire, t.MisfireGrace = client.SkipOverlap, client.SkipMissed, 160*time.Minute
		})
	}},
	{"FIRE_ALL and overlap exclude each other", "timing: T18.5", func(e *stage) {
		t := hourly(client.NonBlocking)
		t.Overlap, t.Misfire = client.BufferOne, client.FireAll
		e.refused("overlap", t)
	}},
	{"an instant waits within the grace", "timing: T18.6", func(e *stage) {
		id, finish := beside(e, client.BufferOne, "2h30m", func(t *client.Task) { t.Misfire = client.SkipMissed })
		finish()
		e.until("3h30m")
		e.fired("0s 3h")
		e.is(id, client.Scheduled, 2, 2)
	}},
	{"a trigger fires beside an open run", "timing: T18.7", func(e *stage) {
		id, finish := beside(e, client.SkipOverlap, "50m", asItIs)
		again := e.open("1h10m", func() { finish(); e.trigger(id) })
		e.fired("0s 50m")
		e.is(id, client.Scheduled, 2, 1)
		again()
		e.until("2h30m")
		e.fired("0s 50m 2h")
	}},
	{"a skipped instant is no run", "timing: T18.8", func(e *stage) {
		id, finish := beside(e, client.SkipOverlap, "2h30m", func(t *client.Task) { t.MaxCount = 2 })
		finish()
		e.until("5h")
		e.fired("0s 3h")
		e.is(id, client.Completed, 2, 2)
	}},
	{"a skipped instant may be the last one", "timing: T18.8", func(e *stage) {
		id, finish := beside(e, client.SkipOverlap, "2h30m", func(t *client.Task) { t.End = e.at("2h15m") })
		e.is(id, client.Running, 1, 2)
		finish()
		e.until("5h")
		e.fired("0s")
		e.is(id, client.Completed, 1, 2)
	}},
	{"a result replaces the instant that waits", "timing: T18.9", func(e *stage) {
		var id int64
		finish := e.openWith("1h30m", func(_ context.Context, r *client.Run) error {
			r.SetNext(e.at("1h40m"))
			return nil
		}, func() {
			id = e.add(client.Task{Type: client.NonBlocking, Interval: time.Hour, Overlap: client.BufferOne, AckTimeout: 24 * time.Hour})
		})
		finish()
		e.until("3h")
		e.fired("0s 1h40m 2h40m")
		e.is(id, client.Scheduled, 3, 1)
	}},
	{"an instant waits through a pause", "timing: T18.10", func(e *stage) {
		id, finish := beside(e, client.BufferOne, "1h30m", asItIs)
		must[*client.TaskInfo](e)(e.tenant.PauseTask(e.Context(), id))
		finish()
		e.until("1h45m")
		e.fired("0s")
		must[*client.TaskInfo](e)(e.tenant.ResumeTask(e.Context(), id))
		e.until("2h30m")
		e.fired("0s 1h@1h45m 2h")
	}},
	{"another policy is for the instant that waits", "timing: T18.11", func(e *stage) {
		id, finish := beside(e, client.BufferOne, "2h30m", asItIs)
		defer finish()
		e.edit(id, client.Task{Overlap: client.AllowOverlap})
		e.meanwhile("3h10m")
		e.fired("0s 1h@2h30m 3h")
		e.is(id, client.Scheduled, 3, 1)
	}},
	{"other types have no overlap", "timing: T18.12", func(e *stage) {
		e.refused("overlap", client.Task{Type: client.Blocking, Interval: time.Hour, Overlap: client.SkipOverlap})
		e.refused("overlap", client.Task{Type: client.OneShot, Overlap: client.BufferOne})
	}},
}
