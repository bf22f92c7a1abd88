package timingspec

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/perceptor/perceptor/client"
)

// backfill makes the instants of a range fire for the tasks of the story, and waits until the
// operation has ended. The clock stands still meanwhile.
func (e *stage) backfill(from, until string, change ...func(*client.Bulk)) *client.BulkInfo {
	e.Helper()
	b := client.Bulk{Action: client.BulkBackfill, BackfillFrom: e.at(from), BackfillUntil: e.at(until)}
	for _, f := range change {
		f(&b)
	}
	return e.bulk(b)
}

// bulk executes an operation on the tasks of the story.
func (e *stage) bulk(b client.Bulk) *client.BulkInfo {
	e.Helper()
	b.Tasks.Kind = e.kind
	o := must[*client.BulkInfo](e)(e.tenant.CreateBulk(e.Context(), b))
	for deadline := time.Now().Add(3 * time.Minute); o.State != client.BulkDone; {
		if time.Now().After(deadline) {
			e.Fatalf("operation %d has not ended: %+v", o.ID, o)
		}
		time.Sleep(20 * time.Millisecond) // chores sleep in real time
		o = must[*client.BulkInfo](e)(e.tenant.GetBulk(e.Context(), o.ID))
	}
	return o
}

// counted expects what an operation has counted.
func (e *stage) counted(o *client.BulkInfo, matched, done, failed int64) {
	e.Helper()
	if o.Matched != matched || o.Done != done || o.Failed != failed {
		e.Errorf("matched %d, done %d, failed %d; want %d, %d, %d", o.Matched, o.Done, o.Failed, matched, done, failed)
	}
}

// filled expects the runs that are ones of a backfill, as fired does.
func (e *stage) filled(want string) {
	e.Helper()
	filled := e.log.backfilled()
	e.log.mu.Lock()
	all := e.log.calls
	e.log.calls = filled
	e.log.mu.Unlock()
	e.fired(want)
	e.log.mu.Lock()
	e.log.calls = all
	e.log.mu.Unlock()
}

// sinceMorning adds an hourly task that fires until 5:30.
func sinceMorning(e *stage, typ client.Type, change ...func(*client.Task)) (id int64) {
	e.Helper()
	t := hourly(typ)
	t.AckTimeout = 24 * time.Hour
	for _, f := range change {
		f(&t)
	}
	id = e.add(t)
	e.until("5h30m")
	return id
}

// backfillStories show what a backfill makes of past instants.
var backfillStories = []story{
	{"past instants fire again", "timing: T20.1 T20.2 T20.3 T20.11", func(e *stage) {
		id := sinceMorning(e, client.NonBlocking, func(t *client.Task) { t.Params = map[string]string{"n": "1"} })
		e.add(client.Task{Type: client.OneShot, Begin: e.at("90h")})
		before := e.task(id)
		o := e.backfill("1h", "4h")
		e.counted(o, 3, 3, 0)
		e.until("5h45m")
		const again = "1h@5h30m 2h@5h30m0.1s 3h@5h30m0.2s"
		e.filled(again)
		made := e.log.all()[6]
		info := e.task(made.TaskID)
		if made.BackfillOf != id || made.TaskID == id || made.Params["n"] != "1" || info.BackfillOf != id || info.BackfillID != o.ID {
			e.Errorf("%+v of %+v", made.Run, info)
		}
		e.is(made.TaskID, client.Completed, 3, 0)
		if after := e.task(id); after.RunCount != before.RunCount || after.MissedCount != 0 || after.Version != before.Version || !after.ScheduledAt.Equal(e.at("6h")) {
			e.Errorf("the source was %+v and is %+v", before, after)
		}
		e.counted(e.backfill("1h", "4h"), 3, 3, 0) // not 6: the backfill task is no source
		e.until("6h30m")
		e.fired("0s 1h 2h 3h 4h 5h " + again + " 1h@5h45m 2h@5h45m0.1s 3h@5h45m0.2s 6h")
	}},
	{"a backfill spends no run of its source", "timing: T20.2", func(e *stage) {
		id := sinceMorning(e, client.NonBlocking, func(t *client.Task) { t.MaxCount = 7 })
		must[*client.TaskInfo](e)(e.tenant.PauseTask(e.Context(), id))
		e.counted(e.backfill("1h", "4h"), 3, 3, 0)
		e.until("5h45m")
		e.filled("1h@5h30m 2h@5h30m0.1s 3h@5h30m0.2s")
		if !e.task(id).Paused {
			e.Error("the source is not paused any more")
		}
		must[*client.TaskInfo](e)(e.tenant.ResumeTask(e.Context(), id))
		e.until("8h")
		e.is(id, client.Completed, 7, 0)
	}},
	{"runs of a backfill may be open together", "timing: T20.3", func(e *stage) {
		sinceMorning(e, client.NonBlocking)
		finish := e.open("5h45m", func() { e.backfill("1h", "4h") })
		e.filled("1h@5h30m 2h@5h30m0.1s 3h@5h30m0.2s")
		finish()
	}},
	{"runs of a backfill of BLOCKING follow each other", "timing: T20.4 T20.6", func(e *stage) {
		sinceMorning(e, client.Blocking)
		finish := e.open("5h40m", func() { e.counted(e.backfill("1h", "4h"), 3, 3, 0) })
		e.filled("1h@5h30m")
		finish()
		e.until("5h50m")
		e.filled("1h@5h30m 2h@5h40m 3h@5h40m")
	}},
	{"runs of a backfill may be made to follow each other", "timing: T20.4", func(e *stage) {
		sinceMorning(e, client.NonBlocking)
		finish := e.open("5h45m", func() { e.backfill("1h", "4h", func(b *client.Bulk) { b.OneAtATime = true }) })
		e.filled("1h@5h30m")
		finish()
		e.until("5h50m")
		e.filled("1h@5h30m 2h@5h45m 3h@5h45m")
	}},
	{"a backfill holds up no source", "timing: T20.4 T20.5", func(e *stage) {
		blocking := e.add(client.Task{Type: client.Blocking, Interval: time.Hour, AckTimeout: 24 * time.Hour})
		skipping := sinceMorning(e, client.NonBlocking, func(t *client.Task) { t.Overlap = client.SkipOverlap })
		finish := e.open("5h40m", func() { e.backfill("1h", "3h") })
		e.meanwhile("6h10m")
		e.is(blocking, client.Scheduled, 7, 0)
		e.is(skipping, client.Scheduled, 7, 0)
		e.filled("1h@5h30m 1h@5h30m")
		finish()
		e.until("6h20m")
		e.filled("1h@5h30m 1h@5h30m 2h@6h10m 2h@6h10m")
	}},
	{"a backfill goes by the schedule of now", "timing: T20.6", func(e *stage) {
		id := e.add(hourly(client.NonBlocking))
		e.until("4h30m")
		e.edit(id, client.Task{Interval: 20 * time.Minute})
		e.until("5h30m")
		e.counted(e.backfill("1h", "2h"), 3, 3, 0)
		e.until("5h45m")
		e.filled("1h10m@5h30m 1h30m@5h30m0.1s 1h50m@5h30m0.2s")
	}},
	{"a backfill has the minute of its source", "timing: T20.6", func(e *stage) {
		sinceMorning(e, client.NonBlocking, func(t *client.Task) { t.Interval, t.Cron, t.Spread = 0, cron("H * * * *"), 30*time.Second })
		var want []string
		for _, c := range e.log.all()[1:4] {
			want = append(want, c.ScheduledAt.String())
		}
		from := e.log.all()[1].ScheduledAt
		e.backfill("0s", "0s", func(b *client.Bulk) { b.BackfillFrom, b.BackfillUntil = from, from.Add(3*time.Hour) })
		e.until("5h30m10s")
		var got []string
		for _, c := range e.log.backfilled() { // the source itself may fire just now: one minute in 60 is that of 5:30
			got = append(got, c.ScheduledAt.String())
		}
		if !slices.Equal(got, want) {
			e.Errorf("fired %s, want %s", strings.Join(got, ", "), strings.Join(want, ", "))
		}
	}},
	{"a backfill keeps to calendars", "timing: T20.6", func(e *stage) {
		names := e.calendar("2h-3h")
		sinceMorning(e, client.NonBlocking, func(t *client.Task) { t.ExcludeCalendars = names })
		e.counted(e.backfill("1h", "4h"), 2, 2, 0)
		e.until("5h45m")
		e.filled("1h@5h30m 3h@5h30m0.1s")
	}},
	{"a backfill keeps to the bounds", "timing: T20.7", func(e *stage) {
		e.add(client.Task{Type: client.NonBlocking, Interval: time.Hour, Begin: e.at("2h")})
		e.until("4h30m")
		e.counted(e.backfill("0s", "9h"), 3, 3, 0)
		e.until("4h45m")
		e.filled("2h@4h30m 3h@4h30m0.1s 4h@4h30m0.2s")
	}},
	{"runs of a backfill fail like others", "timing: T20.8", func(e *stage) {
		sinceMorning(e, client.Blocking, func(t *client.Task) { t.Retry = retry(1) })
		e.answers(fails(3, errNo))
		e.backfill("1h", "4h")
		e.until("5h45m")
		e.filled("1h@5h30m 2h@5h30m 3h@5h30m")
		made := e.log.all()[6]
		e.is(made.TaskID, client.Completed, 3, 0)
		for seq := range int64(3) {
			must[*client.DeadRun](e)(e.tenant.GetDeadRun(e.Context(), client.RunID(made.TaskID, seq+1)))
		}
	}},
	{"a dead run may stop a backfill", "timing: T20.8", func(e *stage) {
		sinceMorning(e, client.Blocking, func(t *client.Task) { t.Retry, t.StopOnFailure = retry(1), true })
		e.answers(fails(1, errNo))
		e.backfill("1h", "4h")
		e.until("5h45m")
		e.filled("1h@5h30m")
	}},
	{"results of a backfill are its own", "timing: T20.9", func(e *stage) {
		id := sinceMorning(e, client.Blocking, func(t *client.Task) { t.Params = map[string]string{"n": "1"} })
		e.answers(func(_ context.Context, r *client.Run) error {
			if r.BackfillOf != 0 {
				r.SetNext(e.at("5h50m"))
				r.SetParam("n", r.Params["n"]+"1")
				if r.Seq == 2 {
					r.Stop()
				}
			}
			return nil
		})
		e.backfill("1h", "4h")
		e.until("6h30m")
		e.filled("1h@5h30m 2h@5h30m")
		e.is(id, client.Scheduled, 7, 0)
		for _, c := range e.log.all() {
			want := "1"
			if c.BackfillOf != 0 && c.Seq == 2 {
				want = "11"
			}
			if c.Params["n"] != want {
				e.Errorf("run %s has n=%s, want %s", c.RunID(), c.Params["n"], want)
			}
		}
	}},
	{"a backfill is done once", "timing: T20.10", func(e *stage) {
		sinceMorning(e, client.NonBlocking)
		once := func(b *client.Bulk) { b.RequestID = "backfilled-once" }
		first := e.backfill("1h", "4h", once)
		if again := e.backfill("1h", "4h", once); again.ID != first.ID {
			e.Errorf("operation %d, then %d", first.ID, again.ID)
		}
		e.until("5h45m")
		e.filled("1h@5h30m 2h@5h30m0.1s 3h@5h30m0.2s")
		e.backfill("1h", "4h")
		e.until("5h50m")
		e.filled("1h@5h30m 2h@5h30m0.1s 3h@5h30m0.2s 1h@5h45m 2h@5h45m0.1s 3h@5h45m0.2s")
	}},
	{"a dry run of a backfill counts runs", "timing: T20.12", func(e *stage) {
		id := e.add(client.Task{Type: client.NonBlocking, Interval: time.Second})
		must[*client.TaskInfo](e)(e.tenant.PauseTask(e.Context(), id))
		e.away("5h30m")
		dry := func(b *client.Bulk) { b.DryRun = true }
		e.counted(e.backfill("1h", "1h1m", dry), 60, 0, 0)
		e.counted(e.backfill("1h", "5h", dry), 14_400, 0, 14_400)
		e.counted(e.backfill("1h", "5h"), 14_400, 0, 14_400)
		e.until("5h31m")
		e.filled("")
	}},
	{"a backfill can be cancelled", "timing: T20.13", func(e *stage) {
		sinceMorning(e, client.NonBlocking)
		var o *client.BulkInfo
		finish := e.open("5h40m", func() { o = e.backfill("1h", "4h", func(b *client.Bulk) { b.OneAtATime = true }) })
		e.counted(e.bulk(client.Bulk{Action: client.BulkCancel, BackfillID: o.ID}), 1, 1, 0)
		finish()
		e.until("6h30m")
		e.fired("0s 1h 2h 3h 4h 5h 1h@5h30m 6h")
	}},
}
