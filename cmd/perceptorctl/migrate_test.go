package main

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/perceptor/perceptor/internal/cli"
)

func TestTheHintAboutAMigrationFitsItsError(t *testing.T) {
	for want, err := range map[string]error{
		"does not help":                          &pgconn.PgError{Code: "42P07", Message: `relation "task" already exists`},
		"run the command again when the server":  &pgconn.PgError{Code: "57P01"},
		"is the server running":                  syscall.ECONNREFUSED,
		"run the command again when the server ": errors.New("EOF"),
	} {
		var got *cli.Error
		if !errors.As(migrationError(fmt.Errorf("database 3: %w", err)), &got) || !strings.Contains(got.Hint, want) {
			t.Errorf("%v: %v, want the hint %q", err, got, want)
		}
		if refused := want == "does not help"; (got.Code == cli.Failure) != refused {
			t.Errorf("%v ends with %d", err, got.Code)
		}
	}
}
