// Package calendars stores the day calendars of tenants, and caches those that tasks name.
//
// # Storing
//
// A calendar is one row in the tenant's home database. Changes are single statements there.
//
// # Reading
//
// The state machine needs calendars while it holds locks on rows of other databases. So
// [Store.Windows] never waits: it answers from memory, and a calendar that is not there is
// read in the background ([Store.Run]) and missing until then. Every 5 s Run compares the
// versions of the calendars that were needed recently. If a home database does not answer, what
// was read before stays in use. While no task names a calendar, nothing is read.
//
// A server that validates a task calls [Store.Load] first, which waits.
package calendars

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/calendars/sql"
	"github.com/perceptor/perceptor/store/statement"
	"github.com/perceptor/perceptor/task"
)

// callTimeout bounds one call of a database.
const callTimeout = 2 * time.Second

// Store is the day calendars in all databases. It is safe for concurrent use.
type Store struct {
	cluster *store.Cluster
	wake    chan struct{} // a calendar is wanted

	mu      sync.Mutex
	known   map[key]*entry
	wanted  map[key]time.Time        // since when
	windows map[string]*task.Windows // by the names; emptied when an entry changes
	ranges  int                      // of all entries
}

// New returns the calendars of a cluster.
func New(cluster *store.Cluster) *Store {
	return &Store{
		cluster: cluster, wake: make(chan struct{}, 1),
		known: map[key]*entry{}, wanted: map[key]time.Time{}, windows: map[string]*task.Windows{},
	}
}

// key names a calendar.
type key struct {
	tenant int32
	name   string
}

// home returns the database of a tenant's calendars.
func home(tenant int32) int { return int(max(tenant, 0)) % task.Databases }

// Create stores a new calendar with the ranges of c, and sets its version.
// [task.AlreadyExists]: the tenant has one with that name.
func (s *Store) Create(ctx context.Context, tenant int32, c *task.DayCalendar) error {
	err := s.write(ctx, tenant, c, sql.CalendarCreate, append(values(tenant, c), task.MaxCalendars))
	if !errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	if _, err := s.Get(ctx, tenant, c.Name); err == nil {
		return task.Errorf(task.ReasonCalendarExists, "there is a calendar %q", c.Name)
	}
	return task.Errorf(task.ReasonTooManyCalendars, "the tenant has %d calendars, the most that are allowed", task.MaxCalendars)
}

// Replace gives a calendar other ranges, and sets its version in c. ifVersion is the version
// that it must have; 0 means any. [task.Aborted]: it has another one. From the instant before on, by the clock of
// the database, it stores nothing: [task.Unavailable]. A database or a process that stood still may come to the
// statement long after the call.
func (s *Store) Replace(ctx context.Context, tenant int32, c *task.DayCalendar, ifVersion int32, before task.Instant) error {
	err := s.write(ctx, tenant, c, sql.CalendarReplace, append(values(tenant, c), ifVersion, int64(before)))
	return s.explain(ctx, tenant, c.Name, ifVersion, err)
}

// Delete removes a calendar. Tasks that name it wait until there is one again.
func (s *Store) Delete(ctx context.Context, tenant int32, name string, ifVersion int32) error {
	err := s.write(ctx, tenant, &task.DayCalendar{Name: name}, sql.CalendarDelete, []any{tenant, name, ifVersion})
	return s.explain(ctx, tenant, name, ifVersion, err)
}

// DropTenant removes all calendars of a tenant.
func (s *Store) DropTenant(ctx context.Context, tenant int32) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := sql.CalendarsDrop.Exec(ctx, s.cluster.Pool(home(tenant)), tenant)
	return unavailable(err)
}

// Get returns a calendar.
func (s *Store) Get(ctx context.Context, tenant int32, name string) (*task.DayCalendar, error) {
	list, err := s.query(ctx, tenant, sql.CalendarGet, tenant, name)
	if err == nil && len(list) == 0 {
		return nil, task.Errorf(task.ReasonCalendarNotFound, "there is no calendar %q", name)
	}
	if err != nil {
		return nil, err
	}
	return list[0], nil
}

// List returns the calendars of a tenant by name, without their ranges.
func (s *Store) List(ctx context.Context, tenant int32) ([]*task.DayCalendar, error) {
	return s.query(ctx, tenant, sql.CalendarList, tenant, 2*task.MaxCalendars)
}

// write executes a statement that returns the version of a calendar. Afterwards the calendar
// is read again when it is needed.
func (s *Store) write(ctx context.Context, tenant int32, c *task.DayCalendar, st *statement.Statement, args []any) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := st.QueryRow(ctx, s.cluster.Pool(home(tenant)), args...).Scan(&c.Version, &c.UpdatedAt)
	if !errors.Is(err, pgx.ErrNoRows) {
		s.forget(key{tenant, c.Name})
		err = unavailable(err)
	}
	return err
}

// explain says why a change found no row.
func (s *Store) explain(ctx context.Context, tenant int32, name string, want int32, err error) error {
	if !errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	c, err := s.Get(ctx, tenant, name)
	if err != nil {
		return err
	}
	if want == 0 || want == c.Version {
		return task.Errorf(task.ReasonDatabaseUnavailable, "the change of calendar %q took too long, and was not stored; try again", name)
	}
	return task.Errorf(task.ReasonVersionMismatch, "calendar %q has version %d, and not %d", name, c.Version, want)
}

func (s *Store) query(ctx context.Context, tenant int32, st *statement.Statement, args ...any) ([]*task.DayCalendar, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	rows, err := st.Query(ctx, s.cluster.Pool(home(tenant)), args...)
	if err != nil {
		return nil, unavailable(err)
	}
	list, err := pgx.CollectRows(rows, scan)
	return list, unavailable(err)
}

func scan(row pgx.CollectableRow) (*task.DayCalendar, error) {
	c := &task.DayCalendar{ExpandedUntil: task.Never}
	var until *int64
	var froms, untils []int64
	if err := row.Scan(&c.Name, &c.Version, &c.UpdatedAt, &c.Zone, &until, &c.Count, &froms, &untils); err != nil {
		return nil, err
	}
	if until != nil {
		c.ExpandedUntil = task.Instant(*until)
	}
	for i := range min(len(froms), len(untils)) {
		c.Ranges = append(c.Ranges, task.Range{From: task.Instant(froms[i]), Until: task.Instant(untils[i])})
	}
	return c, nil
}

// values are the arguments that create and replace a calendar.
func values(tenant int32, c *task.DayCalendar) []any {
	froms, untils := make([]int64, len(c.Ranges)), make([]int64, len(c.Ranges))
	for i, r := range c.Ranges {
		froms[i], untils[i] = int64(r.From), int64(r.Until)
	}
	var until *int64
	if c.ExpandedUntil != task.Never {
		v := int64(c.ExpandedUntil)
		until = &v
	}
	return []any{tenant, c.Name, c.Zone, until, froms, untils}
}

func unavailable(err error) error {
	if err == nil {
		return nil
	}
	return task.Errorf(task.ReasonDatabaseUnavailable, "the database of the tenant's calendars does not answer; try again").CausedBy(err)
}
