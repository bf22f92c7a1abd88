// Package tracing sends the spans of a process to an OTLP receiver, with the SDK of
// OpenTelemetry.
//
// # Promise
//
// Traces never delay or fail what they are about. Starting and ending a span only touches
// memory. The queue of ended spans is bounded, one goroutine exports them in batches, and
// each export has a deadline. If the receiver is away or hangs, spans are dropped and counted.
// A stop waits for the last export for at most [stopWithin].
//
// # What is sampled
//
// The caller decides: a span whose parent, or whose link, is sampled is sampled. Of the calls
// without a trace context, a configured ratio is. A process begins at most Config.MaxRate
// sampled pieces of work per second, whoever asks for them; what exceeds that is not sampled,
// and counted. So no tenant can make a process spend its time on traces by setting a flag.
package tracing

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc/credentials"
)

// Config configures a [Provider].
type Config struct {
	// Endpoint is the URL of the OTLP receiver. With the scheme http the link has no TLS.
	Endpoint string
	// HTTP selects OTLP over HTTP; otherwise it is over gRPC.
	HTTP bool
	// Headers are sent with each export. If there are none, those of the environment
	// variable OTEL_EXPORTER_OTLP_HEADERS are.
	Headers map[string]string
	// TLS, if set, returns the configuration of a gRPC connection that begins now, and Transport, if set, sends requests
	// over HTTP; otherwise the standard environment variables configure TLS.
	TLS       func() *tls.Config
	Transport http.RoundTripper
	// SampleRatio is the share, 0 to 1, of calls without a trace context that are sampled.
	SampleRatio float64
	// MaxRate is the most sampled pieces of work that begin per second.
	MaxRate int
	// Service, Version and Instance name the process in its spans. The environment variables
	// OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES override them.
	Service, Version, Instance string
	// Log gets messages about exports that fail.
	Log *slog.Logger
	// Exported and Dropped count spans, and why they were dropped. They must not block.
	Exported func(n int)
	Dropped  func(reason string, n int)
}

// The reasons for which spans are dropped.
const (
	DroppedRate   = "rate"   // more work than Config.MaxRate began
	DroppedQueue  = "queue"  // too many spans waited for their export
	DroppedExport = "export" // the receiver did not take them
)

// Reasons lists them.
var Reasons = []string{DroppedRate, DroppedQueue, DroppedExport}

const (
	scope = "github.com/perceptor/perceptor"
	// maxWaiting bounds the ended spans in memory, and batch those of one export.
	maxWaiting = 8192
	batch      = 512
	// exportEvery is how long an ended span waits for others.
	exportEvery = time.Second
	// exportWithin bounds one export with its retries.
	exportWithin = 5 * time.Second
	// stopWithin bounds the export of the last spans at a stop.
	stopWithin = 2 * time.Second
	// maxAttributeBytes bounds a text in a span.
	maxAttributeBytes = 1024
)

// A Provider makes and exports spans. A nil Provider makes none.
type Provider struct {
	sdk *sdk.TracerProvider
}

// New returns a provider. It does not wait for a connection. Close it in the end.
func New(ctx context.Context, c Config) (*Provider, error) {
	to, err := newExporter(ctx, &c)
	if err != nil {
		return nil, fmt.Errorf("configure the export of traces: %w", err)
	}
	about, err := resource.New(ctx, resource.WithAttributes(
		attribute.String("service.name", c.Service), attribute.String("service.version", c.Version),
		attribute.String("service.instance.id", c.Instance),
	), resource.WithHost(), resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil && !errors.Is(err, resource.ErrPartialResource) {
		return nil, fmt.Errorf("describe the process in traces: %w", err)
	}
	q := &queue{dropped: c.Dropped, exported: c.Exported, log: c.Log}
	q.SpanProcessor = sdk.NewBatchSpanProcessor(&exporter{to, q}, sdk.WithMaxQueueSize(maxWaiting),
		sdk.WithMaxExportBatchSize(batch), sdk.WithBatchTimeout(exportEvery), sdk.WithExportTimeout(exportWithin))
	limits := sdk.NewSpanLimits()
	limits.AttributeValueLengthLimit = maxAttributeBytes
	return &Provider{sdk.NewTracerProvider(sdk.WithSampler(newSampler(&c)), sdk.WithSpanProcessor(q),
		sdk.WithResource(about), sdk.WithRawSpanLimits(limits))}, nil
}

func newExporter(ctx context.Context, c *Config) (sdk.SpanExporter, error) {
	if c.HTTP {
		options := []otlptracehttp.Option{
			otlptracehttp.WithEndpointURL(c.Endpoint), otlptracehttp.WithTimeout(exportWithin),
			otlptracehttp.WithCompression(otlptracehttp.GzipCompression), otlptracehttp.WithRetry(otlptracehttp.RetryConfig(retries)),
		}
		if len(c.Headers) > 0 {
			options = append(options, otlptracehttp.WithHeaders(c.Headers))
		}
		if c.Transport != nil {
			options = append(options, otlptracehttp.WithHTTPClient(&http.Client{Transport: c.Transport, Timeout: exportWithin}))
		}
		return otlptrace.New(ctx, otlptracehttp.NewClient(options...))
	}
	options := []otlptracegrpc.Option{
		otlptracegrpc.WithEndpointURL(c.Endpoint), otlptracegrpc.WithTimeout(exportWithin),
		otlptracegrpc.WithCompressor("gzip"), otlptracegrpc.WithRetry(retries),
	}
	if len(c.Headers) > 0 {
		options = append(options, otlptracegrpc.WithHeaders(c.Headers))
	}
	if c.TLS != nil {
		options = append(options, otlptracegrpc.WithTLSCredentials(&follows{credentials.NewTLS(c.TLS()), c.TLS}))
	}
	return otlptrace.New(ctx, otlptracegrpc.NewClient(options...))
}

var retries = otlptracegrpc.RetryConfig{Enabled: true, InitialInterval: 500 * time.Millisecond, MaxInterval: 2 * time.Second, MaxElapsedTime: exportWithin}

// follows are the credentials of connections of which each has the configuration at its beginning.
type follows struct {
	credentials.TransportCredentials
	tls func() *tls.Config
}

// ClientHandshake implements [credentials.TransportCredentials].
func (f *follows) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return credentials.NewTLS(f.tls()).ClientHandshake(ctx, authority, conn)
}

// Clone implements [credentials.TransportCredentials].
func (f *follows) Clone() credentials.TransportCredentials { return f }

// Tracer returns what makes spans. That of a nil Provider is nil.
func (p *Provider) Tracer() trace.Tracer {
	if p == nil {
		return nil
	}
	return p.sdk.Tracer(scope)
}

// Close exports the last spans.
func (p *Provider) Close() {
	if p == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopWithin)
	defer cancel()
	_ = p.sdk.Shutdown(ctx) // what is not exported by then is lost
}
