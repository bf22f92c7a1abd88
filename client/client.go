package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"iter"
	"net"
	"os"
	"strings"
	"time"

	"github.com/segmentio/kafka-go/sasl"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// Names of the environment variables that [New] falls back to.
const (
	EnvAddress = "PERCEPTOR_ADDRESS"
	EnvToken   = "PERCEPTOR_TOKEN"
)

// Config says where the service is and who is calling. The zero value takes
// address and token from the environment.
type Config struct {
	// Address is host:port of the API (gRPC). Several may be given, separated by
	// commas; a DNS name with several addresses is used in turn, too. Default:
	// PERCEPTOR_ADDRESS, then localhost:7070.
	Address string
	// Token is the tenant's secret. Default: PERCEPTOR_TOKEN.
	Token string
	// TLS is the configuration of the connection. Default (nil): no TLS.
	TLS *tls.Config
	// CallTimeout bounds a call with all its retries, when the context has no
	// earlier deadline. Default: 30 s.
	CallTimeout time.Duration
	// Kafka says how listeners reach the brokers.
	Kafka KafkaConfig
	// TracerProvider makes spans: one for each AddTask and AddTasks, and one for
	// each call of a handler, linked to that of the add. Default (nil): none. The
	// trace context of whoever adds a task travels with it all the same, if it is
	// sampled; see [Run.TraceParent].
	TracerProvider trace.TracerProvider
	// DialOptions are added to those of the connection to the service: interceptors,
	// the stats handler of otelgrpc, a dialer.
	DialOptions []grpc.DialOption
}

// KafkaConfig says how listeners reach the brokers. The zero value uses what the
// service says, without TLS.
type KafkaConfig struct {
	// Brokers are host:port, instead of those that the service names.
	Brokers []string
	// TLS is the configuration of the connections. Default (nil): no TLS.
	TLS *tls.Config
	// SASL says how to log in. Default (nil): not at all.
	SASL sasl.Mechanism
}

const (
	defaultAddress     = "localhost:7070"
	defaultCallTimeout = 30 * time.Second
)

// Tasks is what services do with tasks, as a [Client] does it. Take it instead of
// *Client, and wrap it as you like; tests may have a whole client in memory, of
// package clienttest. It grows with [Client]: embed it in what you implement.
type Tasks interface {
	AddTask(ctx context.Context, t Task, opts ...AddOption) (int64, error)
	AddTasks(ctx context.Context, tasks []Task, opts ...AddOption) ([]AddResult, error)
	GetTask(ctx context.Context, id int64) (*TaskInfo, error)
	ListTasks(ctx context.Context, f Filter) iter.Seq2[*TaskInfo, error]
	UpdateTask(ctx context.Context, id int64, t Task, o UpdateOptions) (*TaskInfo, error)
	TriggerTask(ctx context.Context, id int64, opts ...AddOption) (seq int64, err error)
	CancelTask(ctx context.Context, id int64) (*TaskInfo, error)
	PauseTask(ctx context.Context, id int64) (*TaskInfo, error)
	ResumeTask(ctx context.Context, id int64) (*TaskInfo, error)
}

var _ Tasks = (*Client)(nil)

// Client calls the API for one tenant. Make one per process and keep it; it is
// safe for concurrent use.
type Client struct {
	cfg   Config
	conn  *grpc.ClientConn
	tasks perceptorv1.TaskServiceClient
	dead  perceptorv1.DeadLetterServiceClient
	bulk  perceptorv1.BulkServiceClient
	runs  perceptorv1.RunServiceClient
	adds  *batcher[*pendingAdd]
	aim   aim
	// tracer is nil when there are no spans to be made.
	tracer trace.Tracer
	stop   context.CancelFunc
	done   chan struct{}
}

// New returns a client. It checks cfg, naming everything that is wrong, but
// does not wait for a connection: the first call does.
func New(cfg Config) (*Client, error) {
	cfg, conn, err := connect(cfg)
	if err != nil {
		return nil, err
	}
	return newClient(cfg, conn), nil
}

// connect completes cfg and opens a connection, without waiting for it.
func connect(cfg Config) (Config, *grpc.ClientConn, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return Config{}, nil, err
	}
	conn, err := dial(cfg)
	if err != nil {
		return Config{}, nil, fmt.Errorf("perceptor: dialling %s: %w", cfg.Address, err)
	}
	return cfg, conn, nil
}

func newClient(cfg Config, conn *grpc.ClientConn) *Client {
	ctx, stop := context.WithCancel(context.Background())
	c := &Client{
		cfg: cfg, conn: conn, stop: stop, done: make(chan struct{}),
		tasks: perceptorv1.NewTaskServiceClient(conn),
		runs:  perceptorv1.NewRunServiceClient(conn),
		dead:  perceptorv1.NewDeadLetterServiceClient(conn),
		bulk:  perceptorv1.NewBulkServiceClient(conn),
	}
	if cfg.TracerProvider != nil {
		c.tracer = cfg.TracerProvider.Tracer(tracerName)
	}
	c.adds = c.newAdder()
	go func() {
		defer close(c.done)
		c.adds.run(ctx)
	}()
	return c
}

// Close ends the connection. Calls that are under way fail with [ErrClosed] or
// [ErrUnavailable]. Listeners of the client must have ended.
func (c *Client) Close() error {
	c.stop()
	<-c.done
	return c.conn.Close()
}

func (c *Client) closed() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

func (cfg Config) complete() (Config, error) {
	setDefault(&cfg.Address, os.Getenv(EnvAddress))
	setDefault(&cfg.Address, defaultAddress)
	setDefault(&cfg.Token, os.Getenv(EnvToken))
	setDefault(&cfg.CallTimeout, defaultCallTimeout)
	var faults []error
	for _, a := range splitAddresses(cfg.Address) {
		if _, port, err := net.SplitHostPort(a); err != nil || port == "" {
			faults = append(faults, fmt.Errorf("Address %q: want host:port, or several separated by commas", a))
		}
	}
	if cfg.Token == "" {
		faults = append(faults, fmt.Errorf("Token is missing; give it or set %s", EnvToken))
	} else if strings.ContainsFunc(cfg.Token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		faults = append(faults, errors.New("Token contains spaces or characters that are not printable ASCII"))
	}
	if cfg.CallTimeout < 0 {
		faults = append(faults, fmt.Errorf("CallTimeout %s is negative", cfg.CallTimeout))
	}
	for _, b := range cfg.Kafka.Brokers {
		if _, port, err := net.SplitHostPort(b); err != nil || port == "" {
			faults = append(faults, fmt.Errorf("Kafka.Brokers %q: want host:port", b))
		}
	}
	if len(faults) > 0 {
		return cfg, fmt.Errorf("perceptor: configuration: %w", errors.Join(faults...))
	}
	return cfg, nil
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func splitAddresses(s string) []string {
	var list []string
	for a := range strings.SplitSeq(s, ",") {
		list = append(list, strings.TrimSpace(a))
	}
	return list
}
