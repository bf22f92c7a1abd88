package move

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/internal/ctxtime"
	"github.com/perceptor/perceptor/migrations"
	"github.com/perceptor/perceptor/store/move/sql"
	"github.com/perceptor/perceptor/store/place"
	"github.com/perceptor/perceptor/store/statement"
)

const (
	// lookEvery is how often the progress is read.
	lookEvery = 250 * time.Millisecond
	// near is how many bytes of log the new copy may be behind when the pause begins.
	near = 1 << 20
	// slotWait bounds how long the slot waits for transactions that began before it.
	slotWait = 2 * time.Minute
)

// copy makes the new copy and subscribes it. What is there already stays.
func (m *Mover) copy(ctx context.Context) error {
	if err := m.makeCopy(ctx); err != nil {
		return fmt.Errorf("make the schema at %s: %w", m.to, err)
	}
	if err := m.reached("created"); err != nil {
		return err
	}
	// A subscription whose slot is gone, after a fail-over or because somebody has dropped it, would follow a new
	// one, and miss what was written in between.
	if err := unless(ctx, m.old, sql.HasSlot, m.name(), func() error { return m.unsubscribe(ctx) }); err != nil {
		return err
	}
	if err := unless(ctx, m.old, sql.HasPublication, m.name(), func() error { return m.old.command(ctx, sql.CommandPublish, m.name()) }); err != nil {
		return fmt.Errorf("publish the tables at %s: %w", m.from, err)
	}
	if err := m.reached("published"); err != nil {
		return err
	}
	if err := unless(ctx, m.old, sql.HasSlot, m.name(), func() error { return m.createSlot(ctx) }); err != nil {
		return fmt.Errorf("create a slot at %s (it waits for transactions that began before): %w", m.from, err)
	}
	if err := m.reached("slot"); err != nil {
		return err
	}
	if err := unless(ctx, m.new, sql.HasSubscription, m.name(), func() error { return m.subscribe(ctx) }); err != nil {
		return fmt.Errorf("subscribe at %s: %w", m.to, err)
	}
	return m.reached("subscribed")
}

// unless calls f unless something of this name is there.
func unless(ctx context.Context, s *session, has *statement.Statement, name string, f func() error) error {
	var there bool
	if err := s.row(ctx, has, []any{name}, &there); err != nil || there {
		return err
	}
	return f()
}

func (m *Mover) createSlot(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, slotWait)
	defer cancel()
	_, err := m.old.conn.Exec(ctx, sql.CreateSlot.Text(), pgx.QueryExecModeExec, m.name())
	return err
}

// subscribe begins the copy, in empty tables. What migrations or a subscription before have left there is worth nothing.
func (m *Mover) subscribe(ctx context.Context) error {
	if err := m.new.command(ctx, sql.CommandTruncate, m.number); err != nil {
		return err
	}
	return m.new.command(ctx, sql.CommandSubscribe, m.name(), m.Source)
}

// makeCopy creates the schema under another name, because a schema of the name of a database
// must say at every moment what it is.
func (m *Mover) makeCopy(ctx context.Context) error {
	c, err := place.Read(ctx, m.new.conn)
	if err != nil || c.State == place.Incoming && c.Number == m.number && c.Address == m.from {
		return err // without one it was made before
	}
	fault, err := m.inTheWay(ctx, c.State)
	if err == nil && fault != "" {
		err = errors.New(fault)
	}
	if err != nil {
		return err
	}
	made := fmt.Sprintf("perceptor_making_%02d", m.Database)
	if err := m.new.command(ctx, sql.CommandDropCopy, made); err != nil {
		return err
	}
	making := m.target.Copy()
	o, err := m.owner(ctx)
	if err != nil {
		return err
	}
	if o.there { // the command may need a superuser, and later migrations run as the owner
		making.RuntimeParams["role"] = o.name
	}
	if _, err := migrations.Up(ctx, making, made); err != nil {
		return err
	}
	s, err := m.open(ctx, making, made)
	if err != nil {
		return err
	}
	defer s.close()
	if err := m.fitTables(ctx, s, made); err != nil {
		return err
	}
	if err := s.exec(ctx, sql.Incoming, m.number, string(m.from)); err != nil {
		return err
	}
	return m.new.command(ctx, sql.CommandTakeName, made, m.schema) // what has the name may belong to another role
}

// inTheWay says what the schema of the database at the target has that must not be dropped: nothing if it is not there or empty, if
// it says where the database is, or if it is a copy that was never opened.
func (m *Mover) inTheWay(ctx context.Context, state string) (fault string, err error) {
	switch state {
	case place.Moved, place.Incoming:
		return "", nil
	case place.Open:
		return fmt.Sprintf("schema %s is at %s and holds a database that is in use or was never moved: drop it if it is not needed", m.schema, m.to), nil
	}
	var there bool
	var tables int32
	if err := m.new.row(ctx, sql.Copies, []any{m.schema}, &there, &tables); err != nil {
		return "", err
	}
	if there && tables > 0 {
		fault = fmt.Sprintf("schema %s is at %s and has %d tables: drop it if it is not needed", m.schema, m.to, tables)
	}
	return fault, nil
}

// fitTables makes the tables of a new schema those of the old place.
func (m *Mover) fitTables(ctx context.Context, s *session, schema string) error {
	var days []int32
	var day int32
	if err := m.old.rows(ctx, sql.Days, nil, []any{&day}, func() error { days = append(days, day); return nil }); err != nil {
		return err
	}
	for _, day := range days {
		if err := s.exec(ctx, sql.MakeDay, day); err != nil {
			return err
		}
	}
	old, err := m.tables(ctx, m.old)
	if err != nil {
		return err
	}
	made, err := m.tables(ctx, s)
	if err != nil {
		return err
	}
	var missing []string
	for name := range old {
		if _, there := made[name]; !there {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("tables that the migrations do not make, at %s: %s", m.from, strings.Join(missing, ", "))
	}
	grants, err := m.old.text(ctx, sql.CommandGrants, schema)
	if err != nil || grants == "" {
		return err
	}
	return s.run(ctx, grants)
}

// tables returns the sizes of the replicated tables.
func (m *Mover) tables(ctx context.Context, s *session) (map[string]int64, error) {
	sizes := map[string]int64{}
	var name string
	var bytes int64
	err := s.rows(ctx, sql.Tables, nil, []any{&name, &bytes}, func() error { sizes[name] = bytes; return nil })
	return sizes, err
}

// errStopped says that somebody has stopped the replication.
var errStopped = errors.New("the subscription is disabled: enable it and resume, or abort the move")

// errNoSlot says that the log since the last confirmed change is not kept any more.
var errNoSlot = errors.New("the slot of the move is gone: resume the move, which copies all tables again, or abort it")

// follow waits until everything is copied and the new copy is near.
func (m *Mover) follow(ctx context.Context) error {
	step := Copying
	for {
		p, err := m.look(ctx)
		if err != nil {
			return err
		}
		if p.Step != step {
			step = p.Step
			if err := m.old.exec(ctx, sql.Step, step, m.number); err != nil {
				return err
			}
			if err := m.reached("copied"); err != nil {
				return err
			}
		}
		m.tell(p)
		if err := m.copyAgainIfStuck(ctx, p); err != nil {
			return err
		}
		if step == Following && p.Lag < near {
			return nil
		}
		if !ctxtime.Sleep(ctx, lookEvery) {
			return ctx.Err()
		}
	}
}

// look reads how far the new copy is.
func (m *Mover) look(ctx context.Context) (p Progress, err error) {
	var enabled, good bool
	var total, copied int32
	if err = m.new.row(ctx, sql.SubscriptionState, []any{m.name()}, &enabled, &total, &copied, &p.Bytes, &p.Errors); err != nil {
		return p, fmt.Errorf("read the subscription at %s: %w", m.to, err)
	}
	if err = m.old.row(ctx, sql.Lag, []any{m.name()}, &p.Lag, &good); errors.Is(err, pgx.ErrNoRows) {
		return p, fmt.Errorf("%s: %w", m.from, errNoSlot)
	} else if err != nil {
		return p, fmt.Errorf("read the slot at %s: %w", m.from, err)
	}
	if err = m.old.row(ctx, sql.Size, nil, &p.Total); err != nil {
		return p, err
	}
	switch p.Tables, p.Copied, p.Step = int(total), int(copied), Copying; {
	case !enabled:
		return p, fmt.Errorf("%s: %w", m.to, errStopped)
	case !good:
		return p, fmt.Errorf("%s has removed log that the new copy needs (max_slot_wal_keep_size): abort the move and begin again", m.from)
	case total > 0 && copied == total:
		p.Step = Following
	}
	return p, nil
}
