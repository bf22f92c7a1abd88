package postgres

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/perceptor/perceptor/assign"
	"github.com/perceptor/perceptor/assign/postgres/sql"
)

// connectionAge is how long a session uses one connection, so that none outlives a login that was
// replaced for long.
const connectionAge = 5 * time.Minute

// closeTimeout bounds the last exchange of a session and the end of its connection.
const closeTimeout = 2 * time.Second

// A session implements [assign.Session]. Between two exchanges it listens on its connection.
type session struct {
	assign.SessionConfig
	r    *Registry
	over context.Context // ends with the session
	end  context.CancelFunc

	mu   sync.Mutex // held during an exchange
	conn *pgx.Conn  // nil: not connected
	made time.Time  // when conn was opened
	// opening is a connection that is being opened; nil: none is.
	opening *opening
	// idle is what the last sweep has found. Only Sweep uses it.
	idle idleEnvironments
	// stopListening ends the listening and returns when it has ended; nil: nobody listens.
	stopListening func()
}

// idleEnvironments are environments in which nobody has done anything for long, and when somebody did.
type idleEnvironments struct {
	names   []string
	touched []int64 // microseconds of the server's clock
}

// do calls f with the connection, which nobody else uses meanwhile.
func (s *session) do(ctx context.Context, f func(ctx context.Context, conn *pgx.Conn) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.over, cancel)()
	if s.stopListening != nil {
		s.stopListening()
		s.stopListening = nil
	}
	if err := s.connect(ctx); err != nil {
		return answered(err)
	}
	if err := f(ctx, s.conn); err != nil && !refused(err) {
		s.disconnect() // its state is unknown
		return answered(err)
	} else if err != nil {
		s.listen()
		return err
	}
	s.listen()
	return nil
}

// refused reports whether the database has answered, with an outcome that members expect.
func refused(err error) bool {
	return errors.Is(err, assign.ErrChanged) || errors.Is(err, assign.ErrExpired)
}

// connect makes a connection as the pool does, unless the session has one that is open. It is
// none of the pool's, which may be small, since the session keeps it.
func (s *session) connect(ctx context.Context) error {
	if s.over.Err() != nil {
		return fmt.Errorf("the session has ended: %w", s.over.Err())
	}
	if s.conn != nil && !s.conn.IsClosed() {
		if time.Since(s.made) < connectionAge {
			return nil
		}
		s.disconnect()
	}
	conn, err := s.open(ctx)
	if err != nil {
		return err
	}
	s.conn, s.made = conn, time.Now()
	b := &pgx.Batch{}
	sql.Configure.Queue(b, strconv.FormatInt(s.Timeout.Milliseconds()/4, 10))
	sql.Listen.Queue(b)
	if err := s.conn.SendBatch(ctx, b).Close(); err != nil {
		s.disconnect()
		return err
	}
	s.Changed() // notices may have been lost meanwhile
	return nil
}

// openLimit bounds the opening of a connection, over all addresses of the server.
const openLimit = 20 * time.Second

// opening is a connection that is being opened.
type opening struct {
	done chan struct{}
	conn *pgx.Conn // both are set when done is closed
	err  error
}

// open waits for a connection. It outlasts the exchange that has begun to open it: the first of several addresses of a
// server may take more time than an exchange has, and be that of a machine that is gone.
func (s *session) open(ctx context.Context) (*pgx.Conn, error) {
	if s.opening == nil {
		o := &opening{done: make(chan struct{})}
		s.opening = o
		go func() {
			defer close(o.done)
			ctx, cancel := context.WithTimeout(s.over, openLimit)
			defer cancel()
			o.conn, o.err = open(ctx, s.r.pool.Config())
		}()
	}
	select {
	case <-s.opening.done:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	o := s.opening
	s.opening = nil
	return o.conn, o.err
}

// abandonOpening waits for the end of the opening of a connection. s.over has ended, and s.mu is held.
func (s *session) abandonOpening() {
	if s.opening == nil {
		return
	}
	<-s.opening.done
	s.conn, s.opening = s.opening.conn, nil // there was no other, or it was closed
}

// openTries bounds the connections that lead to a place from which the database has moved.
const openTries = 3

// open makes a connection as a pool with the configuration does.
func open(ctx context.Context, c *pgxpool.Config) (conn *pgx.Conn, err error) {
	for range openTries {
		if conn, err = openOnce(ctx, c.Copy()); err != nil || conn != nil {
			return conn, err
		}
	}
	return nil, fmt.Errorf("%d connections in a row cannot be used", openTries)
}

// openOnce returns nil if the configuration refuses the connection for no reason of its own.
func openOnce(ctx context.Context, c *pgxpool.Config) (*pgx.Conn, error) {
	if c.BeforeConnect != nil {
		if err := c.BeforeConnect(ctx, c.ConnConfig); err != nil {
			return nil, err
		}
	}
	conn, err := pgx.ConnectConfig(ctx, c.ConnConfig)
	if err != nil {
		return nil, err
	}
	usable := true
	if c.AfterConnect != nil {
		err = c.AfterConnect(ctx, conn)
	}
	if err == nil && c.PrepareConn != nil {
		usable, err = c.PrepareConn(ctx, conn)
	}
	if err != nil || !usable {
		_ = conn.Close(ctx) // the first error counts
		return nil, err
	}
	return conn, nil
}

// disconnect closes the connection without waiting for the server.
func (s *session) disconnect() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = s.conn.Close(ctx) // the server notices
	s.conn = nil
}

// listen waits for notices until the next exchange.
func (s *session) listen() {
	ctx, cancel := context.WithCancel(s.over)
	conn, ended := s.conn, make(chan struct{})
	s.stopListening = func() { cancel(); <-ended }
	go func() {
		defer close(ended)
		for {
			n, err := conn.WaitForNotification(ctx)
			switch {
			case ctx.Err() != nil:
				return
			case err != nil:
				s.Changed() // the connection is broken: the next exchange makes a new one
				return
			case n.Payload == s.Environment && n.PID != conn.PgConn().PID():
				s.Changed()
			}
		}
	}()
}

// exchange makes one exchange of a registered member: it renews the lease and executes what
// queue adds, in one transaction.
func (s *session) exchange(ctx context.Context, queue func(*pgx.Batch)) error {
	return s.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		b, listed := &pgx.Batch{}, false
		s.touch(b, &listed)
		queue(b)
		err := conn.SendBatch(ctx, b).Close()
		if !listed && (err == nil || errors.Is(err, assign.ErrNotFound)) {
			return assign.ErrExpired
		}
		return err
	})
}

func (s *session) touch(b *pgx.Batch, listed *bool) {
	sql.Touch.Queue(b, s.Environment, s.ID).QueryRow(func(row pgx.Row) error { return row.Scan(listed) })
}

// Create implements [assign.Session].
func (s *session) Create(ctx context.Context) error {
	return s.do(ctx, func(ctx context.Context, conn *pgx.Conn) error { return create(ctx, conn, s.Environment) })
}

// Register implements [assign.Session].
func (s *session) Register(ctx context.Context, data []byte) (seq, version int64, err error) {
	version = newVersion()
	err = s.do(ctx, func(ctx context.Context, conn *pgx.Conn) error {
		b, before := &pgx.Batch{}, false
		s.touch(b, &before)
		sql.RemoveExpired.Queue(b, s.Environment)
		sql.Register.Queue(b, s.Environment, s.ID, s.Timeout.Milliseconds(), version, data, maxMembers).
			Query(func(rows pgx.Rows) error {
				_, err := pgx.ForEachRow(rows, []any{&seq, nil}, func() error { return nil })
				return err
			})
		return conn.SendBatch(ctx, b).Close()
	})
	if err == nil && seq == 0 {
		err = fmt.Errorf("%w: environment %s was removed, or has its %d members", assign.ErrNotFound, s.Environment, maxMembers)
	}
	return seq, version, err
}

// Renew implements [assign.Session].
func (s *session) Renew(ctx context.Context) error { return s.exchange(ctx, func(*pgx.Batch) {}) }

// Read implements [assign.Session].
func (s *session) Read(ctx context.Context) (rows assign.Rows, err error) {
	err = s.exchange(ctx, func(b *pgx.Batch) {
		sql.RemoveExpired.Queue(b, s.Environment)
		queueRows(b, s.Environment, s.ID, &rows)
	})
	return rows, err
}

// write makes an exchange whose statement returns a row if it has written.
func (s *session) write(ctx context.Context, queue func(*pgx.Batch) *pgx.QueuedQuery) error {
	written := false
	err := s.exchange(ctx, func(b *pgx.Batch) {
		queue(b).Query(func(rows pgx.Rows) error {
			for rows.Next() {
				written = true
			}
			return rows.Err()
		})
	})
	if err == nil && !written {
		return assign.ErrChanged
	}
	return err
}

// WriteMember implements [assign.Session].
func (s *session) WriteMember(ctx context.Context, data []byte, version, plan int64, tell bool) (next int64, err error) {
	next = newVersion()
	return next, s.write(ctx, func(b *pgx.Batch) *pgx.QueuedQuery {
		return sql.WriteMember.Queue(b, s.Environment, s.ID, version, next, data, plan, tell)
	})
}

// WritePlan implements [assign.Session].
func (s *session) WritePlan(ctx context.Context, data []byte, version int64) error {
	return s.writeDocument(ctx, kindPlan, data, version)
}

// WriteStrategy implements [assign.Session].
func (s *session) WriteStrategy(ctx context.Context, data []byte, version int64) error {
	return s.writeDocument(ctx, kindStrategy, data, version)
}

func (s *session) writeDocument(ctx context.Context, kind string, data []byte, version int64) error {
	return s.write(ctx, func(b *pgx.Batch) *pgx.QueuedQuery {
		return sql.WriteDocument.Queue(b, s.Environment, kind, version, newVersion(), data, s.ID)
	})
}

// Leave implements [assign.Session].
func (s *session) Leave(ctx context.Context) error {
	return s.exchange(ctx, func(b *pgx.Batch) { sql.Leave.Queue(b, s.Environment, s.ID) })
}

// Sweep implements [assign.Session]. What the call before has found idle it removes. A look at the clock alone
// is not enough: after it has leapt, or the server was down, the members of an environment need time for an exchange.
func (s *session) Sweep(ctx context.Context, staleAfter time.Duration) (cleared []string, err error) {
	var idle idleEnvironments
	err = s.exchange(ctx, func(b *pgx.Batch) {
		sql.RemoveEnvironments.Queue(b, s.idle.names, s.idle.touched).Query(func(rows pgx.Rows) (err error) {
			cleared, err = pgx.CollectRows(rows, pgx.RowTo[string])
			return err
		})
		sql.IdleEnvironments.Queue(b, s.Environment, staleAfter.Milliseconds()).Query(func(rows pgx.Rows) error {
			var name string
			var touched int64
			_, err := pgx.ForEachRow(rows, []any{&name, &touched}, func() error {
				idle.names, idle.touched = append(idle.names, name), append(idle.touched, touched)
				return nil
			})
			return err
		})
	})
	s.idle = idle
	return cleared, err
}

// Close implements [assign.Session].
func (s *session) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	err := s.exchange(ctx, func(b *pgx.Batch) { sql.RemoveMember.Queue(b, s.Environment, s.ID) })
	if err != nil && !refused(err) {
		s.Log.Warn("assign: this member stays listed until its session is over", "err", err)
	}
	s.Abandon()
}

// Abandon implements [assign.Session].
func (s *session) Abandon() {
	s.end() // also ends an exchange
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopListening != nil {
		s.stopListening()
		s.stopListening = nil
	}
	s.abandonOpening()
	if s.conn != nil {
		s.disconnect()
	}
}
