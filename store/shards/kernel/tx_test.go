package kernel

import (
	"errors"
	"io"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/perceptor/perceptor/task"
)

// A server translates the severity of its errors if its lc_messages says so.
func TestTheOutcomeOfACommitIsKnownByTheErrorInAnyLanguage(t *testing.T) {
	for name, c := range map[string]struct {
		err   error
		known bool
	}{
		"error":                 {&pgconn.PgError{Severity: "ERROR", SeverityUnlocalized: "ERROR", Code: "23505"}, true},
		"error in German":       {&pgconn.PgError{Severity: "FEHLER", SeverityUnlocalized: "ERROR", Code: "23505"}, true},
		"end of the session":    {&pgconn.PgError{Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: "57P01"}, false},
		"end of the connection": {io.ErrUnexpectedEOF, false},
	} {
		if got := !errors.Is(classifyCommit(c.err), task.ErrOutcomeUnknown); got != c.known {
			t.Errorf("%s: the outcome is known: %t, want %t", name, got, c.known)
		}
	}
}
