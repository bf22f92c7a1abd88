package move

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/perceptor/perceptor/internal/ctxtime"
	"github.com/perceptor/perceptor/store/move/sql"
	"github.com/perceptor/perceptor/store/place"
)

const (
	// pauseLimit is how long a pause may last: it is announced, and everything in it must be done.
	pauseLimit = 2500 * time.Millisecond
	// heard is how long programs need to hear of the pause: they ask every 50 ms.
	heard = 150 * time.Millisecond
	// lockWait is longer than the deadlock_timeout of most servers (1 s), after which an
	// autovacuum gives way. deadlockWait is that of the move, if it may set it. Programs wait for
	// locks for 200 ms, so in a deadlock it is they who give up, or the move.
	lockWait     = 1300 * time.Millisecond
	deadlockWait = 50 * time.Millisecond
	// attempts bounds the pauses of a move, and between is the time from one to the next.
	attempts = 20
	between  = 2 * time.Second
	// markEvery is how often the new copy is asked for the mark.
	markEvery = 5 * time.Millisecond
	// countable is the size up to which a database is counted in the pause.
	countable = 32 << 20
)

// errPaused wraps what went wrong in a pause that changed nothing.
var errPaused = errors.New("the pause was ended without a switch")

// switchOver makes the new place the one in force. A pause in which something does not end in
// time is ended, and another one begins later.
func (m *Mover) switchOver(ctx context.Context) error {
	for {
		m.tell(Progress{Step: Switching})
		m.result.Attempts++
		err := m.pause(ctx)
		if err == nil || !errors.Is(err, errPaused) || m.result.Attempts == attempts || ctx.Err() != nil {
			return err
		}
		if !ctxtime.Sleep(ctx, between) {
			return err
		}
		if err := m.follow(ctx); err != nil {
			return err
		}
	}
}

// pause announces a pause, and switches in it.
func (m *Mover) pause(ctx context.Context) error {
	if err := m.old.exec(ctx, sql.Step, Switching, m.number); err != nil {
		return err
	}
	began := time.Now()
	if err := m.old.exec(ctx, sql.Pause, pauseLimit.Milliseconds()); err != nil {
		return err
	}
	paused, cancel := context.WithDeadline(ctx, began.Add(pauseLimit))
	defer cancel()
	err := m.inPause(paused)
	switch {
	case errors.Is(err, errUnknown):
		err = m.resolve(ctx, err)
	case err != nil:
		err = fmt.Errorf("%w: %w", errPaused, err)
	}
	if errors.Is(err, errPaused) {
		return m.endPause(ctx, err)
	}
	if err != nil {
		return err
	}
	m.result.Pause = time.Since(began)
	m.result.PauseMS = m.result.Pause.Milliseconds()
	return m.reached("committed")
}

// endPause ends a pause that has changed nothing, and returns its cause. The end of the pause closes the connection
// on which a statement waits, and a server that was killed all of them, which only the next statement shows.
func (m *Mover) endPause(ctx context.Context, cause error) (err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	for range 2 {
		if err = m.reopen(ctx); err != nil {
			break
		}
		if err = m.old.exec(ctx, sql.EndPause); err == nil {
			return cause
		}
	}
	return fmt.Errorf("%s; then: %w", cause.Error(), err) // it is no errPaused: there can be no other pause
}

// reopen replaces connections that are closed. Without its session at the old place this command was not the only one for a
// moment, so it makes sure that the move is still its own.
func (m *Mover) reopen(ctx context.Context) (err error) {
	if m.new.conn.IsClosed() {
		if m.new, err = m.open(ctx, m.target, m.schema); err != nil {
			return fmt.Errorf("connect to %s: %w", m.to, err)
		}
	}
	if !m.old.conn.IsClosed() {
		return nil
	}
	if m.old, err = m.open(ctx, m.source, m.schema); err != nil {
		return fmt.Errorf("connect to %s: %w", m.from, err)
	}
	if err := m.beAlone(ctx); err != nil {
		return err
	}
	at, err := place.Read(ctx, m.old.conn)
	if err == nil && (at.State != place.Open || at.Target != m.to || at.Number != m.number-1) {
		err = ErrElsewhere
	}
	return err
}

// inPause does everything between the announcement of a pause and the switch.
func (m *Mover) inPause(ctx context.Context) error {
	if err := m.reached("paused"); err != nil {
		return err
	}
	if !ctxtime.Sleep(ctx, heard) {
		return ctx.Err()
	}
	locked, err := m.open(ctx, m.source, m.schema)
	if err != nil {
		return err
	}
	defer locked.close() // ends the transaction if it is open
	if err := m.lock(ctx, locked); err != nil {
		return fmt.Errorf("lock the tables: %w", err)
	}
	if err := m.reached("locked"); err != nil {
		return err
	}
	if err := m.catchUp(ctx); err != nil {
		return err
	}
	if err := m.setSequences(ctx); err != nil {
		return err
	}
	var ready int64 // no row if the copy is not that of this move any more
	if err := m.new.row(ctx, sql.Ready, []any{Ready, m.number}, &ready); err != nil {
		return fmt.Errorf("confirm the new copy: %w", err)
	}
	if err := m.reached("ready"); err != nil {
		return err
	}
	if err := m.moveAway(ctx, locked); err != nil {
		return err
	}
	opening, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	_ = place.OpenCopy(opening, m.new.conn, m.number) // or the first program that comes does it
	return nil
}

// lock begins a transaction that nobody can write beside.
func (m *Mover) lock(ctx context.Context, s *session) error {
	text, err := s.text(ctx, sql.CommandLock)
	if err != nil {
		return err
	}
	if err := s.run(ctx, "BEGIN"); err != nil {
		return err
	}
	ms := func(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
	if err := s.exec(ctx, sql.LockLimits, ms(lockWait), ms(pauseLimit), ms(deadlockWait)); err != nil {
		return err
	}
	return s.run(ctx, text)
}

// catchUp waits until everything that was committed is in the new copy, and compares.
func (m *Mover) catchUp(ctx context.Context) error {
	mark := time.Now().UnixNano()
	if err := m.old.exec(ctx, sql.Mark, mark); err != nil {
		return err
	}
	for {
		var arrived int64
		if err := m.new.row(ctx, sql.Marked, nil, &arrived); err != nil {
			return err
		}
		if arrived == mark {
			break
		}
		if !ctxtime.Sleep(ctx, markEvery) {
			return fmt.Errorf("the new copy is too far behind: %w", ctx.Err())
		}
	}
	if err := m.reached("marked"); err != nil {
		return err
	}
	return m.compareTables(ctx)
}

// compareTables makes sure that every table is replicated, counts small databases, and keeps a
// snapshot to count large ones afterwards.
func (m *Mover) compareTables(ctx context.Context) (err error) {
	old, err := m.tables(ctx, m.old)
	if err != nil {
		return err
	}
	var enabled bool
	var total, copied int32
	var bytes, failed, size int64
	if err := m.new.row(ctx, sql.SubscriptionState, []any{m.name()}, &enabled, &total, &copied, &bytes, &failed); err != nil {
		return err
	}
	if int(total) != len(old) || copied != total {
		return fmt.Errorf("%d of %d tables are copied", copied, len(old))
	}
	m.snapshot.close()
	if m.snapshot, err = m.open(ctx, m.target, m.schema); err != nil {
		return err
	}
	if err := m.snapshot.run(ctx, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SELECT 1 FROM move_mark"); err != nil {
		return err
	}
	for _, b := range old {
		size += b
	}
	if size > countable {
		return nil
	}
	return m.count(ctx, m.schema)
}

func (m *Mover) setSequences(ctx context.Context) error {
	drawn := map[string]int64{}
	var name string
	var value int64
	if err := m.old.rows(ctx, sql.Sequences, nil, []any{&name, &value}, func() error { drawn[name] = value; return nil }); err != nil {
		return err
	}
	for name, value := range drawn {
		if value == 0 {
			continue
		}
		var set int64 // no row if the copy is not that of this move any more
		if err := m.new.row(ctx, sql.SetSequence, []any{name, value, m.number}, &set); err != nil {
			return fmt.Errorf("set sequence %s: %w", name, err)
		}
	}
	return nil
}

// errUnknown says that the outcome of the deciding commit is not known.
var errUnknown = errors.New("it is not known whether the move was decided")

// moveAway renames the old schema, leaves the row that says where the database is, and
// commits: the switch.
func (m *Mover) moveAway(ctx context.Context, s *session) error {
	if err := s.command(ctx, sql.CommandMoveAway, m.schema, m.oldSchema()); err != nil {
		return err
	}
	if err := s.command(ctx, sql.CommandStub, m.schema, m.number, string(m.to)); err != nil {
		return err
	}
	if err := m.reached("renamed"); err != nil {
		return err
	}
	if err := s.run(ctx, "COMMIT"); err != nil {
		return fmt.Errorf("%w: %w", errUnknown, err)
	}
	return nil
}

// resolve finds out whether the move was decided. The session whose commit failed has ended, or
// ends within the limits of its transaction.
func (m *Mover) resolve(ctx context.Context, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	time.Sleep(pauseLimit) // by then the server has ended the transaction
	for {
		s, err := m.open(ctx, m.source, m.schema)
		if err == nil {
			var c place.Copy
			c, err = place.Read(ctx, s.conn)
			s.close()
			switch {
			case err == nil && c.State == place.Moved && c.Number == m.number:
				return nil
			case err == nil:
				return fmt.Errorf("%w: %w", errPaused, cause)
			}
		}
		if !ctxtime.Sleep(ctx, lookEvery) {
			return fmt.Errorf("%w: resume the move when %s answers", cause, m.from)
		}
	}
}
