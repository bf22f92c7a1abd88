package clienttest_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/client/clienttest"
	"github.com/perceptor/perceptor/task"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var tomorrow = time.Now().Add(24 * time.Hour).UTC().Truncate(time.Millisecond)

func remind(user string) client.Task {
	return client.Task{Kind: "remind", Type: client.OneShot, Begin: tomorrow, Params: map[string]string{"user": user}}
}

func TestAddedReturnsTasksAsTheyWereRequested(t *testing.T) {
	c := clienttest.New(t)
	every := client.Task{
		Kind: "watch", Type: client.Blocking, Begin: tomorrow, End: tomorrow.Add(time.Hour), Interval: time.Minute, MaxCount: 9,
		Retry: client.RetryPolicy{MaxAttempts: 3, Jitter: client.NoJitter}, AckTimeout: time.Minute, GiveUpAfter: time.Hour,
		StopOnFailure: true, Retention: client.NoRetention,
	}
	if _, err := c.AddTask(t.Context(), remind("ann")); err != nil {
		t.Fatal(err)
	}
	var tasks client.Tasks = c // what services depend on
	if _, err := tasks.AddTasks(t.Context(), []client.Task{every, remind("bob")}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Client.AddTask(t.Context(), remind("cid"), client.WithRequestID("cid")); err != nil { // adds past c.AddTask are recorded, too
		t.Fatal(err)
	}
	if diff := cmp.Diff([]client.Task{remind("ann"), every, remind("bob"), remind("cid")}, c.Added()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]client.Task{every}, c.Added("watch", "none")); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(every, c.AddedOne("watch")); diff != "" {
		t.Error(diff)
	}
	c.Forget()
	if got := c.Added(); got != nil {
		t.Errorf("after Forget: %+v", got)
	}
}

func TestSpecsAreValidatedByTheRealRules(t *testing.T) {
	c := clienttest.New(t, clienttest.WithParamsBytes(10), clienttest.WithMinInterval(time.Minute))
	for field, bad := range map[string]client.Task{
		"kind":          {Type: client.OneShot},
		"interval":      {Kind: "k", Type: client.NonBlocking, Interval: time.Second},
		"params":        remind("somebody with a long name"),
		"end_time":      {Kind: "k", Type: client.OneShot, End: time.Now().Add(-time.Hour)},
		"max_count":     {Kind: "k", Type: client.OneShot, MaxCount: 2},
		"give_up_after": {Kind: "k", Type: client.OneShot, AckTimeout: time.Hour, GiveUpAfter: time.Minute},
	} {
		_, err := c.AddTask(t.Context(), bad)
		var e *client.Error
		if !errors.Is(err, client.ErrInvalidArgument) || !errors.As(err, &e) || len(e.Fields) != 1 || !strings.HasSuffix(e.Fields[0].Field, field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	results, err := c.AddTasks(t.Context(), []client.Task{{Kind: "k", Type: client.OneShot}, {}})
	if err != nil || results[0].Err != nil || !errors.Is(results[1].Err, client.ErrInvalidArgument) {
		t.Errorf("%+v, %v", results, err)
	}
	if got := c.Added(); len(got) != 1 || got[0].Kind != "k" {
		t.Errorf("added %+v", got)
	}
}

func TestARequestThatIsRepeatedCountsOnce(t *testing.T) {
	c := clienttest.New(t)
	first, err := c.AddTask(t.Context(), remind("ann"), client.WithRequestID("r"))
	if err != nil {
		t.Fatal(err)
	}
	second, err := c.AddTask(t.Context(), remind("ann"), client.WithRequestID("r"))
	if err != nil || second != first || len(c.Added()) != 1 {
		t.Errorf("%d, then %d, %v; added %+v", first, second, err, c.Added())
	}
	if _, err := c.AddTask(t.Context(), remind("bob"), client.WithRequestID("r")); !errors.Is(err, client.ErrAlreadyExists) {
		t.Errorf("another task under the same id: %v", err)
	}
}

func TestAKeyStandsForOneTask(t *testing.T) {
	c := clienttest.New(t)
	keyed := remind("ann")
	keyed.IdempotencyKey = "ann"
	first, err := c.AddTask(t.Context(), keyed)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := c.AddTask(t.Context(), keyed); err != nil || again != first || len(c.Added()) != 1 {
		t.Errorf("%d, then %d, %v; added %+v", first, again, err, c.Added())
	}
	other := keyed
	other.Begin = tomorrow.Add(time.Hour)
	if _, err := c.AddTask(t.Context(), other); !errors.Is(err, client.ErrAlreadyExists) {
		t.Errorf("another body under the key: %v", err)
	}
	if again, err := c.AddTask(t.Context(), other, client.WithUpsert()); err != nil || again != first {
		t.Errorf("the upsert has task %d, %v", again, err)
	}
	if diff := cmp.Diff([]client.Task{other}, c.Added()); diff != "" {
		t.Error(diff)
	}
	if info, err := c.GetTask(t.Context(), first); err != nil || !info.Begin.Equal(other.Begin) || info.Version != 2 {
		t.Errorf("after the upsert: %+v, %v", info, err)
	}
	if _, err := c.CancelTask(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	if again, err := c.AddTask(t.Context(), keyed, client.WithUpsert()); err != nil || again == first {
		t.Errorf("after the end of the task the upsert has task %d, %v", again, err)
	}
}

func TestAKeyNamesItsTask(t *testing.T) {
	c := clienttest.New(t)
	keyed := remind("ann")
	keyed.IdempotencyKey = "ann/1"
	id, err := c.AddTask(t.Context(), keyed)
	if err != nil {
		t.Fatal(err)
	}
	var service client.Tasks = c // what services depend on
	ann := service.ByKey("ann/1")
	if info, err := ann.Update(t.Context(), client.Task{Kind: "other"}, client.UpdateOptions{}); err != nil || info.ID != id || info.Kind != "other" {
		t.Errorf("after the update: %+v, %v", info, err)
	}
	if seq, err := ann.Trigger(t.Context()); err != nil || seq != 1 {
		t.Errorf("triggered run %d, %v", seq, err)
	}
	for name, step := range map[string]func(context.Context) (*client.TaskInfo, error){
		"get": ann.Get, "pause": ann.Pause, "resume": ann.Resume,
	} {
		if info, err := step(t.Context()); err != nil || info.ID != id {
			t.Errorf("%s: %+v, %v", name, info, err)
		}
	}
	if info, err := ann.Cancel(t.Context()); err != nil || info.State != client.Cancelled {
		t.Errorf("cancel: %+v, %v", info, err)
	}
	if _, err := c.ByKey("bob").Get(t.Context()); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("an unknown key: %v", err)
	}
}

func TestTasksCanBeChangedTriggeredAndPurged(t *testing.T) {
	c := clienttest.New(t)
	id, err := c.AddTask(t.Context(), client.Task{Kind: "k", Type: client.Blocking, Begin: tomorrow, Cron: &client.Cron{Expression: "0 12 * * *", Zone: "Europe/Berlin"}})
	if err != nil {
		t.Fatal(err)
	}
	info, err := c.GetTask(t.Context(), id)
	if err != nil || !info.ScheduledAt.After(tomorrow.Add(-time.Millisecond)) || info.ScheduledAt.Minute() != 0 {
		t.Errorf("%+v, %v", info, err)
	}
	info, err = c.UpdateTask(t.Context(), id, client.Task{Cron: &client.Cron{Expression: "30 12 * * *"}}, client.UpdateOptions{Version: 1})
	if err != nil || info.ScheduledAt.Minute() != 30 || info.Version != 2 {
		t.Errorf("updated: %+v, %v", info, err)
	}
	if _, err := c.UpdateTask(t.Context(), id, client.Task{Cron: &client.Cron{Expression: "never"}}, client.UpdateOptions{}); !errors.Is(err, client.ErrInvalidArgument) {
		t.Errorf("an update to what is no expression: %v", err)
	}
	if _, err := c.AddTask(t.Context(), client.Task{Kind: "k", Type: client.Blocking, Cron: &client.Cron{Expression: "0 0 30 2 *"}}); !errors.Is(err, client.ErrInvalidArgument) {
		t.Errorf("a task that never fires: %v", err)
	}
	for range 2 {
		if seq, err := c.TriggerTask(t.Context(), id, client.WithRequestID("now")); err != nil || seq != 1 {
			t.Errorf("triggered: run %d, %v", seq, err)
		}
	}
	if _, err := c.TriggerTask(t.Context(), id); !errors.Is(err, client.ErrFailedPrecondition) {
		t.Errorf("triggered while a run is open: %v", err)
	}
	err = c.PurgeTask(t.Context(), id)
	if refused := new(client.Error); !errors.Is(err, client.ErrFailedPrecondition) || !errors.As(err, &refused) || refused.Reason != "TASK_NOT_FINISHED" {
		t.Errorf("a living task is purged: %v", err)
	}
	if _, err := c.CancelTask(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if err := c.PurgeTask(t.Context(), id); err != nil {
		t.Error(err)
	}
	if _, err := c.GetTask(t.Context(), id); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("after the purge: %v", err)
	}
}

func TestATaskThatWasReadCanBeChangedAndSentBackWhole(t *testing.T) {
	c := clienttest.New(t)
	id, err := c.AddTask(t.Context(), client.Task{
		Kind: "k", Type: client.NonBlocking, Begin: tomorrow, Interval: time.Hour, IdempotencyKey: "key", Tags: []string{"a"}, Spread: time.Minute,
		Misfire: client.SkipMissed, MisfireGrace: client.NoGrace, Params: map[string]string{"n": "1"}, Retention: client.NoRetention,
	})
	if err != nil {
		t.Fatal(err)
	}
	read, err := c.GetTask(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if same, err := c.UpdateTask(t.Context(), id, read.Task, client.UpdateOptions{Version: read.Version}); err != nil || same.Version != read.Version {
		t.Errorf("sent back as it was: %+v, %v", same, err)
	}
	read.Interval = 2 * time.Hour
	got, err := c.UpdateTask(t.Context(), id, read.Task, client.UpdateOptions{Version: read.Version})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(read.Task, got.Task); diff != "" || got.Version != 2 {
		t.Errorf("version %d (-want +got)\n%s", got.Version, diff)
	}
	read.Type = client.Blocking
	if _, err := c.UpdateTask(t.Context(), id, read.Task, client.UpdateOptions{}); !errors.Is(err, client.ErrInvalidArgument) || !strings.Contains(err.Error(), "type: BLOCKING: that of the task is NON_BLOCKING") {
		t.Errorf("another type: %v", err)
	}
}

func TestAPayloadIsKeptChangedAndRemoved(t *testing.T) {
	c := clienttest.New(t)
	want := client.Task{Kind: "k", Type: client.OneShot, Begin: tomorrow, Params: map[string]string{"n": "1"}, Payload: client.MustJSON([]int{1, 2})}
	id, err := c.AddTask(t.Context(), want)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, c.AddedOne("k")); diff != "" {
		t.Errorf("added (-want +got)\n%s", diff)
	}
	read, err := c.GetTask(t.Context(), id)
	if err != nil || !cmp.Equal(read.Payload, want.Payload) {
		t.Fatalf("%+v, %v", read, err)
	}
	if same, err := c.UpdateTask(t.Context(), id, read.Task, client.UpdateOptions{}); err != nil || same.Version != 1 {
		t.Errorf("sent back as it was: %+v, %v", same, err)
	}
	text := &client.Payload{Data: []byte("a"), ContentType: "text/plain"}
	if got, err := c.UpdateTask(t.Context(), id, client.Task{Payload: text}, client.UpdateOptions{}); err != nil || !cmp.Equal(got.Payload, text) || got.Params["n"] != "1" || got.Version != 2 {
		t.Errorf("changed: %+v, %v", got, err)
	}
	if got, err := c.UpdateTask(t.Context(), id, client.Task{}, client.UpdateOptions{Fields: []string{"payload"}}); err != nil || got.Payload != nil || got.Params["n"] != "1" {
		t.Errorf("removed: %+v, %v", got, err)
	}
	_, err = c.AddTask(t.Context(), client.Task{Kind: "k", Type: client.OneShot, Payload: &client.Payload{Data: []byte("{"), ContentType: "application/json"}})
	if refused := new(client.Error); !errors.As(err, &refused) || len(refused.Fields) != 1 || !strings.HasSuffix(refused.Fields[0].Field, "payload.data") {
		t.Errorf("what is no JSON: %v", err)
	}
	outcome := clienttest.Run(t, func(_ context.Context, r *client.Run) error { r.SetPayload(nil); return nil }, &client.Run{Payload: text})
	if diff := cmp.Diff(client.Outcome{Status: client.Success, DeletedPayload: true}, outcome); diff != "" {
		t.Errorf("the outcome (-want +got)\n%s", diff)
	}
}

func TestASchedulesInstantsArePreviewed(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	c := clienttest.New(t, clienttest.WithNow(func() time.Time { return now }))
	p, err := c.PreviewSchedule(t.Context(), client.Task{Type: client.NonBlocking, Cron: &client.Cron{Expression: "30 6 * * *"}}, client.PreviewOptions{Count: 2})
	if err != nil {
		t.Fatal(err)
	}
	first := now.Add(6*time.Hour + 30*time.Minute)
	if diff := cmp.Diff([]time.Time{first, first.AddDate(0, 0, 1)}, p.Instants); diff != "" || p.Expression != "30 6 * * *" || p.ZoneData == "" {
		t.Errorf("%+v (-want +got)\n%s", p, diff)
	}
	p, err = c.PreviewSchedule(t.Context(), client.Task{Type: client.NonBlocking, Interval: time.Hour}, client.PreviewOptions{After: now.Add(90 * time.Minute), Count: 1})
	if err != nil || len(p.Instants) != 1 || !p.Instants[0].Equal(now.Add(2*time.Hour)) {
		t.Errorf("after an instant: %+v, %v", p, err)
	}
	if _, err := c.PreviewSchedule(t.Context(), client.Task{Type: client.Blocking, Interval: time.Hour}, client.PreviewOptions{Count: -7}); !errors.Is(err, client.ErrInvalidArgument) {
		t.Errorf("less than none: %v", err)
	}
}

func TestTasksAreKept(t *testing.T) {
	c := clienttest.New(t)
	var ids []int64
	for _, user := range []string{"ann", "bob", "cid"} {
		id, err := c.AddTask(t.Context(), remind(user))
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	if info, err := c.GetTask(t.Context(), ids[0]); err != nil || info.State != client.Scheduled || info.Params["user"] != "ann" ||
		!info.ScheduledAt.Equal(tomorrow) || info.AckTimeout != task.DefaultAckTimeout || info.Version != 1 {
		t.Errorf("got %+v, %v", info, err)
	}
	if info, err := c.PauseTask(t.Context(), ids[1]); err != nil || !info.Paused || info.Version != 1 {
		t.Errorf("paused: %+v, %v", info, err)
	}
	if info, err := c.ResumeTask(t.Context(), ids[1]); err != nil || info.Paused || !info.DueAt.Equal(tomorrow) {
		t.Errorf("resumed: %+v, %v", info, err)
	}
	for range 2 {
		if info, err := c.CancelTask(t.Context(), ids[2]); err != nil || info.State != client.Cancelled || info.FinishedAt.IsZero() || info.Version != 2 {
			t.Errorf("cancelled: %+v, %v", info, err)
		}
	}
	if _, err := c.PauseTask(t.Context(), ids[2]); !errors.Is(err, client.ErrFailedPrecondition) {
		t.Errorf("a cancelled task is paused: %v", err)
	}
	if _, err := c.GetTask(t.Context(), ids[2]+512); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("an unknown task: %v", err)
	}
	list := func(f client.Filter) (got []int64) {
		for info, err := range c.ListTasks(t.Context(), f) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, info.ID)
		}
		return got
	}
	for name, c := range map[string]struct {
		filter client.Filter
		want   []int64
	}{
		"living":    {client.Filter{Kind: "remind", PageSize: 1}, ids[:2]},
		"cancelled": {client.Filter{State: client.Cancelled}, ids[2:]},
		"none":      {client.Filter{Kind: "other"}, nil},
	} {
		if diff := cmp.Diff(c.want, list(c.filter)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestTheServiceRefusesWhenItIsToldTo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := clienttest.New(t)
		for _, kind := range []error{client.ErrPermissionDenied, client.ErrResourceExhausted, client.ErrOtherVersion, client.ErrUnavailable, client.ErrInternal} {
			c.Refuse(kind)
			if _, err := c.AddTask(t.Context(), remind("ann")); !errors.Is(err, kind) {
				t.Errorf("want %v, got %v", kind, err)
			}
		}
		c.Refuse(nil)
		if _, err := c.AddTask(t.Context(), remind("ann")); err != nil || len(c.Added()) != 1 {
			t.Errorf("%v, added %+v", err, c.Added())
		}
	})
}

func TestTheClockOfTheServiceIsTheTests(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	c := clienttest.New(t, clienttest.WithNow(func() time.Time { return now }))
	id, err := c.AddTask(t.Context(), client.Task{Kind: "k", Type: client.OneShot, End: now.Add(time.Second)})
	if err != nil {
		t.Fatal(err)
	}
	if info, err := c.GetTask(t.Context(), id); err != nil || !info.Begin.Equal(now) || !info.CreatedAt.Equal(now) {
		t.Errorf("%+v, %v", info, err)
	}
	now = now.Add(time.Hour)
	if _, err := c.AddTask(t.Context(), client.Task{Kind: "k", Type: client.OneShot, End: now}); !errors.Is(err, client.ErrInvalidArgument) {
		t.Errorf("an end that has passed: %v", err)
	}
}

func TestWhatIsNotPossibleHereIsAnError(t *testing.T) {
	c := clienttest.New(t)
	l, err := c.NewListener(client.ListenerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	l.Handle("k", func(context.Context, *client.Run) error { return nil })
	_, pausing := c.PauseKind(t.Context(), "k")
	_, bulk := c.CreateBulk(t.Context(), client.Bulk{Action: client.BulkCancel})
	for name, err := range map[string]error{"GetDelivery": l.Run(t.Context()), "PauseKind": pausing, "CreateBulkOperation": bulk} {
		if !errors.Is(err, client.ErrFailedPrecondition) || !strings.Contains(err.Error(), "clienttest does not support "+name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestATaskIsExplainedAsFarAsItGoesHere(t *testing.T) {
	c := clienttest.New(t)
	why := func(id int64) string {
		t.Helper()
		e, err := c.ExplainTask(t.Context(), id, 1)
		if err != nil || len(e.Reasons) != 1 {
			t.Fatalf("%+v, %v", e, err)
		}
		return e.Reasons[0].Code
	}
	id, err := c.AddTask(t.Context(), remind("ann"))
	if err != nil {
		t.Fatal(err)
	}
	if got := why(id); got != "NOT_DUE" {
		t.Errorf("a task for tomorrow: %s", got)
	}
	if _, err := c.PauseTask(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if got := why(id); got != "PAUSED" {
		t.Errorf("a paused task: %s", got)
	}
	if _, err := c.CancelTask(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if got := why(id); got != "FINISHED" {
		t.Errorf("a cancelled task: %s", got)
	}
	if got := why(id + 512); got != "UNKNOWN_TASK" {
		t.Errorf("an unknown task: %s", got)
	}
}

func TestRunCallsTheHandlerAndReturnsItsOutcome(t *testing.T) {
	sad := errors.New("sad")
	run := &client.Run{Attempt: 4, Params: map[string]string{"count": "2"}}
	handler := client.Typed(func(ctx context.Context, run *client.Run, p struct{ Count int }) error {
		if ctx.Err() != nil || run.RunID() != "512-1" || run.Type != client.OneShot || run.ScheduledAt.IsZero() || p.Count != 2 {
			t.Errorf("the handler saw %+v, %+v", run, p)
		}
		if err := run.Heartbeat(ctx); err != nil {
			t.Error(err)
		}
		run.SetParam("count", "3")
		return client.Retry(sad, time.Minute)
	})
	called := false
	got := clienttest.Run(t, handler, run, func(next client.Handler) client.Handler {
		return func(ctx context.Context, run *client.Run) error { called = true; return next(ctx, run) }
	})
	want := client.Outcome{Status: client.Failure, Err: sad, After: time.Minute, SetParams: map[string]string{"count": "3"}}
	if diff := cmp.Diff(want, got, cmpopts.EquateErrors()); diff != "" || !called {
		t.Errorf("%s; middleware called: %v", diff, called)
	}
}

func TestARunNeedNotBeGiven(t *testing.T) {
	got := clienttest.Run(t, func(_ context.Context, run *client.Run) error { return errors.New(run.RunID()) }, nil)
	if got.Err == nil || got.Err.Error() != "512-1" {
		t.Errorf("outcome %+v, want one of the first run of a task", got)
	}
}

func TestTheHandlerOfAListenerIsCalledWithAllThatIsAroundIt(t *testing.T) {
	l, err := clienttest.New(t).NewListener(client.ListenerConfig{})
	if err != nil {
		t.Fatal(err)
	}
	l.Use(func(next client.Handler) client.Handler {
		return func(ctx context.Context, run *client.Run) error { return client.Permanent(next(ctx, run)) }
	})
	client.Handle(l, "k", func(ctx context.Context, _ *client.Run, _ struct{}) error { <-ctx.Done(); return ctx.Err() }, client.MaxDuration(time.Millisecond))
	if o := clienttest.RunKind(t, l, &client.Run{Kind: "k"}); o.Status != client.Failure || !o.Permanent || !errors.Is(o.Err, client.ErrTimeout) {
		t.Errorf("got %+v", o)
	}
}
