package timingspec

import (
	"context"
	"errors"
	"time"

	"github.com/perceptor/perceptor/client"
)

var errNo = errors.New("no")

// fails is a handler that fails the first n times that it is called.
func fails(n int, err error) client.Handler {
	return func(context.Context, *client.Run) error {
		if n--; n < 0 {
			return nil
		}
		return err
	}
}

// next is a handler that says once when the next run is to be.
func next(seq int64, at time.Time) client.Handler {
	return func(_ context.Context, r *client.Run) error {
		if r.Seq == seq {
			r.SetNext(at)
		}
		return nil
	}
}

func retry(attempts int) client.RetryPolicy {
	return client.RetryPolicy{MaxAttempts: attempts, InitialBackoff: time.Minute, Multiplier: 2, Jitter: client.NoJitter}
}

var resultStories = []story{
	{"a failed run comes back after its backoff", "timing: T8.1 T8.8", func(e *stage) {
		e.answers(fails(3, errNo))
		id := e.add(client.Task{Type: client.OneShot, Retry: retry(5)})
		e.until("1h")
		e.fired("0s 0s@1m 0s@3m 0s@7m")
		e.is(id, client.Completed, 1, 0)
	}},
	{"a backoff has a longest distance", "timing: T8.1", func(e *stage) {
		e.answers(fails(3, errNo))
		policy := retry(5)
		policy.MaxBackoff = 90 * time.Second
		e.add(client.Task{Type: client.OneShot, Retry: policy})
		e.until("1h")
		e.fired("0s 0s@1m 0s@2m30s 0s@4m")
	}},
	{"a backoff is longer by a random share", "timing: T8.1", func(e *stage) {
		e.answers(func(_ context.Context, r *client.Run) error {
			if r.Attempt == 1 {
				return errNo
			}
			return nil
		})
		policy := retry(2)
		policy.Jitter = 0.5
		for range 8 {
			e.add(client.Task{Type: client.OneShot, Retry: policy})
		}
		e.until("1h")
		seen := map[time.Duration]bool{}
		for _, c := range e.log.all() {
			if late := c.At.Sub(c.ScheduledAt); c.Attempt == 2 {
				seen[late] = true
				if late < time.Minute || late > 90*time.Second {
					e.Errorf("again after %s, want 60 to 90 s", late)
				}
			}
		}
		if len(seen) < 2 {
			e.Errorf("8 runs come again after %v", seen)
		}
	}},
	{"retries are not counted as runs", "timing: T2.5", func(e *stage) {
		e.answers(fails(1, errNo))
		id := e.add(client.Task{Type: client.NonBlocking, Interval: time.Hour, MaxCount: 2, Retry: retry(5)})
		e.until("3h")
		e.fired("0s 0s@1m 1h")
		e.is(id, client.Completed, 2, 0)
	}},
	{"a run has so many attempts", "timing: T8.2 T8.3", func(e *stage) {
		e.answers(fails(9, errNo))
		id := e.add(client.Task{Type: client.OneShot, Retry: retry(3)})
		e.until("1h")
		e.fired("0s 0s@1m 0s@3m")
		e.is(id, client.Failed, 1, 0)
	}},
	{"a retry may follow at once", "timing: T8.9", func(e *stage) {
		e.answers(fails(1, errNo))
		policy := retry(5)
		policy.InitialBackoff = time.Millisecond // the server stores a 0 like this
		e.add(client.Task{Type: client.OneShot, Retry: policy})
		e.until("1h")
		e.fired("0s 0s@1ms")
	}},
	{"a recurring task goes on after a dead run", "timing: T8.4", func(e *stage) {
		e.answers(fails(9, errNo))
		id := e.add(client.Task{Type: client.Blocking, Interval: time.Hour, Retry: retry(1)})
		e.until("1h30m")
		e.fired("0s 1h")
		e.is(id, client.Scheduled, 2, 0)
	}},
	{"a task may stop on failure", "timing: T8.4", func(e *stage) {
		e.answers(fails(9, errNo))
		id := e.add(client.Task{Type: client.NonBlocking, Interval: time.Hour, Retry: retry(1), StopOnFailure: true})
		e.until("1h30m")
		e.fired("0s")
		e.is(id, client.Failed, 1, 0)
	}},
	{"a permanent failure has no retry", "timing: T8.5", func(e *stage) {
		e.answers(fails(9, client.Permanent(errNo)))
		id := e.add(client.Task{Type: client.OneShot, Retry: retry(5)})
		e.until("1h")
		e.fired("0s")
		e.is(id, client.Failed, 1, 0)
	}},
	{"a handler names the distance of the retry", "timing: T8.6", func(e *stage) {
		e.answers(fails(1, client.Retry(errNo, 7*time.Minute)))
		e.add(client.Task{Type: client.OneShot, Retry: retry(5)})
		e.until("1h")
		e.fired("0s 0s@7m")
	}},
	{"a snooze is no failure", "timing: T8.7", func(e *stage) {
		e.answers(fails(1, client.Snooze(10*time.Minute)))
		id := e.add(client.Task{Type: client.OneShot, Retry: retry(1)})
		e.until("1h")
		e.fired("0s 0s@10m")
		e.is(id, client.Completed, 1, 0)
	}},
	{"silence is answered at growing distances", "timing: T9.1 T9.2 T9.3", func(e *stage) {
		nobody := e.stack.Tenant(e.T) // it has no listener
		add := func(giveUp time.Duration) int64 {
			return nobody.Add(e.T, client.Task{
				Kind: "k", Type: client.OneShot, AckTimeout: time.Minute, GiveUpAfter: giveUp, Retry: retry(1), Retention: 7 * 24 * time.Hour,
			})
		}
		patient, hasty := add(24*time.Hour), add(5*time.Minute)
		for _, c := range []struct {
			at             string
			patient, hasty int
		}{{"30s", 1, 1}, {"1m30s", 2, 2}, {"3m30s", 3, 3}, {"6m30s", 3, 3}, {"7m30s", 4, 0}, {"15m30s", 5, 0}} {
			e.meanwhile(c.at)
			for id, want := range map[int64]int{patient: c.patient, hasty: c.hasty} {
				t, err := nobody.GetTask(e.Context(), id)
				if err != nil {
					e.Fatal(err)
				}
				if want == 0 && t.State != client.Failed || want > 0 && (t.State != client.Running || t.Attempt != want) {
					e.Errorf("at %s: %s, delivered %d times, want %d", c.at, t.State, t.Attempt, want)
				}
			}
		}
	}},
	{"a BLOCKING goes on when its handler says", "timing: T10.1", func(e *stage) {
		e.answers(next(1, e.at("10m")))
		e.add(hourly(client.Blocking))
		e.until("1h30m")
		e.fired("0s 10m 1h10m")
	}},
	{"a NON_BLOCKING goes on when its handler says", "timing: T10.2", func(e *stage) {
		e.answers(next(1, e.at("10m")))
		e.add(hourly(client.NonBlocking))
		e.until("1h30m")
		e.fired("0s 10m 1h10m")
	}},
	{"a choice of a handler counts what it drops", "timing: T10.8", func(e *stage) {
		var id int64
		finish := e.openWith("10m", next(1, e.at("6h30m")), func() {
			id = e.add(client.Task{Type: client.NonBlocking, Interval: time.Hour, AckTimeout: 24 * time.Hour})
		})
		e.meanwhile("30m")
		must[*client.TaskInfo](e)(e.tenant.PauseTask(e.Context(), id))
		e.meanwhile("5h30m")
		before := e.missedMetric()
		finish()
		e.until("6h")
		e.is(id, client.Scheduled, 1, 5)
		if got := e.missedMetric() - before; got != 5 {
			e.Errorf("the metric has %v, want 5", got)
		}
		must[*client.TaskInfo](e)(e.tenant.ResumeTask(e.Context(), id))
		e.until("8h")
		e.fired("0s 6h30m 7h30m")
		e.is(id, client.Scheduled, 3, 5)
	}},
	{"a choice of a handler after the last run", "timing: T10.9", func(e *stage) {
		e.answers(next(2, e.at("1h30m")))
		id := e.add(client.Task{Type: client.NonBlocking, Interval: time.Hour, End: e.at("2h")})
		counted := e.add(client.Task{Type: client.NonBlocking, Interval: time.Hour, MaxCount: 2, Begin: e.at("1ms")})
		e.until("3h")
		e.fired("0s 1ms 1h 1h0m0.001s 1h30m")
		e.is(id, client.Completed, 3, 0)
		e.is(counted, client.Completed, 2, 0)
	}},
	{"an expression goes on after what a handler says", "timing: T10.3", func(e *stage) {
		e.answers(next(1, e.at("10m")))
		e.add(client.Task{Type: client.NonBlocking, Cron: cron("0 * * * *")})
		e.until("1h30m")
		e.fired("0s 10m 1h")
	}},
	{"the past is now", "timing: T10.4", func(e *stage) {
		e.answers(next(1, e.at("-24h")))
		e.add(hourly(client.Blocking))
		e.until("1h30m")
		e.fired("0s 0s 1h")
	}},
	{"the end is the end", "timing: T10.4", func(e *stage) {
		e.answers(next(2, e.at("5h")))
		id := e.add(client.Task{Type: client.Blocking, Interval: time.Hour, End: e.at("5h")})
		e.until("6h")
		e.fired("0s 1h")
		e.is(id, client.Completed, 2, 0)
	}},
	{"what a handler says is not spread", "timing: T10.5", func(e *stage) {
		e.answers(next(1, e.at("30m")))
		e.add(client.Task{Type: client.Blocking, Interval: time.Hour, MaxCount: 2, Spread: 10 * time.Minute})
		e.until("1h")
		if calls := e.log.all(); len(calls) != 2 || !calls[1].ScheduledAt.Equal(e.at("30m")) {
			e.Errorf("%+v", calls)
		}
	}},
	{"a handler may end the task", "timing: T10.6", func(e *stage) {
		e.answers(func(_ context.Context, r *client.Run) error {
			if r.Seq == 2 {
				r.Stop()
			}
			return nil
		})
		id := e.add(hourly(client.NonBlocking))
		e.until("5h")
		e.fired("0s 1h")
		e.is(id, client.Completed, 2, 0)
	}},
	{"a handler changes params of later runs", "timing: T10.7", func(e *stage) {
		e.answers(func(_ context.Context, r *client.Run) error { r.SetParam("n", r.Params["n"]+"+"); return nil })
		e.add(client.Task{Type: client.Blocking, Interval: time.Hour, Params: map[string]string{"n": "1"}})
		e.until("2h30m")
		var got []string
		for _, c := range e.log.all() {
			got = append(got, c.Params["n"])
		}
		if len(got) != 3 || got[0] != "1" || got[1] != "1+" || got[2] != "1++" {
			e.Errorf("params %q", got)
		}
	}},
}
