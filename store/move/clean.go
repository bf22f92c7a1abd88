package move

import (
	"context"
	"errors"
	"fmt"

	"github.com/perceptor/perceptor/internal/ctxtime"
	"github.com/perceptor/perceptor/store/move/sql"
	"github.com/perceptor/perceptor/store/place"
)

// finish completes a move that was decided. What cannot be cleaned up is a warning: the database
// is at the new place.
func (m *Mover) finish(ctx context.Context) (Result, error) {
	m.result.Number, m.result.From, m.result.To, m.result.OldSchema = m.number, m.from, m.to, m.oldSchema()
	if err := m.reconnect(ctx); err != nil {
		return m.result, err
	}
	if err := place.OpenCopy(ctx, m.new.conn, m.number); err != nil {
		return m.result, fmt.Errorf("open the new copy: %w", err)
	}
	if err := m.reached("opened"); err != nil {
		return m.result, err
	}
	told := m.cleanUp(ctx, "tell all databases of the new place", func() error {
		return m.publishPlace(ctx, place.Place{Database: m.Database, Number: m.number, Address: m.to})
	})
	if err := m.reached("told"); err != nil {
		return m.result, err
	}
	m.cleanUp(ctx, "look for the old rows", func() error {
		if m.old == nil {
			return nil
		}
		there, err := m.old.has(ctx, m.oldSchema())
		if err == nil && !there { // a command before dropped it, and could not write down the end of the move
			m.result.OldSchema = ""
		}
		return err
	})
	ended := m.cleanUp(ctx, "end the replication", func() error { return m.endReplication(ctx) })
	if m.snapshot != nil && !m.counted {
		if err := m.count(ctx, m.oldSchema()); err != nil {
			return m.result, err
		}
	}
	m.result.Counted = m.counted
	if told && ended {
		m.cleanUp(ctx, "write down the end of the move", func() error { return m.new.exec(ctx, sql.Cleaned, m.number) })
	}
	return m.result, m.reached("cleaned")
}

// finishFormer completes the move that has brought the database to the place that it is to leave. Nothing could find what that has
// left once this place is not in force any more, and a slot keeps the log of its server.
func (m *Mover) finishFormer(ctx context.Context, at *place.Copy) error {
	former := &Mover{Config: m.Config, schema: m.schema, number: at.Number, from: at.Address, to: m.from, target: m.source}
	former.Reached = nil
	defer former.close()
	result, err := former.finish(ctx)
	m.known, at.Step = m.from, Announced // if the next move had begun, all programs must hear of it again
	m.result.Warnings = append(m.result.Warnings, result.Warnings...)
	if result.OldSchema != "" {
		m.result.Warnings = append(m.result.Warnings, fmt.Sprintf("the old rows of the move before are in schema %s at %s; drop it when you do not need them", result.OldSchema, result.From))
	}
	return err
}

// cleanTries is how often a step of cleaning up is tried: a server that is busy may not answer in time.
const cleanTries = 3

// cleanUp does a step of cleaning up. If it fails, that is a warning.
func (m *Mover) cleanUp(ctx context.Context, what string, do func() error) (done bool) {
	var err error
	for range cleanTries {
		if err = do(); err == nil || ctx.Err() != nil || m.old == nil {
			break
		}
		if (m.new.conn.IsClosed() || m.old.conn.IsClosed()) && m.reconnect(ctx) != nil {
			break
		}
	}
	if err != nil {
		m.result.Warnings = append(m.result.Warnings, fmt.Sprintf("%s: %v", what, err))
	}
	return err == nil
}

// reconnect makes connections to both places. The old one may be gone.
func (m *Mover) reconnect(ctx context.Context) (err error) {
	if m.new == nil || m.new.conn.IsClosed() {
		if m.new, err = m.open(ctx, m.target, m.schema); err != nil {
			return fmt.Errorf("connect to %s: %w", m.to, err)
		}
	}
	if m.source, err = m.Cluster.ConfigAt(m.Database, m.from); err != nil {
		return err
	}
	m.old.close()
	m.old, err = m.open(ctx, m.source, m.schema)
	if err != nil {
		m.old = nil
	}
	return nil
}

// endReplication removes subscription, slot and publication.
func (m *Mover) endReplication(ctx context.Context) error {
	sync, err := m.detach(ctx)
	if m.old == nil {
		return errors.Join(err, fmt.Errorf("%s does not answer: resume the move when it does, or drop its slot %s", m.from, m.name()))
	}
	return errors.Join(err, m.unpublish(ctx, sync))
}

// detach removes the subscription. It returns how the names of its further slots begin.
func (m *Mover) detach(ctx context.Context) (sync string, err error) {
	sync = m.name() // nothing else begins so
	var there bool
	if err := m.new.row(ctx, sql.HasSubscription, []any{m.name()}, &there); err != nil || !there {
		return sync, err
	}
	if err := m.new.row(ctx, sql.SyncSlots, []any{m.name()}, &sync); err != nil {
		return sync, err
	}
	return sync, m.new.command(ctx, sql.CommandDetach, m.name())
}

// unpublish removes what the move has made at the old place. Whoever uses a slot is ended.
func (m *Mover) unpublish(ctx context.Context, sync string) error {
	for {
		var n, left int64
		if err := m.old.row(ctx, sql.EndSlots, []any{m.name(), sync}, &n); err != nil {
			return err
		}
		if err := m.old.row(ctx, sql.DropSlots, []any{m.name(), sync}, &n, &left); err != nil {
			return err
		}
		if left == 0 {
			break
		}
		if !ctxtime.Sleep(ctx, lookEvery) {
			return ctx.Err()
		}
	}
	return m.old.command(ctx, sql.CommandDropPublished, m.name())
}

// Abort ends a move before its switch. The database stays where it is. What the target cannot
// be asked to remove is a warning, and so is a database that cannot be told: the target may have others.
func (m *Mover) Abort(ctx context.Context) (warnings []string, err error) {
	defer m.close()
	at, err := m.locate(ctx)
	if err != nil {
		return nil, err
	}
	switch {
	case at.Target == "" && at.Address != "":
		return nil, ErrDecided
	case at.Target == "":
		return nil, errors.Join(ErrNone, m.publishPlace(ctx, place.Place{Database: m.Database, Number: at.Number, Address: m.known}))
	case at.Target != m.to:
		return nil, fmt.Errorf("%w (%s)", ErrOther, at.Target)
	}
	m.number = at.Number + 1
	sync := m.name()
	if m.new, err = m.open(ctx, m.target, m.schema); err == nil {
		sync, err = m.detach(ctx)
	}
	if err != nil {
		m.new.close()
		m.new = nil
		warnings = append(warnings, fmt.Sprintf("%s does not answer: the subscription %s and the schema %s are left there: %v", m.to, m.name(), m.schema, err))
	}
	if err := m.abandon(ctx, sync); err != nil {
		return warnings, err
	}
	if err := m.publishPlace(ctx, place.Place{Database: m.Database, Number: m.number + 1, Address: m.known}); err != nil {
		warnings = append(warnings, fmt.Sprintf("not all databases were told that the move has ended; programs hear of it from the others: %v", err))
	}
	if m.new == nil {
		warnings = append(warnings, m.furtherSlots(ctx)...)
	} else if err := m.dropCopy(ctx); err != nil {
		warnings = append(warnings, fmt.Sprintf("the copy at %s is left: %v", m.to, err))
	}
	return warnings, nil
}

// furtherSlots warns of slots that may be those of a subscription whose server does not answer.
func (m *Mover) furtherSlots(ctx context.Context) []string {
	var names string
	if err := m.old.row(ctx, sql.FurtherSlots, nil, &names); err != nil {
		return []string{fmt.Sprintf("look for further slots at %s: %v", m.from, err)}
	}
	if names == "" {
		return nil
	}
	return []string{fmt.Sprintf("slots at %s keep its log and may be of this move: %s; drop those that no other copy uses (pg_drop_replication_slot)", m.from, names)}
}

// abandon ends the move at the old place.
func (m *Mover) abandon(ctx context.Context, sync string) error {
	if err := m.unpublish(ctx, sync); err != nil {
		return err
	}
	if err := m.alter(ctx, sql.CommandsPlainIdentity); err != nil {
		return err
	}
	return m.old.exec(ctx, sql.Abandon)
}

// dropCopy replaces a copy that was never opened by a row that says where the database is.
func (m *Mover) dropCopy(ctx context.Context) error {
	c, err := place.Read(ctx, m.new.conn)
	if err != nil || c.State != place.Incoming {
		return err
	}
	if err := m.new.command(ctx, sql.CommandDropCopy, m.schema); err != nil {
		return err
	}
	return m.new.command(ctx, sql.CommandStub, m.schema, m.number+1, string(m.from))
}
