package console_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/internal/app"
	"github.com/perceptor/perceptor/internal/config"
	"github.com/perceptor/perceptor/internal/telemetry"
	"github.com/perceptor/perceptor/internal/testenv"
	"github.com/perceptor/perceptor/store/control"
	"github.com/perceptor/perceptor/store/storetest"
	"github.com/perceptor/perceptor/task"
)

// installation is a whole installation with two dispatchers.
type installation struct {
	t             *testing.T
	config        *config.Config
	api           *app.API
	grpc, http    string
	admin, tenant string // tokens
	spare         string // the id of a token that nobody uses
	tasks         *client.Client
}

func newInstallation(t *testing.T) *installation {
	t.Helper()
	loaded, err := config.Load(config.Sources{Environ: []string{}})
	if err != nil {
		t.Fatal(err)
	}
	c := &loaded.Config
	c.Postgres.Servers = []config.Server{{DSN: storetest.DSN(t)}}
	c.Postgres.MaxConnections, c.Postgres.ServerConnections = 3, 48
	c.Kafka.Brokers, c.Kafka.Partitions, c.Kafka.TopicPrefix = []string{testenv.Kafka(t).Addr()}, 2, testenv.TopicPrefix(t)
	c.ZooKeeper.Servers, c.ZooKeeper.Root = []string{testenv.ZooKeeper(t).Addr()}, testenv.Root(t)
	c.Taskd.Grace, c.Dispatcher.Grace = time.Second, 20*time.Second
	i := &installation{t: t, config: c}
	i.start()
	return i
}

func (i *installation) options(c *config.Config) app.Options {
	return app.Options{Config: c, Log: slog.New(slog.DiscardHandler), Metrics: telemetry.NewRegistry()}
}

// start runs the processes until the test ends.
func (i *installation) start() {
	t := i.t
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	t.Cleanup(func() { stop(); running.Wait() })
	run := func(part app.Part) {
		running.Go(func() {
			if err := part(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	var dispatchers []*app.Dispatcher
	for n := range 2 {
		c := *i.config
		c.Dispatcher.Name = fmt.Sprintf("dispatcher-%d", n+1)
		d, err := app.NewDispatcher(ctx, app.DispatcherOptions{Options: i.options(&c), Version: "test"})
		if err != nil {
			t.Fatal(err)
		}
		dispatchers = append(dispatchers, d)
		run(d.Run)
	}
	grpc, err := app.Listen(ctx, "grpc", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	http, err := app.Listen(ctx, "http", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	i.grpc, i.http = grpc.Addr().String(), http.Addr().String()
	if i.api, err = app.NewAPI(ctx, app.APIOptions{Options: i.options(i.config), GRPC: grpc, HTTP: http, Version: "test"}); err != nil {
		t.Fatal(err)
	}
	run(i.api.Run)
	await(t, "an owner of all shards", func() bool { return dispatchers[0].Owned()+dispatchers[1].Owned() == task.Shards })
	i.makeTokens(ctx)
}

func (i *installation) makeTokens(ctx context.Context) {
	t, store := i.t, i.api.Control()
	_, err := store.CreateTenant(ctx, control.Tenant{Name: "acme", ParamsBytes: task.DefaultMaxParamsBytes, Retention: task.DefaultRetention, History: task.HistoryAll})
	if err != nil {
		t.Fatal(err)
	}
	if _, i.admin, err = store.CreateToken(ctx, control.Token{Scopes: control.AdminScope, ExpiresAt: task.Never}); err != nil {
		t.Fatal(err)
	}
	if _, i.tenant, err = store.CreateToken(ctx, control.Token{Scopes: control.TenantScope, Tenant: "acme", ExpiresAt: task.Never}); err != nil {
		t.Fatal(err)
	}
	unused, _, err := store.CreateToken(ctx, control.Token{Scopes: control.TenantScope, Tenant: "acme", Description: "old service", ExpiresAt: task.Never})
	if err != nil {
		t.Fatal(err)
	}
	i.spare = unused.ID
	if i.tasks, err = client.New(client.Config{Address: i.grpc, Token: i.tenant}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = i.tasks.Close() })
}

func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !holds(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no %s within 2 minutes", what)
		}
	}
}

// fill adds tasks of all kinds, and a listener that fails those of one kind for good.
func (i *installation) fill() (id int64) {
	t := i.t
	add := func(k client.Task) int64 {
		id, err := i.tasks.AddTask(t.Context(), k)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	for n := range 12 {
		add(client.Task{Kind: "report", Type: client.OneShot, Begin: time.Now().Add(time.Duration(n+1) * time.Hour), Tags: []string{"bulk", "eu"}, Params: map[string]string{"order": fmt.Sprint(n)}})
	}
	for range 3 {
		add(client.Task{Kind: "charge", Type: client.OneShot})
	}
	add(client.Task{Kind: `<script>alert("x")</script>`, Type: client.OneShot, Begin: time.Now().Add(time.Hour)})
	add(client.Task{Kind: "sync", Type: client.Blocking, Interval: time.Second, Params: map[string]string{"region": "eu"}})
	l, err := i.tasks.NewListener(client.ListenerConfig{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	l.Handle("charge", func(context.Context, *client.Run) error {
		return client.Permanent(errors.New("card declined: insufficient funds"))
	})
	l.Handle("sync", func(context.Context, *client.Run) error { return nil })
	l.Handle("report", func(context.Context, *client.Run) error { return nil })
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = l.Run(ctx) }()
	t.Cleanup(func() { stop(); <-done })
	return add(client.Task{Kind: "invoice", Type: client.NonBlocking, Interval: time.Hour, IdempotencyKey: "invoice-77", Begin: time.Now().Add(time.Hour), Tags: []string{"billing"}, Params: map[string]string{"customer": "c-77"}})
}
