package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net"
	"os"
	"strings"
	"time"

	"github.com/segmentio/kafka-go/sasl"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"

	"github.com/perceptor/perceptor/internal/kafkalogin"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// Environment variables that [New] reads for empty fields of [Config].
const (
	EnvAddress = "PERCEPTOR_ADDRESS"
	EnvToken   = "PERCEPTOR_TOKEN"
)

// Config configures a [Client]. The zero value takes the address and the token
// from the environment.
type Config struct {
	// Address is the host:port of the gRPC API. Several addresses are separated
	// by commas. The client distributes calls over them, and over the addresses
	// of a DNS name. Default: PERCEPTOR_ADDRESS, then localhost:7070.
	Address string
	// Token is the tenant's secret. Default: PERCEPTOR_TOKEN. It may be missing if TLS
	// has a certificate that the service knows.
	Token string
	// TokenSource, if set, is asked for the token of each call instead, so that tokens
	// can be rotated, and JSON Web Tokens renewed, without a new client. It may be
	// called concurrently and should cache. While it fails, calls are retried.
	TokenSource func(ctx context.Context) (string, error)
	// TLS configures the connection. Default (nil): no TLS, which is only allowed
	// to this machine's loopback, unless Insecure is set.
	TLS *tls.Config
	// Insecure allows the client to send the token in the clear to other machines,
	// where everybody on the way can read and use it. Set it only where something
	// else encrypts the way, such as a service mesh.
	Insecure bool
	// CallTimeout bounds a call including all its retries, unless the context
	// has an earlier deadline. Default: 30 s.
	CallTimeout time.Duration
	// Kafka configures the connection of listeners to the brokers.
	Kafka KafkaConfig
	// Codec converts the values of params on their way to and from the service, such
	// as [NewAESCodec]. All programs of the tenant need the same. Default (nil): params
	// are stored as they are.
	Codec Codec
	// TracerProvider creates spans: one for each AddTask and AddTasks, and one
	// for each call of a handler, linked to that of the add. Default (nil): no
	// spans. The trace context of the caller is stored with the task in any
	// case, if it is sampled; see [Run.TraceParent].
	TracerProvider trace.TracerProvider
	// Logger gets a warning, at most every 10 s, while calls are repeated because the
	// service does not answer. Default: slog.Default().
	Logger *slog.Logger
	// DialOptions are additional options of the connection to the service:
	// interceptors, the stats handler of otelgrpc, a dialer.
	DialOptions []grpc.DialOption
}

// KafkaConfig configures the connection to the brokers. The zero value uses the
// brokers that the service names, without TLS.
type KafkaConfig struct {
	// Brokers are host:port addresses to use instead of those that the service
	// names.
	Brokers []string
	// TLS configures the connections. Default (nil): no TLS.
	TLS *tls.Config
	// SASL is the mechanism to log in with, such as one of [KafkaLogin], [KafkaPasswordFile] or
	// [KafkaTokenFile]. PLAIN and OAUTHBEARER need TLS. Default (nil): the login of
	// the tenant that the service hands out, if it does.
	SASL sasl.Mechanism
}

// KafkaLogin returns the SASL mechanism with a name, SCRAM-SHA-512, SCRAM-SHA-256 or PLAIN.
func KafkaLogin(mechanism, username, password string) (sasl.Mechanism, error) {
	return kafkalogin.New(mechanism, username, password)
}

// KafkaPasswordFile is [KafkaLogin] with the password in a file, without the line break at its end. The
// file is read for each connection, so that the password may be changed while the program runs.
func KafkaPasswordFile(mechanism, username, path string) (sasl.Mechanism, error) {
	return kafkalogin.PasswordFile(mechanism, username, path)
}

// KafkaTokenFile returns the SASL mechanism OAUTHBEARER with the token in a file. The file is
// read for each connection, so that another program may renew the token.
func KafkaTokenFile(path string) sasl.Mechanism { return kafkalogin.TokenFile(path) }

const (
	defaultAddress     = "localhost:7070"
	defaultCallTimeout = 30 * time.Second
)

// Tasks has the methods of [Client] that services need for tasks. Depend on it
// instead of *Client to wrap or replace the client; package clienttest has an
// implementation in memory. New methods of [Client] are added to Tasks, so
// embed it in your own implementations.
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
	ByKey(key string) KeyedTask
}

var _ Tasks = (*Client)(nil)

// Client calls the API for one tenant. It is safe for concurrent use. One per
// process is enough.
type Client struct {
	cfg       Config
	conn      *grpc.ClientConn
	tasks     perceptorv1.TaskServiceClient
	dead      perceptorv1.DeadLetterServiceClient
	bulk      perceptorv1.BulkServiceClient
	runs      perceptorv1.RunServiceClient
	adds      *batcher[*pendingAdd]
	placement placement
	pauses    pauses
	retries   *budget
	silent    logLimit
	// tracer is nil if no spans are created.
	tracer trace.Tracer
	stop   context.CancelFunc
	done   chan struct{}
}

// New returns a client. It checks cfg and names all faults in one error. It
// does not wait for a connection; the first call does.
func New(cfg Config) (*Client, error) {
	cfg, conn, err := connect(cfg)
	if err != nil {
		return nil, err
	}
	return newClient(cfg, conn), nil
}

// connect completes cfg and opens a connection without waiting for it.
func connect(cfg Config) (Config, *grpc.ClientConn, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return Config{}, nil, err
	}
	conn, err := dial(cfg)
	switch {
	case err != nil && cfg.TLS == nil && !cfg.Insecure && !onLoopback(cfg.Address):
		return Config{}, nil, fmt.Errorf("perceptor: Address %q: is not on loopback, and the token would be sent in the clear: set TLS, or Insecure: %w", cfg.Address, err)
	case err != nil:
		return Config{}, nil, fmt.Errorf("perceptor: dialling %s: %w", cfg.Address, err)
	}
	return cfg, conn, nil
}

func newClient(cfg Config, conn *grpc.ClientConn) *Client {
	ctx, stop := context.WithCancel(context.Background())
	c := &Client{
		cfg: cfg, conn: conn, stop: stop, done: make(chan struct{}),
		tasks:   perceptorv1.NewTaskServiceClient(conn),
		runs:    perceptorv1.NewRunServiceClient(conn),
		dead:    perceptorv1.NewDeadLetterServiceClient(conn),
		bulk:    perceptorv1.NewBulkServiceClient(conn),
		retries: newBudget(retryShare),
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

// Close closes the connection. Running calls fail with [ErrClosed] or
// [ErrUnavailable]. Listeners of the client must have ended before.
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
	setDefault(&cfg.Logger, slog.Default())
	var faults []error
	for _, a := range splitAddresses(cfg.Address) {
		if _, port, err := net.SplitHostPort(a); err != nil || port == "" {
			faults = append(faults, fmt.Errorf("Address %q: want host:port, or several separated by commas", a))
		}
	}
	if cfg.Token == "" && cfg.TokenSource == nil && !hasCertificate(cfg.TLS) {
		faults = append(faults, fmt.Errorf("Token is missing; give it or set %s", EnvToken))
	}
	if !isPrintable(cfg.Token) {
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
	if kafkalogin.InTheClear(cfg.Kafka.SASL) && cfg.Kafka.TLS == nil {
		faults = append(faults, fmt.Errorf("Kafka.SASL %s sends a secret, and Kafka.TLS is not set", cfg.Kafka.SASL.Name()))
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
