package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	"github.com/perceptor/perceptor/internal/share"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// Config configures a [Server]. Zero fields take their defaults.
type Config struct {
	// GRPC is the listener of the gRPC side. Required. Run closes it.
	GRPC net.Listener
	// HTTP is the listener of the HTTP side. Optional. Run closes it.
	HTTP net.Listener
	// TLS is used on both listeners. Default (nil): no TLS.
	TLS *tls.Config
	// Limits are the limits of the installation, without ParamsBytes, which
	// each tenant has. Default: [task.DefaultLimits].
	Limits task.Limits
	// MaxRequestBytes is the maximum size of a request in either encoding, in
	// bytes. Default: 8 MiB.
	MaxRequestBytes int
	// MaxCalls is the maximum number of concurrent calls. A tenant has at most
	// half of them, or less while others have many. Further calls are refused
	// and should be retried. Default: 4096.
	MaxCalls int
	// MaxConnections is the maximum number of connections of both listeners
	// together. Half of them may come from one IP address, or less while others
	// have many. Further connections are closed. Default: 4096.
	MaxConnections int
	// ReceiveTimeout bounds the time in which a request arrives. Default: 10 s.
	ReceiveTimeout time.Duration
	// MaxStreams is the maximum number of concurrent calls of one gRPC
	// connection. Default: 250.
	MaxStreams uint32
	// Quotas are the quotas of tenants that have none of their own.
	Quotas task.Quotas
	// MaxScan is the maximum number of tasks that a filtered listing may read.
	// Default: 1,000,000.
	MaxScan int64
	// CallTimeout bounds each call. Default: 30 s.
	CallTimeout time.Duration
	// Grace is how long Run waits for running calls when it stops. Default: 10
	// s.
	Grace time.Duration
	// DrainDelay is how long Run continues to serve after it has reported that
	// it is not ready, so that load balancers notice. Default: none.
	DrainDelay time.Duration
	// Log gets the server's messages. Default: [slog.Default].
	Log *slog.Logger
	// Events are callbacks for metrics.
	Events Events
	// Tracer makes the spans of calls. Default: none.
	Tracer trace.Tracer
	// Options are additional options of the gRPC server.
	Options []grpc.ServerOption
}

func (c *Config) setDefaults() {
	setZero(&c.Limits.MinInterval, task.DefaultLimits().MinInterval)
	setZero(&c.Limits.MinAckTimeout, task.DefaultLimits().MinAckTimeout)
	setZero(&c.MaxRequestBytes, 8<<20)
	setZero(&c.MaxCalls, 4096)
	setZero(&c.MaxStreams, 250)
	setZero(&c.MaxConnections, 4096)
	setZero(&c.ReceiveTimeout, receiveWithin)
	setZero(&c.MaxScan, 1_000_000)
	setZero(&c.CallTimeout, 30*time.Second)
	setZero(&c.Grace, 10*time.Second)
	if c.Log == nil {
		c.Log = slog.Default()
	}
}

func setZero[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate returns all faults of the configuration.
func (c *Config) Validate() error {
	var faults []error
	if c.GRPC == nil {
		faults = append(faults, errors.New("GRPC: a listener is required"))
	}
	for name, n := range map[string]int64{
		"MaxRequestBytes": int64(c.MaxRequestBytes), "MaxCalls": int64(c.MaxCalls), "MaxConnections": int64(c.MaxConnections),
		"ReceiveTimeout": int64(c.ReceiveTimeout), "MaxScan": c.MaxScan,
		"CallTimeout": int64(c.CallTimeout), "Grace": int64(c.Grace), "DrainDelay": int64(c.DrainDelay),
	} {
		if n < 0 {
			faults = append(faults, fmt.Errorf("%s: %d is negative", name, n))
		}
	}
	return errors.Join(faults...)
}

// Server serves the API. Create it with [New], then call Run once.
type Server struct {
	config Config
	grpc   *grpc.Server
	http   *http.Server
	health *health

	bearers     *bearers
	revocations Revocations
	quotas      *quotas // nil: none is enforced
	unheld      unheld
	answers     *budget        // of answers that are being sent
	decoded     *budget        // of requests over HTTP that are decoded
	imports     *importWriters // nil: no service of imports
	stopping    chan struct{}
}

// New returns a server that does not serve yet. It fails if the configuration
// is invalid or a dependency is missing.
func New(c Config, d Deps) (*Server, error) {
	c.setDefaults()
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	if d.Tasks == nil || d.Runs == nil || d.Dead == nil || d.Bulk == nil || d.Admin == nil || d.Auth == nil || d.Delivery == nil {
		return nil, errors.New("server: all fields of Deps are required but those that may be nil")
	}
	if d.Now == nil {
		d.Now = func() task.Instant { return task.At(time.Now()) }
	}
	in := newIntake(c.ReceiveTimeout, int64(c.MaxRequestBytes))
	s := &Server{config: c, grpc: grpc.NewServer(grpcOptions(&c, in)...), health: newHealth(), stopping: make(chan struct{})}
	s.answers = newBudget(c.ReceiveTimeout, answers*largestAnswer, connAnswers*largestAnswer)
	s.decoded = newBudget(c.ReceiveTimeout, decodedMemory, decodedMemory)
	s.limitConnections()
	s.quotas = quotasOf(d.Quotas, c.Log, &s.config.Events)
	if s.quotas != nil {
		s.quotas.defaults = c.Quotas
		if d.Processes != nil {
			s.quotas.processes = d.Processes
		}
	}
	g := &gate{
		bearers: newBearers(d.Auth), certificates: d.Certificates, inspections: d.Inspections, tenants: d.Admin, tasks: d.Tasks, quotas: s.quotas,
		auditor: auditor{log: d.Audit, deps: &d}, traces: traces{c.Tracer},
		log: c.Log, events: &s.config.Events,
		timeout: c.CallTimeout, calls: share.NewPool[int32](int64(c.MaxCalls), 0), intake: in, stores: newStorePlaces(), methods: map[string]method{},
		answers: s.answers, decoded: s.decoded, sendWithin: 2 * c.CallTimeout, tarpit: newTarpit(), stopping: s.stopping,
	}
	g.bearers.events, s.bearers, s.revocations = g.events, g.bearers, d.Revocations
	changes, adds, rules := newSettings(), newBackpressure(d.Lateness, d.Processes), newRulePlaces()
	err := errors.Join(
		g.register(s.grpc, &perceptorv1.TaskService_ServiceDesc, &taskService{store: d.Tasks, calendars: d.Calendars, backpressure: adds, quotas: s.quotas, tenants: d.Admin, settings: changes, rules: rules, limits: c.Limits, events: g.events, traces: g.traces, maxScan: c.MaxScan, audience: audienceOf(d.Monitoring), audit: &g.auditor}),
		g.register(s.grpc, &perceptorv1.RunService_ServiceDesc, &runService{store: d.Runs, delivery: d.Delivery, now: d.Now, unheld: &s.unheld, events: g.events, traces: g.traces, unknown: newThrottle[int32](unknownRate, unknownBurst)}),
		g.register(s.grpc, &perceptorv1.DeadLetterService_ServiceDesc, &deadLetterService{store: d.Dead, quotas: s.quotas}),
		g.register(s.grpc, &perceptorv1.BulkService_ServiceDesc, &bulkService{store: d.Bulk}),
		s.registerImports(g, &d, adds, rules),
		g.register(s.grpc, &perceptorv1.CalendarService_ServiceDesc, &calendarService{store: d.Calendars, bulk: d.Bulk, now: d.Tasks.Now}),
		g.register(s.grpc, &perceptorv1.AdminService_ServiceDesc, &adminService{store: d.Admin, now: d.Now, settings: changes, quotas: s.quotas, unheld: &s.unheld, log: c.Log}),
		g.register(s.grpc, &perceptorv1.AssignmentService_ServiceDesc, &assignmentService{store: d.Assignment, epochs: d.Epochs, log: c.Log}),
		g.register(s.grpc, &perceptorv1.ClockService_ServiceDesc, &clockService{clock: d.Clock, log: c.Log}),
		g.register(s.grpc, &perceptorv1.AuditService_ServiceDesc, &auditService{log: d.Audit, admin: d.Admin}),
		g.register(s.grpc, &perceptorv1.MonitoringService_ServiceDesc, &monitoringService{figures: d.Monitoring, admin: d.Admin, quotas: s.quotas}),
		g.register(s.grpc, &perceptorv1.IdentityService_ServiceDesc, identityService{}),
		g.register(s.grpc, &perceptorv1.ExportService_ServiceDesc, newExportService(d.Exports, s.stopping)),
	)
	if err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	grpc_health_v1.RegisterHealthServer(s.grpc, s.health)
	handler, err := newGateway(g, int64(c.MaxRequestBytes), d.Console)
	if err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	s.http = newHTTP(&c, handler)
	return s, nil
}

// limitConnections makes both listeners share the places of connections.
func (s *Server) limitConnections() {
	places := newConnectionPlaces(s.config.MaxConnections)
	refused := func() { s.config.Events.limitedBy("CONNECTIONS") }
	for _, l := range []*net.Listener{&s.config.GRPC, &s.config.HTTP} {
		if *l != nil {
			*l = &limitedListener{Listener: *l, places: places, refused: refused}
		}
	}
}

func grpcOptions(c *Config, in *intake) []grpc.ServerOption {
	options := []grpc.ServerOption{
		grpc.ForceServerCodecV2(newCodec()),
		grpc.UnknownServiceHandler(refuseUnknown),
		grpc.MaxRecvMsgSize(c.MaxRequestBytes),
		grpc.RPCDecompressor(uncompressed{}), //nolint:staticcheck // the only way to refuse what another package has registered
		grpc.MaxConcurrentStreams(c.MaxStreams),
		grpc.MaxHeaderListSize(16 << 10),
		grpc.InTapHandle(in.begin),
		grpc.StaticStreamWindowSize(streamWindow),
		grpc.StaticConnWindowSize(connWindow),
		grpc.ConnectionTimeout(10 * time.Second),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionIdle: 15 * time.Minute, MaxConnectionAge: maxConnectionAge,
			MaxConnectionAgeGrace: time.Minute, Time: time.Minute, Timeout: 20 * time.Second,
		}),
	}
	if c.TLS != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(c.TLS)))
	}
	return append(options, c.Options...)
}

// refuseUnknown answers calls of unknown methods.
func refuseUnknown(_ any, s grpc.ServerStream) error {
	name, _ := grpc.MethodFromServerStream(s)
	requestID(s.Context()) // tells the caller
	return unknownMethod(name)
}

func newHTTP(c *Config, handler http.Handler) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       c.CallTimeout,
		WriteTimeout:      2 * c.CallTimeout, // as sendWithin of the gate
		IdleTimeout:       2 * time.Minute,
		ConnContext:       withHTTPConnection,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(c.Log.Handler(), slog.LevelDebug),
	}
}

// Ready returns nil while the server accepts calls. It serves readiness probes.
func (s *Server) Ready() error { return s.health.ready() }

// Run serves until ctx is cancelled or a listener fails. When ctx is cancelled
// it reports that it is not ready, then stops accepting calls, waits for
// running calls for at most the grace period, aborts the rest, and returns nil.
func (s *Server) Run(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var serving errgroup.Group
	serve := func(name string, l net.Listener, f func(net.Listener) error) {
		serving.Go(func() error {
			defer stop()
			// A server that is stopped before it has begun says so.
			if err := f(l); err != nil && !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, grpc.ErrServerStopped) {
				return fmt.Errorf("serve %s on %s: %w", name, l.Addr(), err)
			}
			return nil
		})
	}
	serve("gRPC", connections{s.config.GRPC}, s.grpc.Serve)
	if l := s.config.HTTP; l != nil {
		l = connections{l}
		if s.config.TLS != nil {
			l = tls.NewListener(l, withHTTP(s.config.TLS))
		}
		serve("HTTP", l, s.http.Serve)
	}
	if s.revocations != nil {
		serving.Go(func() error {
			s.bearers.revoked.poll(ctx, s.revocations, s.bearers.known.clear, s.config.Log)
			return nil
		})
	}
	s.health.set(true)
	<-ctx.Done()
	s.drain()
	return serving.Wait()
}

// withHTTP returns a copy of c that negotiates HTTP versions.
func withHTTP(c *tls.Config) *tls.Config {
	c = c.Clone()
	c.NextProtos = []string{"http/1.1"}
	return c
}

// drain stops both sides within the grace period.
func (s *Server) drain() {
	s.health.set(false)
	time.Sleep(s.config.DrainDelay)
	s.health.close()
	close(s.stopping)
	grace, cancel := context.WithTimeout(context.Background(), s.config.Grace)
	defer cancel()
	var stopping errgroup.Group
	stopping.Go(func() error {
		cut := context.AfterFunc(grace, s.grpc.Stop)
		defer cut()
		s.grpc.GracefulStop()
		return nil
	})
	stopping.Go(func() error {
		if err := s.http.Shutdown(grace); err != nil {
			return s.http.Close()
		}
		return nil
	})
	if err := stopping.Wait(); err != nil {
		s.config.Log.Warn("HTTP connections cannot be closed", "err", err)
	}
}
