// Package clock gives the logical databases a virtual clock, and reads and moves
// it. Every instant of the system comes from the function now_ms() of a database.
// [Install] replaces that function by one that reads the table virtual_clock, so
// all programs on these databases live in virtual time and none of them knows.
// Databases without one pay nothing for it.
//
// A database has a virtual clock from before its first task, or never: due
// instants of two clocks would mean nothing to each other.
//
// The clock is one row in each database. [Move] changes those of one server in
// one transaction; it only moves forward.
package clock

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/clock/sql"
	"github.com/perceptor/perceptor/store/statement"
	"github.com/perceptor/perceptor/task"
)

// State is what a virtual clock shows.
type State struct {
	// Frozen is true if the clock stands still until it is moved. Otherwise it runs with
	// the server's clock.
	Frozen bool
	Now    task.Instant
}

// Errors of databases that do not have the requested clock.
var (
	// ErrReal: the databases have the real clock.
	ErrReal = errors.New("the databases have the real clock")
	// ErrUsed: there have been tasks, so the clock cannot be changed.
	ErrUsed = errors.New("the databases have had tasks by the real clock, so they cannot have a virtual one")
)

// Installed reports whether the databases have a virtual clock. If only some have one, it
// returns true and an error that names a database without one and is not [ErrReal].
func Installed(ctx context.Context, c *store.Cluster) (bool, error) {
	has, err := installed(ctx, c)
	if err != nil {
		return false, err
	}
	n := 0
	missing := -1
	for d := range has {
		if has[d] {
			n++
		} else if missing < 0 {
			missing = d
		}
	}
	switch n {
	case 0:
		return false, nil
	case task.Databases:
		return true, nil
	}
	return true, fmt.Errorf("%d of %d databases have a virtual clock, database %d has none", n, task.Databases, missing)
}

func installed(ctx context.Context, c *store.Cluster) (has [task.Databases]bool, err error) {
	err = c.Each(ctx, func(ctx context.Context, d int) error {
		return sql.Installed.QueryRow(ctx, c.Pool(d)).Scan(&has[d])
	})
	return has, err
}

// Install gives migrated databases a virtual clock that shows start. A virtual clock that
// is already installed continues unchanged. Install returns the state of the clock. It
// refuses databases that have had a task with [ErrUsed]. No other program may use the
// databases meanwhile. Repeating an interrupted call completes it.
func Install(ctx context.Context, c *store.Cluster, start State) (State, error) {
	has, err := installed(ctx, c)
	if err != nil {
		return State{}, err
	}
	var missing []int
	for d := range has {
		if !has[d] {
			missing = append(missing, d)
			continue
		}
		if start, _, err = read(ctx, c, d); err != nil {
			return State{}, err
		}
	}
	if len(missing) == 0 {
		return Read(ctx, c)
	}
	for _, d := range missing {
		if err := checkUnused(ctx, c, d); err != nil {
			return State{}, err
		}
	}
	value, err := startValue(ctx, c, start)
	if err != nil {
		return State{}, err
	}
	for _, d := range missing {
		if err := install(ctx, c, d, start.Frozen, value); err != nil {
			return State{}, fmt.Errorf("install the virtual clock of database %d: %w", d, err)
		}
	}
	return Move(ctx, c, start.Now)
}

func checkUnused(ctx context.Context, c *store.Cluster, d int) error {
	var used bool
	if err := sql.Used.QueryRow(ctx, c.Pool(d)).Scan(&used); err != nil {
		return fmt.Errorf("look at database %d: %w", d, err)
	}
	if used {
		return fmt.Errorf("database %d at %s: %w", d, c.Address(d), ErrUsed)
	}
	return nil
}

// startValue returns the value that the table stores for a clock that shows start.
func startValue(ctx context.Context, c *store.Cluster, start State) (int64, error) {
	if start.Frozen {
		return int64(start.Now), nil
	}
	var real int64
	if err := sql.ServerNow.QueryRow(ctx, c.Pool(0)).Scan(&real); err != nil {
		return 0, fmt.Errorf("read the clock of the server: %w", err)
	}
	return int64(start.Now) - real, nil
}

// install installs the clock of database d in one transaction.
func install(ctx context.Context, c *store.Cluster, d int, frozen bool, value int64) error {
	return pgx.BeginFunc(ctx, c.Pool(d), func(tx pgx.Tx) error {
		for _, create := range []*statement.Statement{sql.CreateTable, sql.ReplaceFunction} {
			if _, err := create.Exec(ctx, tx); err != nil {
				return err
			}
		}
		_, err := sql.Create.Exec(ctx, tx, frozen, value)
		return err
	})
}

// Read returns the state of the clock, or [ErrReal] if there is no virtual clock.
func Read(ctx context.Context, c *store.Cluster) (State, error) {
	all, err := Installed(ctx, c)
	if err != nil {
		return State{}, err
	}
	if !all {
		return State{}, ErrReal
	}
	s, _, err := read(ctx, c, 0)
	return s, err
}

func read(ctx context.Context, c *store.Cluster, d int) (s State, real task.Instant, err error) {
	if err = sql.Read.QueryRow(ctx, c.Pool(d)).Scan(&s.Frozen, &s.Now, &real); err != nil {
		return State{}, 0, fmt.Errorf("read the virtual clock of database %d: %w", d, err)
	}
	return s, real, nil
}

// Move sets the clock of all databases to an instant, or leaves it unchanged if it shows a
// later one. It returns the state of the clock. After an error the clock may have moved on
// some servers. Repeating the call completes the move.
func Move(ctx context.Context, c *store.Cluster, to task.Instant) (State, error) {
	s, real, err := read(ctx, c, 0)
	if err != nil {
		return State{}, err
	}
	value := int64(to)
	if !s.Frozen {
		value = int64(to - real)
	}
	for _, group := range servers(c) {
		if err := each(ctx, c, group, "SET value_ms = $1 WHERE value_ms < $1", value); err != nil {
			return State{}, fmt.Errorf("move the virtual clock: %w", err)
		}
	}
	s.Now = max(s.Now, to)
	return s, nil
}

// Switch freezes the clock or lets it run, from the instant that it shows. No other program
// may use the databases meanwhile.
func Switch(ctx context.Context, c *store.Cluster, frozen bool) (State, error) {
	s, err := Read(ctx, c)
	if err != nil || s.Frozen == frozen {
		return s, err
	}
	s.Frozen = frozen
	value, err := startValue(ctx, c, s)
	if err != nil {
		return State{}, err
	}
	for _, group := range servers(c) {
		if err := each(ctx, c, group, "SET frozen = $1, value_ms = $2", frozen, value); err != nil {
			return State{}, fmt.Errorf("switch the virtual clock: %w", err)
		}
	}
	return s, nil
}

// servers returns the databases, grouped by server.
func servers(c *store.Cluster) [][]int {
	var groups [][]int
	index := map[string]int{}
	for d := range task.Databases {
		server, _, _ := strings.Cut(c.Address(d), ",")
		i, known := index[server]
		if !known {
			i = len(groups)
			index[server], groups = i, append(groups, nil)
		}
		groups[i] = append(groups[i], d)
	}
	return groups
}

// each changes the clocks of databases on one server in one transaction. A batch is one
// transaction unless it contains other transaction statements.
func each(ctx context.Context, c *store.Cluster, databases []int, change string, args ...any) error {
	b := &pgx.Batch{}
	for _, d := range databases {
		b.Queue("UPDATE "+pgx.Identifier{store.SchemaName(d), "virtual_clock"}.Sanitize()+" "+change, args...)
	}
	return c.Pool(databases[0]).SendBatch(ctx, b).Close()
}
