package workload

import (
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/loadtest/check"
	"github.com/perceptor/perceptor/task"
)

// contract returns a contract load that sends nothing.
func contract() *Contract {
	from := time.UnixMilli(1_800_000_000_000)
	p := plan()
	return &Contract{plan: p, each: 5, pad: p.Pad(), number: &atomic.Int64{}, from: from, to: from.Add(30 * time.Second)}
}

func TestTheCheckerKnowsTheTermsThatAreSent(t *testing.T) {
	c := contract()
	seen := map[task.Misfire]bool{}
	for _, v := range varieties {
		for i := range 50 {
			it := c.item(int64(i+1), i%c.each)
			if v.make != nil {
				v.make(c, rand.New(rand.NewPCG(1, uint64(i))), &it)
			}
			sent, known := it.complete(), it.add.Terms
			if known == nil {
				known = &check.Terms{}
			}
			seen[known.Misfire] = true
			cron := client.Cron{}
			if sent.Cron != nil {
				cron = *sent.Cron
			}
			got := check.Terms{
				Cron: cron.Expression, Zone: cron.Zone, Misfire: task.Misfire(sent.Misfire), Grace: sent.MisfireGrace,
				Limit: int32(sent.MisfireLimit), Spread: sent.Spread,
			}
			if got != *known {
				t.Errorf("%s: the task sent is %+v, but the checker knows %+v", v.name, got, *known)
			}
			if sent.Type != client.Type(it.add.Type) || sent.Interval != it.add.Interval || task.At(sent.Begin) != it.add.Begin || sent.MaxCount != it.add.MaxCount {
				t.Errorf("%s: the task sent is %+v, but the checker knows %+v", v.name, sent, it.add)
			}
			if n := numberOf(sent.Params, c.pad); n != it.add.Number {
				t.Errorf("%s: numberOf returned %[3]d for the params of task number %[2]d", v.name, it.add.Number, n)
			}
			if (it.task.IdempotencyKey != "") != it.add.Key {
				t.Errorf("%s: the task has key %q, but the checker's Key is %v", v.name, it.task.IdempotencyKey, it.add.Key)
			}
		}
	}
	for _, m := range []task.Misfire{task.FireOnce, task.FireAll, task.Skip} {
		if !seen[m] {
			t.Errorf("no task has misfire policy %v", m)
		}
	}
}

// The key of a task that has ended passes to a new task, which the checker does not know.
func TestNoUpsertIsSentToATaskThatMayHaveEnded(t *testing.T) {
	c := contract()
	it := c.item(1, 0)
	it.add.End = task.At(time.Now().Add(endMargin / 2))
	c.upsert(t.Context(), nil, &it, it.complete(), 1) // without a client, a call would panic
}

func TestMarksAreReadFromParams(t *testing.T) {
	for text, want := range map[string]int64{"7": 7, "x": -1} {
		if got := markOf(map[string]string{markParam: text}); got != want {
			t.Errorf("markOf(%q) = %d, want %d", text, got, want)
		}
	}
	if got := markOf(nil); got != 0 {
		t.Errorf("markOf without a mark = %d, want 0", got)
	}
}

func TestAnAttemptEndsAsItsLetterSays(t *testing.T) {
	var snoozed *client.SnoozeError
	var permanent *client.PermanentError
	var retry *client.RetryError
	for attempt, is := range []func(error, check.Execution) bool{
		func(err error, e check.Execution) bool {
			return errors.Is(err, errPlanned) && !errors.As(err, &retry) && e.Outcome == task.Fail && e.After == failBackoff
		},
		func(err error, e check.Execution) bool {
			return errors.As(err, &snoozed) && snoozed.For == e.After && e.Outcome == task.Snooze
		},
		func(err error, e check.Execution) bool {
			return errors.As(err, &retry) && retry.After == e.After && e.Outcome == task.Fail
		},
		func(err error, e check.Execution) bool { return err == nil && e.Outcome == task.Success },
		func(err error, e check.Execution) bool {
			return errors.As(err, &permanent) && e.Permanent && e.Outcome == task.Fail
		},
		func(err error, e check.Execution) bool { return err == nil && e.Outcome == task.Success },
	} {
		e := check.Execution{Outcome: task.Success}
		if err := follow("fzrsp", attempt+1, &e); !is(err, e) {
			t.Errorf("attempt %d ends with %v, recorded as %+v", attempt+1, err, e)
		}
	}
}
