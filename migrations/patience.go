package migrations

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pressly/goose/v3"
)

// A migration that waits for the lock of a table lets all others wait behind it, claims
// included. So a session waits for two seconds at most ([setSession]), lets them pass, and tries
// again.
const (
	lockTries = 60
	lockPause = time.Second
)

// upPatiently applies all versions, and waits for transactions that hold locks which they need.
func upPatiently(ctx context.Context, up func(context.Context) ([]*goose.MigrationResult, error)) (all []*goose.MigrationResult, err error) {
	for tries := 1; ; tries++ {
		applied, err := up(ctx)
		var partial *goose.PartialError
		if errors.As(err, &partial) {
			applied = partial.Applied
		}
		all = append(all, applied...)
		switch {
		case err == nil || !lockMissing(err):
			return all, err
		case tries == lockTries:
			return all, fmt.Errorf("another transaction, such as a dump, holds a lock that the migration needs: end it, or wait for its end: %w", err)
		}
		select {
		case <-time.After(lockPause):
		case <-ctx.Done():
			return all, ctx.Err()
		}
	}
}

// lockMissing reports whether a statement has waited for a lock for as long as it may.
func lockMissing(err error) bool {
	var state interface{ SQLState() string }
	return errors.As(err, &state) && state.SQLState() == "55P03"
}
