package clienttest

import (
	"context"
	"log/slog"
	"net"
	"path"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/perceptor/perceptor/client"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/server"
	"github.com/perceptor/perceptor/task"
)

// Client is a client whose service keeps tasks in memory. [Client.Added]
// returns the tasks that were added through it or through its *client.Client.
// It is safe for concurrent use. Calls that concern anything but tasks return
// [client.ErrFailedPrecondition].
type Client struct {
	*client.Client
	t testing.TB

	mu      sync.Mutex
	added   []client.Task
	places  map[int64]int // index in added, by task id; negative: forgotten
	refusal error
}

// Option changes the client that [New] returns.
type Option func(*options)

type options struct {
	now    func() time.Time
	tenant server.Tenant
	limits task.Limits
	client client.Config
	url    *string
}

// WithNow sets the clock of the service, which decides what is past. Default:
// time.Now.
func WithNow(now func() time.Time) Option { return func(o *options) { o.now = now } }

// WithParamsBytes sets the tenant's limit of params. Default: 16 KiB.
func WithParamsBytes(n int) Option { return func(o *options) { o.tenant.ParamsBytes = n } }

// WithMinInterval sets the shortest allowed interval. Default: 1 s.
func WithMinInterval(d time.Duration) Option { return func(o *options) { o.limits.MinInterval = d } }

// WithConfig sets the client's configuration. Address, Token and TLS are
// ignored.
func WithConfig(c client.Config) Option { return func(o *options) { o.client = c } }

// WithHTTP also serves the API over HTTP, for code that calls it there, perhaps in another
// language. It puts the URL of the service into url. Any token is valid.
func WithHTTP(url *string) Option { return func(o *options) { o.url = url } }

const (
	secret     = "secret"
	patience   = 3 * time.Second // CallTimeout: how long a call takes after Refuse(client.ErrUnavailable)
	bufferSize = 1 << 20
)

// New returns a client with a service of its own. Both end with the test.
func New(t testing.TB, opts ...Option) *Client {
	t.Helper()
	o := options{
		now: time.Now, limits: task.DefaultLimits(), client: client.Config{CallTimeout: patience},
		tenant: server.Tenant{ID: 1, Name: "test", ParamsBytes: task.DefaultMaxParamsBytes, Retention: task.DefaultRetention},
	}
	for _, f := range opts {
		f(&o)
	}
	c := &Client{t: t, places: map[int64]int{}}
	listener := bufconn.Listen(bufferSize)
	serve(t, listener, &o)
	o.client.Address, o.client.Token, o.client.TLS = "127.0.0.1:1", secret, nil // placeholder; the dialer ignores it
	o.client.DialOptions = append(o.client.DialOptions, grpc.WithChainUnaryInterceptor(c.watch),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	made, err := client.New(o.client)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := made.Close(); err != nil {
			t.Error(err)
		}
	})
	c.Client = made
	return c
}

// serve serves the API over the pipe until the test ends.
func serve(t testing.TB, listener net.Listener, o *options) {
	t.Helper()
	config := server.Config{GRPC: listener, Limits: o.limits, Grace: time.Millisecond, Log: slog.New(slog.DiscardHandler)}
	if o.url != nil {
		web, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		config.HTTP, *o.url = web, "http://"+web.Addr().String()
	}
	s, err := server.New(config, server.Deps{
		Tasks: newMemory(o.now), Auth: auth{o.tenant}, Delivery: func(server.Tenant) server.Delivery { return server.Delivery{} },
		Runs: struct{ server.Runs }{}, Dead: struct{ server.DeadLetters }{}, Bulk: struct{ server.Bulk }{}, Admin: struct{ server.Admin }{},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

type auth struct{ tenant server.Tenant }

func (a auth) Authenticate(context.Context, string) (server.Identity, error) {
	return server.Identity{TokenID: "test", Scopes: server.TenantScope, Tenant: a.tenant}, nil
}

// Added returns the accepted tasks of the given kinds, or all, in the order of
// the calls and as they were requested: omitted fields are zero, times are in
// UTC. A repeated request, by request id or idempotency key, counts once. An
// upsert replaces the task that it changed.
func (c *Client) Added(kinds ...string) []client.Task {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []client.Task
	for _, t := range c.added {
		if len(kinds) == 0 || slices.Contains(kinds, t.Kind) {
			out = append(out, t)
		}
	}
	return out
}

// AddedOne returns the only accepted task of a kind. It ends the test if there
// is not exactly one.
func (c *Client) AddedOne(kind string) client.Task {
	c.t.Helper()
	list := c.Added(kind)
	if len(list) != 1 {
		c.t.Fatalf("%d tasks of the kind %q were added, want 1: %+v", len(list), kind, list)
	}
	return list[0]
}

// Forget makes Added forget the tasks so far. The service keeps them.
func (c *Client) Forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.added = nil
	for id := range c.places {
		c.places[id] = -1
	}
}

// Refuse makes all further calls fail with an error of the given kind, such as
// [client.ErrResourceExhausted]. A nil kind ends this. Errors that the client
// retries take a second.
func (c *Client) Refuse(kind error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refusal = kind
}

// statuses has the gRPC code for each kind of error.
var statuses = map[error]codes.Code{
	client.ErrInvalidArgument: codes.InvalidArgument, client.ErrNotFound: codes.NotFound, client.ErrAlreadyExists: codes.AlreadyExists,
	client.ErrFailedPrecondition: codes.FailedPrecondition, client.ErrUnauthenticated: codes.Unauthenticated,
	client.ErrPermissionDenied: codes.PermissionDenied, client.ErrResourceExhausted: codes.ResourceExhausted,
	client.ErrOtherVersion: codes.Aborted, client.ErrUnavailable: codes.Unavailable, client.ErrInternal: codes.Internal,
}

// watch records the tasks that calls have added, and refuses calls.
func (c *Client) watch(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	c.mu.Lock()
	refusal := c.refusal
	c.mu.Unlock()
	if refusal != nil {
		code, ok := statuses[refusal]
		if !ok {
			code = codes.Internal
		}
		return status.Error(code, refusal.Error())
	}
	if !supported(method) {
		return status.Errorf(codes.FailedPrecondition, "clienttest does not support %s: it keeps tasks in memory and does not fire them; use taskd dev --virtual-clock",
			path.Base(method))
	}
	if err := invoke(ctx, method, req, reply, cc, opts...); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch r := reply.(type) {
	case *perceptorv1.AddTaskResponse:
		q := req.(*perceptorv1.AddTaskRequest)
		c.recordAdded(r.GetId(), q.GetTask(), q.GetUpsert())
	case *perceptorv1.AddTasksResponse:
		q := req.(*perceptorv1.AddTasksRequest)
		for i, t := range q.GetTasks() {
			c.recordAdded(r.GetResults()[i].GetId(), t, q.GetUpsert())
		}
	}
	return nil
}

// supported reports whether the service in memory has a method.
func supported(method string) bool {
	return path.Dir(method) == "/"+perceptorv1.TaskService_ServiceDesc.ServiceName &&
		method != perceptorv1.TaskService_PauseKind_FullMethodName && method != perceptorv1.TaskService_ResumeKind_FullMethodName
}

// recordAdded records a task that was added; id 0 means that it was refused.
// The caller holds c.mu.
func (c *Client) recordAdded(id int64, p *perceptorv1.Task, upsert bool) {
	t := client.TaskInfoOf(p).Task
	place, known := c.places[id]
	switch {
	case id == 0:
	case !known:
		c.places[id] = len(c.added)
		c.added = append(c.added, t)
	case upsert && place >= 0:
		c.added[place] = t
	}
}
