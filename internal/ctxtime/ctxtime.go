// Package ctxtime waits for durations and for the end of contexts, and tells whether a caller has left.
package ctxtime

import (
	"context"
	"time"
)

// Sleep waits for d. It returns false if ctx ends before that. If d is not positive it returns at once.
func Sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 || ctx.Err() != nil {
		return ctx.Err() == nil
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// Whole shortens the wait d, which begins at now, by less than a second, so that it ends with a second of the clock. A process that is idle
// but for many things that it looks at from time to time then wakes up once a second, which costs far less than to do so for each of them. Waits
// of up to a second stay as they are.
func Whole(now time.Time, d time.Duration) time.Duration {
	if d <= time.Second {
		return d
	}
	return d - time.Duration(now.Add(d).Nanosecond())
}

type callerKey struct{}

// WithCaller returns ctx, with which work goes on although the context of its caller may have ended; see [Left].
func WithCaller(ctx, caller context.Context) context.Context {
	return context.WithValue(ctx, callerKey{}, caller)
}

// Left reports whether the work of ctx is for a caller that has left.
func Left(ctx context.Context) bool {
	caller, ok := ctx.Value(callerKey{}).(context.Context)
	return ok && caller.Err() != nil
}
