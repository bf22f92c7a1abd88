package main

import (
	"context"
	"math/rand/v2"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/perceptor/perceptor/internal/ctxtime"
)

// leastSpread is the least range of the random part of a wait for a quota.
const leastSpread = 50 * time.Millisecond

// within bounds each call: a list may need many. A call that a quota refuses is made again after the delay that
// the answer names, if the time of the call allows that: a refusal has done nothing. The SDK does the same.
func within(timeout time.Duration) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		for {
			err := invoke(ctx, method, req, reply, cc, opts...)
			if asked := retryAfter(err); asked == 0 || !waitWithin(ctx, asked) {
				return err
			}
		}
	}
}

// retryAfter returns the delay that a RESOURCE_EXHAUSTED names, or 0.
func retryAfter(err error) time.Duration {
	if status.Code(err) != codes.ResourceExhausted {
		return 0
	}
	return max(detailOf[*errdetails.RetryInfo](err).GetRetryDelay().AsDuration(), 0)
}

// waitWithin waits for the delay that an answer asks for, and a random part of it more, so that commands that were
// refused together do not come back together. It returns false without waiting if ctx ends before the delay does.
func waitWithin(ctx context.Context, asked time.Duration) bool {
	delay := asked + rand.N(asked/4+leastSpread)
	if end, ok := ctx.Deadline(); ok && time.Until(end) < delay {
		return false
	}
	return ctxtime.Sleep(ctx, delay)
}
