package kernel

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/perceptor/perceptor/task"
)

// A server with a full disk answers, so whoever is told that it does not looks for another fault.
func TestACallIsToldThatTheDiskIsFull(t *testing.T) {
	err := Unavailable(fmt.Errorf("add: %w", &pgconn.PgError{Code: "53100", Message: "could not extend file"}))
	if task.CodeOf(err) != task.Unavailable || !strings.Contains(err.Error(), "the disk of its server is full") {
		t.Errorf("%v", err)
	}
}
