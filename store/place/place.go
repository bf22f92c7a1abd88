// Package place says where a logical database is. docs/adr/0053-moving-a-database.md has the
// reasons.
//
// # Numbers
//
// A database is at one place at a time, and its places are numbered. The configuration says
// where places begin; a move to another server makes the next number. Each copy of a database
// has a row that says what the copy is:
//
//   - open: the database is here, under this number.
//   - moved: it is elsewhere, at an address, under this number, which is that of the new place.
//     Nothing but this row is left in the schema, so a program that has not heard of the move
//     can neither read nor write what is no longer in force.
//   - incoming: a move is making this copy; the database is at an address. If the old place says
//     moved with the number of this copy, the move was decided, and whoever has read both opens
//     the copy.
//
// So a database has one place at every moment: the commit that turns the row of the old place
// to moved is the switch. Every database also lists what it knows of the places of all, for
// programs that start when an old server is gone. The highest number is right.
package place

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/perceptor/perceptor/store/place/sql"
)

// What a copy of a database is.
const (
	Open     = "open"
	Moved    = "moved"
	Incoming = "incoming"
)

// Uncleaned is the step of a move that has been decided, and of which something is left.
const Uncleaned = "to be cleaned up"

// A Copy is what a copy of a database says of itself.
type Copy struct {
	Number int64
	State  string // "": the schema has no such row; it is new
	// Address is the new place if the copy has moved, and the old one if it is incoming, or open
	// and not everything of the move has been cleaned up.
	Address Address
	// Target is where an open copy is being moved to, and Step how far that is. Both are
	// empty if it is not being moved.
	Target  Address
	Step    string
	Started time.Time
	// Pause is how long programs begin nothing here. It is at most 0 if there is no pause.
	Pause time.Duration
}

// A Place is what a database knows of the place of one.
type Place struct {
	Database int
	Number   int64
	// Address is empty if the database is where the configuration says.
	Address Address
	// Moving says that the database is being moved away from there.
	Moving bool
}

// Querier is a connection, a pool or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// Read returns what the copy that q is connected to says of itself.
func Read(ctx context.Context, q Querier) (c Copy, err error) {
	rows, err := q.Query(ctx, sql.Read.Text(), pgx.QueryExecModeExec) // without a round trip to prepare it
	if err != nil {
		return c, unlessMissing(err)
	}
	var started, until, now int64
	_, err = pgx.ForEachRow(rows, []any{&c.Number, &c.State, &c.Address, &c.Target, &c.Step, &started, &until, &now}, func() error { return nil })
	c.Started, c.Pause = time.UnixMilli(started).UTC(), time.Duration(until-now)*time.Millisecond
	return c, unlessMissing(err)
}

// OpenCopy opens the incoming copy with this number. The caller has read at the old place
// that it moved under this number.
func OpenCopy(ctx context.Context, q Querier, number int64) error {
	_, err := q.Exec(ctx, sql.Open.Text(), pgx.QueryExecModeExec, number)
	return err
}

// All returns what a database knows of the places of all.
func All(ctx context.Context, q Querier) (all []Place, err error) {
	rows, err := q.Query(ctx, sql.All.Text())
	if err != nil {
		return nil, unlessMissing(err)
	}
	var p Place
	_, err = pgx.ForEachRow(rows, []any{&p.Database, &p.Number, &p.Address, &p.Moving}, func() error {
		all = append(all, p)
		return nil
	})
	return all, unlessMissing(err)
}

// Put writes down a place in a database, unless that knows of a later one.
func Put(ctx context.Context, q Querier, p Place) error {
	_, err := q.Exec(ctx, sql.Put.Text(), pgx.QueryExecModeExec, int16(p.Database), p.Number, string(p.Address), p.Moving)
	return err
}

// Gone reports whether an error of a server may come from a schema whose database has moved:
// it says that a table, function or schema does not exist.
func Gone(e *pgconn.PgError) bool {
	switch e.Code {
	case "42P01", "42883", "3F000":
		return true
	}
	return false
}

func unlessMissing(err error) error {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "42P01" {
		return nil
	}
	return err
}
