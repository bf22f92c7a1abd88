package store

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// ErrFull is the error of a database that has refused to write because the disk of its server is full.
var ErrFull = errors.New("the disk of the server is full")

// fullFor is how long after such a refusal a database counts as full. What a full disk still admits, such as
// a row where another one was, says nothing, so only time ends it. It is longer than the time between two
// tries of what a program repeats.
const fullFor = time.Minute

// A fullness is when a database last refused to write because of a full disk, as far as this process knows.
type fullness struct{ at atomic.Pointer[time.Time] }

// note takes note of an error of the database.
func (f *fullness) note(e *pgconn.PgError, now time.Time) {
	if e.Code == "53100" {
		f.at.Store(&now)
	}
}

// full reports whether the database counts as full.
func (f *fullness) full(now time.Time) bool {
	at := f.at.Load()
	return at != nil && now.Sub(*at) < fullFor
}
