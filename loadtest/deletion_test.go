package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/loadtest/stack"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/shards"
	"github.com/perceptor/perceptor/task"
)

// deletedTenant is a tenant that is deleted while other tenants keep working.
type deletedTenant struct {
	*guest
	id      int
	db      *pgx.Conn
	begun   time.Time
	left    estate
	locked  int // the database in which a lock blocks the deletion
	release func()
}

// deleteTenant creates a tenant with data of every sort, begins to delete it, and blocks
// the deletion in one database with a lock on one of the tenant's rows.
func deleteTenant(t *testing.T, s *stack.Stack) *deletedTenant {
	t.Helper()
	c := &deletedTenant{guest: newGuest(t, s, "deleted")}
	db, err := pgx.Connect(t.Context(), s.Postgres())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close(context.Background()) }) //nolint:errcheck // the connection is not used again
	c.db = db
	if err := db.QueryRow(t.Context(), "SELECT id FROM perceptor_00.tenant WHERE name = $1", c.name).Scan(&c.id); err != nil {
		t.Fatal(err)
	}
	c.fill()
	c.left = c.estate()
	c.beginDeletion()
	c.lockRow()
	return c
}

// fill creates the tenant's data: tasks in the near and far tier, as rows and packed;
// finished, dead and open runs; keys; and both topics.
func (c *deletedTenant) fill() {
	c.t.Helper()
	stop := c.listen(map[string]client.Handler{
		"succeeding": func(context.Context, *client.Run) error { return nil },
		"failing":    func(context.Context, *client.Run) error { return client.Permanent(errors.New("failing")) },
	})
	far := make([]client.Task, 150)
	for i := range far {
		far[i] = client.Task{Kind: "late", Type: client.OneShot, Begin: time.Now().Add(5 * time.Hour)}
	}
	if _, err := c.AddTasks(c.t.Context(), far); err != nil {
		c.t.Fatal(err)
	}
	for i := range 24 { // in many databases
		c.add(client.Task{Kind: "hourly", Type: client.NonBlocking, Begin: time.Now().Add(5 * time.Minute), Interval: time.Hour},
			client.WithRequestID(c.name+strconv.Itoa(i)))
		c.add(client.Task{Kind: "succeeding", Type: client.OneShot, IdempotencyKey: "key-" + strconv.Itoa(i)})
	}
	c.add(client.Task{Kind: "failing", Type: client.OneShot})
	c.configure()
	await(c.t, "there is a dead run and there are 24 calls", func() bool { return len(c.dead(client.DeadFilter{})) == 1 && len(c.called("succeeding")) >= 24 })
	await(c.t, "the tenant has both of its topics", func() bool { return len(c.topics()) == 2 })
	stop()
	open := c.add(client.Task{Kind: "succeeding", Type: client.Blocking, Interval: time.Hour})
	await(c.t, "a run is open", func() bool {
		info, err := c.GetTask(c.t.Context(), open)
		return err == nil && info.State == client.Running
	})
}

// beginDeletion requests the deletion twice and waits until the token is refused.
func (c *deletedTenant) beginDeletion() {
	c.t.Helper()
	first, err := c.stack.DeleteTenant(c.t.Context(), c.name)
	if err != nil {
		c.t.Fatal(err)
	}
	again, err := c.stack.DeleteTenant(c.t.Context(), c.name)
	if err != nil || !proto.Equal(again.GetCreateTime(), first.GetCreateTime()) {
		c.t.Fatalf("second DeleteTenant = %v, %v, want the create time of the first: %v", again, err, first)
	}
	c.begun = first.GetCreateTime().AsTime()
	await(c.t, "the token is refused", c.refused)
}

func (c *deletedTenant) refused() bool {
	_, err := c.GetTask(c.t.Context(), 512)
	return errors.Is(err, client.ErrUnauthenticated)
}

// home returns the home database of the tenant, in which the deletion ends last.
func (c *deletedTenant) home() int { return c.id % task.Databases }

// lockRow locks one of the tenant's rows.
func (c *deletedTenant) lockRow() {
	c.t.Helper()
	locker, err := pgx.Connect(c.t.Context(), c.stack.Postgres())
	if err != nil {
		c.t.Fatal(err)
	}
	c.release = func() { locker.Close(context.Background()) } //nolint:errcheck // closing the connection ends its transaction
	c.t.Cleanup(c.release)
	tx, err := locker.Begin(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	for c.locked = range task.Databases {
		var id int64
		err := tx.QueryRow(c.t.Context(), fmt.Sprintf("SELECT id FROM %s.task WHERE tenant_id = $1 LIMIT 1 FOR UPDATE", store.SchemaName(c.locked)), c.id).Scan(&id)
		if err == nil && c.locked != c.home() {
			return
		}
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			c.t.Fatal(err)
		}
	}
	c.t.Fatal("the tenant has rows only in its home database")
}

// progress returns the number of databases in which the deletion has ended, and its
// position in the database with the lock. It returns there = false if that database has no
// running operation.
func (c *deletedTenant) progress() (ended int, position string, there bool) {
	c.t.Helper()
	for d := range task.Databases {
		var state int
		var at string
		err := c.db.QueryRow(c.t.Context(), fmt.Sprintf("SELECT state, position FROM %s.bulk_operation WHERE tenant_id = $1 AND action = $2", store.SchemaName(d)),
			c.id, int(task.BulkDeleteTenant)).Scan(&state, &at)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
		case err != nil:
			c.t.Fatal(err)
		case d == c.locked:
			position, there = at, state == 1
		case state == 3:
			ended++
		}
	}
	return ended, position, there
}

// counts returns the task counts of the load's tenant, which the deletion must not affect.
func (c *deletedTenant) counts() (all *perceptorv1.CountTasksResponse) {
	c.t.Helper()
	all, err := c.stack.Counts(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	return all
}

// finishDeletion kills every program in the middle of the deletion, restarts them, and
// checks that the deletion continues and ends.
func (c *deletedTenant) finishDeletion() {
	c.t.Helper()
	const others = task.Databases - 2 // without the home and the database with the lock
	await(c.t, "the deletion ends in the other databases", func() bool {
		ended, position, there := c.progress()
		return there && ended == others && strings.HasPrefix(position, "1.")
	})
	before := c.counts()
	for _, p := range c.stack.Parts {
		if strings.HasPrefix(p.Name, "taskd") || strings.HasPrefix(p.Name, "dispatcher") {
			if err := p.Kill(); err != nil {
				c.t.Fatal(err)
			}
		}
	}
	if ended, position, there := c.progress(); !there || ended != others {
		c.t.Errorf("after the kill the deletion has ended in %d databases and is at position %q, running: %t", ended, position, there)
	}
	c.release()
	if err := c.stack.Revive(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
	await(c.t, "the tenant is gone", func() bool {
		progress, err := c.stack.DeleteTenant(c.t.Context(), c.name)
		if err == nil && !progress.GetCreateTime().AsTime().Equal(c.begun) {
			c.t.Fatalf("the deletion has started again from the begin: %v", progress)
		}
		return status.Code(err) == codes.NotFound
	})
	c.checkNothingLeft()
	if after := c.counts(); !proto.Equal(before, after) {
		c.t.Errorf("the counts of the other tenant = %v, want %v", after, before)
	}
}

// checkNothingLeft looks for the tenant's data in every table and in Kafka.
func (c *deletedTenant) checkNothingLeft() {
	c.t.Helper()
	if names := c.topics(); len(names) != 0 {
		c.t.Errorf("topics of the deleted tenant: %v", names)
	}
	if !c.refused() {
		c.t.Error("the token of the deleted tenant is accepted")
	}
	cluster, err := store.Open(c.t.Context(), store.Config{Servers: []store.Server{{DSN: c.stack.Postgres()}}, Application: "test"})
	if err != nil {
		c.t.Fatal(err)
	}
	defer cluster.Close()
	census, err := shards.New(cluster, shards.Config{Log: slog.New(slog.DiscardHandler)}).Census(c.t.Context(), int32(c.id))
	if err != nil || census != (shards.Census{}) {
		c.t.Errorf("tasks of the deleted tenant: %+v, %v", census, err)
	}
	// The history is excluded: it is dropped by day. So are the audit log, which keeps its retention, and the figures of
	// the last hour, which expire.
	rows, err := c.db.Query(c.t.Context(), `SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'tenant_id'
		 WHERE n.nspname LIKE 'perceptor\___' AND c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relname NOT IN ('run_event', 'audit_event', 'audit_count', 'figure')`)
	if err != nil {
		c.t.Fatal(err)
	}
	tables, err := pgx.CollectRows(rows, pgx.RowToStructByPos[struct{ Schema, Name string }])
	if err != nil || len(tables) < 10*task.Databases {
		c.t.Fatalf("only %d tables have a tenant_id: %v", len(tables), err)
	}
	for _, table := range tables {
		var n int
		name := pgx.Identifier{table.Schema, table.Name}.Sanitize()
		if err := c.db.QueryRow(c.t.Context(), "SELECT count(*) FROM "+name+" WHERE tenant_id = $1", c.id).Scan(&n); err != nil || n != 0 {
			c.t.Errorf("%s has %d rows of the deleted tenant, %v", name, n, err)
		}
	}
}

// recreate creates a tenant of the same name and checks that it works and inherits nothing.
func (c *deletedTenant) recreate() {
	c.t.Helper()
	g := newGuestNamed(c.t, c.stack, c.name)
	for inherited, err := range g.ListTasks(c.t.Context(), client.Filter{}) {
		c.t.Fatalf("the new tenant of the same name has the task %+v, %v", inherited, err)
	}
	c.checkNothingInherited(g)
	g.listen(map[string]client.Handler{"succeeding": func(context.Context, *client.Run) error { return nil }})
	id := g.add(client.Task{Kind: "succeeding", Type: client.OneShot, IdempotencyKey: "key-1"})
	await(c.t, "a task of the new tenant is called", func() bool { return len(g.called("succeeding")) == 1 })
	if run := g.called("succeeding")[0]; run.TaskID != id {
		c.t.Errorf("the handler was called for task %d, want %d", run.TaskID, id)
	}
}
