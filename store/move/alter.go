package move

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/perceptor/perceptor/internal/ctxtime"
	"github.com/perceptor/perceptor/store/statement"
)

const (
	// alterWait bounds how long a command is repeated that needs a table for itself.
	alterWait = 2 * time.Minute
	// alterEvery is how often.
	alterEvery = time.Second
	// lockNotAvailable is the code of an error of PostgreSQL.
	lockNotAvailable = "55P03"
)

// alter executes the commands that a statement returns. Each needs a table of the old place for a moment for itself, which
// whoever reads it prevents, such as a backup. A command that cannot have the table at once lets programs use it before it tries again.
func (m *Mover) alter(ctx context.Context, of *statement.Statement) error {
	var commands []string
	var command string
	if err := m.old.rows(ctx, of, nil, []any{&command}, func() error { commands = append(commands, command); return nil }); err != nil {
		return err
	}
	for began, i := time.Now(), 0; i < len(commands); {
		err := m.old.run(ctx, commands[i])
		switch locked := new(pgconn.PgError); {
		case err == nil:
			i++
			continue
		case !errors.As(err, &locked) || locked.Code != lockNotAvailable:
			return err
		case time.Since(began) > alterWait:
			return fmt.Errorf("another session at %s, such as a backup, uses a table for longer than %s: continue when it has ended: %w", m.from, alterWait, err)
		}
		if !ctxtime.Sleep(ctx, alterEvery) {
			return ctx.Err()
		}
	}
	return nil
}
