package app

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perceptor/perceptor/assign"
	"github.com/perceptor/perceptor/chores"
	"github.com/perceptor/perceptor/delivery"
	"github.com/perceptor/perceptor/dispatch"
	"github.com/perceptor/perceptor/figures"
	"github.com/perceptor/perceptor/internal/config"
	"github.com/perceptor/perceptor/internal/ctxtime"
	"github.com/perceptor/perceptor/internal/telemetry"
	"github.com/perceptor/perceptor/internal/tracing"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/calendars"
	"github.com/perceptor/perceptor/store/control"
	"github.com/perceptor/perceptor/store/identity"
	"github.com/perceptor/perceptor/store/shards"
	"github.com/perceptor/perceptor/task"
)

// DispatcherOptions are the options of a [Dispatcher].
type DispatcherOptions struct {
	Options
	// Hints is the UDP listener for hints; nil means none. The dispatcher closes it.
	Hints *dispatch.Hints
	// Local says that this process owns all shards and agrees with nobody.
	Local bool
	// Version is shown to people.
	Version string
}

// Dispatcher owns shards, claims their due tasks and publishes the runs. Create it
// with [NewDispatcher], then call Run once.
type Dispatcher struct {
	o       DispatcherOptions
	name    string
	cluster *store.Cluster
	// closeCluster closes the pools if no other part uses them.
	closeCluster func()
	shards       *shards.Store
	calendars    *calendars.Store
	names        *names
	control      *control.Store
	policies     *policies
	kafka        *tenancy
	publisher    *delivery.Publisher
	letters      *delivery.DeadLetters
	dispatch     *dispatch.Dispatcher
	assigner     assign.Assigner
	place        func() string // where dispatchers agree, for people
	metrics      *telemetry.Dispatch
	meter        *meter
	chores       *chores.Chores
	fired        atomic.Int64
	work         work
	traces       *tracing.Provider

	choreMetrics *telemetry.Chores
	recorder     *figures.Recorder
	groups       *groups
	states       states
	followKafka  Part // follows the login to Kafka
}

// NewDispatcher returns a dispatcher. It opens no connection.
func NewDispatcher(ctx context.Context, o DispatcherOptions) (*Dispatcher, error) {
	d := &Dispatcher{o: o, name: o.Config.Dispatcher.Name, place: func() string { return "this process" }}
	if d.name == "" {
		host, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("dispatcher.name: is empty, and the host has no name: %w", err)
		}
		d.name = host + "-" + strconv.Itoa(os.Getpid())
	}
	if err := d.join(ctx); err != nil {
		d.close()
		return nil, err
	}
	return d, nil
}

func (d *Dispatcher) join(ctx context.Context) (err error) {
	c := d.o.Config
	if d.cluster, d.closeCluster, err = d.o.open(ctx, store.DispatcherApplication); err != nil {
		return err
	}
	link, err := newKafkaLink(c, "perceptor-dispatcher", d.o.Log)
	if err != nil {
		return err
	}
	kafka := link.Config
	d.control = control.New(d.cluster, d.o.Log)
	d.names = newNames(d.control, c.Kafka.TopicPrefix, c.Kafka.SigningSecret)
	d.cluster.OnAdoption(func(identity.Adoption) { d.names.forget() })
	if d.kafka, err = newTenancy(c, kafka); err != nil {
		return err
	}
	if d.publisher, err = delivery.NewPublisher(kafka, d.names); err != nil {
		return err
	}
	link.renewed, d.followKafka = []func(){d.publisher.Reconnect}, link.run
	if d.letters, err = delivery.NewDeadLetters(kafka, d.kafka.topics, d.names); err != nil {
		return err
	}
	d.policies = newPolicies(d.control, d.o.Log)
	d.metrics = telemetry.NewDispatch(d.o.Metrics, d.figures)
	d.meter = newMeter(d.names)
	if err := d.newFigures(kafka); err != nil {
		return err
	}
	d.registerStates()
	store := d.o.shardsConfig()
	store.History, store.Due, store.Bulk, store.Missed = d.policies.of, d.Hint, d.BulkStarted, d.recordMissed
	store.Dispatcher = d.name
	d.calendars = calendars.New(d.cluster)
	store.Windows = d.calendars.Windows
	store.DropTenant = dropTenant(d.control, d.kafka, d.calendars)
	d.shards = shards.New(d.cluster, store)
	if d.traces, err = newTraces(&d.o.Options, "perceptor-dispatcher", d.o.Version, d.name); err != nil {
		return err
	}
	conf, err := d.dispatchConfig()
	if err != nil {
		return err
	}
	if d.dispatch, err = dispatch.New(conf, d.shards, d.publisher, d.events()); err != nil {
		return err
	}
	if err := d.newChores(); err != nil {
		return err
	}
	return d.newAssigner()
}

func (d *Dispatcher) dispatchConfig() (dispatch.Config, error) {
	c := d.o.Config
	owner := task.Owner{Name: d.name}
	if d.o.Hints != nil {
		var err error
		if owner.HintAddr, err = d.hintAddress(); err != nil {
			return dispatch.Config{}, err
		}
		owner.HintKey = d.o.Hints.Key()
	}
	return d.o.byClock(dispatch.Config{
		Owner:      owner,
		ClaimAhead: c.Dispatcher.ClaimAhead, PublishAhead: c.Dispatcher.PublishAhead, Holds: d.names.Holds,
		ClaimShare: c.Dispatcher.ClaimShare, MinTick: c.Dispatcher.MinTick, MaxTick: c.Dispatcher.MaxTick,
		PeekEvery: c.Dispatcher.PeekEvery, MaxSleep: c.Dispatcher.MaxSleep,
		SweepEvery: max(5*time.Second, c.Dispatcher.MaxTick),
		// A commit may come this much later than the instant that it was computed with.
		Grace:   c.Postgres.StatementTimeout + time.Second,
		MaxRows: c.Dispatcher.MaxRows, ClaimConcurrency: c.Dispatcher.ClaimConcurrency,
		StoreTimeout: 2 * c.Postgres.StatementTimeout,
		MaxRecords:   c.Dispatcher.MaxRecords, MaxBytes: c.Dispatcher.MaxBytes,
		PublishTimeout: c.Dispatcher.PublishTimeout, BreakerAfter: c.Dispatcher.BreakerAfter,
		Lost:   func(lost []task.Shard) { d.assigner.Lost(itemIDs(lost)...) },
		Tracer: newFires(d.traces.Tracer(), d.names.label),
	}), nil
}

func (d *Dispatcher) refusedHints() int64 {
	if d.o.Hints == nil {
		return 0
	}
	return d.o.Hints.Refused()
}

// hintAddress returns the address at which taskd reaches the hints.
func (d *Dispatcher) hintAddress() (string, error) {
	c := d.o.Config.Dispatcher
	if d.o.Hints == nil || c.HintAdvertise != "" {
		return c.HintAdvertise, nil
	}
	host, port, err := net.SplitHostPort(d.o.Hints.Addr())
	if err != nil {
		return "", fmt.Errorf("dispatcher.hint_addr: %w", err)
	}
	if ip := net.ParseIP(host); ip != nil && !ip.IsUnspecified() {
		return net.JoinHostPort(host, port), nil
	}
	if host, err = os.Hostname(); err != nil {
		return "", fmt.Errorf("dispatcher.hint_advertise: is empty, and the host has no name: %w", err)
	}
	return net.JoinHostPort(host, port), nil
}

func (d *Dispatcher) newAssigner() (err error) {
	telemetry.RefusedConnections(d.o.Metrics, "ops") // so that it is known before the first one
	telemetry.RegisterCertificates(d.o.Metrics, certificateLives(d.o.Config, false))
	telemetry.RegisterRefusedHints(d.o.Metrics, d.refusedHints)
	telemetry.RegisterAssignment(d.o.Metrics, d.assignFigures)
	c := d.o.Config
	host, _ := os.Hostname() // for people only
	conf := assign.Config{
		Items: items(), Name: d.name, Host: host, Address: c.Dispatcher.OpsAddr, Version: d.o.Version, Fenced: true,
		Figures: d.workFigures, StopTimeout: c.Dispatcher.Grace, Log: d.o.Log,
	}
	w := worker{d.dispatch, d.chores}
	switch {
	case d.o.Local:
		d.assigner, err = assign.NewLocal(conf, w)
	default:
		var f *assign.Follower
		if f, err = newMember(c, d.cluster, conf, w); err == nil {
			d.assigner, d.place = f, f.Place
		}
	}
	return err
}

func itemIDs(shards []task.Shard) []int {
	ids := make([]int, len(shards))
	for i, s := range shards {
		ids[i] = int(s)
	}
	return ids
}

// Name returns the name of the dispatcher as an owner of shards.
func (d *Dispatcher) Name() string { return d.name }

// Hint wakes the dispatcher for something in the database that is due at the instant: a new run of one of these tenants,
// or anything if there are none.
func (d *Dispatcher) Hint(database int, due task.Instant, of ...int32) {
	if d.dispatch != nil {
		d.dispatch.Hint(database, due, of...)
	}
}

// Lateness returns how late records are published now.
func (d *Dispatcher) Lateness() task.Lateness {
	if d.dispatch == nil {
		return task.Lateness{}
	}
	return d.dispatch.Lateness()
}

// Greeted implements [dispatch.Receiver].
func (d *Dispatcher) Greeted() { d.dispatch.Greeted() }

// Lagging implements [dispatch.Receiver].
func (d *Dispatcher) Lagging(sender uint64, processes int, lags []task.Lag) {
	d.dispatch.Lagging(sender, processes, lags)
}

// BulkStarted makes the dispatcher look for bulk operations in the database, if it owns its
// chores.
func (d *Dispatcher) BulkStarted(database int) {
	if d.shards != nil {
		d.shards.BulkStarted(database)
	}
	if d.chores != nil {
		d.chores.BulkStarted(database)
	}
}

// ClockMoved must be called after the virtual clock of the database was set.
func (d *Dispatcher) ClockMoved(database int) { d.dispatch.ClockMoved(database) }

// Promote starts a promotion in the database at once, if this process owns its
// chores.
func (d *Dispatcher) Promote(database int) { d.chores.Promote(database) }

// Fired returns the number of deliveries that Kafka has acknowledged.
func (d *Dispatcher) Fired() int64 { return d.fired.Load() }

// Owned returns the number of owned shards.
func (d *Dispatcher) Owned() int { return d.dispatch.Figures().Shards }

// OwnedChores returns the number of databases whose chores are owned.
func (d *Dispatcher) OwnedChores() int { return len(d.chores.Owned()) }

// Reach waits until the dispatcher can work. Its error is one line for people.
func (d *Dispatcher) Reach(ctx context.Context) error {
	c := d.o.Config
	if err := reachPostgres(ctx, d.o.Log, d.cluster, c.StartTimeout, true); err != nil {
		return err
	}
	fitConnections(ctx, d.cluster, d.o.Log)
	ping := func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, pingTimeout)
		defer cancel()
		return d.publisher.Ping(ctx)
	}
	if err := reach(ctx, d.o.Log, fmt.Sprintf("kafka at %v", c.Kafka.Brokers), c.StartTimeout, ping); err != nil {
		return err
	}
	if d.o.Local {
		return nil
	}
	if place, err := NewAssignment(c, d.cluster, pingTimeout).Place(ctx); err == nil && place == config.InPostgres {
		return nil // reached above
	}
	if len(c.ZooKeeper.Servers) == 0 {
		return nil // it is wrong, as the log says, or database 0 does not answer
	}
	return reach(ctx, d.o.Log, fmt.Sprintf("zookeeper at %v", c.ZooKeeper.Servers), c.StartTimeout, func(ctx context.Context) error {
		return reachZooKeeper(ctx, &c.ZooKeeper)
	})
}

// Checks returns the readiness checks of the dispatcher.
func (d *Dispatcher) Checks() []telemetry.Check {
	return []telemetry.Check{
		postgresCheck(d.cluster),
		{Name: "kafka", Probe: d.publisher.Ping},
		{Name: "assignment", Probe: func(context.Context) error { return d.assigned() }},
	}
}

// assigned returns nil if this process is a registered member. Without contact it
// is degraded as long as it owns shards, since it continues to publish their runs.
func (d *Dispatcher) assigned() error {
	s, owned := d.assigner.Snapshot(), d.Owned()
	switch {
	case s.Connected && s.Registered:
		return nil
	case owned > 0:
		return telemetry.Degraded(fmt.Errorf("no contact with the assignment in %s; continuing with %d shards", d.place(), owned))
	}
	return fmt.Errorf("no contact with the assignment in %s, and no shard is owned", d.place())
}

// Run works until ctx is cancelled. Then it hands all shards over within the grace
// period and returns nil.
func (d *Dispatcher) Run(ctx context.Context) error {
	defer d.close()
	others := []Part{d.dispatch.Run, d.chores.Run, d.policies.run, d.names.run, d.meter.run, d.watchOutbox, d.recorder.Run, d.groups.run, d.countStored, d.calendars.Run, d.followKafka, keepFit(d.cluster, d.o.Log)}
	if !d.o.Local { // taskd dev has one replica of each topic on purpose
		others = append(others, d.topicWatch().run)
	}
	if d.o.Hints != nil {
		others = append(others,
			func(ctx context.Context) error { return d.o.Hints.Run(ctx, d) },
			func(ctx context.Context) error { return d.o.Hints.Report(ctx, d.Lateness) })
	}
	return RunBefore(ctx, d.assigner.Run, others...)
}

// Calendars returns the calendars of tenants that the dispatcher knows.
func (d *Dispatcher) Calendars() *calendars.Store { return d.calendars }

func (d *Dispatcher) close() {
	d.traces.Close()
	if d.publisher != nil {
		d.publisher.Close()
	}
	if d.closeCluster != nil {
		d.closeCluster()
	}
}

const outboxEvery = 10 * time.Second

// watchOutbox measures the outbox of each database with owned shards.
func (d *Dispatcher) watchOutbox(ctx context.Context) error {
	return ctxtime.Every(ctx, outboxEvery, func(ctx context.Context) {
		mine := map[int]bool{}
		for _, s := range d.dispatch.Owned() {
			mine[s.Database()] = true
		}
		var asking sync.WaitGroup
		for db := range task.Databases {
			if !mine[db] {
				d.metrics.ForgetOutbox(db)
				continue
			}
			if !d.rests(&d.states.outbox, db) {
				asking.Go(func() { d.measureOutbox(ctx, db) })
			}
		}
		asking.Wait()
	})
}

func (d *Dispatcher) measureOutbox(ctx context.Context, db int) {
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	o, damaged, err := d.shards.QueueStats(ctx, db)
	if err != nil {
		return // /readyz reports the database
	}
	d.metrics.Outbox(db, o)
	d.metrics.QuarantinedRows(db, damaged)
}
