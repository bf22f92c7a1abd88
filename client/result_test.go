package client

import (
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestAnErrorSaysWhatIsReported(t *testing.T) {
	sad := errors.New("sad")
	for name, c := range map[string]struct {
		err  error
		want Outcome
	}{
		"nil":                          {nil, Outcome{Status: Success}},
		"a plain error":                {sad, Outcome{Status: Failure, Err: sad}},
		"retry":                        {Retry(sad, time.Second), Outcome{Status: Failure, Err: sad, After: time.Second}},
		"retry of nothing":             {Retry(nil, time.Second), Outcome{Status: Success}},
		"retry at once":                {Retry(sad, 0), Outcome{Status: Failure, Err: sad, After: time.Millisecond}},
		"retry before now":             {Retry(sad, -time.Hour), Outcome{Status: Failure, Err: sad, After: time.Millisecond}},
		"parts of a millisecond":       {Retry(sad, time.Millisecond+1), Outcome{Status: Failure, Err: sad, After: 2 * time.Millisecond}},
		"snooze":                       {Snooze(time.Minute), Outcome{Status: Snoozed, After: time.Minute}},
		"snooze for ever":              {Snooze(math.MaxInt64), Outcome{Status: Snoozed, After: math.MaxInt64 / time.Millisecond * time.Millisecond}},
		"permanent":                    {Permanent(sad), Outcome{Status: Failure, Err: sad, Permanent: true}},
		"permanent nothing":            {Permanent(nil), Outcome{Status: Success}},
		"stop":                         {Stop(nil), Outcome{Status: Success, Stop: true}},
		"stop with a failure":          {Stop(sad), Outcome{Status: Failure, Err: sad, Stop: true}},
		"wrapped":                      {fmt.Errorf("looking: %w", fmt.Errorf("again: %w", Permanent(sad))), Outcome{Status: Failure, Err: sad, Permanent: true}},
		"a wrapped stop":               {fmt.Errorf("enough: %w", Stop(nil)), Outcome{Status: Success, Stop: true}},
		"permanent outweighs retry":    {Retry(Permanent(sad), time.Second), Outcome{Status: Failure, Err: sad, Permanent: true}},
		"permanent outweighs a snooze": {errors.Join(Snooze(time.Hour), Permanent(sad)), Outcome{Status: Failure, Err: sad, Permanent: true}},
		"stop outweighs permanent":     {Permanent(Stop(sad)), Outcome{Status: Failure, Err: sad, Stop: true}},
	} {
		t.Run(name, func(t *testing.T) {
			got := Execute(t.Context(), func(context.Context, *Run) error { return c.err }, &Run{})
			if diff := cmp.Diff(c.want, got, cmpopts.EquateErrors()); diff != "" {
				t.Error(diff)
			}
			if got.Err != nil && got.Err.Error() != c.err.Error() {
				t.Errorf("reported %q, want %q", got.Err, c.err)
			}
		})
	}
}

func TestWhatTheHandlerSetOnItsRunIsPartOfTheOutcome(t *testing.T) {
	next := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, c := range map[string]struct {
		handler Handler
		want    Outcome
	}{
		"next time": {func(_ context.Context, r *Run) error { r.SetNext(next); return nil }, Outcome{Status: Success, Next: next}},
		"no next time after a failure": {func(_ context.Context, r *Run) error { r.SetNext(next); return Stop(context.Canceled) },
			Outcome{Status: Failure, Stop: true, Err: context.Canceled}},
		"a stop is no snooze": {func(_ context.Context, r *Run) error { r.Stop(); return Snooze(time.Hour) }, Outcome{Status: Success, Stop: true}},
		"params": {func(_ context.Context, r *Run) error {
			r.SetParam("a", "1")
			r.DeleteParam("c")
			r.DeleteParam("b")
			return nil
		}, Outcome{Status: Success, SetParams: map[string]string{"a": "1"}, DeletedParams: []string{"b", "c"}}},
		"params of a struct, those that are new": {func(_ context.Context, r *Run) error {
			return r.SetParams(struct {
				Same, Other string
				Count       int
			}{"same", "new", 0})
		}, Outcome{Status: Success, SetParams: map[string]string{"other": "new", "count": "0"}}},
	} {
		t.Run(name, func(t *testing.T) {
			got := Execute(t.Context(), c.handler, &Run{Params: map[string]string{"same": "same", "other": "old"}})
			if diff := cmp.Diff(c.want, got, cmpopts.EquateErrors()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestPanicsAreFailures(t *testing.T) {
	got := Execute(t.Context(), func(context.Context, *Run) error { panic("at the disco") }, &Run{})
	if got.Status != Failure || got.Permanent || got.Err == nil || got.Err.Error()[:19] != "panic: at the disco" {
		t.Errorf("got %+v", got)
	}
}
