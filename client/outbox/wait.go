package outbox

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// query makes one statement with a deadline.
func query[T any](ctx context.Context, f func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	return f(ctx)
}

const (
	minBackoff = 100 * time.Millisecond
	maxBackoff = 30 * time.Second
)

// backoff returns the delay after the given number of failures, counted from 1: at most limit.
func backoff(failures int, limit time.Duration) time.Duration {
	d := min(minBackoff<<min(max(failures-1, 0), 10), limit, maxBackoff)
	return d/2 + rand.N(d/2)
}

// undefined reports whether a statement names a table that does not exist.
func undefined(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && (e.Code == "42P01" || e.Code == "3F000")
}

// refusedForGood reports whether the database has answered that it refuses the relay: its login or its
// privileges are wrong.
func refusedForGood(err error) bool {
	var e *pgconn.PgError
	return errors.As(err, &e) && (e.Code == "42501" || e.Code[:2] == "28" || e.Code == "3D000")
}
