package app

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/perceptor/perceptor/internal/config"
	"github.com/perceptor/perceptor/internal/testenv"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/store/control"
	"github.com/perceptor/perceptor/store/storetest"
	"github.com/perceptor/perceptor/task"
)

// TestTasksFireThroughAPoolerThatKeepsSessions: one taskd and one dispatcher, as their programs
// start them, have PgBouncer with pool_mode = session between them and PostgreSQL.
func TestTasksFireThroughAPoolerThatKeepsSessions(t *testing.T) {
	t.Parallel()
	c := configured(t, testenv.NewPgBouncer(t, storetest.DSN(t), "session", 50))
	c.Postgres.ServerConnections = 16 // the pooler has room for both and no more
	c.Kafka.Brokers = []string{testenv.Kafka(t).Addr()}
	c.Kafka.TopicPrefix, c.Kafka.ReplicationFactor = "pooled.", 1
	c.Dispatcher.Name = "pooled"
	api, at := startAPI(t, c)
	d := startDispatcher(t, c)
	const tasks = 20
	conn := dialAs(t, at, pooledTenant(t, api))
	added, err := perceptorv1.NewTaskServiceClient(conn).AddTasks(t.Context(), &perceptorv1.AddTasksRequest{RequestId: "r", Tasks: manyTasks(tasks)})
	if err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); d.fired.Load() < tasks; time.Sleep(10 * time.Millisecond) {
		if time.Since(began) > time.Minute {
			t.Fatalf("%d of %d tasks fired", d.fired.Load(), tasks)
		}
	}
	report := &perceptorv1.ReportResultsRequest{Holder: 7}
	for _, r := range added.Results {
		report.Results = append(report.Results, &perceptorv1.RunResult{
			Attempt: &perceptorv1.Attempt{TaskId: r.GetId(), Seq: 1, Attempt: 1}, Outcome: perceptorv1.RunResult_SUCCESS,
		})
	}
	if _, err := perceptorv1.NewRunServiceClient(conn).ReportResults(t.Context(), report); err != nil {
		t.Fatal(err)
	}
	counts, err := perceptorv1.NewTaskServiceClient(conn).CountTasks(t.Context(), &perceptorv1.CountTasksRequest{})
	if err != nil || len(counts.Counts) != 1 || counts.Counts[0].Completed != tasks {
		t.Errorf("%d tasks were reported: %v, %v", tasks, counts, err)
	}
}

func manyTasks(n int) (all []*perceptorv1.Task) {
	for range n {
		all = append(all, &perceptorv1.Task{Kind: "k", Type: perceptorv1.Task_ONE_SHOT})
	}
	return all
}

// startAPI runs a taskd until the test ends, and returns the address of its API.
func startAPI(t *testing.T, c *config.Config) (*API, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	api, err := NewAPI(t.Context(), APIOptions{Options: Options{Config: c, Log: quiet, Metrics: prometheus.NewRegistry()}, GRPC: l, Hints: noHints{}})
	if err != nil {
		t.Fatal(err)
	}
	runPart(t, api.Reach, api.Run)
	return api, l.Addr().String()
}

// startDispatcher runs a dispatcher until the test ends.
func startDispatcher(t *testing.T, c *config.Config) *Dispatcher {
	t.Helper()
	d, err := NewDispatcher(t.Context(), DispatcherOptions{Options: Options{Config: c, Log: quiet, Metrics: prometheus.NewRegistry()}})
	if err != nil {
		t.Fatal(err)
	}
	runPart(t, d.Reach, d.Run)
	return d
}

// runPart runs a part of a program from where it has reached its servers until the test ends.
func runPart(t *testing.T, reach, run Part) {
	t.Helper()
	reached := reach(t.Context())
	ctx, stop := context.WithCancel(context.Background())
	if reached != nil {
		stop() // Run closes what is open
	}
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	if reached != nil {
		t.Fatal(reached)
	}
}

// pooledTenant creates a tenant with its topics, and a token of it.
func pooledTenant(t *testing.T, api *API) (secret string) {
	t.Helper()
	if _, err := api.control.CreateTenant(t.Context(), control.Tenant{Name: "pooled", ParamsBytes: 1000, Retention: time.Hour}); err != nil {
		t.Fatal(err)
	}
	_, secret, err := api.control.CreateToken(t.Context(), control.Token{Scopes: control.TenantScope, Tenant: "pooled", ExpiresAt: task.Never})
	if err != nil {
		t.Fatal(err)
	}
	return secret
}

// dialAs connects in the clear with a token.
func dialAs(t *testing.T, at, secret string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("dns:///"+at, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUnaryInterceptor(func(ctx context.Context, method string, q, a any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+secret), time.Minute)
			defer cancel()
			return invoke(ctx, method, q, a, cc, append(opts, grpc.WaitForReady(true))...)
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}
