package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/perceptor/perceptor/internal/config"
	"github.com/perceptor/perceptor/internal/ctxtime"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/clock"
	"github.com/perceptor/perceptor/task"
)

const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 2 * time.Second
	dialWait   = 3 * time.Second
)

// reach calls try until it succeeds or patience is over. Its error is the last one,
// as one line that names the part.
func reach(ctx context.Context, log *slog.Logger, name string, patience time.Duration, try func(context.Context) error) error {
	deadline := time.Now().Add(patience)
	wait := firstRetry
	for tries := 1; ; tries++ {
		err := try(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		var final finalError
		if errors.As(err, &final) {
			return fmt.Errorf("%s: %s", name, explained(final.error))
		}
		if time.Now().Add(wait).After(deadline) {
			return fmt.Errorf("%s: %s (tried %d times within %s)", name, explained(err), tries, patience)
		}
		if tries == 3 {
			log.Warn("server does not answer; trying again", "part", name, "err", explained(err))
		}
		if !ctxtime.Sleep(ctx, wait) {
			return ctx.Err()
		}
		wait = min(2*wait, lastRetry)
	}
}

// finalError is an error that no retry can cure.
type finalError struct{ error }

// Unwrap lets [store.Cure] see what the error is about.
func (e finalError) Unwrap() error { return e.error }

// reachPostgres waits until all databases answer and have this program's schema. If
// someDo is true, it logs a warning and returns nil when only some answer in time.
func reachPostgres(ctx context.Context, log *slog.Logger, cluster *store.Cluster, patience time.Duration, someDo bool) error {
	err := reach(ctx, log, "postgres", patience, func(ctx context.Context) error {
		if _, err := checkDatabases(ctx, cluster); err != nil {
			return err
		}
		return checkClock(ctx, cluster)
	})
	if err == nil || !someDo || ctx.Err() != nil {
		return err
	}
	away, _ := awayDatabases(ctx, cluster)
	if len(away) == task.Databases || unsuitable(err.Error()) || strings.Contains(err.Error(), clockHint) {
		return err
	}
	log.Warn("starting without some databases, which do not answer", "databases", away, "err", err)
	return nil
}

const (
	migrateHint = "perceptorctl migrate up"
	clockHint   = "taskd dev --virtual-clock"
)

// unsuitable reports whether an error is about a schema, or a pooler, with which this program does
// not work, or a schema that its role must not use.
func unsuitable(text string) bool {
	return strings.Contains(text, migrateHint) || strings.Contains(text, store.ErrSchemaNew.Error()) || strings.Contains(text, store.ErrPooled.Error()) ||
		strings.Contains(text, store.ErrNoRight.Error())
}

// checkDatabases returns the versions of the schemas, or the first of the databases' errors. It
// refuses poolers that do not keep sessions.
func checkDatabases(ctx context.Context, cluster *store.Cluster) (versions store.Schemas, err error) {
	// Through a pooler that shares sessions, everything else finds the wrong schema.
	if err := sharesSessions(ctx, cluster); err != nil {
		return versions, finalError{err}
	}
	// A ping fails faster than sixteen schema checks.
	if away, err := awayDatabases(ctx, cluster); len(away) > 0 {
		return versions, fmt.Errorf("%w (%d of %d databases do not answer)", err, len(away), task.Databases)
	}
	if versions, err = cluster.Check(ctx); err == nil {
		return versions, nil
	}
	first := firstOf(err)
	if unsuitable(first.Error()) {
		return versions, finalError{first}
	}
	return versions, first
}

// sharesSessions returns an error if a pooler shares sessions. Of a server that does not answer it
// says nothing.
func sharesSessions(ctx context.Context, cluster *store.Cluster) error {
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	if _, err := cluster.CheckSessions(ctx); errors.Is(err, store.ErrPooled) {
		return err
	}
	return nil
}

// firstOf returns the first of errors that were joined, and says that there are others. An
// error of the driver has several lines itself, so lines do not tell where one ends.
func firstOf(err error) error {
	joined, ok := err.(interface{ Unwrap() []error }) //nolint:errorlint // only what was joined last
	if !ok {
		return err
	}
	if all := joined.Unwrap(); len(all) > 1 {
		return fmt.Errorf("%w (others too)", all[0])
	} else if len(all) == 1 {
		return all[0]
	}
	return err
}

// checkClock returns an error for databases with a virtual clock, in which nothing
// would fire in real time.
func checkClock(ctx context.Context, cluster *store.Cluster) error {
	virtual, err := clock.Installed(ctx, cluster)
	if virtual {
		return finalError{errors.New("the databases have a virtual clock and work only with " + clockHint + "; configure other databases")}
	}
	return err
}

// reachZooKeeper connects to the servers until one answers.
func reachZooKeeper(ctx context.Context, c *config.ZooKeeper) error {
	dial, err := zookeeperDial(c.TLS, slog.Default())
	if err != nil {
		return finalError{err}
	}
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	return reachAny(ctx, c.Servers, dial)
}

// reachAny dials the addresses until one answers.
func reachAny(ctx context.Context, addresses []string, dial func(ctx context.Context, network, address string) (net.Conn, error)) error {
	var last error
	for _, a := range addresses {
		once, cancel := context.WithTimeout(ctx, dialWait)
		conn, err := dial(once, "tcp", a)
		cancel()
		if err == nil {
			return conn.Close()
		}
		last = err
	}
	return last
}

// Listen opens a TCP address. Its error names the key of the address.
func Listen(ctx context.Context, key, address string) (net.Listener, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%s: cannot listen on %s: %w", key, address, cause(err))
	}
	return l, nil
}

// cause removes the text that the message around it repeats.
func cause(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}
