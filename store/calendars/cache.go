package calendars

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/internal/ctxtime"
	"github.com/perceptor/perceptor/store/calendars/sql"
	"github.com/perceptor/perceptor/task"
)

const (
	// refreshEvery is how often the versions of needed calendars are compared.
	refreshEvery = 5 * time.Second
	// keepUnused is how long a calendar that no task needs stays in memory.
	keepUnused = 10 * time.Minute
	// maxRanges bounds the ranges in memory, of 16 bytes each.
	maxRanges = 2_000_000
	// maxWanted bounds the calendars that are waited for, maxWindows the combinations of
	// calendars in memory.
	maxWanted  = 10_000
	maxWindows = 10_000
)

// entry is what is known of a calendar.
type entry struct {
	exists  bool
	changed task.Instant // updated_at
	ranges  []task.Range
	used    time.Time
}

// Windows returns the windows of a task that excludes some calendars and is limited to
// others, or one of them that does not exist or has not been read yet. It does not wait.
func (s *Store) Windows(tenant int32, exclude, only []string) (w *task.Windows, missing task.MissingCalendar) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, list := range [][]string{exclude, only} {
		for _, name := range list {
			if ready, reading := s.ready(key{tenant, name}); !ready {
				return nil, task.MissingCalendar{Name: name, Reading: reading}
			}
		}
	}
	names := fmt.Sprintf("%d %q %q", tenant, exclude, only)
	if w = s.windows[names]; w == nil {
		if len(s.windows) >= maxWindows {
			clear(s.windows)
		}
		w = task.NewWindows(s.of(tenant, exclude), s.of(tenant, only))
		s.windows[names] = w
	}
	return w, missing
}

// ready reports whether a calendar is in memory. If not, it will be read; reading is false
// if that has not succeeded for some time.
func (s *Store) ready(k key) (ready, reading bool) {
	if e := s.known[k]; e != nil {
		e.used = time.Now()
		return e.exists, false
	}
	since, wanted := s.wanted[k]
	if !wanted && len(s.wanted) < maxWanted {
		since = time.Now()
		s.wanted[k] = since
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
	return false, time.Since(since) < callTimeout
}

// of returns copies of the ranges of calendars that are in memory.
func (s *Store) of(tenant int32, names []string) [][]task.Range {
	out := make([][]task.Range, len(names))
	for i, name := range names {
		out[i] = slices.Clone(s.known[key{tenant, name}].ranges)
	}
	return out
}

// Load reads the calendars with the names that are not in memory, so that Windows knows them.
// It returns the first one that does not exist, or "".
func (s *Store) Load(ctx context.Context, tenant int32, names []string) (missing string, err error) {
	for _, name := range names {
		k := key{tenant, name}
		s.mu.Lock()
		ready, _ := s.ready(k)
		s.mu.Unlock()
		if ready {
			continue
		}
		exists, err := s.read(ctx, k)
		if err != nil {
			return "", err
		}
		if !exists && missing == "" {
			missing = name
		}
	}
	return missing, nil
}

// read puts a calendar into memory, or that it does not exist.
func (s *Store) read(ctx context.Context, k key) (exists bool, err error) {
	c, err := s.Get(ctx, k.tenant, k.name)
	if e := new(task.Error); errors.As(err, &e) && e.Code == task.NotFound {
		c, err = &task.DayCalendar{}, nil
	}
	if err != nil {
		return false, err
	}
	e := &entry{exists: c.Version > 0, changed: c.UpdatedAt, ranges: c.Ranges, used: time.Now()}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(k)
	s.known[k] = e
	s.ranges += len(e.ranges)
	for s.ranges > maxRanges && len(s.known) > 1 {
		s.drop(s.leastUsed())
	}
	return e.exists, nil
}

// drop removes a calendar from memory.
func (s *Store) drop(k key) {
	if e := s.known[k]; e != nil {
		s.ranges -= len(e.ranges)
		delete(s.known, k)
	}
	delete(s.wanted, k)
	clear(s.windows)
}

func (s *Store) leastUsed() (least key) {
	var at time.Time
	for k, e := range s.known {
		if at.IsZero() || e.used.Before(at) {
			least, at = k, e.used
		}
	}
	return least
}

// forget makes a calendar be read again when it is needed next.
func (s *Store) forget(k key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop(k)
}

// Run reads the calendars that Windows lacks, and reads changed ones again. It returns
// when ctx ends.
func (s *Store) Run(ctx context.Context) error {
	pace := ctxtime.NewPace()
	tick := time.NewTimer(pace.Wait(refreshEvery))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
			s.readAll(ctx, s.unread())
		case <-tick.C:
			s.Refresh(ctx)
			tick.Reset(pace.Wait(refreshEvery))
		}
	}
}

// Refresh reads the calendars that Windows lacks, and those in memory that have changed. Run
// calls it.
func (s *Store) Refresh(ctx context.Context) {
	s.readAll(ctx, append(s.unread(), s.outdated(ctx)...))
}

// unread returns the calendars that Windows has missed.
func (s *Store) unread() []key {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.wanted))
}

// readAll reads calendars, those of different databases at once. What cannot be read is tried
// again at the next tick.
func (s *Store) readAll(ctx context.Context, list []key) {
	s.each(list, func(_ int, part []key) {
		for _, k := range part {
			if _, err := s.read(ctx, k); err != nil {
				return // the database does not answer
			}
		}
	})
}

// outdated returns the calendars in memory that have changed, and forgets those that were not
// used for long.
func (s *Store) outdated(ctx context.Context) (list []key) {
	var mu sync.Mutex
	s.each(s.inUse(), func(d int, part []key) {
		changed, err := s.changedOf(ctx, d, part)
		if err != nil {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		list = append(list, changed...)
	})
	return list
}

// inUse returns the calendars in memory after it has removed unused ones.
func (s *Store) inUse() (list []key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, e := range s.known {
		if time.Since(e.used) > keepUnused {
			s.drop(k)
		} else {
			list = append(list, k)
		}
	}
	return list
}

// changedOf returns those of the calendars of a database that differ from what is in memory.
func (s *Store) changedOf(ctx context.Context, d int, part []key) (changed []key, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	tenants, names := make([]int32, len(part)), make([]string, len(part))
	for i, k := range part {
		tenants[i], names[i] = k.tenant, k.name
	}
	rows, err := sql.CalendarVersions.Query(ctx, s.cluster.Pool(d), tenants, names)
	if err != nil {
		return nil, err
	}
	stored := map[key]task.Instant{}
	var k key
	var at task.Instant
	if _, err := pgx.ForEachRow(rows, []any{&k.tenant, &k.name, &at}, func() error { stored[k] = at; return nil }); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range part {
		if e, at := s.known[k], stored[k]; e != nil && e.changed != at {
			changed = append(changed, k)
		}
	}
	return changed, nil
}

// each calls f for the calendars of each database at once.
func (s *Store) each(list []key, f func(d int, part []key)) {
	parts := map[int][]key{}
	for _, k := range list {
		parts[home(k.tenant)] = append(parts[home(k.tenant)], k)
	}
	var calls sync.WaitGroup
	for d, part := range parts {
		calls.Go(func() { f(d, part) })
	}
	calls.Wait()
}
