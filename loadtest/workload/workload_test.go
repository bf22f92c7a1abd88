package workload

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/loadtest/check"
	"github.com/perceptor/perceptor/task"
)

func plan() Plan {
	return Plan{
		Kind: "load", Types: task.Types, Rate: 300, Lasts: 20 * time.Second, Interval: 2 * time.Second,
		AckTimeout: 10 * time.Second, ParamsBytes: 100, Retain: 0.25, Seed: 7,
		Delay: Delay{Min: time.Second, Max: 3 * time.Second},
	}
}

func TestRecurringTasksMakeTheirShareOfTheRate(t *testing.T) {
	p := plan()
	from := time.UnixMilli(1_800_000_000_000)
	const rate, n = 100.0, 200
	if got, want := p.Population(), n+220; got != want {
		t.Fatalf("population = %d, want %d", got, want)
	}
	perSecond := map[int64]int{}
	for i := range n {
		a := p.recurring(int64(i), p.Pad(), task.NonBlocking, i, n, from).add
		runs := int64(0)
		for at := a.Begin; at < a.End && (a.MaxCount == 0 || runs < a.MaxCount); at = at.Add(a.Interval) {
			perSecond[int64(at.Time().Sub(from)/time.Second)]++
			runs++
		}
		if runs != 10 {
			t.Errorf("task %d has %d runs in 20 s, want 10", i, runs)
		}
	}
	for s, fires := range perSecond {
		if math.Abs(float64(fires)-rate) > 1 && s < 20 {
			t.Errorf("%d fires in second %d, want %v", fires, s, rate)
		}
	}
}

func TestNoTaskGoesOnAfterALoadWithFaults(t *testing.T) {
	p := plan()
	p.Lag = time.Second
	from := time.UnixMilli(1_800_000_000_000)
	for i, typ := range []task.Type{task.Blocking, task.Blocking, task.NonBlocking, task.NonBlocking} {
		if a := p.recurring(1, p.Pad(), typ, i, 4, from).add; a.End > a.Begin.Add(p.Lasts) {
			t.Errorf("task %d of type %v ends at %v, want %v after %v", i, typ, a.End, p.Lasts, a.Begin)
		}
	}
}

func TestOneShotsAreDueAfterTheDelay(t *testing.T) {
	p := plan()
	now := time.UnixMilli(1_800_000_000_000)
	early, late := false, false
	for n := range int64(1000) {
		ahead := p.oneShot(n, "", now).add.Begin.Time().Sub(now)
		if ahead < p.Delay.Min || ahead > p.Delay.Max {
			t.Fatalf("task number %d is due after %v", n, ahead)
		}
		early, late = early || ahead < 1100*time.Millisecond, late || ahead > 2900*time.Millisecond
	}
	if !early || !late {
		t.Error("the delays do not cover the whole range")
	}
}

func TestADelayIsReadAsItIsWritten(t *testing.T) {
	for text, want := range map[string]Delay{
		"2s": {2 * time.Second, 2 * time.Second}, "1s..10s": {time.Second, 10 * time.Second}, "0s..1ms": {0, time.Millisecond},
	} {
		var got, again Delay
		if err := got.Set(text); err != nil || got != want {
			t.Errorf("Set(%s): %v, %v", text, got, err)
		}
		if err := again.Set(got.String()); err != nil || again != want {
			t.Errorf("%s: String() = %s, parsed as %v, %v", text, got, again, err)
		}
	}
	for _, text := range []string{"", "2", "2s..", "..2s", "3s..1s", "-1s", "1s..10s..20s", "9000h"} {
		var d Delay
		if err := d.Set(text); err == nil {
			t.Errorf("Set(%q) = %v, want an error", text, d)
		}
	}
}

func TestTheShareOfRetainedTasksIsAsPlanned(t *testing.T) {
	p := plan()
	kept := 0
	for n := range int64(10_000) {
		i := p.oneShot(n, "", time.Now())
		if i.add.Retained {
			kept++
		}
		if i.add.Retained == (i.task.Retention == client.NoRetention) {
			t.Fatalf("task number %d: Retained = %v, but its retention is %v", n, i.add.Retained, i.task.Retention)
		}
	}
	if kept < 2300 || kept > 2700 {
		t.Errorf("%d of 10,000 tasks are retained, want about 2,500", kept)
	}
}

func TestParamsCarryTheNumberAndAreChecked(t *testing.T) {
	p := plan()
	i := p.oneShot(42, p.Pad(), time.Now())
	if got := numberOf(i.task.Params, p.Pad()); got != 42 {
		t.Errorf("numberOf = %d, want 42", got)
	}
	size := 0
	for k, v := range i.task.Params {
		size += len(k) + len(v)
	}
	if size < 85 || size > 105 {
		t.Errorf("params have %d bytes, want about 100", size)
	}
	for name, damage := range map[string]func(map[string]string){
		"another pad": func(m map[string]string) { m[padParam] += "x" },
		"no number":   func(m map[string]string) { delete(m, numberParam) },
		"another key": func(m map[string]string) { m["x"] = "" },
	} {
		i := p.oneShot(42, p.Pad(), time.Now())
		damage(i.task.Params)
		if got := numberOf(i.task.Params, p.Pad()); got != -1 {
			t.Errorf("%s: numberOf = %d, want -1", name, got)
		}
	}
}

func TestTypesByName(t *testing.T) {
	for name, want := range map[string]int{"mix": 3, "one_shot": 1, "non_blocking": 1, "blocking": 1} {
		if got, err := Types(name); err != nil || len(got) != want {
			t.Errorf("Types(%s) = %v, %v", name, got, err)
		}
	}
	if _, err := Types("cron"); err == nil {
		t.Error("an unknown type is accepted")
	}
}

func TestOnlyCertainRefusalsCountAsRefused(t *testing.T) {
	for _, c := range []struct {
		err  error
		want check.Answer
	}{
		{nil, check.Acknowledged},
		{&client.Error{Kind: client.ErrInvalidArgument}, check.Refused},
		{fmt.Errorf("add: %w", &client.Error{Kind: client.ErrPermissionDenied}), check.Refused},
		{&client.Error{Kind: client.ErrUnavailable}, check.NotKnown},
		{&client.Error{Kind: client.ErrInternal}, check.NotKnown},
		{&client.Error{Kind: client.ErrResourceExhausted}, check.NotKnown},
		{context.DeadlineExceeded, check.NotKnown},
		{client.ErrClosed, check.NotKnown},
		{errors.New("something else"), check.NotKnown},
	} {
		if got := answerOf(c.err); got != c.want {
			t.Errorf("answerOf(%v) = %d, want %d", c.err, got, c.want)
		}
	}
}

func TestCalendarsHaveTheRateOfTheirInterval(t *testing.T) {
	p := Plan{Types: []task.Type{task.NonBlocking}, Rate: 100, Lasts: time.Minute, Interval: 5 * time.Second, Cron: 0.5, Seed: 3}
	from, n, calendars := time.Now(), p.Population(), 0
	for i := range n {
		it := p.recurring(int64(i), "", task.NonBlocking, i, n, from)
		if it.add.Terms == nil {
			continue
		}
		calendars++
		if it.task.Cron == nil || it.task.Cron.Expression != it.add.Terms.Cron || it.task.Interval != 0 || it.add.Interval != 0 || it.task.Spread != time.Second {
			t.Fatalf("task %d is added as %+v and expected as %+v", i, it.task, it.add.Terms)
		}
		if want := fmt.Sprintf("%d-59/5 * * * * *", i%5); it.task.Cron.Expression != want {
			t.Errorf("task %d has the calendar %q, want %q", i, it.task.Cron.Expression, want)
		}
	}
	if calendars < n/3 || calendars > 2*n/3 {
		t.Errorf("%d of %d tasks have a calendar, want about half", calendars, n)
	}
}
