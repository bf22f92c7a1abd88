package timingspec

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/internal/virtualtest"
)

// paramsOf lists a param as each call of the handler has seen it, with the version
// of the task.
func (e *stage) paramsOf(name string) (list []string) {
	for _, c := range e.log.all() {
		list = append(list, fmt.Sprintf("%s of version %d", c.Params[name], c.Version))
	}
	return list
}

// same expects two texts to be alike.
func (e *stage) same(what, got, want string) {
	e.Helper()
	if got != want {
		e.Errorf("%s: %s, want %s", what, got, want)
	}
}

// failsWith expects an error of a kind.
func (e *stage) failsWith(what string, err, kind error) {
	e.Helper()
	if !errors.Is(err, kind) {
		e.Errorf("%s: %v, want %v", what, err, kind)
	}
}

var editStories = []story{
	{"an attempt after an edit has the new terms", "timing: T13.5 T13.10", func(e *stage) {
		e.answers(fails(1, errNo))
		id := e.add(client.Task{Type: client.OneShot, Retry: retry(5), Params: map[string]string{"n": "1"}})
		e.until("30s")
		e.edit(id, client.Task{Params: map[string]string{"n": "2"}})
		e.until("2m")
		e.fired("0s 0s@1m")
		e.same("the attempts saw", fmt.Sprint(e.paramsOf("n")), "[1 of version 1 2 of version 2]")
	}},
	{"a new interval of a BLOCKING counts from the result of its open run", "timing: T13.6", func(e *stage) {
		var id int64
		finish := e.open("10m", func() {
			id = e.add(client.Task{Type: client.Blocking, Interval: time.Hour, AckTimeout: 24 * time.Hour})
		})
		e.edit(id, client.Task{Interval: 20 * time.Minute})
		e.meanwhile("30m")
		finish()
		e.until("1h15m")
		e.fired("0s 50m 1h10m")
	}},
	{"an instant that has come is not dropped by an edit", "timing: T13.7", func(e *stage) {
		id := e.add(hourly(client.NonBlocking))
		e.until("30m")
		must[*client.TaskInfo](e)(e.tenant.PauseTask(e.Context(), id))
		e.until("1h30m")
		e.edit(id, client.Task{Interval: 25 * time.Minute})
		must[*client.TaskInfo](e)(e.tenant.ResumeTask(e.Context(), id))
		e.until("2h")
		e.fired("0s 1h@1h30m 1h50m")
	}},
	{"an edit before the first run counts like any other", "timing: T13.13", func(e *stage) {
		daily := e.add(client.Task{Type: client.NonBlocking, Cron: cron("0 6 * * *"), Begin: e.at("1ms")})
		later := e.add(client.Task{Type: client.NonBlocking, Interval: time.Hour, Begin: e.at("2h")})
		e.until("30m")
		e.edit(daily, client.Task{Interval: 20 * time.Minute})
		e.edit(later, client.Task{Interval: 20 * time.Minute})
		e.until("1h15m")
		e.fired("50m 1h10m")
		must[*client.TaskInfo](e)(e.tenant.CancelTask(e.Context(), daily))
		e.until("2h30m")
		e.fired("50m 1h10m 2h 2h20m")
	}},
	{"a pause is no change of the terms", "timing: T13.8 T13.10", func(e *stage) {
		e.answers(fails(1, client.Retry(errNo, 90*time.Minute)))
		id := e.add(hourly(client.NonBlocking))
		e.until("10m")
		for range 2 {
			must[*client.TaskInfo](e)(e.tenant.PauseTask(e.Context(), id))
			must[*client.TaskInfo](e)(e.tenant.ResumeTask(e.Context(), id))
		}
		e.until("2h30m")
		e.fired("0s 1h 0s@1h30m 2h")
		e.same("the attempts saw", fmt.Sprint(e.paramsOf("n")), "[ of version 1  of version 1  of version 1  of version 1]")
		if v := e.task(id).Version; v != 1 {
			e.Errorf("version %d, want 1", v)
		}
	}},
	{"only a change by a caller is a new version", "timing: T13.8 T13.9", func(e *stage) {
		e.answers(func(_ context.Context, r *client.Run) error { r.SetParam("n", fmt.Sprint(r.Seq)); return nil })
		id := e.add(hourly(client.NonBlocking))
		e.until("1h30m")
		update := func(of int, t client.Task) (int, error) {
			done, err := e.tenant.UpdateTask(e.Context(), id, t, client.UpdateOptions{Version: of})
			if err != nil {
				return 0, err
			}
			return done.Version, nil
		}
		for _, c := range []struct {
			of, version int
			t           client.Task
			err         error
		}{
			{1, 1, hourly(0), nil},
			{1, 2, client.Task{Interval: 20 * time.Minute}, nil},
			{1, 2, client.Task{Interval: 20 * time.Minute}, nil}, // the answer was lost
			{1, 0, client.Task{Interval: 30 * time.Minute}, client.ErrOtherVersion},
			{0, 3, client.Task{Interval: 30 * time.Minute}, nil},
		} {
			if got, err := update(c.of, c.t); got != c.version || !errors.Is(err, c.err) {
				e.Errorf("%+v of version %d: version %d, %v; want %d, %v", c.t, c.of, got, err, c.version, c.err)
			}
		}
	}},
	{"a task in a pack is edited like any other", "timing: T13.11", func(e *stage) {
		tasks := make([]client.Task, 100)
		for i := range tasks {
			tasks[i] = client.Task{Kind: e.kind, Type: client.OneShot, Begin: e.at("720h"), Retention: 7 * 24 * time.Hour}
		}
		for _, added := range must[[]client.AddResult](e)(e.tenant.AddTasks(e.Context(), tasks)) {
			e.ids = append(e.ids, added.ID)
		}
		id := e.ids[42]
		far := false
		for _, r := range must[*client.Explanation](e)(e.tenant.ExplainTask(e.Context(), id, 0)).Reasons {
			far = far || r.Code == "FAR"
		}
		if !far {
			e.Error("the task is in no pack")
		}
		e.until("30m")
		e.edit(id, client.Task{Begin: e.at("2h")})
		e.until("3h")
		e.fired("2h")
	}},
	{"an edit that leaves nothing to fire is refused", "timing: T13.12", func(e *stage) {
		id := e.add(hourly(client.NonBlocking))
		e.until("30m")
		_, err := e.tenant.UpdateTask(e.Context(), id, client.Task{End: e.at("45m")}, client.UpdateOptions{})
		e.failsWith("an end before the next instant", err, client.ErrInvalidArgument)
		e.until("1h30m")
		e.fired("0s 1h")
	}},
	{"the result of a cancelled task's run is refused", "timing: T14.2", func(e *stage) {
		var id int64
		finish := e.open("30m", func() {
			id = e.add(client.Task{Type: client.NonBlocking, Interval: time.Hour, AckTimeout: 24 * time.Hour})
		})
		must[*client.TaskInfo](e)(e.tenant.CancelTask(e.Context(), id))
		finish()
		e.until("2h")
		e.fired("0s")
		e.is(id, client.Cancelled, 1, 0)
	}},
	{"a run on its way finds out that its task was cancelled or edited", "timing: T14.3", func(e *stage) {
		later := e.stack.Tenant(e.T) // its listener comes when the runs are in Kafka
		add := func(n string) int64 {
			return later.Add(e.T, client.Task{Kind: e.kind, Type: client.OneShot, AckTimeout: 24 * time.Hour, Params: map[string]string{"n": n}})
		}
		cancelled, edited := add("cancelled"), add("before")
		e.meanwhile("1m")
		must[*client.TaskInfo](e)(later.CancelTask(e.Context(), cancelled))
		must[*client.TaskInfo](e)(later.UpdateTask(e.Context(), edited, client.Task{Params: map[string]string{"n": "after"}}, client.UpdateOptions{}))
		later.Listen(e.T, map[string]client.Handler{e.kind: func(_ context.Context, r *client.Run) error {
			e.log.note(virtualtest.Ran{Run: r, At: r.ScheduledAt})
			return nil
		}})
		for range 8 { // they stand behind it in each partition
			add("behind")
		}
		e.until("2m")
		seen := map[string]int{}
		for _, c := range e.log.all() {
			seen[c.Params["n"]]++
		}
		e.same("the handler was called with", fmt.Sprint(seen), "map[after:1 behind:8]")
	}},
}

var keyStories = []story{
	{"a key stands for one task", "timing: T16.1 T16.2", func(e *stage) {
		t := client.Task{Type: client.OneShot, Begin: e.at("1h"), IdempotencyKey: "one"}
		id := e.add(t)
		if again := e.add(t); again != id {
			e.Errorf("task %d, then %d", id, again)
		}
		t.Begin = e.at("2h")
		_, err := e.tryAdd(t)
		e.failsWith("another body", err, client.ErrAlreadyExists)
		e.until("3h")
		e.fired("1h")
	}},
	{"an upsert is an edit", "timing: T16.3 T16.5", func(e *stage) {
		upsert := func(t client.Task) (int64, int) {
			e.Helper()
			t.Kind, t.Retention, t.IdempotencyKey = e.kind, 7*24*time.Hour, "upsert"
			id := must[int64](e)(e.tenant.AddTask(e.Context(), t, client.WithUpsert()))
			e.ids = append(e.ids, id)
			return id, e.task(id).Version
		}
		id, _ := upsert(hourly(client.NonBlocking))
		e.until("30m")
		if again, version := upsert(hourly(client.NonBlocking)); again != id || version != 1 {
			e.Errorf("the same again is task %d of version %d, want %d of 1", again, version, id)
		}
		if again, version := upsert(client.Task{Type: client.NonBlocking, Interval: 20 * time.Minute}); again != id || version != 2 {
			e.Errorf("another body is task %d of version %d, want %d of 2", again, version, id)
		}
		e.until("1h15m")
		e.fired("0s 50m 1h10m")
	}},
	{"an upsert of an ended task adds another one", "timing: T16.4", func(e *stage) {
		t := client.Task{Kind: e.kind, Type: client.OneShot, IdempotencyKey: "ended"}
		first := must[int64](e)(e.tenant.AddTask(e.Context(), t, client.WithUpsert()))
		e.until("30m")
		second := must[int64](e)(e.tenant.AddTask(e.Context(), t, client.WithUpsert()))
		if first == second {
			e.Errorf("task %d, again", first)
		}
		e.until("1h")
		e.fired("0s 30m")
	}},
	{"a key outlives its task", "timing: T16.6", func(e *stage) {
		t := client.Task{Kind: e.kind, Type: client.OneShot, Retention: client.NoRetention, IdempotencyKey: "outlived"}
		id := must[int64](e)(e.tenant.AddTask(e.Context(), t))
		e.until("1h")
		_, err := e.tenant.GetTask(e.Context(), id)
		e.failsWith("the task", err, client.ErrNotFound)
		e.until("23h59m")
		if again := must[int64](e)(e.tenant.AddTask(e.Context(), t)); again != id {
			e.Errorf("task %d, then %d", id, again)
		}
		e.until("25h")
		e.fired("0s")
	}},
}

var deadStories = []story{
	{"a dead run is kept", "timing: T17.1 T17.3", func(e *stage) {
		e.answers(fails(9, errNo))
		id := must[int64](e)(e.tenant.AddTask(e.Context(), client.Task{Kind: e.kind, Type: client.OneShot, Retry: retry(1), Retention: client.NoRetention}))
		e.until("1h")
		runID := client.RunID(id, 1)
		dead := must[*client.DeadRun](e)(e.tenant.GetDeadRun(e.Context(), runID))
		e.same("the dead run", fmt.Sprintf("%s %q of %s", dead.Reason, dead.Error, short(dead.ScheduledAt.Sub(e.zero))), `OUT_OF_ATTEMPTS "no" of 0s`)
		if err := e.tenant.PurgeDeadRun(e.Context(), runID); err != nil {
			e.Error(err)
		}
		_, err := e.tenant.ReplayDeadRun(e.Context(), runID)
		e.failsWith("a replay after the purge", err, client.ErrNotFound)
	}},
	{"a dead run is done again once", "timing: T17.2", func(e *stage) {
		e.answers(fails(1, client.Permanent(errNo)))
		id := e.add(client.Task{Type: client.NonBlocking, Interval: 24 * time.Hour, Params: map[string]string{"n": "1"}, Tags: []string{"a"}})
		e.until("1h")
		runID := client.RunID(id, 1)
		again := must[int64](e)(e.tenant.ReplayDeadRun(e.Context(), runID))
		if repeated := must[int64](e)(e.tenant.ReplayDeadRun(e.Context(), runID)); repeated != again {
			e.Errorf("task %d, then %d", again, repeated)
		}
		e.until("2h")
		e.fired("0s 1h")
		if c := e.log.all()[1]; c.TaskID != again || c.Type != client.OneShot || c.Params["n"] != "1" || c.ReplayOf != runID {
			e.Errorf("%+v", c.Run)
		}
		_, err := e.tenant.GetDeadRun(e.Context(), runID)
		e.failsWith("the dead run", err, client.ErrNotFound)
	}},
}
