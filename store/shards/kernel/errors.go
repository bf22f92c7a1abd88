package kernel

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/task"
)

// SQLSTATEs that the store handles.
const (
	LockNotAvailable = "55P03"
	deadlockDetected = "40P01"
	dataCorrupted    = "XX001"
)

// LockConflict reports whether err comes from waiting too long for a lock of another
// transaction.
func LockConflict(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == LockNotAvailable || pg.Code == deadlockDetected)
}

// DataError reports whether err was caused by the values of some row, so that the
// other rows may succeed without it.
func DataError(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && len(pg.Code) == 5 && (pg.Code[:2] == "22" || pg.Code[:2] == "23")
}

// ofValues are the source files of PostgreSQL that read large values. Others have the same code for a block that
// cannot be read, which may be so for a moment only, and says nothing about one value.
var ofValues = []string{"heaptoast.c", "detoast.c", "toast_internals.c", "toast_compression.c"}

// DataCorrupted reports whether err means that PostgreSQL cannot read a large value that it has stored, of
// which a part is missing or damaged.
func DataCorrupted(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == dataCorrupted && slices.Contains(ofValues, pg.File)
}

// Damaged returns the error of a call about a task that PostgreSQL cannot read any more, or err itself if
// it says something else.
func Damaged(id task.ID, err error) error {
	if !DataCorrupted(err) {
		return err
	}
	return task.Errorf(task.ReasonTaskDamaged, "the stored data of task %d is damaged", id).CausedBy(err)
}

// NoAnswer reports whether err means that the database cannot be reached, has no resources or
// is shutting down, so that no other statement would succeed now.
func NoAnswer(err error) bool {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return strings.HasPrefix(pg.Code, "08") || strings.HasPrefix(pg.Code, "53") || strings.HasPrefix(pg.Code, "57P")
	}
	for _, gone := range []error{store.ErrStalled, context.DeadlineExceeded, context.Canceled, io.EOF, io.ErrUnexpectedEOF} {
		if errors.Is(err, gone) {
			return true
		}
	}
	var network net.Error
	return errors.As(err, &network)
}

// Unavailable wraps an error of the database as one that callers may retry.
func Unavailable(err error) error {
	var known *task.Error
	if errors.As(err, &known) {
		return err
	}
	if errors.Is(err, store.ErrStalled) && !errors.Is(err, task.ErrOutcomeUnknown) {
		return errStalled()
	}
	if store.DiskFull(err) {
		return task.Errorf(task.ReasonDatabaseUnavailable, "the task's database has no room: the disk of its server is full; try again when an operator has made some").CausedBy(err)
	}
	return task.Errorf(task.ReasonDatabaseUnavailable, "the task's database did not answer; try again").CausedBy(err)
}

// errStalled returns the error of a call that was not begun because the server hangs.
func errStalled() error {
	return task.Errorf(task.ReasonDatabaseStalled, "the server of a database that the call needs does not answer; nothing was changed")
}

// Away reports whether an error of [Unavailable] says that a database did not answer, and
// not that it answered something that the caller must know.
func Away(err error) bool {
	var known *task.Error
	return errors.As(err, &known) && (known.Reason == task.ReasonDatabaseUnavailable || known.Reason == task.ReasonDatabaseStalled)
}

// Stalled reports whether err says that the server of a database hangs.
func Stalled(err error) bool {
	var known *task.Error
	return errors.Is(err, store.ErrStalled) || errors.As(err, &known) && known.Reason == task.ReasonDatabaseStalled
}
