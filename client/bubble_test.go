package client

import (
	"context"
	"log/slog"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// A bubble is a listener in the fake time of synctest. It calls its service without a network and has no broker: the test
// hands it the records. Tests of leases use it, which a machine that stands still would end.
type bubble struct {
	t    *testing.T
	svc  *fakeService
	l    *Listener
	part *tracker
	next int64 // offset
	stop func()
}

func newBubble(t *testing.T) *bubble {
	t.Helper()
	return &bubble{t: t, svc: newFakeService(nil), part: newTracker(0, 0), stop: func() {}}
}

// listen starts the listener. The test must call stop.
func (b *bubble) listen(cfg ListenerConfig, handlers map[string]Handler) {
	b.t.Helper()
	setDefault(&cfg.Logger, slog.New(slog.DiscardHandler))
	l, err := (&Client{runs: direct{s: b.svc}}).NewListener(cfg)
	if err != nil {
		b.t.Fatal(err)
	}
	for kind, h := range handlers {
		l.Handle(kind, h)
	}
	for _, k := range l.kinds {
		k.call = l.chain(k)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var senders sync.WaitGroup
	l.engine.runSenders(ctx, &senders)
	b.l, b.stop = l, func() { cancel(); senders.Wait(); l.engine.wait() }
}

// arrive registers a run with the service and hands its record to the listener.
func (b *bubble) arrive(p task.Publication) {
	b.svc.with(func() { b.svc.runs[p.RunID()] = newRefRun(p.Type, 5) })
	b.l.engine.arrive(b.part, p, b.next)
	b.next++
}

// direct calls a service without a network.
type direct struct {
	perceptorv1.RunServiceClient
	s *fakeService
}

func (direct) in(ctx context.Context) context.Context {
	return metadata.NewIncomingContext(ctx, metadata.Pairs("authorization", "Bearer "+testToken))
}

func (d direct) StartRuns(ctx context.Context, q *perceptorv1.StartRunsRequest, _ ...grpc.CallOption) (*perceptorv1.StartRunsResponse, error) {
	return d.s.StartRuns(d.in(ctx), q)
}

func (d direct) HeartbeatRuns(ctx context.Context, q *perceptorv1.HeartbeatRunsRequest, _ ...grpc.CallOption) (*perceptorv1.HeartbeatRunsResponse, error) {
	return d.s.HeartbeatRuns(d.in(ctx), q)
}

func (d direct) ReportResults(ctx context.Context, q *perceptorv1.ReportResultsRequest, _ ...grpc.CallOption) (*perceptorv1.ReportResultsResponse, error) {
	return d.s.ReportResults(d.in(ctx), q)
}
