// Package ctxtime waits for durations and for the end of contexts.
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
