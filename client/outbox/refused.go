package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Conn is what reading an outbox needs: a *pgx.Conn, a *pgxpool.Pool or a pgx.Tx.
type Conn interface {
	Tx
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// maxRefused is the most operations of one call.
const maxRefused = 1000

// Refused is an operation that was set aside, because Perceptor refused it for good, or because it
// cannot be read.
type Refused struct {
	// Position identifies the operation.
	Position int64
	Op       Op
	// Key is the key by which it was ordered, "" for none.
	Key string
	// Reason is a reason of docs/errors.md, or one of the Reason constants. Message explains it.
	Reason, Message      string
	WrittenAt, RefusedAt time.Time
	// Request is the operation's request as JSON, for people.
	Request string
}

// ListRefused returns up to limit operations that were set aside, by position, after a position. limit is 1
// to 1,000.
func (o *Outbox) ListRefused(ctx context.Context, conn Conn, after int64, limit int) ([]Refused, error) {
	if limit < 1 || limit > maxRefused {
		return nil, fmt.Errorf("outbox: ListRefused: limit %d is not between 1 and %d", limit, maxRefused)
	}
	rows, err := o.sql.refusedList.Query(ctx, conn, after, int64(limit))
	if err != nil {
		return nil, fmt.Errorf("outbox: list refused operations: %w", err)
	}
	list, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) (x Refused, err error) {
		var op operation
		err = r.Scan(&x.Position, &op.op, &op.form, &x.Key, &op.body, &x.Reason, &x.Message, &x.WrittenAt, &x.RefusedAt)
		x.Op, x.Request = op.op, op.text()
		return x, err
	})
	if err != nil {
		return nil, fmt.Errorf("outbox: list refused operations: %w", err)
	}
	return list, nil
}

// RetryRefused writes operations that were set aside into the outbox again, behind all others, and returns
// how many there were. At most 1,000 positions.
func (o *Outbox) RetryRefused(ctx context.Context, conn Conn, positions []int64) (n int, err error) {
	if err := checkPositions(positions); err != nil {
		return 0, err
	}
	var written int
	if err := o.sql.refusedRetry.QueryRow(ctx, conn, positions).Scan(&n, &written); err != nil {
		return 0, fmt.Errorf("outbox: retry refused operations: %w", err)
	}
	return n, nil
}

// DiscardRefused deletes operations that were set aside and returns how many there were. At most 1,000
// positions.
func (o *Outbox) DiscardRefused(ctx context.Context, conn Conn, positions []int64) (n int, err error) {
	if err := checkPositions(positions); err != nil {
		return 0, err
	}
	if err := o.sql.refusedDiscard.QueryRow(ctx, conn, positions).Scan(&n); err != nil {
		return 0, fmt.Errorf("outbox: discard refused operations: %w", err)
	}
	return n, nil
}

func checkPositions(positions []int64) error {
	if len(positions) > maxRefused {
		return fmt.Errorf("outbox: %d positions; at most %d are allowed", len(positions), maxRefused)
	}
	return nil
}

// Backlog are figures of an outbox.
type Backlog struct {
	// Rows is the number of operations that wait to be moved, at most BacklogRows for each part. Refused is
	// the number of those set aside, at most BacklogRows.
	Rows, Refused int64
	// Oldest is how long the oldest of them has waited, by the clock of the database.
	Oldest time.Duration
}

// BacklogRows bounds the counts of [Backlog], and so their cost.
const BacklogRows = 10_000

// Backlog reads the figures of the outbox.
func (o *Outbox) Backlog(ctx context.Context, conn Conn) (b Backlog, err error) {
	var age float64
	if err := o.sql.backlog.QueryRow(ctx, conn, int64(BacklogRows)).Scan(&b.Rows, &age, &b.Refused); err != nil {
		return Backlog{}, fmt.Errorf("outbox: read the backlog: %w", err)
	}
	b.Oldest = seconds(max(age, 0))
	return b, nil
}
