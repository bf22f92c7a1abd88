package move

import (
	"context"
	"fmt"
	"time"

	"github.com/perceptor/perceptor/store/move/sql"
)

// # A copy that is stuck
//
// A worker of PostgreSQL that has copied a table and has caught up drops its slot at the old server
// and commits that the table is ready. If the new server crashes in between (seen with 15), the worker
// asks for a slot that is gone, for ever. The changes that the slot stood for are gone with it, so the copy begins again.

// stuckAfter is how long a slot is missing before the copy counts as stuck. Usually it is a moment.
const stuckAfter = 15 * time.Second

// copyAgainIfStuck begins the copy of all tables again if one of them can never become ready.
func (m *Mover) copyAgainIfStuck(ctx context.Context, p Progress) error {
	var begins []string
	var lost int64
	if p.Step == Copying {
		if err := m.new.row(ctx, sql.CopiedSlots, []any{m.name()}, &begins); err != nil {
			return fmt.Errorf("read the tables of the subscription at %s: %w", m.to, err)
		}
	}
	if len(begins) > 0 {
		if err := m.old.row(ctx, sql.LostSlots, []any{begins}, &lost); err != nil {
			return fmt.Errorf("read the slots at %s: %w", m.from, err)
		}
	}
	switch {
	case lost == 0:
		m.stuckSince = time.Time{}
	case m.stuckSince.IsZero():
		m.stuckSince = time.Now()
	case time.Since(m.stuckSince) > stuckAfter:
		m.stuckSince = time.Time{}
		return m.copyAgain(ctx)
	}
	return nil
}

// copyAgain makes another subscription, which copies all tables.
func (m *Mover) copyAgain(ctx context.Context) error {
	if err := m.unsubscribe(ctx); err != nil {
		return err
	}
	return m.copy(ctx)
}

// unsubscribe removes the subscription with all slots, and the publication, as far as they are there.
func (m *Mover) unsubscribe(ctx context.Context) error {
	sync, err := m.detach(ctx)
	if err == nil {
		err = m.unpublish(ctx, sync)
	}
	if err != nil {
		return fmt.Errorf("begin the copy again: %w", err)
	}
	return nil
}
