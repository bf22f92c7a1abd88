package audit

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/internal/testenv"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/audit/sql"
	"github.com/perceptor/perceptor/store/storetest"
	"github.com/perceptor/perceptor/task"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func event(tenant int32, at task.Instant, id int64) task.AuditEvent {
	return task.AuditEvent{
		At: at, ID: id, Tenant: tenant, TenantName: fmt.Sprint("t", tenant), Actor: "pct_x", Source: "10.0.0.1:9", Action: "TaskService/CancelTask",
		Object: fmt.Sprint(id), Result: "OK", RequestID: "r", Changes: []task.AuditChange{{Field: "state", Before: "SCHEDULED", After: "CANCELLED"}},
	}
}

func store1(t *testing.T) (*Store, *store.Cluster) {
	t.Helper()
	c := storetest.Open(t)
	return New(c), c
}

func (s *Store) mustAppend(t *testing.T, events ...task.AuditEvent) {
	t.Helper()
	if err := s.Append(t.Context(), events); err != nil {
		t.Fatal(err)
	}
}

func (s *Store) mustList(t *testing.T, q task.AuditQuery) task.AuditPage {
	t.Helper()
	page, err := s.List(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	return page
}

func TestEventsAreListedInPagesNewestFirst(t *testing.T) {
	t.Parallel()
	s, _ := store1(t)
	var all []task.AuditEvent
	for i := range 40 {
		all = append(all, event(int32(i%3), task.Instant(1000+i/2), int64(i+1))) // two at each instant
	}
	all = append(all, event(task.AuditLogins, 2000, 99))
	s.mustAppend(t, all...)
	s.mustAppend(t, all...) // changes nothing
	operators := event(7, 3000, 100)
	operators.Operator, operators.Actor = true, "pct_admin"
	s.mustAppend(t, operators)
	for _, c := range []struct {
		name string
		q    task.AuditQuery
		want int
	}{
		{"all", task.AuditQuery{AnyTenant: true}, 42},
		{"a tenant", task.AuditQuery{Tenant: 1}, 13},
		{"logins", task.AuditQuery{Tenant: task.AuditLogins}, 1},
		{"a range", task.AuditQuery{AnyTenant: true, From: 1005, Until: 1010}, 10},
		{"an object", task.AuditQuery{AnyTenant: true, Object: "7"}, 1},
		{"an actor", task.AuditQuery{AnyTenant: true, Actor: "nobody"}, 0},
		{"an operator, for an operator", task.AuditQuery{Tenant: 7, Actor: "pct_admin"}, 1},
		{"an operator, for the tenant", task.AuditQuery{Tenant: 7, Own: true, Actor: "pct_admin"}, 0},
		{"all of a tenant, for itself", task.AuditQuery{Tenant: 7, Own: true}, 1},
	} {
		var got []task.AuditEvent
		c.q.Limit = 7
		for {
			page := s.mustList(t, c.q)
			got = append(got, page.Events...)
			if c.q.After = page.Next; page.Next == nil {
				break
			}
		}
		if len(got) != c.want {
			t.Errorf("%s: %d events, want %d", c.name, len(got), c.want)
		}
		for i := 1; i < len(got); i++ {
			if a, b := got[i-1], got[i]; a.At < b.At || a.At == b.At && a.ID <= b.ID {
				t.Errorf("%s: %d.%d is before %d.%d", c.name, a.At, a.ID, b.At, b.ID)
			}
		}
	}
	if got := s.mustList(t, task.AuditQuery{AnyTenant: true, Object: "7", Limit: 1}); cmp.Diff(all[6], got.Events[0]) != "" {
		t.Errorf("an event changes when it is stored: %s", cmp.Diff(all[6], got.Events[0]))
	}
}

// TestAnEventGoesElsewhereWhenItsDatabaseDoesNotAnswer takes the table away, which is like a
// server that does not answer.
func TestAnEventGoesElsewhereWhenItsDatabaseDoesNotAnswer(t *testing.T) {
	t.Parallel()
	s, c := store1(t)
	e := event(5, 1000, 1)
	s.mustAppend(t, e)
	if _, err := c.Pool(5).Exec(t.Context(), "ALTER TABLE audit_event RENAME TO away"); err != nil {
		t.Fatal(err)
	}
	s.mustAppend(t, e, event(5, 1001, 2))
	page := s.mustList(t, task.AuditQuery{Tenant: 5, Limit: 10})
	if len(page.Events) != 2 || cmp.Diff([]int{5}, page.Missing) != "" {
		t.Errorf("got %d events, missing %v", len(page.Events), page.Missing)
	}
	if _, err := c.Pool(5).Exec(t.Context(), "ALTER TABLE away RENAME TO audit_event"); err != nil {
		t.Fatal(err)
	}
	// Event 1 is in two databases now.
	if page := s.mustList(t, task.AuditQuery{Tenant: 5, Limit: 10}); len(page.Events) != 2 || page.Missing != nil {
		t.Errorf("got %d events, missing %v", len(page.Events), page.Missing)
	}
}

// TestEventsGoElsewhereInTimeWhenHalfOfTheDatabasesAreSlowToFail locks the tables of half of the databases, as a server does
// that is slow.
func TestEventsGoElsewhereInTimeWhenHalfOfTheDatabasesAreSlowToFail(t *testing.T) {
	t.Parallel()
	s, c := store1(t)
	for d := range task.Databases / 2 {
		tx, err := c.Pool(d).Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback(t.Context()) //nolint:errcheck // it only ends the lock
		if _, err := tx.Exec(t.Context(), "SET LOCAL idle_in_transaction_session_timeout = 0; LOCK TABLE audit_event"); err != nil {
			t.Fatal(err)
		}
	}
	var events []task.AuditEvent
	for d := range int32(task.Databases) {
		events = append(events, event(d, 1000, int64(d+1)))
	}
	// One after the other, the databases take the limit of a lock 8 + 7 + ... + 1 times.
	ctx, cancel := context.WithTimeout(t.Context(), 20*store.DefaultLockTimeout)
	defer cancel()
	if err := s.Append(ctx, events); err != nil {
		t.Errorf("half of the databases take events: %v", err)
	}
}

// counts returns the counts of database 0.
func (s *Store) counts(t *testing.T, c *store.Cluster) map[int32]int64 {
	t.Helper()
	rows, err := c.Pool(0).Query(t.Context(), "SELECT tenant_id, events FROM audit_count")
	if err != nil {
		t.Fatal(err)
	}
	counts := map[int32]int64{}
	var tenant int32
	var n int64
	if _, err := pgx.ForEachRow(rows, []any{&tenant, &n}, func() error { counts[tenant] = n; return nil }); err != nil {
		t.Fatal(err)
	}
	return counts
}

func TestAnEventThatNoDatabaseStoresFailsWithOneError(t *testing.T) {
	t.Parallel()
	err := New(storetest.OpenDSN(t, "postgres://nobody@127.0.0.1:1/none?sslmode=disable")).Append(t.Context(), []task.AuditEvent{event(1, 1, 1)})
	if err == nil || strings.Count(err.Error(), "failed to connect") != 1 {
		t.Errorf("16 databases that do not answer are told as %v", err)
	}
}

func TestOldEventsAndThoseOfGreedyTenantsArePurged(t *testing.T) {
	t.Parallel()
	s, c := store1(t)
	now := task.At(time.Now())
	var events []task.AuditEvent
	for i := range 30 {
		events = append(events, event(16, now+task.Instant(i), int64(i+1)), event(32, now.Add(-time.Duration(i)*time.Hour), int64(i+1)))
	}
	events = append(events, event(48, now, 1), event(64, now.Add(-1000*time.Hour), 2))
	s.mustAppend(t, events...)
	s.mustAppend(t, events...) // counts nothing again
	// All of these tenants have their home in database 0.
	if n, more, err := s.purge(t.Context(), 0, 10*time.Hour+30*time.Minute, 25); err != nil || more || n != 19+1+5 {
		t.Errorf("purged %d, %v, %v", n, more, err)
	}
	if n := s.counts(t, c); cmp.Diff(map[int32]int64{16: 25, 32: 11, 48: 1}, n) != "" {
		t.Errorf("the counts are %v", n)
	}
	for tenant, want := range map[int32]int{16: 25, 32: 11, 48: 1, 64: 0} {
		if page := s.mustList(t, task.AuditQuery{Tenant: tenant, Limit: 100}); len(page.Events) != want {
			t.Errorf("tenant %d has %d events, want %d", tenant, len(page.Events), want)
		}
	}
	newest := s.mustList(t, task.AuditQuery{Tenant: 16, Limit: 100}).Events
	if newest[0].At != now+29 || newest[24].At != now+5 {
		t.Error("the trim has not kept the newest events")
	}
}

// TestTheDatabasesClockDecidesWhichEventsAreOld: by the clock of this process it is the year 2000.
func TestTheDatabasesClockDecidesWhichEventsAreOld(t *testing.T) {
	t.Parallel()
	s, c := store1(t)
	s.mustAppend(t, event(16, task.At(time.Date(1999, 12, 31, 0, 0, 0, 0, time.UTC)), 1), event(16, task.At(time.Now()), 2))
	dsn := c.Pool(0).Config().ConnString()
	synctest.Test(t, func(t *testing.T) {
		c, err := store.Open(t.Context(), store.Config{Servers: []store.Server{{DSN: dsn}}, MaxConns: 2})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if n, more, err := New(c).Purge(t.Context(), 0, 90*24*time.Hour); err != nil || more || n != 1 {
			t.Errorf("purged %d, %v, %v", n, more, err)
		}
	})
}

// TestATrimReadsNoMoreEventsThanItDeletes counts the rows and index entries that the statement
// reads beside many that stay, of the greedy tenant and of another one.
func TestATrimReadsNoMoreEventsThanItDeletes(t *testing.T) {
	t.Parallel()
	s, c := store1(t)
	const kept, excess = 1500, 10
	var events []task.AuditEvent
	for i := range kept + excess {
		events = append(events, event(16, task.Instant(i), int64(i+1)))
	}
	for i := range kept {
		events = append(events, event(32, task.Instant(i), int64(i+1)))
	}
	for batch := range slices.Chunk(events, 250) { // each within the second of an append
		s.mustAppend(t, batch...)
	}
	for _, want := range []int{excess, 0} {
		err := pgx.BeginFunc(t.Context(), c.Pool(0), func(tx pgx.Tx) error {
			var gone, read int
			if err := sql.AuditTrim.QueryRow(t.Context(), tx, kept, purgeAtOnce).Scan(&gone); err != nil {
				return err
			}
			err := tx.QueryRow(t.Context(), `SELECT sum(pg_stat_get_xact_tuples_returned(r) + pg_stat_get_xact_tuples_fetched(r))
				FROM unnest(ARRAY['audit_event', 'audit_event_pkey', 'audit_event_at']::regclass[]) r`).Scan(&read)
			if gone != want || read > 10*excess {
				t.Errorf("the trim has deleted %d events, want %d, and read %d rows and index entries", gone, want, read)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestLongTextsAreStored(t *testing.T) {
	t.Parallel()
	s, _ := store1(t)
	e := event(1, 1, 1)
	e.Object = strings.Repeat("ä", task.MaxAuditText/2)
	s.mustAppend(t, e)
	if got := s.mustList(t, task.AuditQuery{Tenant: 1, Limit: 1}).Events; got[0].Object != e.Object {
		t.Errorf("got %q", got[0].Object)
	}
}
