package upload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/transfer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// service is an import service that fails as it is told.
type service struct {
	perceptorv1.UnimplementedImportServiceServer
	// fail is called before and after a chunk is stored. An error ends the stream.
	fail func(number int64, stored bool) error
	// silent streams answer nothing.
	silent func() bool
	pause  int32

	mu     sync.Mutex
	stored []int64
	sizes  map[int64]int32
	parts  int
}

func (s *service) WriteImport(stream perceptorv1.ImportService_WriteImportServer) error {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return err
	}
	defer d.Close()
	var wire []byte
	for first := true; ; first = false {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if first && r.Id != 7 || len(r.Part) > maxPart {
			return status.Errorf(codes.InvalidArgument, "id %d, %d bytes", r.Id, len(r.Part))
		}
		s.mu.Lock()
		s.parts++
		s.mu.Unlock()
		if wire = append(wire, r.Part...); !r.Last {
			continue
		}
		text, err := d.DecodeAll(wire, nil)
		if err != nil {
			return err
		}
		c := &perceptorv1.ImportChunk{}
		if err := proto.Unmarshal(text, c); err != nil {
			return err
		}
		wire = nil
		if err := s.store(stream, c); err != nil {
			return err
		}
	}
}

func (s *service) store(stream perceptorv1.ImportService_WriteImportServer, c *perceptorv1.ImportChunk) error {
	if err := s.fail(c.Number, false); err != nil {
		return err
	}
	s.mu.Lock()
	replayed := slices.Contains(s.stored, c.Number)
	if !replayed {
		s.stored = append(s.stored, c.Number)
	}
	s.sizes[c.Number] = c.LineCount
	s.mu.Unlock()
	if err := s.fail(c.Number, true); err != nil {
		return err
	}
	if s.silent != nil && s.silent() {
		<-stream.Context().Done()
		return stream.Context().Err()
	}
	return stream.Send(&perceptorv1.WriteImportResponse{Number: c.Number, AddedCount: int64(c.LineCount), Replayed: replayed, PauseMs: s.pause})
}

// started returns a client of a service.
func started(t *testing.T, s *service) perceptorv1.ImportServiceClient {
	t.Helper()
	if s.fail == nil {
		s.fail = func(int64, bool) error { return nil }
	}
	s.sizes = map[int64]int32{}
	l := bufconn.Listen(1 << 20)
	server := grpc.NewServer()
	perceptorv1.RegisterImportServiceServer(server, s)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	conn, err := grpc.NewClient("passthrough:x", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close() //nolint:errcheck // nothing depends on it
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return perceptorv1.NewImportServiceClient(conn)
}

// chunks sends n chunks of two lines, with params of some bytes.
func chunks(t *testing.T, n, bytes int) <-chan *transfer.Chunk {
	t.Helper()
	rng := rand.New(rand.NewPCG(1, 2))
	b, err := transfer.NewBuilder(2)
	if err != nil {
		t.Fatal(err)
	}
	to := make(chan *transfer.Chunk, n)
	for range n {
		for range 2 {
			noise := make([]byte, bytes)
			for i := range noise {
				noise[i] = byte(rng.Uint32())
			}
			if err := b.Add(source{}, &transfer.Line{Params: noise}); err != nil {
				t.Fatal(err)
			}
		}
		c, err := b.Take()
		if err != nil {
			t.Fatal(err)
		}
		to <- c
	}
	close(to)
	return to
}

// source has one template.
type source struct{ transfer.Source }

func (source) Template(*transfer.Line) (*perceptorv1.Task, error) { return &perceptorv1.Task{}, nil }

// answers collects answers.
type answers struct {
	numbers  []int64
	replayed int
}

func (a *answers) take(c *transfer.Chunk, r *perceptorv1.WriteImportResponse) error {
	if c.Number != r.Number {
		return fmt.Errorf("chunk %d has the answer of %d", c.Number, r.Number)
	}
	a.numbers = append(a.numbers, r.Number)
	if r.Replayed {
		a.replayed++
	}
	return nil
}

func (a *answers) check(t *testing.T, n int) {
	t.Helper()
	for i := range n {
		if i >= len(a.numbers) || a.numbers[i] != int64(i+1) {
			t.Fatalf("the answers are %v, want 1 to %d, each once", a.numbers, n)
		}
	}
	if len(a.numbers) != n {
		t.Errorf("%d answers, want %d", len(a.numbers), n)
	}
}

func TestEachChunkIsAnsweredOnceThoughStreamsBreak(t *testing.T) {
	const n = 60
	rng, mu, broken := rand.New(rand.NewPCG(3, 4)), sync.Mutex{}, 0
	s := &service{fail: func(int64, bool) error {
		mu.Lock()
		defer mu.Unlock()
		if rng.IntN(6) == 0 {
			broken++
			return status.Error([]codes.Code{codes.Unavailable, codes.Internal, codes.Aborted}[rng.IntN(3)], "broken")
		}
		return nil
	}}
	var a answers
	away := 0
	err := Run(t.Context(), started(t, s), Config{Import: 7, Answered: a.take, Away: func(error, time.Duration) { away++ }}, chunks(t, n, 10))
	if err != nil {
		t.Fatal(err)
	}
	a.check(t, n)
	if away != broken || away == 0 || a.replayed == 0 {
		t.Errorf("told %d times that the service is away, which it was %d times; %d answers are replayed", away, broken, a.replayed)
	}
	if len(s.stored) != n {
		t.Errorf("%d chunks are stored, want %d", len(s.stored), n)
	}
}

func TestALargeChunkIsSentInParts(t *testing.T) {
	s := &service{}
	var a answers
	if err := Run(t.Context(), started(t, s), Config{Import: 7, Answered: a.take}, chunks(t, 2, 3*maxPart/2)); err != nil {
		t.Fatal(err)
	}
	a.check(t, 2)
	if s.parts != 8 || s.sizes[2] != 2 {
		t.Errorf("%d parts, want 8; chunk 2 has %d lines", s.parts, s.sizes[2])
	}
}

func TestAPartIsBelowTheLeastLimitOfRequests(t *testing.T) {
	const least = 1 << 16 // of taskd.max_request_bytes
	if n := proto.Size(&perceptorv1.WriteImportRequest{Id: math.MaxInt64, Part: make([]byte, maxPart), Last: true}); n > least {
		t.Errorf("a part takes %d bytes of a request, want at most %d", n, least)
	}
}

func TestAnErrorThatRepeatingCannotChangeEndsTheUpload(t *testing.T) {
	for _, code := range []codes.Code{codes.InvalidArgument, codes.NotFound, codes.FailedPrecondition, codes.PermissionDenied, codes.Unauthenticated, codes.Unimplemented} {
		s := &service{fail: func(number int64, _ bool) error {
			if number == 3 {
				return status.Error(code, "no")
			}
			return nil
		}}
		err := Run(t.Context(), started(t, s), Config{Import: 7, Answered: new(answers).take}, chunks(t, 5, 10))
		if status.Code(err) != code {
			t.Errorf("%s: the error is %v", code, err)
		}
	}
	enough := errors.New("enough")
	err := Run(t.Context(), started(t, &service{}), Config{Import: 7, Answered: func(*transfer.Chunk, *perceptorv1.WriteImportResponse) error { return enough }}, chunks(t, 5, 10))
	if !errors.Is(err, enough) {
		t.Errorf("the error is %v, want that of the caller", err)
	}
}

func TestAServiceThatStaysAwayEndsTheUpload(t *testing.T) {
	s := &service{fail: func(int64, bool) error { return status.Error(codes.Unavailable, "away") }}
	err := Run(t.Context(), started(t, s), Config{Import: 7, Answered: new(answers).take, PatientFor: 300 * time.Millisecond}, chunks(t, 1, 10))
	if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "has not answered for 300ms") {
		t.Errorf("the error is %v", err)
	}
}

func TestAnAnswerThatDoesNotComeIsAskedForAgain(t *testing.T) {
	var mu sync.Mutex
	left := 2
	s := &service{silent: func() bool {
		mu.Lock()
		defer mu.Unlock()
		left--
		return left >= 0
	}}
	var a answers
	var slow error
	err := Run(t.Context(), started(t, s), Config{
		Import: 7, Answered: a.take, AnswerLimit: 100 * time.Millisecond, Away: func(err error, _ time.Duration) { slow = err },
	}, chunks(t, 3, 10))
	if err != nil {
		t.Fatal(err)
	}
	a.check(t, 3)
	if status.Code(slow) != codes.DeadlineExceeded {
		t.Errorf("the failure told is %v", slow)
	}
}

func TestTheCallerPausesAsLongAsTheServiceAsks(t *testing.T) {
	s := &service{pause: 50}
	begin := time.Now()
	var a answers
	if err := Run(t.Context(), started(t, s), Config{Import: 7, Window: 1, Answered: a.take}, chunks(t, 5, 10)); err != nil {
		t.Fatal(err)
	}
	a.check(t, 5)
	if took := time.Since(begin); took < 200*time.Millisecond {
		t.Errorf("five chunks took %s, which is less than four pauses", took)
	}
	asked, err := status.New(codes.ResourceExhausted, "quota").WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(3 * time.Second)})
	if err != nil {
		t.Fatal(err)
	}
	if d := askedFor(asked.Err()); d != 3*time.Second {
		t.Errorf("the service asks for %s, want 3s", d)
	}
}

func TestTheEndOfTheContextEndsTheUpload(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := &service{silent: func() bool { cancel(); return true }}
	if err := Run(ctx, started(t, s), Config{Import: 7, Answered: new(answers).take}, chunks(t, 3, 10)); err == nil || ctx.Err() == nil {
		t.Errorf("the error is %v", err)
	}
}
