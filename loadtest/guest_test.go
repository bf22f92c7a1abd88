package main

import (
	"context"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/perceptor/perceptor/client"
	"github.com/perceptor/perceptor/loadtest/stack"
)

// awaitLimit bounds each wait on a slow machine.
const awaitLimit = 2 * time.Minute

// await polls until so returns true.
func await(t *testing.T, what string, so func() bool) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(awaitLimit); !so(); <-tick.C {
		if t.Failed() {
			t.FailNow()
		}
		if time.Now().After(deadline) {
			t.Fatalf("timeout after %v, waiting until %s", awaitLimit, what)
		}
	}
}

// guest is a tenant of the shared stack, in addition to the load's tenant, with handlers in
// this process.
type guest struct {
	*client.Client
	t     *testing.T
	stack *stack.Stack
	name  string
	token string

	mu    sync.Mutex
	calls []*client.Run
}

// newGuest creates a tenant for one test.
func newGuest(t *testing.T, s *stack.Stack, name string) *guest {
	t.Helper()
	return newGuestNamed(t, s, name+"-"+strconv.FormatInt(time.Now().UnixMicro(), 36))
}

func newGuestNamed(t *testing.T, s *stack.Stack, name string) *guest {
	t.Helper()
	token, err := s.CreateTenant(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.New(s.Client(token))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() }) //nolint:errcheck // the connection is not used again
	return &guest{Client: c, t: t, stack: s, name: name, token: token}
}

// listen runs a listener with the handlers until the test ends or stop is called. It
// records all calls.
func (g *guest) listen(handlers map[string]client.Handler) (stop func()) {
	g.t.Helper()
	l, err := g.NewListener(client.ListenerConfig{StopGrace: 5 * time.Second})
	if err != nil {
		g.t.Fatal(err)
	}
	l.Use(func(next client.Handler) client.Handler {
		return func(ctx context.Context, run *client.Run) error {
			g.mu.Lock()
			g.calls = append(g.calls, run)
			g.mu.Unlock()
			return next(ctx, run)
		}
	})
	for kind, h := range handlers {
		l.Handle(kind, h)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			g.t.Error(err)
		}
	})
	g.t.Cleanup(stop)
	return stop
}

// called returns the calls of a kind up to now.
func (g *guest) called(kind string) (runs []*client.Run) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, r := range g.calls {
		if r.Kind == kind {
			runs = append(runs, r)
		}
	}
	return runs
}

func (g *guest) add(t client.Task, options ...client.AddOption) int64 {
	g.t.Helper()
	if t.Retention == 0 {
		t.Retention = time.Hour
	}
	id, err := g.AddTask(g.t.Context(), t, options...)
	if err != nil {
		g.t.Fatal(err)
	}
	return id
}

// dead returns the dead runs.
func (g *guest) dead(f client.DeadFilter) (runs []*client.DeadRun) {
	g.t.Helper()
	for d, err := range g.ListDeadRuns(g.t.Context(), f) {
		if err != nil {
			g.t.Fatal(err)
		}
		runs = append(runs, d)
	}
	return runs
}

// topics returns the existing topics of the tenant.
func (g *guest) topics() (names []string) {
	g.t.Helper()
	broker := kafka.Client{Addr: kafka.TCP(g.stack.Kafka()), Timeout: 30 * time.Second, Transport: g.stack.SecureKafka().Transport()}
	defer broker.Transport.(*kafka.Transport).CloseIdleConnections()
	all, err := broker.Metadata(g.t.Context(), &kafka.MetadataRequest{})
	if err != nil {
		g.t.Fatal(err)
	}
	for _, topic := range all.Topics {
		if strings.HasSuffix(topic.Name, g.name) || strings.HasSuffix(topic.Name, g.name+".dead") {
			names = append(names, topic.Name)
		}
	}
	return names
}
