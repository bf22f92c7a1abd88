package dev

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/perceptor/perceptor/internal/app"
	"github.com/perceptor/perceptor/internal/config"
	"github.com/perceptor/perceptor/internal/telemetry"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/control"
	"github.com/perceptor/perceptor/task"
)

// Options configure the installation.
type Options struct {
	// DataDir is the data directory. It is ignored if Ephemeral is set.
	DataDir string
	// Ephemeral says that the data is removed at the end.
	Ephemeral bool
	Ports     Ports
	// Demo runs a demo, which adds tasks and handles their runs. It needs the
	// real clock.
	Demo bool
	// VirtualClock selects a virtual clock, which is frozen or running.
	VirtualClock ClockMode
	// ClockStart is the initial time of the virtual clock for new data. The zero
	// time stands for the real time.
	ClockStart time.Time
	// For is how long the installation runs. 0 means until ctx ends.
	For time.Duration
	// Out receives output for the user. Log receives messages that need attention.
	Out io.Writer
	Log *slog.Logger
	// Traces is the URL of an OTLP receiver for traces. Empty: none.
	Traces string
	// Version is the version that the banner shows.
	Version string
	// InitialPostgres, if set, is the data directory of a stopped PostgreSQL server, of which new data has a
	// copy. Tests that start many installations make the tables once that way.
	InitialPostgres string
	// Ready, if set, is called when the installation serves. It must not block.
	Ready func(Info)
}

// Info describes a running installation.
type Info struct {
	// GRPC, HTTP, Ops and Kafka are host:port; Postgres is a connection string.
	GRPC, HTTP, Ops, Kafka, Postgres string
	// DataDir is the data directory, Token the token of the tenant demo, and
	// Admin an admin token.
	DataDir, Token, Admin string
}

const (
	tenantName = "demo"
	readyWait  = 30 * time.Second
	taskdGrace = time.Second
	// dispatcherGrace bounds the hand-over of the shards at a stop, which takes milliseconds
	// unless the machine is busy.
	dispatcherGrace = 10 * time.Second
)

// ErrViolated is returned when the demo has found violations of the contract.
var ErrViolated = errors.New("the demo has found violations of the task contract")

// Run runs an installation until ctx ends or Options.For has passed. It then stops
// within 3 seconds.
func Run(ctx context.Context, o Options) (err error) {
	began := time.Now()
	if err := o.checkClock(); err != nil {
		return err
	}
	open, err := o.Ports.open(ctx)
	if err != nil {
		return err
	}
	defer open.close()
	dir, err := o.openDataDir()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dir.close()) }()
	progress := func(what string) { fmt.Fprintln(o.Out, what, "...") }
	servers, err := startServers(ctx, dir, &o, open.kafka, progress)
	if err != nil {
		return unlessStopped(ctx, err)
	}
	o.Log.Debug("servers started", "took_ms", time.Since(began).Milliseconds())
	defer func() { err = errors.Join(err, servers.stop(o.Log, dir.ephemeral)) }()
	in := &installation{o: &o, dir: dir, open: open, servers: servers, began: began}
	return in.run(ctx, progress)
}

// unlessStopped returns nil if ctx has ended, since the start was interrupted on
// purpose, and err otherwise.
func unlessStopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (o *Options) openDataDir() (*dataDir, error) {
	if o.Ephemeral {
		return openEphemeral()
	}
	return openDataDir(o.DataDir)
}

// installation holds the parts that run on the servers.
type installation struct {
	o       *Options
	dir     *dataDir
	open    *sockets
	servers *servers
	began   time.Time

	config     *config.Config
	registry   *prometheus.Registry
	dispatcher *app.Dispatcher
	api        *app.API
	clock      *app.VirtualClock // nil if the clock is the real one
	// token and admin are the secrets of the tokens.
	token, admin string
}

func (in *installation) run(ctx context.Context, progress func(string)) error {
	if err := in.configure(); err != nil {
		return err
	}
	cluster, err := in.databases(ctx, progress)
	if err != nil {
		return unlessStopped(ctx, err)
	}
	defer cluster.Close()
	in.o.Log.Debug("databases up to date", "took_ms", time.Since(in.began).Milliseconds())
	if err := in.join(ctx, cluster); err != nil {
		return unlessStopped(ctx, err)
	}
	in.o.Log.Debug("processes prepared", "took_ms", time.Since(in.began).Milliseconds())
	ops := telemetry.NewOps(in.open.ops, in.registry, append(in.api.Checks(), in.dispatcher.Checks()...), telemetry.OpsOptions{Profiles: true}, in.o.Log)
	return app.RunBefore(ctx, in.front, in.api.Run, in.dispatcher.Run, ops.Run, in.watchPostgres)
}

// configure makes the configuration from the defaults and the local addresses.
func (in *installation) configure() error {
	loaded, err := config.Load(config.Sources{Environ: []string{}})
	if err != nil {
		return err
	}
	c := &loaded.Config
	c.Postgres.Servers = []config.Server{{DSN: in.servers.postgres.DSN()}}
	c.Postgres.MaxConnections, c.Postgres.ServerConnections = 6, 96 // of taskd and dispatcher together
	c.Kafka.Brokers = []string{in.servers.broker}
	c.Kafka.Partitions = 4
	c.Taskd.MinInterval = 100 * time.Millisecond
	c.Taskd.Grace, c.Dispatcher.Grace = taskdGrace, dispatcherGrace
	c.Dispatcher.Name = "dev"
	c.Tracing.Endpoint = in.o.Traces
	in.config, in.registry = c, telemetry.NewRegistry()
	return c.Validate(config.ListensDispatcher) // the addresses of taskd are those of the listeners
}

// databases returns the pools that all parts share, of databases that are up to date and
// have the requested clock.
func (in *installation) databases(ctx context.Context, progress func(string)) (*store.Cluster, error) {
	cluster, err := in.openCluster(ctx)
	if err != nil {
		return nil, err
	}
	if versions, err := cluster.Check(ctx); err != nil || versions.Old() {
		progress("creating the tables of 512 shards")
		err := cluster.Migrate(ctx, nil)
		cluster.Close() // its sessions were there before the tables
		if err != nil {
			return nil, err
		}
		if cluster, err = in.openCluster(ctx); err != nil {
			return nil, err
		}
	}
	if err := in.setClock(ctx, cluster); err != nil {
		cluster.Close()
		return nil, err
	}
	return cluster, nil
}

func (in *installation) openCluster(ctx context.Context) (*store.Cluster, error) {
	return app.OpenClusterOf(ctx, &app.Options{Config: in.config, Log: in.o.Log, Metrics: in.registry}, store.DevApplication)
}

// join assembles the processes and creates the tenant and its tokens.
func (in *installation) join(ctx context.Context, cluster *store.Cluster) (err error) {
	options := app.Options{Config: in.config, Log: in.o.Log, Metrics: in.registry, VirtualClock: in.o.VirtualClock != RealClock, Cluster: cluster}
	in.dispatcher, err = app.NewDispatcher(ctx, app.DispatcherOptions{Options: options, Local: true, Version: in.o.Version})
	if err != nil {
		return err
	}
	if options.VirtualClock {
		in.clock = app.NewVirtualClock(cluster, in.config, in.dispatcher)
	}
	in.api, err = app.NewAPI(ctx, app.APIOptions{
		Options: options, GRPC: in.open.grpc, HTTP: in.open.http, Clock: in.clock, Hints: in.dispatcher, Version: in.o.Version,
	})
	if err != nil {
		return err
	}
	if err := in.makeTenant(ctx); err != nil {
		return err
	}
	tenant := control.Token{Scopes: control.TenantScope, Tenant: tenantName, Description: "taskd dev", ExpiresAt: task.Never}
	if in.token, err = in.makeToken(ctx, "token", tenant); err != nil {
		return err
	}
	admin := control.Token{Scopes: control.AdminScope, Description: "taskd dev", ExpiresAt: task.Never}
	in.admin, err = in.makeToken(ctx, "admin-token", admin)
	return err
}

func (in *installation) makeTenant(ctx context.Context) error {
	_, err := in.api.Control().CreateTenant(ctx, control.Tenant{
		Name: tenantName, ParamsBytes: task.DefaultMaxParamsBytes, Retention: task.DefaultRetention,
		Rates: task.Rates{Ahead: task.Ahead{From: task.At(time.Now())}}, // as of each new tenant
	})
	if task.CodeOf(err) == task.AlreadyExists {
		return in.api.EnsureTopic(ctx, tenantName)
	}
	return err
}

// makeToken returns the secret in the data directory. If that is missing or no
// longer valid, it creates a token and stores its secret.
func (in *installation) makeToken(ctx context.Context, name string, t control.Token) (string, error) {
	if secret := in.dir.readSecret(name); secret != "" {
		if _, err := in.api.Control().Authenticate(ctx, secret); err == nil {
			return secret, nil
		}
	}
	_, secret, err := in.api.Control().CreateToken(ctx, t)
	if err != nil {
		return "", err
	}
	return secret, in.dir.writeSecret(name, secret)
}

// watchPostgres returns when PostgreSQL has ended unexpectedly.
func (in *installation) watchPostgres(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-in.servers.postgres.Done():
		return fmt.Errorf("PostgreSQL ended unexpectedly: see %s", in.servers.postgres.LogPath())
	}
}

// front prints the banner when everything serves, and then runs the demo or waits
// for the end.
func (in *installation) front(ctx context.Context) error {
	if err := in.awaitReady(ctx); err != nil {
		return unlessStopped(ctx, err)
	}
	in.banner(ctx)
	if in.o.Ready != nil {
		in.o.Ready(in.info())
	}
	if in.o.For > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, in.o.For, errTimeIsUp)
		defer cancel()
	}
	if in.o.Demo {
		return in.demo(ctx)
	}
	<-ctx.Done()
	return nil
}

func (in *installation) info() Info {
	return Info{
		GRPC: in.open.grpc.Addr().String(), HTTP: in.open.http.Addr().String(), Ops: in.open.ops.Addr().String(),
		Kafka: in.servers.broker, Postgres: in.servers.postgres.DSN(),
		DataDir: in.dir.path, Token: in.token, Admin: in.admin,
	}
}

// errTimeIsUp is the cause of the context's end when Options.For has passed.
var errTimeIsUp = errors.New("the time is up")

// awaitReady returns when the API serves and all shards are owned.
func (in *installation) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyWait)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for in.dispatcher.Owned() < task.Shards {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("only %d of %d shards are owned after %s", in.dispatcher.Owned(), task.Shards, readyWait)
		}
	}
	return nil
}
