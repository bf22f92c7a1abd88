package assign

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/go-zookeeper/zk"
)

// A link is the session of one member with the servers where members meet. Its
// methods may be called concurrently. Except close and abandon they do no I/O.
type link interface {
	// isExpired reports that the servers no longer list this member.
	isExpired() bool
	// unusableAt returns when the member gives a session up that nobody answers;
	// zero: never.
	unusableAt() time.Time
	// takeStale reports whether something may have changed since the last call.
	takeStale() bool
	// lastContact returns when the last request was sent whose answer proves that
	// the session was alive. timeout is how long the session lasts from then.
	lastContact() time.Time
	timeout() time.Duration
	// readEvery is how often everything must be read; 0: every [Config.Reconcile].
	readEvery() time.Duration
	// of returns the environment of this link. ours says that this process has
	// prepared it before.
	of(ours bool) environment
	// close ends the session, so that others do not wait for its end. abandon lets
	// it run out.
	close()
	abandon()
}

// An environment is what members of one environment share. Each method is one
// exchange, which may be repeated and has a deadline of its own. A write that was
// refused because another one came first returns an error that [changed] accepts.
type environment interface {
	// prepare creates what is missing and refuses what is not of this package.
	prepare(ctx context.Context) error
	// maintain repairs what members do not need at once, and returns what to log.
	maintain(ctx context.Context, v *view) (restricted []string, err error)
	// register lists this member, or finds where it is listed.
	register(ctx context.Context, id string, data []byte) (node string, version int64, err error)
	read(ctx context.Context, r reading) (*view, error)
	// writeMember replaces what this member has published. If w.plan is not
	// anyVersion, it writes only if the plan has that version.
	writeMember(ctx context.Context, node string, w memberWrite) (version int64, err error)
	writePlan(ctx context.Context, p plan, version int64) error
	writeStrategy(ctx context.Context, s *Strategy, version int64) error
	announceLeaving(ctx context.Context, id string) error
	// prove makes an exchange that proves that the session is alive.
	prove(ctx context.Context) error
	sweep(ctx context.Context, staleAfter time.Duration, log *slog.Logger) (cleared []string, err error)
}

// A memberWrite is what a member publishes about itself.
type memberWrite struct {
	data          []byte
	version, plan int64 // that must be current
	withdraws     bool  // the member no longer has an item, for which others may wait
}

// anyVersion says that a write does not depend on the version.
const anyVersion = -1

// An outside is an environment as an [Admin] works with it.
type outside interface {
	// check returns [ErrNotFound] if there is nothing, and refuses what is not of
	// this package. It creates nothing.
	check(ctx context.Context) error
	prepare(ctx context.Context) error
	read(ctx context.Context, r reading) (*view, error)
	strategyNow(ctx context.Context) (data []byte, version int64, err error)
	writeStrategy(ctx context.Context, s *Strategy, version int64) error
	environments(ctx context.Context) ([]EnvironmentState, error)
	// open returns what anyone may read or change.
	open(ctx context.Context) ([]string, error)
}

// changed reports whether a write was refused because another one came first.
func changed(err error) bool { return errors.Is(err, zk.ErrBadVersion) || errors.Is(err, ErrChanged) }

// missing reports whether something that every environment has is missing.
func missing(err error) bool { return errors.Is(err, zk.ErrNoNode) || errors.Is(err, ErrNotFound) }
