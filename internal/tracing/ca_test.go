package tracing

import (
	"context"
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"

	"github.com/perceptor/perceptor/internal/certs"
	"github.com/perceptor/perceptor/internal/testenv"
)

// receiver takes all spans, by gRPC and by HTTP.
type receiver struct {
	collector.UnimplementedTraceServiceServer
}

func (receiver) Export(context.Context, *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	return &collector.ExportTraceServiceResponse{}, nil
}

// startReceiver returns the URL of a receiver with a certificate of a CA.
func startReceiver(t *testing.T, ca *testenv.CA) string {
	t.Helper()
	c := ca.Issue(t, testenv.Server)
	pair, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	byGRPC := grpc.NewServer()
	collector.RegisterTraceServiceServer(byGRPC, receiver{})
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc") {
			byGRPC.ServeHTTP(w, r)
		}
	}))
	s.EnableHTTP2, s.TLS = true, &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s.URL
}

func TestAReceiverIsReachedAfterItsCAWasReplaced(t *testing.T) {
	t.Parallel()
	before, after := testenv.NewCA(t), testenv.NewCA(t)
	url := startReceiver(t, after)
	for _, overHTTP := range []bool{false, true} {
		file := filepath.Join(t.TempDir(), "ca.pem")
		put := func(ca *testenv.CA) {
			text, err := os.ReadFile(ca.File)
			if err == nil {
				err = os.WriteFile(file, text, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		put(before)
		c := newCounted(url)
		source, err := certs.Open(certs.Files{CA: file}, certs.Names{}, c.Log)
		if err != nil {
			t.Fatal(err)
		}
		c.HTTP, c.TLS, c.Transport = overHTTP, source.Client, source.Transport(http.DefaultTransport.(*http.Transport))
		p := c.provider(t)
		export := func() {
			_, span := p.Tracer().Start(caller(trace.FlagsSampled), "work")
			span.End()
			_ = p.sdk.ForceFlush(t.Context()) // what becomes of the span is counted
		}
		if export(); c.exported.Load() > 0 {
			t.Fatalf("HTTP %v: the receiver is trusted before its CA is", overHTTP)
		}
		put(after)
		for deadline := time.Now().Add(20 * time.Second); c.exported.Load() == 0 && time.Now().Before(deadline); {
			export()
		}
		if c.exported.Load() == 0 {
			t.Errorf("HTTP %v: no span was exported after the CA was replaced", overHTTP)
		}
	}
}
