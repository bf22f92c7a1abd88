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
