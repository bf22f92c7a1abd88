package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// fullBucket grants what a rate has in one second, once.
type fullBucket struct {
	fakeQuotas
	left map[task.Quota]int64
}

func (f *fullBucket) TakeQuota(_ context.Context, tenant int32, q task.Quota, perSecond int64, want, _, _ int) (task.Tokens, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if tenant != acme.ID {
		return task.Tokens{Granted: want}, nil
	}
	if f.left == nil {
		f.left = map[task.Quota]int64{}
	}
	if _, ok := f.left[q]; !ok {
		f.left[q] = perSecond
	}
	n := min(int64(want), f.left[q])
	f.left[q] -= n
	return task.Tokens{Granted: int(n)}, nil
}

// withQuotas returns a server with quotas for all tenants.
func withQuotas(t *testing.T, defaults task.Quotas, change ...func(*Config)) (*bundle, *fullBucket) {
	store := &fullBucket{}
	change = append(change, func(c *Config) { c.Quotas = defaults })
	return setupWith(t, func(d *Deps) { d.Quotas = store }, change...), store
}

// as returns a context with a token.
func as(ctx context.Context, secret string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+secret)
}

// wantQuota fails the test unless an error names a quota, how it failed, and when to retry.
func wantQuota(t *testing.T, err error, q task.Quota) {
	t.Helper()
	s := status.Convert(err)
	var reason, failure string
	var retry time.Duration
	for _, d := range s.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			reason = d.Reason
		case *errdetails.QuotaFailure:
			failure = d.Violations[0].Subject + " " + d.Violations[0].Description
		case *errdetails.RetryInfo:
			retry = d.RetryDelay.AsDuration()
		}
	}
	if s.Code() != codes.ResourceExhausted || reason != string(q.Reason()) || !strings.HasPrefix(failure, "tenant:acme "+q.String()) || retry <= 0 {
		t.Errorf("got %v (%s, %q, retry in %v), want the quota %s", err, reason, failure, retry, q)
	}
}

func TestEveryMethodOfTenantsUsesAQuota(t *testing.T) {
	own := map[string]bool{ // admitted by their services
		perceptorv1.TaskService_AddTask_FullMethodName: true, perceptorv1.TaskService_AddTasks_FullMethodName: true,
		perceptorv1.TaskService_TriggerTask_FullMethodName: true, perceptorv1.DeadLetterService_ReplayDeadRun_FullMethodName: true,
		perceptorv1.ImportService_WriteImport_FullMethodName: true,
	}
	for method, scopes := range access {
		if _, ok := spends[method]; scopes&OfTenant != 0 && ok == own[method] {
			t.Errorf("%s is counted %t, and by its service %t", method, ok, own[method])
		}
	}
	for method := range spends {
		if _, known := access[method]; !known {
			t.Errorf("%s does not exist", method)
		}
	}
}

func triggerOnce(ctx context.Context, conn *grpc.ClientConn) error {
	_, err := perceptorv1.NewTaskServiceClient(conn).TriggerTask(ctx, &perceptorv1.TriggerTaskRequest{Id: 7})
	return err
}

func TestCallsBeyondAQuotaAreToldWhichAndOthersGoOn(t *testing.T) {
	for _, test := range []struct {
		quota task.Quota
		limit int64
		call  func(ctx context.Context, conn *grpc.ClientConn) error
	}{
		{task.QuotaReads, 3*task.Databases + 3, func(ctx context.Context, conn *grpc.ClientConn) error {
			_, err := perceptorv1.NewTaskServiceClient(conn).CountTasks(ctx, &perceptorv1.CountTasksRequest{})
			return err
		}},
		{task.QuotaUpdates, 3, func(ctx context.Context, conn *grpc.ClientConn) error {
			_, err := perceptorv1.NewTaskServiceClient(conn).PauseTask(ctx, &perceptorv1.PauseTaskRequest{Id: 7})
			return err
		}},
		{task.QuotaPreviews, 25, func(ctx context.Context, conn *grpc.ClientConn) error {
			_, err := perceptorv1.NewTaskServiceClient(conn).PreviewSchedule(ctx, &perceptorv1.PreviewScheduleRequest{
				Task: &perceptorv1.Task{Type: perceptorv1.Task_NON_BLOCKING, Schedule: &perceptorv1.Task_Cron{Cron: &perceptorv1.Cron{Expression: "@daily"}}}})
			return err
		}},
		{task.QuotaRuns, 63, func(ctx context.Context, conn *grpc.ClientConn) error {
			_, err := perceptorv1.NewRunServiceClient(conn).HeartbeatRuns(ctx, &perceptorv1.HeartbeatRunsRequest{
				Holder: 1, Attempts: make([]*perceptorv1.Attempt, 20)})
			return err
		}},
		{task.QuotaBytes, 1000, func(ctx context.Context, conn *grpc.ClientConn) error {
			_, err := perceptorv1.NewTaskServiceClient(conn).AddTask(ctx, &perceptorv1.AddTaskRequest{Task: &perceptorv1.Task{
				Kind: "k", Type: perceptorv1.Task_ONE_SHOT, Params: map[string]string{"x": strings.Repeat("x", 400)}}})
			return err
		}},
		{task.QuotaAdds, 3, triggerOnce},
		{task.QuotaUpdates, 3, triggerOnce},
	} {
		t.Run(test.quota.String(), func(t *testing.T) {
			t.Parallel()
			b, _ := withQuotas(t, task.Quotas{test.quota: test.limit})
			call := func(secret string) error { // of a task that does not exist, in some cases
				err := test.call(as(t.Context(), secret), b.conn)
				if status.Code(err) == codes.NotFound {
					return nil
				}
				return err
			}
			for range 3 {
				if err := call("acme-secret"); err != nil {
					t.Fatalf("within the quota: %v", err)
				}
			}
			var err error
			for range 2 { // the first may still be admitted by what was taken ahead
				if err = call("acme-secret"); err != nil {
					break
				}
			}
			wantQuota(t, err, test.quota)
			for range 5 {
				if err := call("rival-secret"); err != nil {
					t.Errorf("another tenant: %v", err)
				}
			}
		})
	}
}

func TestATenantHasItsPlacesAndNoMore(t *testing.T) {
	b, _ := withQuotas(t, task.Quotas{task.QuotaCalls: 1})
	b.tasks.hold, b.tasks.holding = make(chan struct{}), make(chan struct{})
	api := perceptorv1.NewTaskServiceClient(b.conn)
	count := func(secret string) error {
		_, err := api.CountTasks(as(t.Context(), secret), &perceptorv1.CountTasksRequest{})
		return err
	}
	ended := make(chan error)
	go func() {
		_, err := api.GetTask(as(t.Context(), "acme-secret"), &perceptorv1.GetTaskRequest{Id: int64(task.NewID(1, 7))})
		ended <- err
	}()
	<-b.tasks.holding
	wantQuota(t, count("acme-secret"), task.QuotaCalls)
	if err := count("rival-secret"); err != nil {
		t.Errorf("another tenant: %v", err)
	}
	close(b.tasks.hold)
	if err := <-ended; status.Code(err) != codes.NotFound {
		t.Error(err)
	}
	if err := count("acme-secret"); err != nil {
		t.Errorf("after the other call has ended: %v", err)
	}
}

func TestATenantHasItsConnectionsAndNoMore(t *testing.T) {
	side, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b, _ := withQuotas(t, task.Quotas{task.QuotaConnections: 2}, func(c *Config) { c.GRPC = side })
	count := func(conn *grpc.ClientConn, secret string) error {
		_, err := perceptorv1.NewTaskServiceClient(conn).CountTasks(as(t.Context(), secret), &perceptorv1.CountTasksRequest{})
		return err
	}
	dial := func() *grpc.ClientConn {
		conn, err := grpc.NewClient(side.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	var conns []*grpc.ClientConn
	for range 2 {
		conns = append(conns, dial())
		for range 3 {
			if err := count(conns[len(conns)-1], "acme-secret"); err != nil {
				t.Fatal(err)
			}
		}
	}
	third := dial()
	wantQuota(t, count(third, "acme-secret"), task.QuotaConnections)
	if err := count(third, "rival-secret"); err != nil {
		t.Errorf("another tenant: %v", err)
	}
	if a := b.fetch("acme-secret", "GET", "/v1/tasks:count", "", nil); a.http != 429 || a.reason != string(task.ReasonQuotaConnections) {
		t.Errorf("over HTTP: %+v, want status 429", a)
	}
	if err := conns[0].Close(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if err := count(third, "acme-secret"); err == nil {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("after a connection was closed: %v", err)
		}
	}
}

func TestAnAdminSeesQuotasWithTheirUse(t *testing.T) {
	b, store := withQuotas(t, task.Quotas{task.QuotaAdds: 100, task.QuotaBacklog: 50, task.QuotaReads: 9})
	store.living = 12
	admin := perceptorv1.NewAdminServiceClient(b.conn)
	ctx := as(t.Context(), "admin-secret")
	if _, err := admin.CreateTenant(ctx, &perceptorv1.CreateTenantRequest{Tenant: &perceptorv1.Tenant{Name: "shop", ReadRate: -1, MaxCalls: 5, ByteRate: 1 << 40}}); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a rate above the maximum: %v", err)
	}
	if _, err := admin.CreateTenant(ctx, &perceptorv1.CreateTenantRequest{Tenant: &perceptorv1.Tenant{Name: "shop", ReadRate: -1, MaxCalls: 5}}); err != nil {
		t.Fatal(err)
	}
	got, err := admin.GetTenant(ctx, &perceptorv1.GetTenantRequest{Name: "shop"})
	if err != nil || got.ReadRate != -1 || got.MaxCalls != 5 || got.UpdateRate != 0 {
		t.Fatalf("%+v, %v", got, err)
	}
	var seen []string
	for _, u := range got.QuotaUse {
		seen = append(seen, fmt.Sprintf("%s %d/%d", u.Quota, u.Used, u.Limit))
	}
	want := "add_rate 50/100, read_rate 0/0, update_rate 0/0, preview_rate 0/0, run_rate 0/0, byte_rate 0/0, max_backlog 12/50, max_calls 0/5, max_connections 0/0"
	if s := strings.Join(seen, ", "); s != want {
		t.Errorf("got %s, want %s", s, want)
	}
}

// quotasFor returns quotas over a bucket that grants each rate once, and the caller acme.
func quotasFor(defaults task.Quotas) (*quotas, *Identity) {
	q := quotasOf(&fullBucket{}, slog.New(slog.DiscardHandler), &Events{})
	q.defaults = defaults
	return q, &Identity{Tenant: acme}
}

func TestUpsertsThatBeginTogetherShareTheRateOfChanges(t *testing.T) {
	q, who := quotasFor(task.Quotas{task.QuotaUpdates: 100})
	refund, err := q.reserveUpserts(t.Context(), &who.Tenant, 60)
	if err != nil {
		t.Fatal(err)
	}
	_, err = q.reserveUpserts(t.Context(), &who.Tenant, 60)
	wantQuota(t, err, task.QuotaUpdates)
	refund()
	if refund, err = q.reserveUpserts(t.Context(), &who.Tenant, 1000); err != nil {
		t.Fatalf("more than the rate, when nothing else is in progress: %v", err)
	}
	refund()
}

// TestLargeRequestsArePaidBeforeTheyArrive: what the last ones had is expected of the next.
func TestLargeRequestsArePaidBeforeTheyArrive(t *testing.T) {
	q, who := quotasFor(task.Quotas{task.QuotaBytes: 100_000})
	method := perceptorv1.TaskService_AddTask_FullMethodName
	begin := func() (*spending, error) { return q.begin(t.Context(), method, who) }
	q.of(acme.ID).size = 40_000
	first, err := begin()
	if err != nil {
		t.Fatal(err)
	}
	if _, err = begin(); err != nil {
		t.Fatalf("the second: %v", err)
	}
	_, err = begin()
	wantQuota(t, err, task.QuotaBytes)
	first.receive(arrival{bytes: 100})
	first.end(t.Context(), nil, nil)
	if _, err = begin(); err != nil {
		t.Errorf("after a request that was smaller than expected: %v", err)
	}
}

// TestLargeRequestsThatHaveArrivedArePaidBeforeTheyAreDecoded: nothing is expected of the first ones.
func TestLargeRequestsThatHaveArrivedArePaidBeforeTheyAreDecoded(t *testing.T) {
	const rate = 1 << 20
	q, who := quotasFor(task.Quotas{task.QuotaBytes: rate})
	var calls [3]*spending
	for i := range calls {
		s, err := q.begin(t.Context(), perceptorv1.TaskService_AddTask_FullMethodName, who)
		if err != nil {
			t.Fatal(err)
		}
		calls[i] = s
	}
	if paid, err := calls[0].pay(t.Context(), 1000); paid != 0 || err != nil {
		t.Errorf("a small request: %d, %v", paid, err)
	}
	got := arrival{bytes: rate/2 - 10}
	for i, s := range calls {
		var err error
		if got.paid, err = s.pay(t.Context(), got.bytes); i < 2 && (err != nil || got.paid == 0) {
			t.Errorf("request %d: %d, %v", i, got.paid, err)
		}
		if i == 2 {
			wantQuota(t, err, task.QuotaBytes)
			got.refused = true
		}
		s.receive(got)
	}
	for _, s := range calls {
		s.end(t.Context(), nil, nil)
	}
	if left := q.of(acme.ID).stocks[task.QuotaBytes].tokens; left < -1000 {
		t.Errorf("the refused request was charged: %.0f bytes are left", left)
	}
}

// TestARefusedRequestIsNotDecoded, over both ways.
func TestARefusedRequestIsNotDecoded(t *testing.T) {
	over := errors.New("over")
	r := &received{message: &perceptorv1.AddTaskRequest{}, pay: func(int) (int, error) { return 0, over }}
	wire, err := proto.Marshal(&perceptorv1.AddTaskRequest{RequestId: "x"})
	if err != nil {
		t.Fatal(err)
	}
	err = decode(func(v any) error { return newCodec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(wire)}, v) }, r)
	if !errors.Is(err, over) || r.message.(*perceptorv1.AddTaskRequest).GetRequestId() != "" {
		t.Errorf("got %v, %v", err, r.message)
	}
}

// TestEntriesOfListenersArePaidBeforeTheyAreLookedUp, and given back if the call fails.
func TestEntriesOfListenersArePaidBeforeTheyAreLookedUp(t *testing.T) {
	q, who := quotasFor(task.Quotas{task.QuotaRuns: 100})
	call := func() (*spending, error) {
		s, err := q.begin(t.Context(), perceptorv1.RunService_HeartbeatRuns_FullMethodName, who)
		if err != nil {
			t.Fatal(err)
		}
		return s, s.ask(t.Context(), &perceptorv1.HeartbeatRunsRequest{Attempts: make([]*perceptorv1.Attempt, 60)})
	}
	first, err := call()
	if err != nil {
		t.Fatal(err)
	}
	second, err := call()
	wantQuota(t, err, task.QuotaRuns)
	second.end(t.Context(), nil, err)
	first.end(t.Context(), nil, errors.New("no database answers"))
	if _, err = call(); err != nil {
		t.Errorf("after a call that has failed: %v", err)
	}
}
