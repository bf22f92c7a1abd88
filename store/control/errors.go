package control

import (
	"context"
	"errors"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/perceptor/perceptor/task"
)

// domainError turns an error of the driver into one of the domain: by the name
// of the constraint or by SQLSTATE, never by text.
func domainError(err error) error {
	if err == nil {
		return nil
	}
	var known *task.Error
	if errors.As(err, &known) {
		return err
	}
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		// No answer from the server: it is away, or the call's time is up.
		if errors.Is(err, context.Canceled) {
			return away(err, "the call was cancelled")
		}
		return away(err, "a database does not answer")
	}
	switch pg.ConstraintName {
	case "tenant_name_key":
		return task.Errorf(task.ReasonTenantExists, "a tenant of this name exists")
	case "token_scopes":
		return &task.Error{Code: task.InvalidArgument, Message: "the token is not valid", Faults: []task.Fault{
			{Field: "token.scopes", Message: "a token has scopes of a tenant, which it names, or scopes of the installation"},
		}}
	case "tenant_pkey", "token_pkey":
		return away(err, "another call has drawn the same id")
	}
	if awayStates[pg.Code] || awayClasses[pg.Code[:min(2, len(pg.Code))]] {
		return away(err, "a database cannot answer now")
	}
	return task.Errorf(task.ReasonInternal, "tenants and tokens cannot be read or written").CausedBy(err)
}

// What a server says that is busy, starting or going down, or from which the database has just moved: then tables,
// functions and the schema do not exist there any more.
var (
	awayClasses = map[string]bool{"08": true, "40": true, "53": true, "57": true, "58": true}
	awayStates  = map[string]bool{"55P03": true, "25006": true, "25P03": true, "42P01": true, "42883": true, "3F000": true}
)

func away(cause error, message string) error {
	if !strings.HasSuffix(message, "again") {
		message += "; try again"
	}
	return task.Errorf(task.ReasonDatabaseUnavailable, "%s", message).CausedBy(cause)
}

func isAway(err error) bool { return task.CodeOf(err) == task.Unavailable }

// noTenant is the error about a tenant that does not exist. key is its name, or its number.
func noTenant(key any) error {
	return task.Errorf(task.ReasonTenantNotFound, "no such tenant: %v", key)
}

func noToken() error { return task.Errorf(task.ReasonTokenNotFound, "no such token") }
