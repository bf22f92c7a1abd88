package assign

import (
	"context"
	"errors"
	"log/slog"
	"time"
)

// Errors of a [Registry] and a [Session].
var (
	// ErrChanged: another write came first. Nothing was written.
	ErrChanged = errors.New("assign: changed meanwhile")
	// ErrExpired: this member is no longer listed.
	ErrExpired = errors.New("assign: session expired")
)

// A Registry is where members meet if they do not meet in ZooKeeper: the rows of
// environments in a database. Package assign/postgres has one. Its methods may be
// called concurrently, and each has a deadline besides that of its context.
//
// A registry stores what members write and does not understand it.
type Registry interface {
	// Join returns the session of a member that is not registered yet. It does no
	// I/O.
	Join(SessionConfig) Session

	// Create creates an environment unless it exists. It returns an error that
	// wraps [ErrFormat] if a newer program has created it.
	Create(ctx context.Context, environment string) error
	// Read returns the rows of an environment, or an error that wraps
	// [ErrNotFound].
	Read(ctx context.Context, environment string) (Rows, error)
	// WriteStrategy replaces the strategy of the given version; -1: of any. It
	// returns [ErrChanged] if that is not the version.
	WriteStrategy(ctx context.Context, environment string, data []byte, version int64) error
	// Environments lists the environments by name.
	Environments(ctx context.Context) ([]EnvironmentState, error)
}

// A SessionConfig describes a [Session].
type SessionConfig struct {
	// Environment and ID name the member. ID is random for each [Assigner].
	Environment, ID string
	// Timeout is how long the member is listed without an exchange, by the clock
	// of the registry.
	Timeout time.Duration
	// Changed is called when another member may have changed something. It does
	// not block. Calls may be missing: the member also reads periodically.
	Changed func()
	Log     *slog.Logger
}

// A Session is the access of one member to its environment.
//
// Exchanges of the members of an environment take place one after the other: an
// exchange sees everything that earlier ones have written. Every successful one
// renews the session. All but Create and Register return [ErrExpired] if the
// member is not listed. A member is listed from Register to Close, or until its
// session was not renewed for the timeout; time during which no member could
// make an exchange does not count.
//
// The methods are called one at a time, except Abandon, which ends a call.
type Session interface {
	// Create is [Registry.Create].
	Create(ctx context.Context) error
	// Register lists the member under the next number. If it is listed already,
	// it keeps its number.
	Register(ctx context.Context, data []byte) (seq, version int64, err error)
	// Renew does nothing else.
	Renew(ctx context.Context) error
	// Read returns all rows, without members whose sessions are over.
	Read(ctx context.Context) (Rows, error)
	// WriteMember replaces the row of this member if it has the given version and
	// the plan has the version plan (-1: any). Otherwise it returns [ErrChanged].
	// tell says that other members should learn of it at once.
	WriteMember(ctx context.Context, data []byte, version, plan int64, tell bool) (next int64, err error)
	// WritePlan and WriteStrategy replace what has the given version, or return
	// [ErrChanged].
	WritePlan(ctx context.Context, data []byte, version int64) error
	WriteStrategy(ctx context.Context, data []byte, version int64) error
	// Leave marks the member as leaving.
	Leave(ctx context.Context) error
	// Sweep removes other environments that had no exchange for this long, also
	// when it was called before, and returns their names. It is not called concurrently.
	Sweep(ctx context.Context, staleAfter time.Duration) ([]string, error)
	// Close removes the member and ends the session. It takes some seconds at
	// most.
	Close()
	// Abandon ends the session on this side only: the member stays listed until
	// its session is over.
	Abandon()
}

// Rows are the content of an environment at one moment.
type Rows struct {
	// Plan and Strategy have no data if they were never written.
	Plan, Strategy Row
	// Members are the listed members by number.
	Members []MemberRow
	// Next is when the session of another member will be over unless it is
	// renewed, counted from the reading; 0: there is no other member.
	Next time.Duration
}

// A Row is something stored, with a version that no earlier or later content has.
// Versions are not negative and in no order.
type Row struct {
	Data    []byte
	Version int64
}

// A MemberRow is the row of a listed member.
type MemberRow struct {
	ID      string
	Seq     int64
	Leaving bool
	Row
}
