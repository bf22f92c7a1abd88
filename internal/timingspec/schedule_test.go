package timingspec

import (
	"slices"
	"testing"
	"time"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/task"
)

var stories = slices.Concat(typeStories, boundStories, intervalStories, cronStories, spreadStories,
	misfireStories, resultStories, silenceStories, callerStories, editStories, keyStories, deadStories, overlapStories, calendarStories, backfillStories)

// cron is an expression in UTC.
func cron(expression string) *client.Cron { return &client.Cron{Expression: expression} }

func hourly(t client.Type) client.Task { return client.Task{Type: t, Interval: time.Hour} }

// typeStories show how the types differ.
var typeStories = []story{
	{"a ONE_SHOT fires once", "timing: T1.1", func(e *stage) {
		id := e.add(client.Task{Type: client.OneShot, Begin: e.at("10h")})
		e.until("24h")
		e.fired("10h")
		e.is(id, client.Completed, 1, 0)
	}},
	{"a NON_BLOCKING fires on its grid", "timing: T1.2", func(e *stage) {
		e.add(client.Task{Type: client.NonBlocking, Begin: e.at("10h"), Interval: time.Hour})
		e.until("12h30m")
		e.fired("10h 11h 12h")
	}},
	{"a NON_BLOCKING does not wait for its handlers", "timing: T1.3", func(e *stage) {
		e.add(client.Task{Type: client.NonBlocking, Begin: e.at("10h"), Interval: time.Hour, AckTimeout: 24 * time.Hour})
		finish := e.open("10h30m")
		defer finish()
		e.meanwhile("12h10m")
		e.fired("10h 11h 12h")
	}},
	{"a BLOCKING goes on after its result", "timing: T1.4 T1.5", func(e *stage) {
		finish := e.open("3h20m", func() {
			e.add(client.Task{Type: client.Blocking, Interval: time.Hour, AckTimeout: 24 * time.Hour})
		})
		e.fired("0s")
		finish()
		e.until("5h")
		e.fired("0s 4h20m")
	}},
}

// boundStories show between which instants runs lie, and how many.
var boundStories = []story{
	{"a task begins now", "timing: T2.1", func(e *stage) {
		e.add(hourly(client.NonBlocking))
		e.until("1h30m")
		e.fired("0s 1h")
	}},
	{"runs lie between the bounds", "timing: T2.2", func(e *stage) {
		id := e.add(client.Task{Type: client.NonBlocking, Begin: e.at("10h"), End: e.at("12h"), Interval: time.Hour})
		e.until("15h")
		e.fired("10h 11h")
		e.is(id, client.Completed, 2, 0)
	}},
	{"a run may fire after the end", "timing: T2.3", func(e *stage) {
		e.add(client.Task{Type: client.NonBlocking, Begin: e.at("11h"), End: e.at("12h"), Interval: 45 * time.Minute})
		e.until("11h30m")
		e.away("13h")
		e.fired("11h 11h45m@13h")
	}},
	{"max_count counts runs", "timing: T2.4", func(e *stage) {
		id := e.add(client.Task{Type: client.Blocking, Interval: time.Hour, MaxCount: 2})
		e.until("5h")
		e.fired("0s 1h")
		e.is(id, client.Completed, 2, 0)
	}},
	{"what can never fire is refused", "timing: T2.6 T4.7", func(e *stage) {
		e.refused("end_time", client.Task{Type: client.OneShot, Begin: e.at("2h"), End: e.at("1h")})
		e.refused("end_time", client.Task{Type: client.OneShot, Begin: e.at("-2h"), End: e.at("-1h")})
		e.refused("cron.expression", client.Task{Type: client.OneShot, Begin: e.at("1h"), End: e.at("2h"), Cron: cron("30 6 * * *")})
		e.refused("cron.expression", client.Task{Type: client.Blocking, Cron: cron("61 * * * *")})
		e.refused("cron.expression", client.Task{Type: client.Blocking, Cron: cron("0 0 31 2 *")})
		e.refused("cron.time_zone", client.Task{Type: client.Blocking, Cron: &client.Cron{Expression: "@daily", Zone: "Europe/Atlantis"}})
	}},
	{"a begin in the past is a missed instant", "timing: T2.7", func(e *stage) {
		e.add(client.Task{Type: client.OneShot, Begin: e.at("-1h")})
		skipped := e.add(client.Task{Type: client.NonBlocking, Begin: e.at("-90m"), Interval: time.Hour, Misfire: client.SkipMissed})
		e.until("20m")
		e.fired("-1h@0s")
		e.is(skipped, client.Scheduled, 0, 2)
		e.refused("begin_time", client.Task{Type: client.OneShot, Begin: e.at("-1h"), Misfire: client.SkipMissed})
	}},
}

// intervalStories show grids.
var intervalStories = []story{
	{"intervals have limits", "timing: T3.1", func(e *stage) {
		e.refused("interval", client.Task{Type: client.Blocking, Interval: time.Millisecond}) // here the minimum is less than 1 s
		e.refused("interval", client.Task{Type: client.Blocking, Interval: 1500*time.Millisecond + time.Microsecond})
		e.refused("interval", client.Task{Type: client.Blocking, Interval: 3651 * 24 * time.Hour})
	}},
	{"no delay moves a grid", "timing: T3.2", func(e *stage) {
		e.add(hourly(client.NonBlocking))
		e.until("30m")
		e.away("1h20m")
		e.until("2h30m")
		e.fired("0s 1h@1h20m 2h")
	}},
	{"every is an interval", "timing: T3.3", func(e *stage) {
		id := e.add(client.Task{Type: client.NonBlocking, Cron: cron("@every 90m")})
		e.until("3h")
		e.fired("0s 1h30m 3h")
		if t := e.task(id); t.Interval != 90*time.Minute || t.Cron != nil {
			e.Errorf("%+v", t)
		}
	}},
}

// cronStories show matches of expressions.
var cronStories = []story{
	{"the first match counts", "timing: T4.1 T4.2", func(e *stage) {
		at := e.add(client.Task{Type: client.OneShot, Begin: e.at("6h30m"), Cron: cron("30 6 * * *")})
		e.add(client.Task{Type: client.OneShot, Begin: e.at("6h31m"), Cron: cron("30 6 * * *")})
		e.until("48h")
		e.fired("6h30m 30h30m")
		e.is(at, client.Completed, 1, 0)
	}},
	{"a NON_BLOCKING fires at every match", "timing: T4.3", func(e *stage) {
		e.add(client.Task{Type: client.NonBlocking, Cron: cron("0 */6 * * *")})
		e.until("13h")
		e.fired("0s 6h 12h")
	}},
	{"a BLOCKING goes on at the first match after its result", "timing: T4.4", func(e *stage) {
		finish := e.open("1h20m", func() {
			e.add(client.Task{Type: client.Blocking, Cron: cron("0 * * * *"), AckTimeout: 24 * time.Hour})
		})
		finish()
		e.until("3h")
		e.fired("0s 2h 3h")
	}},
	{"every dialect can be used", "timing: T4.5", func(e *stage) {
		for _, c := range []client.Cron{
			{Expression: "30 0 1 * * *"}, {Expression: "0 0 2 ? * *", Dialect: client.QuartzCron}, {Expression: "@daily"},
			{Expression: "DTSTART:20200101T030000 RRULE:FREQ=DAILY"},
		} {
			e.add(client.Task{Type: client.OneShot, Cron: &c, Begin: e.at("1ms")})
		}
		e.until("24h")
		e.fired("1h0m30s 2h 3h 24h")
	}},
	{"H follows from the id", "timing: T4.6", func(e *stage) {
		seen := map[time.Time]bool{}
		for range 6 {
			id := e.add(client.Task{Type: client.NonBlocking, Cron: cron("H * * * *"), Begin: e.at("1h")})
			seen[e.task(id).ScheduledAt] = true
		}
		if len(seen) < 2 {
			e.Errorf("six tasks fire at %v", seen)
		}
		e.until("3h")
		first := map[int64]time.Duration{}
		for _, c := range e.log.all() {
			minute := c.ScheduledAt.Sub(e.zero) % time.Hour
			if known, ok := first[c.TaskID]; ok && known != minute {
				e.Errorf("task %d fired at minute %s, then at %s", c.TaskID, known, minute)
			}
			first[c.TaskID] = minute
		}
	}},
	{"an expression is matched in its zone", "timing: T5.1", func(e *stage) {
		e.add(client.Task{Type: client.OneShot, Begin: e.at("1h"), Cron: &client.Cron{Expression: "0 9 * * *", Zone: "Asia/Tokyo"}})
		e.add(client.Task{Type: client.OneShot, Begin: e.at("1h"), Cron: cron("0 9 * * *")})
		e.until("24h")
		e.fired("9h 24h")
	}},
}

// spreadStories show how instants are spread.
var spreadStories = []story{
	{"a spread moves all instants alike", "timing: T6.1 T6.3", func(e *stage) {
		later := map[int64]time.Duration{}
		for _, t := range []client.Task{
			{Type: client.NonBlocking, Begin: e.at("1h"), Interval: time.Hour, Spread: 10 * time.Minute},
			{Type: client.NonBlocking, Begin: e.at("1h"), Cron: cron("0 * * * *"), Spread: 10 * time.Minute},
		} {
			id := e.add(t)
			later[id] = task.SpreadOf(task.ID(id), 10*time.Minute)
		}
		e.until("3h59m")
		calls := e.log.all()
		for _, c := range calls {
			if got := c.ScheduledAt.Sub(e.zero) % time.Hour; got != later[c.TaskID] || !c.At.Equal(c.ScheduledAt) {
				e.Errorf("task %d is later by %s, want %s", c.TaskID, got, later[c.TaskID])
			}
		}
		if len(calls) != 6 {
			e.Errorf("%d runs, want 3 of each", len(calls))
		}
	}},
	{"a spread has limits", "timing: T6.4 T6.5", func(e *stage) {
		e.refused("spread", client.Task{Type: client.Blocking, Interval: time.Hour, Spread: time.Hour})
		e.refused("spread", client.Task{Type: client.OneShot, Begin: e.at("0s"), End: e.at("5m"), Spread: 10 * time.Minute})
		id := e.add(client.Task{Type: client.NonBlocking, Begin: e.at("0s"), End: e.at("2h1ms"), Interval: time.Hour, Spread: 59 * time.Minute})
		e.until("4h")
		later := task.SpreadOf(task.ID(id), 59*time.Minute)
		for _, c := range e.log.all() {
			if c.ScheduledAt.Sub(e.zero)%time.Hour != later || !c.ScheduledAt.Before(e.at("2h1ms")) {
				e.Errorf("fired at %s", c.ScheduledAt.Sub(e.zero))
			}
		}
		if n := len(e.log.all()); n != 2 {
			e.Errorf("%d instants fired before the end, want 2", n)
		}
	}},
}

func TestTheClockChangesAsTheContractSays(t *testing.T) {
	// Expressions around changes of the clock are previewed: to fire them needs no
	// further rule. timing: T5.3 T5.4 T5.5 T5.6 T5.7
	for _, c := range []struct{ expression, begin, end, want string }{
		{"30 2 * * *", "2026-03-29T00:00:00Z", "2026-03-30T00:00:00Z", "2026-03-29T01:00:00Z"},
		{"30 2 * * *", "2026-10-25T00:00:00Z", "2026-10-25T02:00:00Z", "2026-10-25T00:30:00Z"},
		{"30 * * * *", "2026-10-25T00:00:00Z", "2026-10-25T02:00:00Z", "2026-10-25T00:30:00Z 2026-10-25T01:30:00Z"},
		{"DTSTART:20260301T023000 RRULE:FREQ=DAILY", "2026-03-29T00:00:00Z", "2026-03-30T00:00:00Z", "2026-03-29T01:00:00Z"},
		{"DTSTART:20260301T023000 RRULE:FREQ=DAILY", "2026-10-25T00:00:00Z", "2026-10-25T02:00:00Z", "2026-10-25T00:30:00Z"},
		{"DTSTART:20261025T023000 RRULE:FREQ=HOURLY", "2026-10-25T00:00:00Z", "2026-10-25T02:00:00Z", "2026-10-25T00:30:00Z 2026-10-25T01:30:00Z"},
		{"DTSTART:20260101T090000 RRULE:FREQ=DAILY;COUNT=3", "2026-01-02T00:00:00Z", "2026-02-01T00:00:00Z", "2026-01-02T08:00:00Z 2026-01-03T08:00:00Z"},
	} {
		if got := instants(t, c.expression, c.begin, c.end); got != c.want {
			t.Errorf("%q from %s: %s, want %s", c.expression, c.begin, got, c.want)
		}
	}
}
