package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/perceptor/perceptor/internal/cli"
)

// refusal is the answer of a quota that has room again after a delay; 0: the answer names none.
func refusal(t *testing.T, delay time.Duration) error {
	t.Helper()
	st := status.New(codes.ResourceExhausted, "read_rate: 10 reads per second are allowed")
	if delay == 0 {
		return st.Err()
	}
	st, err := st.WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(delay)})
	if err != nil {
		t.Fatal(err)
	}
	return st.Err()
}

func TestACallWaitsForAQuotaWithinItsTimeout(t *testing.T) {
	for name, c := range map[string]struct {
		answers     []error
		tries       int
		least, most time.Duration // of the time that the call takes
		code        codes.Code
	}{
		"a short delay":              {[]error{refusal(t, 38*time.Millisecond), refusal(t, time.Second), nil}, 3, 1038 * time.Millisecond, 2 * time.Second, codes.OK},
		"the last delay is too long": {[]error{refusal(t, time.Second), refusal(t, 9*time.Second)}, 2, time.Second, 2 * time.Second, codes.ResourceExhausted},
		"a delay above the timeout":  {[]error{refusal(t, time.Minute)}, 1, 0, 0, codes.ResourceExhausted},
		"no delay":                   {[]error{refusal(t, 0)}, 1, 0, 0, codes.ResourceExhausted},
		"another error":              {[]error{status.Error(codes.Unavailable, "away")}, 1, 0, 0, codes.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tries, began := 0, time.Now()
				err := within(10*time.Second)(t.Context(), "/m", nil, nil, nil, func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
					tries++
					return c.answers[tries-1]
				})
				took := time.Since(began)
				if tries != c.tries || status.Code(err) != c.code || took < c.least || took > c.most {
					t.Errorf("%d tries in %s, %v; want %d in %s to %s, %s", tries, took, err, c.tries, c.least, c.most, c.code)
				}
			})
		})
	}
}

func TestAnInterruptedCommandWaitsForNoQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began, tries := time.Now(), 0
		err := within(time.Hour)(ctx, "/m", nil, nil, nil, func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
			tries++
			cancel()
			return refusal(t, 500*time.Millisecond)
		})
		if took := time.Since(began); tries != 1 || took != 0 || status.Code(err) != codes.ResourceExhausted {
			t.Errorf("%d tries in %s, %v", tries, took, err)
		}
	})
}

func TestARefusalByAQuotaTellsOfTheTimeout(t *testing.T) {
	c := &ctl{timeout: 10 * time.Second}
	var known *cli.Error
	if err := c.explain(refusal(t, time.Minute)); !errors.As(err, &known) || known.Code != cli.Unavailable || !strings.Contains(known.Hint, "--timeout allows, which is 10s") {
		t.Errorf("got %+v", err)
	}
	if err := c.explain(refusal(t, 0)); !errors.As(err, &known) || known.Hint != "" {
		t.Errorf("without a delay: %+v", known)
	}
}
