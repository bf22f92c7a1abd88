package identity

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/perceptor/perceptor/store/identity/sql"
)

const (
	// checkTimeout bounds the check of a new connection.
	checkTimeout = 5 * time.Second
	// adoptTimeout bounds each statement of an adoption. It is longer than a transaction may
	// hold an owner's row.
	adoptTimeout = 4 * time.Second
)

// ErrStandby says that a server is a standby, which cannot be written.
var ErrStandby = errors.New("the server is a standby and read only: connect to its primary, or promote it")

// Restarted is the reason of adoptions that usually find nothing lost.
const Restarted = "the server was restarted"

// An Adoption is a change of the incarnation that this process has noticed.
type Adoption struct {
	Database int
	// Reason says what showed that the database is another one.
	Reason      string
	Incarnation int64
}

// At returns when the database was adopted, by the clock of its server.
func (a Adoption) At() time.Time { return time.UnixMilli(a.Incarnation).UTC() }

// Last returns the last adoption of a database. Its reason is empty if there was none.
func Last(ctx context.Context, pool *pgxpool.Pool, database int) (Adoption, error) {
	a := Adoption{Database: database}
	err := sql.LastAdoption.QueryRow(ctx, pool).Scan(&a.Incarnation, &a.Reason)
	return a, err
}

// A Guard checks the connections to one logical database. It is safe for concurrent use.
type Guard struct {
	database int
	adopted  func(Adoption)

	mu    sync.Mutex
	known state
	drawn int64 // the greatest number of a task that this process has drawn
}

// NewGuard returns the guard of a database. It calls adopted, before the new connection is
// used, for each change of the incarnation after the first connection, and for adoptions by
// the first one.
func NewGuard(database int, adopted func(Adoption)) *Guard {
	return &Guard{database: database, adopted: adopted}
}

// A server identifies one start of a server, and the table of the identity in it.
type server struct{ system, timeline, started, relation int64 }

// A state is what a database says of itself.
type state struct {
	database     int
	uid          string
	incarnation  int64
	reason       string // of the last adoption
	stored, here server
	standby      bool
	position     int64 // in the server's log, in bytes
}

// Incarnation returns the newest incarnation of the database that a connection has found,
// or 0 before the first connection.
func (g *Guard) Incarnation() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.known.incarnation
}

// Check adopts the database of a new connection if it is not the one that this process
// knew. After an error the connection must not be used. A schema without the table of the
// identity passes.
func (g *Guard) Check(ctx context.Context, conn *pgx.Conn) error {
	known := g.last() // before the read, so that what was read is not older
	read, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	found, err := readState(read, conn)
	if missing(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the identity of database %d: %w", g.database, err)
	}
	if err := g.recognize(known, found); err != nil {
		return err
	}
	reason := found.differs(known)
	if reason != "" {
		if err := g.adopt(ctx, conn, &found, reason, known.incarnation); err != nil {
			return fmt.Errorf("adopt database %d (%s): %w", g.database, reason, err)
		}
	}
	g.learn(found, reason != "")
	return nil
}

// Readopt adopts the database of a connection in use, because the caller has found a sign of
// lost commits.
func (g *Guard) Readopt(ctx context.Context, conn *pgx.Conn, reason string) error {
	read, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	found, err := readState(read, conn)
	if err == nil {
		err = g.adopt(ctx, conn, &found, reason, g.last().incarnation)
	}
	if err != nil {
		return fmt.Errorf("adopt database %d (%s): %w", g.database, reason, err)
	}
	g.learn(found, true)
	return nil
}

// Drawn returns the greatest number that [Guard.SetDrawn] has recorded. A number that is
// drawn later and is not greater is a sign of lost commits.
func (g *Guard) Drawn() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.drawn
}

// SetDrawn records a number that was drawn.
func (g *Guard) SetDrawn(number int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.drawn = max(g.drawn, number)
}

func (g *Guard) last() state {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.known
}

// recognize returns an error if this is another logical database, or one that cannot be
// written.
func (g *Guard) recognize(known, found state) error {
	switch {
	case found.database != g.database:
		return fmt.Errorf("the schema of database %d holds database %d: it was renamed or copied from there", g.database, found.database)
	case known.uid != "" && known.uid != found.uid:
		return fmt.Errorf("database %d was replaced by one with another origin: restore it from a copy of its own, or restart this program if its tasks are not needed", g.database)
	case found.standby:
		return ErrStandby
	}
	return nil
}

// differs returns the sign that the database is not the one that was adopted last, or ""
// if there is none.
func (s *state) differs(known state) string {
	switch {
	case s.here.system != s.stored.system:
		return "it is on another server"
	case s.here.timeline != s.stored.timeline:
		return "a standby was promoted, or a backup was restored to a point in time"
	case s.here.started != s.stored.started:
		return Restarted
	case s.here.relation != s.stored.relation:
		return "it was restored from a dump"
	case s.incarnation < known.incarnation:
		return "its identity went back"
	case s.here == known.here && s.position < known.position:
		return "the log of the server went back"
	}
	return ""
}

// learn records what a connection has found. It tells about an incarnation that is new to
// this process, unless this is the first connection and has found nothing wrong.
func (g *Guard) learn(found state, wrong bool) {
	g.mu.Lock()
	known := g.known
	if found.incarnation < known.incarnation { // another connection has found a newer one
		g.mu.Unlock()
		return
	}
	if found.here == known.here {
		found.position = max(found.position, known.position)
	}
	g.known = found
	g.mu.Unlock()
	if found.incarnation != known.incarnation && (wrong || known.incarnation != 0) {
		g.adopted(Adoption{Database: g.database, Reason: found.reason, Incarnation: found.incarnation})
	}
}

func readState(ctx context.Context, conn *pgx.Conn) (s state, err error) {
	// Without a prepared statement, which would take one more round trip.
	err = conn.QueryRow(ctx, sql.Read.Text(), pgx.QueryExecModeExec).Scan(&s.database, &s.uid, &s.incarnation, &s.reason,
		&s.stored.system, &s.stored.timeline, &s.stored.started, &s.stored.relation,
		&s.here.system, &s.here.timeline, &s.here.started, &s.here.relation, &s.standby, &s.position)
	return s, err
}

// missing reports whether the schema has no identity: it is new, or was made by an earlier
// version.
func missing(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == "42P01" || pg.Code == "42883")
}

// adopt makes the database one that this process may rely on, unless another process has
// done so since it was read.
func (g *Guard) adopt(ctx context.Context, conn *pgx.Conn, found *state, reason string, known int64) error {
	var nonce [8]byte
	rand.Read(nonce[:]) //nolint:errcheck // never fails
	ctx, cancel := context.WithTimeout(ctx, 2*adoptTimeout)
	defer cancel()
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := sql.SetTimeouts.Exec(ctx, tx, fmt.Sprint(adoptTimeout.Milliseconds())); err != nil {
			return err
		}
		var locked int64
		if err := sql.Lock.QueryRow(ctx, tx).Scan(&locked); err != nil {
			return err
		}
		if locked != found.incarnation {
			position := found.position
			now, err := readState(ctx, conn)
			*found, found.position = now, max(position, now.position)
			return err
		}
		b := &pgx.Batch{}
		sql.LockOwners.Queue(b)
		sql.RaiseEpochs.Queue(b, int64(binary.LittleEndian.Uint64(nonce[:])))
		sql.LeapSequences.Queue(b)
		sql.RaiseSettings.Queue(b)
		sql.Adopt.Queue(b, reason, known).QueryRow(func(row pgx.Row) error { return row.Scan(&found.incarnation) })
		found.stored, found.reason = found.here, reason
		return tx.SendBatch(ctx, b).Close()
	})
}
