package main

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/perceptor/perceptor/export"
	"github.com/perceptor/perceptor/internal/cli"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
)

// exportsThatFail answers streams with errors, one after another, and then with an export without a line.
type exportsThatFail struct {
	perceptorv1.ExportServiceClient
	errs  []error
	tries int
}

func (f *exportsThatFail) ExportTasks(context.Context, *perceptorv1.ExportTasksRequest, ...grpc.CallOption) (grpc.ServerStreamingClient[perceptorv1.ExportChunk], error) {
	if f.tries++; f.tries <= len(f.errs) {
		return nil, f.errs[f.tries-1]
	}
	return &emptyExport{}, nil
}

// emptyExport is a stream whose only chunk is the last one.
type emptyExport struct {
	grpc.ClientStream
	ended bool
}

func (e *emptyExport) Recv() (*perceptorv1.ExportChunk, error) {
	if e.ended {
		return nil, io.EOF
	}
	e.ended = true
	return &perceptorv1.ExportChunk{}, nil
}

// nowhere is a sink that keeps nothing.
type nowhere struct{}

func (nowhere) Add(export.Chunk, int64) error { return nil }
func (nowhere) At() string                    { return "" }
func (nowhere) Written() int64                { return 0 }
func (nowhere) end(err error) error           { return err }
func (nowhere) summary() (string, int64)      { return "", 0 }

func TestAnExportWaitsForAQuotaBeforeItsFirstChunk(t *testing.T) {
	for name, c := range map[string]struct {
		errs []error
		took time.Duration
		code codes.Code
	}{
		"a delay that is named":        {[]error{refusal(t, 3*time.Second), refusal(t, time.Millisecond)}, 4 * time.Second, codes.OK},
		"a refusal that names none":    {[]error{refusal(t, 0)}, 0, codes.ResourceExhausted},
		"a delay beyond --retry-for":   {[]error{refusal(t, time.Hour)}, 0, codes.ResourceExhausted},
		"a service that is not there":  {[]error{status.Error(codes.Unavailable, "away")}, 0, codes.Unavailable},
		"a request that is not valid ": {[]error{status.Error(codes.InvalidArgument, "kinds: is too long")}, 0, codes.InvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var said strings.Builder
				e := &exporter{client: &exportsThatFail{errs: c.errs}, request: &perceptorv1.ExportTasksRequest{}, to: nowhere{}, bar: cli.NewProgress(io.Discard, "exporting"), retryFor: time.Minute, out: &said}
				began := time.Now()
				err := e.run(t.Context())
				if took := time.Since(began); status.Code(err) != c.code || took != c.took {
					t.Errorf("%v after %s, want %s after %s", err, took, c.code, c.took)
				}
				if waits := strings.Contains(said.String(), "the export begins in 3s: read_rate"); waits != (c.took > 0) {
					t.Errorf("it says %q", said.String())
				}
			})
		})
	}
}

// A disk that is full is said once, though the part cannot be completed for the same reason.
func TestAChunkThatCannotBeWrittenIsToldOnce(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "out")
	d, err := export.Create(path, export.Tasks, json.RawMessage(`{}`), 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
	s := &dirSink{d}
	err = s.Add(export.Chunk{Lines: []byte("{\"id\":\"512\"}\n"), Position: "1"}, 0)
	if err == nil {
		t.Fatal("a chunk was written to a directory that is gone")
	}
	if text := s.end(err).Error(); strings.Count(text, "no such file") != 1 {
		t.Errorf("the error is %q", text)
	}
}

// lateExport is away for the first calls, and then sends the last chunk of an export.
type lateExport struct {
	perceptorv1.UnimplementedExportServiceServer
	away atomic.Int32 // calls
}

func (e *lateExport) ExportTasks(_ *perceptorv1.ExportTasksRequest, to grpc.ServerStreamingServer[perceptorv1.ExportChunk]) error {
	if e.away.Add(-1) >= 0 {
		return status.Error(codes.Unavailable, "no database answers")
	}
	return to.Send(&perceptorv1.ExportChunk{})
}

// The servers restart, and a job continues the export that they have interrupted.
func TestAnExportThatIsResumedWaitsForTheService(t *testing.T) {
	service := &lateExport{}
	service.away.Store(1)
	api(t, func(s *grpc.Server) { perceptorv1.RegisterExportServiceServer(s, service) })
	path := filepath.Join(t.TempDir(), "out")
	d, err := export.Create(path, export.Tasks, json.RawMessage(`{}`), 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Add(export.Chunk{Lines: []byte("{\"id\":\"512\"}\n"), Position: "1"}, 0); err != nil {
		t.Fatal(err)
	}
	d.Abandon()
	ctl := ctlOver(t)
	if out := ctl(0, "export", "--resume", path); !strings.Contains(out, "interrupted after 1 line and continues in") || !strings.Contains(out, "exported 1 line") {
		t.Errorf("it says %s", out)
	}
	service.away.Store(1)
	ctl(cli.Unavailable, "export", "--dir", filepath.Join(t.TempDir(), "new"))
}

// silentExport sends a chunk, and then nothing.
type silentExport struct {
	perceptorv1.UnimplementedExportServiceServer
}

func (silentExport) ExportTasks(_ *perceptorv1.ExportTasksRequest, to grpc.ServerStreamingServer[perceptorv1.ExportChunk]) error {
	err := to.Send(&perceptorv1.ExportChunk{Position: "1"})
	<-to.Context().Done()
	return err
}

// oneConn is a listener with one connection.
type oneConn struct{ conns chan net.Conn }

func (l oneConn) Accept() (net.Conn, error) {
	if c, ok := <-l.conns; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}
func (oneConn) Close() error   { return nil }
func (oneConn) Addr() net.Addr { return &net.TCPAddr{} }

// deafConn is a connection to a server that takes no more data once it is deaf.
type deafConn struct {
	net.Conn
	deaf *atomic.Bool
}

func (c deafConn) Write(p []byte) (int, error) {
	if c.deaf.Load() {
		return len(p), nil
	}
	return c.Conn.Write(p)
}

// The process of taskd is stopped, so that its connections stay open and nothing comes.
func TestAnExportFromAServiceThatHangsIsInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		l := oneConn{make(chan net.Conn, 1)}
		l.conns <- far
		server := grpc.NewServer()
		perceptorv1.RegisterExportServiceServer(server, silentExport{})
		go server.Serve(l) //nolint:errcheck // it ends with Stop
		defer server.Stop()
		defer close(l.conns)
		deaf := &atomic.Bool{}
		c := &ctl{address: "127.0.0.1:1", timeout: time.Second}
		conn, err := c.dial(insecure.NewCredentials(), grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) { return deafConn{near, deaf}, nil }))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close() //nolint:errcheck // nothing depends on it
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		stream, err := perceptorv1.NewExportServiceClient(conn).ExportTasks(ctx, &perceptorv1.ExportTasksRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
		deaf.Store(true)
		began := time.Now()
		if _, err = stream.Recv(); !again(err) || time.Since(began) > 2*(aliveEvery+aliveTimeout) {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
	})
}
