// Package audit stores audit events. An event belongs into its tenant's home database, so
// that a list of a tenant's events usually reads rows of one database. If that database does
// not answer, the event goes into the next one that does: while any database answers, no
// event is lost. Lists therefore ask all databases and merge the answers. An event that is
// in two databases, because the first did not say that it had stored it, is listed once.
//
// The log does not grow for ever: [Store.Purge] deletes the events that are older than the
// retention, and the oldest ones of a tenant that has very many.
package audit

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/audit/sql"
	"github.com/perceptor/perceptor/task"
)

const (
	// appendTimeout bounds the call of one database that stores events.
	appendTimeout = time.Second
	// readTimeout bounds the call of one database that lists events.
	readTimeout = 5 * time.Second
	// purgeAtOnce is the most rows that one statement deletes.
	purgeAtOnce = 5000
	// KeepPerTenant is how many events of one tenant a database keeps at most.
	KeepPerTenant = 100_000
)

// Store is the audit log in all databases. It is safe for concurrent use.
type Store struct{ cluster *store.Cluster }

// New returns the audit log of a cluster.
func New(cluster *store.Cluster) *Store { return &Store{cluster} }

// home returns the database in which events of a tenant belong.
func home(tenant int32) int { return int(max(tenant, 0)) % task.Databases }

// Append stores events. It may be repeated with the same events. After an error some may
// not be stored.
func (s *Store) Append(ctx context.Context, events []task.AuditEvent) error {
	var byHome [task.Databases][]task.AuditEvent
	for _, e := range events {
		d := home(e.Tenant)
		byHome[d] = append(byHome[d], e)
	}
	// At once: a database that is slow to fail holds up neither the others nor the whole for longer than a caller waits.
	var errs [task.Databases]error
	var storing sync.WaitGroup
	for d, list := range byHome {
		if len(list) > 0 {
			storing.Go(func() { errs[d] = s.appendFrom(ctx, d, columnsOf(list)) })
		}
	}
	storing.Wait()
	return store.Distinct(errs[:]...)
}

// appendFrom stores rows in the first database that answers, from database d on.
func (s *Store) appendFrom(ctx context.Context, d int, columns []any) error {
	var first error // which says enough: the others are mostly of the same server
	for i := range task.Databases {
		err := s.appendTo(ctx, (d+i)%task.Databases, columns)
		if err == nil {
			return nil
		}
		if first == nil {
			first = err
		}
		if ctx.Err() != nil {
			break
		}
	}
	return fmt.Errorf("store audit events in any database: %w", first)
}

func (s *Store) appendTo(ctx context.Context, d int, columns []any) error {
	ctx, cancel := context.WithTimeout(ctx, appendTimeout)
	defer cancel()
	_, err := sql.AuditInsert.Exec(ctx, s.cluster.Pool(d), columns...)
	return err
}

// columnsOf returns events as the arguments of the insert.
func columnsOf(events []task.AuditEvent) []any {
	n := len(events)
	tenants, ats, ids, operators := make([]int32, n), make([]int64, n), make([]int64, n), make([]bool, n)
	var texts [8][]string
	for i := range texts {
		texts[i] = make([]string, n)
	}
	for i, e := range events {
		tenants[i], ats[i], ids[i], operators[i] = e.Tenant, int64(e.At), e.ID, e.Operator
		for j, text := range []string{e.TenantName, e.Actor, e.Source, e.Action, e.Object, e.Result, e.RequestID, changesText(e.Changes)} {
			texts[j][i] = text
		}
	}
	return []any{tenants, ats, ids, texts[0], texts[1], operators, texts[2], texts[3], texts[4], texts[5], texts[6], texts[7]}
}

func changesText(changes []task.AuditChange) string {
	if len(changes) == 0 {
		return ""
	}
	text, err := json.Marshal(changes)
	if err != nil {
		panic(err) // strings
	}
	return string(text)
}

// List returns the page of events that a query selects, newest first, from all databases
// that answer. It returns [task.Unavailable] if none does.
func (s *Store) List(ctx context.Context, q task.AuditQuery) (task.AuditPage, error) {
	var lists [task.Databases][]task.AuditEvent
	var errs [task.Databases]error
	var asking sync.WaitGroup
	for d := range task.Databases {
		asking.Go(func() { lists[d], errs[d] = s.read(ctx, d, q) })
	}
	asking.Wait()
	var page task.AuditPage
	for d, err := range errs {
		if err != nil {
			page.Missing = append(page.Missing, d)
		}
	}
	if len(page.Missing) == task.Databases {
		return task.AuditPage{}, task.Errorf(task.ReasonDatabaseUnavailable, "no database answers; try again").CausedBy(store.Distinct(errs[:]...))
	}
	page.Events = merged(lists[:])
	if len(page.Events) >= q.Limit {
		page.Events = page.Events[:q.Limit]
		last := page.Events[q.Limit-1]
		page.Next = &task.AuditCursor{At: last.At, ID: last.ID}
	}
	return page, nil
}

// merged returns the events of all lists, newest first, each once.
func merged(lists [][]task.AuditEvent) []task.AuditEvent {
	all := slices.Concat(lists...)
	slices.SortFunc(all, func(a, b task.AuditEvent) int {
		return cmp.Or(cmp.Compare(b.At, a.At), cmp.Compare(b.ID, a.ID))
	})
	return slices.CompactFunc(all, func(a, b task.AuditEvent) bool { return a.At == b.At && a.ID == b.ID })
}

// read returns up to the limit of a query from database d.
func (s *Store) read(ctx context.Context, d int, q task.AuditQuery) ([]task.AuditEvent, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	at, id := int64(task.Never), int64(0)
	if q.Until != 0 {
		at = int64(q.Until)
	}
	if q.After != nil && int64(q.After.At) < at {
		at, id = int64(q.After.At), q.After.ID
	}
	args := []any{q.Actor, q.Action, q.Object, int64(q.From), at, id, q.Limit}
	statement := sql.AuditOfAll
	if !q.AnyTenant {
		statement, args = sql.AuditOfTenant, append([]any{q.Tenant, q.Own}, args...)
	}
	rows, err := statement.Query(ctx, s.cluster.Pool(d), args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, scan)
}

func scan(row pgx.CollectableRow) (e task.AuditEvent, err error) {
	var changes string
	err = row.Scan(&e.Tenant, &e.At, &e.ID, &e.TenantName, &e.Actor, &e.Operator, &e.Source, &e.Action, &e.Object, &e.Result, &e.RequestID, &changes)
	if err != nil || changes == "" {
		return e, err
	}
	return e, json.Unmarshal([]byte(changes), &e.Changes)
}

// Purge deletes a bounded number of the events of database d that are older than the
// retention, and of the oldest events beyond [KeepPerTenant]. It returns how many it deleted
// and whether there may be more. It is safe to call concurrently.
func (s *Store) Purge(ctx context.Context, d int, retention time.Duration) (n int, more bool, err error) {
	return s.purge(ctx, d, retention, KeepPerTenant)
}

func (s *Store) purge(ctx context.Context, d int, retention time.Duration, keep int) (n int, more bool, err error) {
	pool := s.cluster.Pool(d)
	var expired, excess int
	if err := sql.AuditPurge.QueryRow(ctx, pool, retention.Milliseconds(), purgeAtOnce).Scan(&expired); err != nil {
		return 0, false, fmt.Errorf("purge audit events: %w", err)
	}
	if err := sql.AuditTrim.QueryRow(ctx, pool, keep, purgeAtOnce).Scan(&excess); err != nil {
		return expired, false, fmt.Errorf("purge audit events: %w", err)
	}
	return expired + excess, max(expired, excess) >= purgeAtOnce, nil
}
