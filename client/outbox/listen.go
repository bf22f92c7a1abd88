package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/perceptor/perceptor/internal/ctxtime"
)

// # Notifications
//
// A relay that listens hears of a commit at once, if the outbox announces its commits. Polls stay behind it, at longer
// distances: a notification is lost while the connection is away. Several notifications during a poll are one.

const (
	// pollListening is the distance of polls of a relay that hears of commits.
	pollListening = time.Second
	// checkAnnounces is how often a relay that hears nothing looks whether its connection works and the outbox still
	// announces commits.
	checkAnnounces = 10 * time.Second
)

// Announce makes PostgreSQL notify relays of each commit that has written operations, or ends that. PostgreSQL lets commits
// that notify queue for one lock of the server, so switch it on where some milliseconds matter more than thousands of such commits per
// second. The caller of the database must own the tables. Repeating the call changes nothing.
func (o *Outbox) Announce(ctx context.Context, conn Tx, on bool) error {
	if _, err := o.sql.announce.Exec(ctx, conn, on); err != nil {
		return fmt.Errorf("outbox: change whether commits are announced: %w", err)
	}
	return nil
}

// Announce is [Outbox.Announce] with the default configuration.
func Announce(ctx context.Context, conn Tx, on bool) error { return standard.Announce(ctx, conn, on) }

// listenLoop listens until ctx ends.
func (r *Relay) listenLoop(ctx context.Context, pool *pgxpool.Pool) {
	for tries := 1; ctx.Err() == nil; tries++ {
		err := r.listen(ctx, pool)
		if r.listening.Swap(false) {
			tries = 1
		}
		r.failed(stepListen, err)
		ctxtime.Sleep(ctx, backoff(tries, checkAnnounces))
	}
}

var errSilent = errors.New("the outbox does not announce its commits: call outbox.Announce, or `perceptorctl relay migrate --announce`")

// listen listens on one connection until it fails, or until the outbox announces nothing.
func (r *Relay) listen(ctx context.Context, pool *pgxpool.Pool) error {
	pooled, err := query(ctx, pool.Acquire)
	if err != nil {
		return err
	}
	conn := pooled.Hijack()                      // no statement of others may come to listen
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing depends on it
	if _, err := query(ctx, func(ctx context.Context) (int, error) { _, err := r.sql.listen.Exec(ctx, conn); return 0, err }); err != nil {
		return err
	}
	for {
		announced, err := query(ctx, func(ctx context.Context) (yes bool, err error) {
			return yes, r.sql.announced.QueryRow(ctx, conn).Scan(&yes)
		})
		switch {
		case err != nil:
			return err
		case !announced:
			return errSilent
		}
		r.listening.Store(true)
		r.look() // for what was committed before
		if err := r.hear(ctx, func(ctx context.Context) error { _, err := conn.WaitForNotification(ctx); return err }); err != nil {
			return err
		}
	}
}

// hear looks for rows whenever next returns, until it has been silent for some time.
func (r *Relay) hear(ctx context.Context, next func(context.Context) error) error {
	for {
		wait, cancel := context.WithTimeout(ctx, checkAnnounces)
		err := next(wait)
		silent := wait.Err() != nil
		cancel()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case silent:
			return nil
		case err != nil:
			return err
		}
		r.look()
	}
}

// look makes the poll loop look for rows now, if commits are heard of.
func (r *Relay) look() {
	if !r.listening.Load() {
		return
	}
	select {
	case r.announced <- struct{}{}:
	default:
	}
}
