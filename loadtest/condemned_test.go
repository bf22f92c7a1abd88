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

// condemned is a tenant that is deleted while others go on.
type condemned struct {
	*guest
	id      int
	db      *pgx.Conn
	begun   time.Time
	held    int // the database in which its deletion is held up
	release func()
}

// condemn makes a tenant that has something of everything, begins to delete it, and
// holds the deletion up in one database, by a lock on a row of its.
func condemn(t *testing.T, s *stack.Stack) *condemned {
	t.Helper()
	c := &condemned{guest: newGuest(t, s, "condemned")}
	db, err := pgx.Connect(t.Context(), s.Postgres())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close(context.Background()) }) //nolint:errcheck // nothing depends on it
	c.db = db
	if err := db.QueryRow(t.Context(), "SELECT id FROM perceptor_00.tenant WHERE name = $1", c.name).Scan(&c.id); err != nil {
		t.Fatal(err)
	}
	c.fill()
	c.beginDeletion()
	c.hold()
	return c
}

// fill gives the tenant tasks near and far, packed and as rows, finished, dead and
// running ones, keys, and both topics.
func (c *condemned) fill() {
	c.t.Helper()
	stop := c.listen(map[string]client.Handler{
		"glad": func(context.Context, *client.Run) error { return nil },
		"sad":  func(context.Context, *client.Run) error { return client.Permanent(errors.New("sad")) },
	})
	far := make([]client.Task, 150)
	for i := range far {
		far[i] = client.Task{Kind: "late", Type: client.OneShot, Begin: time.Now().Add(5 * time.Hour)}
	}
	if _, err := c.AddTasks(c.t.Context(), far); err != nil {
		c.t.Fatal(err)
	}
	for i := range 24 { // over many databases
		c.add(client.Task{Kind: "hourly", Type: client.NonBlocking, Begin: time.Now().Add(5 * time.Minute), Interval: time.Hour},
			client.WithRequestID(c.name+strconv.Itoa(i)))
		c.add(client.Task{Kind: "glad", Type: client.OneShot, IdempotencyKey: "key-" + strconv.Itoa(i)})
	}
	c.add(client.Task{Kind: "sad", Type: client.OneShot})
	await(c.t, "a run dies and 24 end", func() bool { return len(c.dead(client.DeadFilter{})) == 1 && len(c.called("glad")) >= 24 })
	await(c.t, "the tenant has both topics", func() bool { return len(c.topics()) == 2 })
	stop()
	open := c.add(client.Task{Kind: "glad", Type: client.Blocking, Interval: time.Hour})
	await(c.t, "a run is open", func() bool {
		info, err := c.GetTask(c.t.Context(), open)
		return err == nil && info.State == client.Running
	})
}

// beginDeletion asks for it twice, and waits until the token is refused.
func (c *condemned) beginDeletion() {
	c.t.Helper()
	first, err := c.stack.DeleteTenant(c.t.Context(), c.name)
	if err != nil {
		c.t.Fatal(err)
	}
	again, err := c.stack.DeleteTenant(c.t.Context(), c.name)
	if err != nil || !proto.Equal(again.GetCreateTime(), first.GetCreateTime()) {
		c.t.Fatalf("asked again: %v, %v; first %v", again, err, first)
	}
	c.begun = first.GetCreateTime().AsTime()
	await(c.t, "the token is refused", c.refused)
}

func (c *condemned) refused() bool {
	_, err := c.GetTask(c.t.Context(), 512)
	return errors.Is(err, client.ErrUnauthenticated)
}

// home is the database that waits for the others.
func (c *condemned) home() int { return c.id % task.Databases }

// hold locks one of the tenant's rows.
func (c *condemned) hold() {
	c.t.Helper()
	locker, err := pgx.Connect(c.t.Context(), c.stack.Postgres())
	if err != nil {
		c.t.Fatal(err)
	}
	c.release = func() { locker.Close(context.Background()) } //nolint:errcheck // that ends its transaction
	c.t.Cleanup(c.release)
	tx, err := locker.Begin(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	for c.held = range task.Databases {
		var id int64
		err := tx.QueryRow(c.t.Context(), fmt.Sprintf("SELECT id FROM %s.task WHERE tenant_id = $1 LIMIT 1 FOR UPDATE", store.SchemaName(c.held)), c.id).Scan(&id)
		if err == nil && c.held != c.home() {
			return
		}
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			c.t.Fatal(err)
		}
	}
	c.t.Fatal("the tenant has rows in no database but its home")
}

// stands returns in how many databases the deletion has ended, and where it is in
// the one that is held up; there: the operation is known there.
func (c *condemned) stands() (ended int, position string, there bool) {
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
		case d == c.held:
			position, there = at, state == 1
		case state == 3:
			ended++
		}
	}
	return ended, position, there
}

// counts are those of the load's tenant, which has nothing to do with all this.
func (c *condemned) counts() (all *perceptorv1.CountTasksResponse) {
	c.t.Helper()
	all, err := c.stack.Counts(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	return all
}

// execute kills every program in the middle of the deletion, and sees that it is
// taken up again and comes to its end.
func (c *condemned) execute() {
	c.t.Helper()
	const others = task.Databases - 2 // but the home, and the one that is held up
	await(c.t, "the deletion ends in the other databases", func() bool {
		ended, position, there := c.stands()
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
	if ended, position, there := c.stands(); !there || ended != others {
		c.t.Errorf("after the kill the deletion has ended in %d databases, and stands at %q: %t", ended, position, there)
	}
	c.release()
	if err := c.stack.Revive(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
	await(c.t, "the tenant is gone", func() bool {
		progress, err := c.stack.DeleteTenant(c.t.Context(), c.name)
		if err == nil && !progress.GetCreateTime().AsTime().Equal(c.begun) {
			c.t.Fatalf("the deletion has begun anew: %v", progress)
		}
		return status.Code(err) == codes.NotFound
	})
	c.nothingIsLeft()
	if after := c.counts(); !proto.Equal(before, after) {
		c.t.Errorf("the other tenant has %v, had %v", after, before)
	}
}

// nothingIsLeft looks for what the tenant had, in every table and in Kafka.
func (c *condemned) nothingIsLeft() {
	c.t.Helper()
	if names := c.topics(); len(names) != 0 {
		c.t.Errorf("the topics %v are left", names)
	}
	if !c.refused() {
		c.t.Error("its token is good")
	}
	cluster, err := store.Open(c.t.Context(), store.Config{Servers: []store.Server{{DSN: c.stack.Postgres()}}, Application: "test"})
	if err != nil {
		c.t.Fatal(err)
	}
	defer cluster.Close()
	census, err := shards.New(cluster, shards.Config{Log: slog.New(slog.DiscardHandler)}).Census(c.t.Context(), int32(c.id))
	if err != nil || census != (shards.Census{}) {
		c.t.Errorf("its tasks are left: %+v, %v", census, err)
	}
	// The history goes with its days.
	rows, err := c.db.Query(c.t.Context(), `SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attname = 'tenant_id'
		 WHERE n.nspname LIKE 'perceptor\___' AND c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relname <> 'run_event'`)
	if err != nil {
		c.t.Fatal(err)
	}
	tables, err := pgx.CollectRows(rows, pgx.RowToStructByPos[struct{ Schema, Name string }])
	if err != nil || len(tables) < 10*task.Databases {
		c.t.Fatalf("%d tables have a tenant_id: %v", len(tables), err)
	}
	for _, table := range tables {
		var n int
		name := pgx.Identifier{table.Schema, table.Name}.Sanitize()
		if err := c.db.QueryRow(c.t.Context(), "SELECT count(*) FROM "+name+" WHERE tenant_id = $1", c.id).Scan(&n); err != nil || n != 0 {
			c.t.Errorf("%s has %d rows of the tenant, %v", name, n, err)
		}
	}
}

// rise makes a tenant of the same name, which inherits nothing and works.
func (c *condemned) rise() {
	c.t.Helper()
	g := newGuestNamed(c.t, c.stack, c.name)
	for inherited, err := range g.ListTasks(c.t.Context(), client.Filter{}) {
		c.t.Fatalf("a new tenant of that name has the task %+v, %v", inherited, err)
	}
	g.listen(map[string]client.Handler{"glad": func(context.Context, *client.Run) error { return nil }})
	id := g.add(client.Task{Kind: "glad", Type: client.OneShot, IdempotencyKey: "key-1"})
	await(c.t, "a task of the new tenant is called", func() bool { return len(g.called("glad")) == 1 })
	if run := g.called("glad")[0]; run.TaskID != id {
		c.t.Errorf("called for task %d, want %d", run.TaskID, id)
	}
}
