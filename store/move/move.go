package move

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/internal/ctxtime"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/move/sql"
	"github.com/perceptor/perceptor/store/place"
)

// Errors of a move.
var (
	ErrThere     = errors.New("the database is there already")
	ErrOther     = errors.New("the database is being moved to another place: resume or abort that move first")
	ErrNone      = errors.New("the database is not being moved")
	ErrDecided   = errors.New("the move has been decided: the database is at the new place; resume the move to clean up")
	ErrElsewhere = errors.New("another command is moving the database")
)

// Config describes a move. Target and Database are needed.
type Config struct {
	Cluster  *store.Cluster
	Database int
	// Target is the connection string of the new place. Its role may create schemas and
	// subscriptions there.
	Target string
	// Source is the connection string by which the target reaches the old place, in the form of
	// libpq. Its role may replicate. It defaults to that of the cluster.
	Source string
	// Free is the free space of the target in bytes; 0: what the configured size of its disk, if
	// there is one, leaves.
	Free int64
	// Tell is called with the progress, several times a second. It may be nil.
	Tell func(Progress)
	// Reached is called at each point of a move, for tests. It may be nil.
	Reached func(point string) error
}

// The steps of a move.
const (
	Announced = "announced"
	Copying   = "copying"
	Following = "following"
	Switching = "switching"
	Ready     = "ready"
)

// Progress says how far a move is.
type Progress struct {
	Step string
	// Bytes are there of about Total. Lag is how many bytes of log the new copy is behind.
	Bytes, Total, Lag int64
	Tables, Copied    int
	// Errors is how often the new server has failed to copy or to apply. Its log says why;
	// lost connections count, too.
	Errors int64
}

// Result is what a move did.
type Result struct {
	Number   int64         `json:"number"`
	From     place.Address `json:"from"`
	To       place.Address `json:"to"`
	Pause    time.Duration `json:"-"`
	PauseMS  int64         `json:"pause_ms"`
	Attempts int           `json:"attempts"`
	// Rows were counted in both copies and agree; Tables is how many.
	Rows    int64 `json:"rows"`
	Tables  int   `json:"tables"`
	Counted bool  `json:"counted"`
	// OldSchema is where the old rows are. It is empty if they are dropped.
	OldSchema string `json:"old_schema"`
	// Warnings say what could not be cleaned up.
	Warnings []string `json:"warnings,omitempty"`
}

// A Mover moves one database. It is used by one goroutine.
type Mover struct {
	Config
	from, to place.Address
	known    place.Address // of the old place: empty if it is that of the configurations
	number   int64         // of the new place
	schema   string
	source   *pgx.ConnConfig // the old place
	target   *pgx.ConnConfig
	result   Result
	old, new *session
	// stuckSince is since when a slot is missing with which a table that is copied would catch up; or 0.
	stuckSince time.Time
	// snapshot holds, from the pause on, what the new copy had at the switch.
	snapshot *session
	counted  bool
}

// Under returns where a database is, what its copy there says, and the address to which an
// unfinished move goes. The address is empty if there is no such move.
func Under(ctx context.Context, c *store.Cluster, database int) (at place.Address, says place.Copy, to place.Address, err error) {
	if err := c.Locate(ctx, database); err != nil {
		return "", says, "", err
	}
	_, at = c.Place(database)
	if says, err = place.Read(ctx, c.Pool(database)); err != nil {
		return at, says, "", err
	}
	if to = says.Target; to == "" && says.Address != "" { // decided, and not cleaned up
		to = at
	}
	return at, says, to, nil
}

// aloneWait is how long a command waits for another one.
const aloneWait = 10 * time.Second

// limit bounds a statement of a move that does not wait for others.
const limit = 30 * time.Second

// New prepares a move. It connects to nothing.
func New(c Config) (*Mover, error) {
	m := &Mover{Config: c, schema: store.SchemaName(c.Database)}
	var err error
	if m.to, err = place.AddressOf(c.Target); err != nil {
		return nil, fmt.Errorf("the target: %w", err)
	}
	if m.target, err = pgx.ParseConfig(c.Target); err != nil {
		return nil, errors.New("the target is not a connection string") // the driver's error may quote a password
	}
	return m, nil
}

// reached calls the hook of tests.
func (m *Mover) reached(point string) error {
	if m.Reached == nil {
		return nil
	}
	return m.Reached(point)
}

func (m *Mover) tell(p Progress) {
	if m.Tell != nil {
		m.Tell(p)
	}
}

// name is that of the publication, the subscription and the slot. Slots belong to a server, which
// may serve several installations.
func (m *Mover) name() string {
	h := fnv.New32a()
	fmt.Fprintf(h, "%s %s", m.from, m.to)
	return fmt.Sprintf("perceptor_move_%02d_%d_%08x", m.Database, m.number, h.Sum32())
}

// oldSchema is where the old rows are after the switch.
func (m *Mover) oldSchema() string { return fmt.Sprintf("%s_moved_%d", m.schema, m.number) }

// Run moves the database, or continues a move to the same target. It returns when the new
// place is in force and the move is cleaned up. If it fails before the switch the old place is in
// force, and Run may be called again.
func (m *Mover) Run(ctx context.Context) (Result, error) {
	defer m.close()
	at, err := m.locate(ctx)
	if err != nil {
		return m.result, err
	}
	switch {
	case at.Target == "" && m.from == m.to && at.Address != "":
		m.number, m.from = at.Number, at.Address
		return m.finish(ctx)
	case m.from == m.to:
		return m.result, ErrThere
	case at.Target != "" && at.Target != m.to:
		return m.result, fmt.Errorf("%w (%s)", ErrOther, at.Target)
	}
	if at.Address != "" {
		if err := m.finishFormer(ctx, &at); err != nil {
			return m.result, fmt.Errorf("clean up the move that has made place %d: %w", at.Number, err)
		}
	}
	m.number = at.Number + 1
	if err := m.begin(ctx, &at); err != nil {
		return m.result, err
	}
	if err := m.copy(ctx); err != nil {
		return m.result, err
	}
	if err := m.follow(ctx); err != nil {
		return m.result, err
	}
	if err := m.switchOver(ctx); err != nil {
		return m.result, err
	}
	return m.finish(ctx)
}

// locate follows the database to its place and reads what that says.
func (m *Mover) locate(ctx context.Context) (at place.Copy, err error) {
	locating, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if err := m.Cluster.Locate(locating, m.Database); err != nil {
		return at, fmt.Errorf("find database %d: %w", m.Database, err)
	}
	_, m.from = m.Cluster.Place(m.Database)
	if m.source, err = m.Cluster.ConfigAt(m.Database, ""); err != nil {
		return at, err
	}
	if m.old, err = m.open(ctx, m.source, m.schema); err != nil {
		return at, fmt.Errorf("connect to %s: %w", m.from, err)
	}
	if err := m.beAlone(locating); err != nil {
		return at, err
	}
	if at, err = place.Read(locating, m.old.conn); err != nil {
		return at, err
	}
	if at.State != place.Open {
		return at, fmt.Errorf("database %d at %s: want it migrated and open, it is %q", m.Database, m.from, at.State)
	}
	all, err := place.All(locating, m.old.conn)
	if err != nil {
		return at, err
	}
	for _, p := range all {
		if p.Database == m.Database {
			m.known = p.Address
		}
	}
	if m.Source == "" {
		if m.Source, err = m.Cluster.DSNAt(m.Database, ""); err != nil {
			return at, err
		}
	}
	return at, nil
}

// beAlone makes this the only command that moves the database. It waits for the session of one
// that was killed, which the server may not have noticed yet.
func (m *Mover) beAlone(ctx context.Context) error {
	for began := time.Now(); ; {
		var alone bool
		if err := m.old.row(ctx, sql.TryLock, nil, &alone); err != nil || alone {
			return err
		}
		if time.Since(began) > aloneWait {
			return ErrElsewhere
		}
		if !ctxtime.Sleep(ctx, lookEvery) {
			return ctx.Err()
		}
	}
}

// begin checks both servers and announces the move. A move that all programs have heard of is
// only checked.
func (m *Mover) begin(ctx context.Context, at *place.Copy) (err error) {
	if m.new, err = m.open(ctx, m.target, m.schema); err != nil {
		return fmt.Errorf("connect to %s: %w", m.to, err)
	}
	if err := m.check(ctx, at.Target != ""); err != nil {
		return err
	}
	if err := m.reached("checked"); err != nil || at.Target != "" && at.Step != Announced {
		return err
	}
	if err := m.old.exec(ctx, sql.Announce, string(m.to), Announced); err != nil {
		return err
	}
	if err := m.alter(ctx, sql.CommandsIdentity); err != nil {
		return err
	}
	if err := m.publishPlace(ctx, place.Place{Database: m.Database, Number: m.number - 1, Address: m.known, Moving: true}); err != nil {
		return fmt.Errorf("tell all databases of the move: %w", err)
	}
	if err := m.reached("announced"); err != nil {
		return err
	}
	if !ctxtime.Sleep(ctx, store.HeardAfter) {
		return ctx.Err()
	}
	return m.old.exec(ctx, sql.Step, Copying, m.number)
}

// publishPlace writes a place into all databases.
func (m *Mover) publishPlace(ctx context.Context, p place.Place) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return m.Cluster.Each(ctx, func(ctx context.Context, d int) error {
		return place.Put(ctx, m.Cluster.Pool(d), p)
	})
}
