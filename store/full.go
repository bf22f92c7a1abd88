package store

import (
	"context"
	_ "embed"
	"errors"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

var (
	//go:embed room.sql
	roomSQL string
	//go:embed roommemory.sql
	roomMemorySQL string
)

// diskFull is the SQLSTATE of PostgreSQL for a full disk.
const diskFull = "53100"

// ErrFull is the error of a database that has refused to write because the disk of its server is full.
var ErrFull = errors.New("the disk of the server is full")

// fullFor is how long after such a refusal a database counts as full. What a full disk still admits, such as
// a row where another one was, says nothing, so only time ends it. It is longer than the time between two
// tries of what a program repeats.
const fullFor = time.Minute

// A fullness is when a database last refused to write because of a full disk, as far as this process knows.
type fullness struct{ at atomic.Pointer[time.Time] }

// DiskFull reports whether err means that the disk of a server is full.
func DiskFull(err error) bool {
	var refused *pgconn.PgError
	return errors.Is(err, ErrFull) || errors.As(err, &refused) && refused.Code == diskFull
}

// note takes note of an error of the database.
func (f *fullness) note(e *pgconn.PgError, now time.Time) {
	if e.Code == diskFull {
		f.at.Store(&now)
	}
}

// full reports whether the database counts as full.
func (f *fullness) full(now time.Time) bool {
	at := f.at.Load()
	return at != nil && now.Sub(*at) < fullFor
}

// Full counts the databases that have refused to write of late because of a full disk, as far as this process knows.
func (c *Cluster) Full() (n int) {
	now := time.Now()
	for d := range c.full {
		if c.full[d].full(now) {
			n++
		}
	}
	return n
}

// Room asks the server of database d to write a megabyte to its disk, for a moment. It fails with [ErrFull] if
// there is no room, and returns nil if the server cannot be asked so.
func (c *Cluster) Room(ctx context.Context, d int) error {
	err := pgx.BeginFunc(ctx, c.pools[d], func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, roomMemorySQL); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, roomSQL)
		return err
	})
	if DiskFull(err) {
		return ErrFull
	}
	return nil
}
