package client

import (
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/perceptor/perceptor/task"
)

// overQuota returns the answer to a call that exceeds a quota.
func overQuota(t *testing.T, wait time.Duration) error {
	t.Helper()
	s, err := status.New(codes.ResourceExhausted, "add_rate: too many").WithDetails(
		&errdetails.ErrorInfo{Reason: string(task.ReasonQuotaAddRate)}, &errdetails.RetryInfo{RetryDelay: durationpb.New(wait)})
	if err != nil {
		t.Fatal(err)
	}
	return s.Err()
}

func TestACallIsRepeatedWhenTheServiceAllowsIt(t *testing.T) {
	s, c := api(t, Config{})
	tries := 0
	var at []time.Time
	s.before = func(context.Context, string) error {
		at = append(at, time.Now())
		if tries++; tries < 3 {
			return overQuota(t, 400*time.Millisecond)
		}
		return nil
	}
	if _, err := c.AddTask(t.Context(), Task{Kind: "k", Type: OneShot}); err != nil {
		t.Fatal(err)
	}
	for i := 1; i < len(at); i++ {
		if waited := at[i].Sub(at[i-1]); waited < 400*time.Millisecond {
			t.Errorf("try %d came %v after the one before, want at least 400ms", i+1, waited)
		}
	}
	if len(at) != 3 {
		t.Errorf("%d tries, want 3", len(at))
	}
}

func TestACallDoesNotWaitForATimeAfterItsEnd(t *testing.T) {
	s, c := api(t, Config{CallTimeout: 20 * time.Second})
	s.before = func(context.Context, string) error { return overQuota(t, 50*time.Second) }
	began := time.Now()
	_, err := c.AddTask(t.Context(), Task{Kind: "k", Type: OneShot})
	var e *Error
	if !errors.As(err, &e) || !errors.Is(err, ErrResourceExhausted) || e.RetryAfter != 50*time.Second {
		t.Errorf("got %v, want the quota and when to try again", err)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the call took %v, want an answer at once", took)
	}
}

func TestResultsAreSentAgainWhenTheServiceAllowsIt(t *testing.T) {
	t.Parallel()
	b := setup(t, 1)
	refused := false
	var at []time.Time
	b.svc.with(func() {
		b.svc.before = func(_ context.Context, method string) error {
			if method != "report" {
				return nil
			}
			b.svc.with(func() { at = append(at, time.Now()) })
			if !refused {
				refused = true
				return overQuota(t, time.Second)
			}
			return nil
		}
	})
	b.listen(ListenerConfig{}, map[string]Handler{"k": func(context.Context, *Run) error { return nil }})
	b.publish(numbered(1, 1, task.OneShot, "k")...)
	b.svc.await(t, "the result", func() bool { return b.svc.codes["report ACCEPTED"] == 1 })
	b.svc.with(func() {
		if len(at) != 2 || at[1].Sub(at[0]) < time.Second {
			t.Errorf("results were sent at %v, want twice with a second in between", at)
		}
	})
}
