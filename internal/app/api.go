package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"

	"github.com/perceptor/perceptor/audit"
	"github.com/perceptor/perceptor/console"
	"github.com/perceptor/perceptor/delivery"
	"github.com/perceptor/perceptor/dispatch"
	"github.com/perceptor/perceptor/figures"
	"github.com/perceptor/perceptor/internal/config"
	"github.com/perceptor/perceptor/internal/telemetry"
	"github.com/perceptor/perceptor/internal/tracing"
	"github.com/perceptor/perceptor/server"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/calendars"
	"github.com/perceptor/perceptor/store/control"
	"github.com/perceptor/perceptor/store/identity"
	"github.com/perceptor/perceptor/store/shards"
	"github.com/perceptor/perceptor/task"
)

// Options are the options of a process besides its configuration.
type Options struct {
	Config *config.Config
	Log    *slog.Logger
	// Metrics registers the metrics of the process.
	Metrics prometheus.Registerer
	// VirtualClock says that the databases have a virtual clock. The process then
	// claims nothing ahead of it and delays nothing to save work.
	VirtualClock bool
	// Cluster has the pools that the parts of one process share; see [OpenClusterOf]. The
	// owner closes it when they have ended. nil: each part opens its own.
	Cluster *store.Cluster
}

// A Hinter tells the dispatchers of what was written. Its methods must not block.
type Hinter interface {
	// Hint says that a row in the database is due at the instant: a new run of one of these tenants, or
	// any row if there are none.
	Hint(database int, due task.Instant, of ...int32)
	// BulkStarted says that a bulk operation was created or changed in the database.
	BulkStarted(database int)
	// Lateness says how late the dispatchers publish what is due.
	Lateness() task.Lateness
}

// APIOptions are the options of an [API].
type APIOptions struct {
	Options
	// GRPC and HTTP are the listeners; HTTP may be nil. The API closes them.
	GRPC, HTTP net.Listener
	// Clock moves the virtual clock, if there is one. Close it after Run.
	Clock *VirtualClock
	// Hints, if set, is told of what was written. If nil, the owners of shards and chores are
	// told by UDP.
	Hints Hinter
	// Version is shown to people.
	Version string
}

// API serves tasks, runs, tenants and tokens. Create it with [NewAPI], then call
// Run once.
type API struct {
	o       APIOptions
	cluster *store.Cluster
	// closeCluster closes the pools if no other part uses them.
	closeCluster func()
	shards       *shards.Store
	calendars    *calendars.Store
	control      *control.Store
	policies     *policies
	kafka        *tenancy
	publisher    *delivery.Publisher // only for Ping
	names        *names
	meter        *meter
	audit        *auditLog
	presence     *presence
	hints        Hinter
	hinter       *dispatch.Hinter // nil: hints is not sent by UDP
	logins       *logins
	traces       *tracing.Provider
	server       *server.Server
	console      *console.Console // nil: there is none
	followKafka  Part             // follows the login to Kafka
	recorder     *figures.Recorder
}

// NewAPI returns an API. It opens no connection.
func NewAPI(ctx context.Context, o APIOptions) (*API, error) {
	a := &API{o: o}
	if err := a.join(ctx); err != nil {
		a.close()
		return nil, err
	}
	return a, nil
}

func (a *API) join(ctx context.Context) (err error) {
	c := a.o.Config
	if file := c.Audit.File; file != "" {
		if err := audit.CheckFile(file); err != nil {
			return err
		}
	}
	if a.cluster, a.closeCluster, err = a.o.open(ctx, store.TaskdApplication); err != nil {
		return err
	}
	link, err := newKafkaLink(c, "perceptor-taskd", a.o.Log)
	if err != nil {
		return err
	}
	kafka := link.Config
	a.followKafka = link.run // each use makes its own connections
	if a.kafka, err = newTenancy(c, kafka); err != nil {
		return err
	}
	a.control = control.New(a.cluster, a.o.Log)
	a.control.SetProvisioner(a.kafka)
	telemetry.RegisterConflicts(a.o.Metrics, a.control.Conflicts)
	a.audit = newAuditLog(&a.o.Options, a.cluster)
	a.names = newNames(a.control, c.Kafka.TopicPrefix, c.Kafka.SigningSecret)
	a.cluster.OnAdoption(func(identity.Adoption) { a.names.forget() })
	if a.publisher, err = delivery.NewPublisher(kafka, a.names); err != nil {
		return err
	}
	metrics := telemetry.NewAPI(a.o.Metrics)
	a.meter = newMeter(a.names)
	if a.hints = a.o.Hints; a.hints == nil {
		a.hinter = dispatch.NewHinter(owners{chores: true, of: func(ctx context.Context, d int) ([]shards.ItemOwner, error) { return a.shards.Owners(ctx, d) }})
		a.hints = a.hinter
	}
	a.presence = newPresence(a.control, a.o.Log)
	a.policies = newPolicies(a.control, a.o.Log)
	conf := a.o.shardsConfig()
	a.recorder = newRecorder(&a.o.Options, a.cluster, func() figures.Self {
		return figures.Self{Kind: figures.Taskd, Name: a.presence.name, Version: a.o.Version}
	}, nil)
	conf.History, conf.Due, conf.Bulk = a.policies.of, a.hints.Hint, a.hints.BulkStarted
	if a.hinter != nil {
		conf.Lags = func(lags []task.Lag) { a.hinter.Lags(lags, a.presence.processes()) }
	}
	conf.Missed = func(counts task.MissedCounts) {
		a.meter.missed(counts, metrics.Missed)
		countMissed(a.recorder, counts)
	}
	conf.Died = func(dead []task.DeadRun) {
		for _, d := range dead {
			a.meter.do(d.Tenant, func(name string) { metrics.Died(name, d.Type, d.Reason) })
			a.recorder.Count(d.Tenant, figures.Dead, 1)
		}
	}
	a.calendars = calendars.New(a.cluster)
	conf.Windows = a.calendars.Windows
	a.shards = shards.New(a.cluster, conf)
	a.control.SetDeleter(deleter(a.shards))
	return a.newServer(metrics)
}

func (a *API) newServer(metrics *telemetry.API) error {
	c := a.o.Config.Taskd
	var err error
	if a.traces, err = newTraces(&a.o.Options, "perceptor-taskd", a.o.Version, hostName()); err != nil {
		return err
	}
	refused := telemetry.RefusedConnections(a.o.Metrics, "api")
	telemetry.RegisterCertificates(a.o.Metrics, certificateLives(a.o.Config, true))
	tls, err := serverTLS(c.TLS, a.o.Log, refused)
	if err != nil {
		return err
	}
	tenants := &tenants{store: a.control, kafka: a.kafka, shards: a.shards, tokenLifetime: c.Tokens.MaxLifetime}
	if a.logins, err = newLogins(&c, tenants, a.o.Log); err != nil {
		return err
	}
	serveConsole, err := a.newConsole(tls != nil)
	if err != nil {
		return err
	}
	a.server, err = server.New(server.Config{
		GRPC: countClearText(a.o.GRPC, tls, refused), HTTP: countClearText(a.o.HTTP, tls, refused), TLS: tls, Log: a.o.Log,
		Limits:          task.Limits{MinInterval: c.MinInterval, MinAckTimeout: c.MinAckTimeout, RecordRetention: a.o.Config.Kafka.Retention},
		Quotas:          a.o.quotas(),
		MaxRequestBytes: c.MaxRequestBytes, MaxCalls: c.MaxCalls, MaxConnections: c.MaxConnections, MaxScan: int64(c.MaxListScan), CallTimeout: a.o.Clock.callTimeout(c.CallTimeout),
		Grace: c.Grace, DrainDelay: c.DrainDelay, Events: apiEvents(metrics, a.recorder), Tracer: a.traces.Tracer(),
	}, server.Deps{Tasks: a.shards, Quotas: a.shards, Processes: a.presence.processes, Lateness: a.lateness(), Runs: a.shards, Dead: a.shards, Bulk: a.shards, Imports: a.shards, Exports: a.shards, Now: a.control.Now, Admin: tenants, Calendars: a.calendars, Auth: a.logins, Certificates: a.logins, Delivery: a.delivery, Assignment: a.newAssignment(), Epochs: a.shards, Clock: a.o.Clock.server(), Revocations: a.control.Revoked, Audit: a.audit, Monitoring: newMonitoring(a), Inspections: a.audit.inspected, Console: serveConsole})
	if err != nil {
		return err
	}
	metrics.Quotas(a.presence.processes, a.quotaUses)
	return nil
}

// lateness returns the source of the lateness to which adds yield. A virtual clock leaps, so by
// it everything is late.
func (a *API) lateness() func() task.Lateness {
	if a.o.Clock != nil {
		return nil
	}
	return a.hints.Lateness
}

// quotaUses returns what tenants use of their quotas, for metrics.
func (a *API) quotaUses() []telemetry.QuotaUse {
	uses := a.server.TenantUses()
	list := make([]telemetry.QuotaUse, len(uses))
	for i, u := range uses {
		list[i] = telemetry.QuotaUse(u)
	}
	return list
}

// delivery returns where listeners find a tenant's runs.
func (a *API) delivery(t server.Tenant) server.Delivery {
	brokers := a.o.Config.Kafka.AdvertisedBrokers
	if len(brokers) == 0 {
		brokers = a.o.Config.Kafka.Brokers
	}
	return server.Delivery{Topic: t.Topic, Group: t.Topic, Brokers: brokers, Keys: t.Keys}
}

// resultPlaces are the places of results by outcome.
var resultPlaces = map[task.Outcome]figures.Place{task.Success: figures.Succeeded, task.Fail: figures.Failed, task.Snooze: figures.Snoozed}

func apiEvents(m *telemetry.API, r *figures.Recorder) server.Events {
	return server.Events{
		Called: func(method string, code codes.Code, took time.Duration) { m.Called(method, code.String(), took) },
		Added: func(tenant *server.Tenant, t task.Type, n int) {
			m.Added(tenant.Name, t.String(), n)
			r.Count(tenant.ID, figures.Added.ByType(t), int64(n))
		},
		Refused:      m.Refused,
		Imported:     m.Imported,
		ImportPaused: m.ImportPaused,
		Yielded:      m.Yielded,
		OverQuota:    m.OverQuota,
		Limited:      m.Limited,
		QuotaAlone:   m.QuotaAlone,
		LoginRefused: m.LoginRefused,
		Replied: func(tenant *server.Tenant, op string, c task.Code, n int) {
			m.Replied(tenant.Name, op, c.String(), n)
			if op == "hand_back" && c == task.Accepted {
				r.Count(tenant.ID, figures.HandedBack, int64(n))
			}
		},
		Reported: func(tenant *server.Tenant, t task.Type, o task.Outcome, handled time.Duration) {
			m.Reported(tenant.Name, t, o, handled)
			r.Count(tenant.ID, resultPlaces[o], 1)
			if handled > 0 {
				r.HandlerTook(tenant.ID, handled)
			}
		},
		Unhandled: func(tenant *server.Tenant, kind string) {
			m.Unhandled(tenant.Name)
			r.Unhandled(tenant.ID, kind, 1)
		},
	}
}

// Reach waits until the API can serve. Its error is one line for people.
func (a *API) Reach(ctx context.Context) error {
	c := a.o.Config
	if err := reachPostgres(ctx, a.o.Log, a.cluster, c.StartTimeout, true); err != nil {
		return err
	}
	fitConnections(ctx, a.cluster, a.o.Log)
	ping, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	if err := a.publisher.Ping(ping); err != nil && ctx.Err() == nil {
		a.o.Log.Warn("starting without Kafka, which does not answer; no tenant can be created", "brokers", c.Kafka.Brokers, "err", err)
	}
	return ctx.Err()
}

// Checks returns the readiness checks of the API.
func (a *API) Checks() []telemetry.Check {
	return []telemetry.Check{
		{Name: "api", Probe: func(context.Context) error { return a.server.Ready() }},
		postgresCheck(a.cluster),
		{Name: "kafka", Probe: func(ctx context.Context) error { return telemetry.Degraded(a.publisher.Ping(ctx)) }},
	}
}

// Run serves until ctx is cancelled. Then it finishes the calls in progress within
// the grace period and returns nil.
func (a *API) Run(ctx context.Context) error {
	defer a.close()
	others := []Part{a.shards.Run, a.control.Run, a.policies.run, a.meter.run, a.audit.recorder.Run, a.presence.run, a.logins.run, a.recorder.Run, a.calendars.Run, a.followKafka, keepFit(a.cluster, a.o.Log)}
	if a.hinter != nil {
		others = append(others, a.hinter.Run)
	}
	return RunBefore(ctx, a.server.Run, others...)
}

func (a *API) close() {
	a.traces.Close()
	if a.publisher != nil {
		a.publisher.Close()
	}
	if a.closeCluster != nil {
		a.closeCluster()
	}
}

// Control returns the store of tenants and tokens.
func (a *API) Control() *control.Store { return a.control }

// EnsureTopic creates the topic of a tenant if it does not exist, because Kafka was emptied.
func (a *API) EnsureTopic(ctx context.Context, tenant string) error {
	t, err := a.control.Tenant(ctx, tenant)
	if err != nil {
		return err
	}
	return a.kafka.Provision(ctx, t)
}

// owners reads the owners of shards from all databases that answer.
type owners struct {
	of func(ctx context.Context, database int) ([]shards.ItemOwner, error)
	// chores includes the owners of chores.
	chores bool
}

// Owners implements [dispatch.Owners]. It reads the databases concurrently, so one
// that does not answer does not delay the others.
func (o owners) Owners(ctx context.Context) (map[task.Shard]task.Owner, error) {
	var asking sync.WaitGroup
	lists, errs := make([][]shards.ItemOwner, task.Databases), make([]error, task.Databases)
	for d := range task.Databases {
		asking.Go(func() { lists[d], errs[d] = o.of(ctx, d) })
	}
	asking.Wait()
	all := make(map[task.Shard]task.Owner, task.Shards)
	failed := 0
	for d, list := range lists {
		if errs[d] != nil {
			failed++
		}
		for _, i := range list {
			if i.Name != "" && (i.Item < task.Shards || o.chores) {
				all[task.Shard(i.Item)] = i.Owner
			}
		}
	}
	if failed == task.Databases {
		return nil, fmt.Errorf("read owners: %w", errors.Join(errs...))
	}
	return all, nil
}
