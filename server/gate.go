package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/perceptor/perceptor/internal/ctxtime"
	"github.com/perceptor/perceptor/internal/requestid"
	"github.com/perceptor/perceptor/internal/share"
)

// gate is the entry to every method; see the package comment.
type gate struct {
	bearers *bearers
	// certificates and inspections may be nil.
	certificates Certificates
	inspections  Inspections
	tenants      Admin
	tasks        Tasks
	auditor      auditor
	traces       traces
	quotas       *quotas
	log          *slog.Logger
	events       *Events
	timeout      time.Duration
	// calls has the places of calls in progress, by tenant. All admins are one party.
	calls   *share.Pool[int32]
	intake  *intake
	answers *budget
	// decoded has the memory of requests over HTTP when they are decoded.
	decoded *budget
	stores  *storePlaces
	// sendWithin is how long an answer may wait for its caller.
	sendWithin time.Duration
	tarpit     *tarpit
	methods    map[string]method
	// stopping is closed when the server begins to stop.
	stopping chan struct{}
}

type method struct {
	service any
	handler grpc.MethodHandler
}

// register registers a service behind the gate. It fails for methods without a scope.
func (g *gate) register(r grpc.ServiceRegistrar, desc *grpc.ServiceDesc, service any) error {
	guarded := *desc
	if err := g.registerStreams(&guarded, desc); err != nil {
		return err
	}
	guarded.Methods = make([]grpc.MethodDesc, len(desc.Methods))
	for i, m := range desc.Methods {
		full := "/" + desc.ServiceName + "/" + m.MethodName
		need := access[full]
		if need == 0 {
			return fmt.Errorf("register %s: it has no scope", full)
		}
		handler := g.guard(full, need, m.Handler)
		guarded.Methods[i] = grpc.MethodDesc{MethodName: m.MethodName, Handler: handler}
		g.methods[full] = method{service, handler}
	}
	r.RegisterService(&guarded, service)
	return nil
}

// guard wraps a generated handler: it authenticates the caller before it
// decodes the request.
func (g *gate) guard(full string, need Scopes, next grpc.MethodHandler) grpc.MethodHandler {
	serve := g.serve(full, need, next)
	return func(service any, ctx context.Context, dec func(any) error, chain grpc.UnaryServerInterceptor) (any, error) {
		c := &call{method: full, began: time.Now(), headers: authorization(ctx)}
		ctx = incoming(requestid.With(ctx, requestID(ctx)))
		reply, err := serve(c, service, ctx, dec, chain)
		if err != nil {
			c.request = nil // an answer that waits holds nothing
			g.tarpit.delay(ctx, c.who, err)
		}
		return g.hand(ctx, c, reply, err)
	}
}

// serve returns the function that processes calls of a method.
func (g *gate) serve(full string, need Scopes, next grpc.MethodHandler) func(*call, any, context.Context, func(any) error, grpc.UnaryServerInterceptor) (any, error) {
	return func(c *call, service any, ctx context.Context, dec func(any) error, chain grpc.UnaryServerInterceptor) (reply any, err error) {
		defer func() {
			if p := recover(); p != nil {
				reply, err = nil, g.panicked(ctx, c, p)
			}
			err = g.finish(ctx, c, err)
			g.auditor.end(ctx, c, err)
		}()
		bounded, cancel := context.WithTimeout(ctx, g.timeout)
		defer cancel()
		if c.who, err = g.admit(bounded, full, need); err != nil {
			return nil, err
		}
		bounded = g.traces.begin(bounded, c)
		if c.spent, err = g.quotas.begin(bounded, full, c.who); err != nil {
			return nil, err
		}
		defer func() { c.spent.end(bounded, reply, err) }()
		if err = g.enter(c.who.Tenant.ID); err != nil {
			return nil, err
		}
		defer g.calls.Give(c.who.Tenant.ID, 1)
		defer c.release()
		if err = g.mayAnswer(bounded, c); err != nil {
			return nil, err
		}
		inner := context.WithValue(bounded, identityKey{}, c.who)
		lasting, end := g.lasting(inner, full)
		defer end()
		reply, err = next(service, lasting, g.receiver(inner, c, dec), chain)
		c.audit.answered(reply, err)
		c.about(reply, err)
		if failed := g.inspected(bounded, c, err); failed != nil {
			return nil, failed
		}
		if err == nil && !c.who.seesParams() {
			hideParams(reply.(proto.Message).ProtoReflect())
		}
		if err == nil {
			err = g.answered(bounded, c, proto.Size(reply.(proto.Message)))
		}
		return reply, err
	}
}

// leaveGrace is how long a method may go on when its caller has left.
const leaveGrace = 500 * time.Millisecond

// lasting returns the context of a method. A method that uses a connection to a database by
// itself goes on for a moment when its caller leaves: a cancelled statement costs its
// connection, and to open another one costs more than most statements. Calls of groups and of
// the clock may wait for long, so they end with their callers. A change that is not made until the caller leaves is not made
// any more: see [ctxtime.Left].
func (g *gate) lasting(ctx context.Context, method string) (context.Context, context.CancelFunc) {
	deadline, ok := ctx.Deadline()
	if grouped[method] || !ok {
		return ctx, func() {}
	}
	lasting, cancel := context.WithDeadline(ctxtime.WithCaller(context.WithoutCancel(ctx), ctx), deadline.Add(leaveGrace))
	stop := context.AfterFunc(ctx, func() {
		if errors.Is(ctx.Err(), context.Canceled) { // the other end has a deadline
			time.AfterFunc(leaveGrace, cancel)
		}
	})
	return lasting, func() { stop(); cancel() }
}

// receiver returns the function by which a generated handler receives its request.
func (g *gate) receiver(ctx context.Context, c *call, dec func(any) error) func(any) error {
	return func(v any) error {
		err := g.receive(ctx, c, v, dec)
		if err == nil {
			c.request = v.(proto.Message)
			err = c.spent.ask(ctx, v)
		}
		if err == nil {
			c.leave, err = g.stores.enter(ctx, c.method, c.who.Tenant.ID)
		}
		if err == nil {
			err = g.resolve(ctx, c.method, c.request)
			c.audit = g.auditor.begin(ctx, c.method, c.request)
		}
		return err
	}
}

// receive receives the one request of a call, which is charged until the call ends. The body of a call over HTTP is
// received already.
func (g *gate) receive(ctx context.Context, c *call, m any, dec func(any) error) (err error) {
	r := &received{message: m, pay: func(bytes int) (int, error) { return c.spent.pay(ctx, bytes) }}
	var got arrival
	if inProcess(ctx) {
		err = decode(dec, r)
		got = r.arrival
	} else {
		c.held, got, err = g.intake.receive(ctx, c.who.Tenant.ID, dec, r)
	}
	c.spent.receive(got)
	return err
}

// enter takes a place for a call of a tenant.
func (g *gate) enter(tenant int32) error {
	switch {
	case g.calls.Take(tenant, 1):
		return nil
	case g.calls.Free() == 0:
		return errBusy
	}
	return errTenantBusy
}

// received is a request that is being decoded. grpc itself would answer a
// request that cannot be decoded with INTERNAL. So decoding never fails, and
// the gate checks err.
type received struct {
	message any
	arrival
	err error
	// pay pays for a request of so many bytes before it is decoded; nil: nothing has to be paid.
	pay func(bytes int) (paid int, err error)
	// refusal is why the request was not decoded.
	refusal error
	// streamed: it is a message of a stream, whose entries are bounded by its size.
	streamed bool
}

// arrival is what has arrived.
type arrival struct {
	// bytes is the size of the request; paid is what was paid for it when it had arrived.
	bytes, paid int
	// entries are those of its lists and maps, if they were counted.
	entries int
	refused bool
}

// admit says whether a request of so many bytes may be decoded.
func (r *received) admit(bytes int) bool {
	r.bytes = bytes
	if r.pay != nil {
		r.paid, r.refusal = r.pay(bytes)
	}
	r.refused = r.refusal != nil
	return !r.refused
}

// codec is the protobuf codec with support for [received] and [sent].
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2(protocodec.Name)} }

// Marshal encodes v.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if s, ok := v.(*sent); ok {
		return s.marshal()
	}
	return c.CodecV2.Marshal(v)
}

// Unmarshal decodes into v.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	r, ok := v.(*received)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	if !r.admit(data.Len()) {
		return nil
	}
	m := r.message.(proto.Message).ProtoReflect().Descriptor()
	if r.bytes > chargedFrom && !r.streamed {
		left := maxEntries
		err := countEntries(m, data.Materialize(), &left, maxNesting)
		if err != nil && r.bytes > countedFrom {
			r.err = malformed(err.Error())
			return nil
		}
		r.entries = maxEntries - left
	}
	if c.CodecV2.Unmarshal(data, r.message) != nil {
		r.err = badWire(m, data.Materialize())
	}
	return nil
}

// call is what the gate needs at the end of a call.
type call struct {
	method string
	began  time.Time
	// headers are the caller's authorization headers.
	headers []string
	who     *Identity // nil until authenticated
	spent   *spending // nil: no quotas
	// request is nil until it is decoded.
	request proto.Message
	audit   *auditing // nil: the call is not recorded
	// held is what the request is charged for; nil until it arrives.
	held *charge
	// answer is what the answer is charged for; nil: nothing.
	answer *charge
	// span is nil if the call is not traced.
	span trace.Span
	// leave returns the place of a call that uses a database by itself; nil until it has one.
	leave func()
}

// release returns what the call holds.
func (c *call) release() {
	c.held.release()
	if c.leave != nil {
		c.leave()
	}
}

// name is "Service/Method".
func (c *call) name() string { return strings.TrimPrefix(c.method, "/") }

// admit authenticates the caller of a method and checks that it has one of the needed scopes.
// With [task.ReasonScopeMissing] it returns the caller, too.
func (g *gate) admit(ctx context.Context, method string, need Scopes) (*Identity, error) {
	id, err := g.identify(ctx, authorization(ctx))
	if err != nil {
		return nil, err
	}
	switch has := id.scopes() & need; {
	case has == 0:
		return id, scopeMissing(method, need, id)
	case has == InspectScope && need != anyScope:
		return g.inspect(ctx, id)
	}
	return id, nil
}

// scopes returns the caller's scopes with those that they include.
func (id *Identity) scopes() Scopes { return id.applying().all() }

// applying returns the scopes that the caller was given. Scopes of a tenant mean nothing without
// one, those of the installation nothing with one.
func (id *Identity) applying() Scopes {
	if id.Tenant.ID == 0 {
		return id.Scopes & OfInstallation
	}
	return id.Scopes & OfTenant
}

func (g *gate) panicked(ctx context.Context, c *call, p any) error {
	g.log.LogAttrs(ctx, slog.LevelError, "method panicked", append(c.attrs(),
		slog.Any("err", p), slog.String("stack", string(debug.Stack())))...)
	return errInternal
}

// finish converts the error of a call to its status, and updates logs and
// metrics. Errors about the content of a request are not logged, because they
// may quote it.
func (g *gate) finish(ctx context.Context, c *call, err error) error {
	hidden, answer := statusOf(err)
	if err != nil && ctx.Err() == context.Canceled {
		hidden, answer = false, status.FromContextError(context.Canceled).Err()
	}
	code, took := status.Code(answer), time.Since(c.began)
	g.events.called(c.name(), code, took)
	ctx = c.endSpan(ctx, code)
	g.events.limited(answer)
	level := slog.LevelDebug
	if hidden {
		level = slog.LevelWarn
		if code == codes.Internal || code == codes.DataLoss {
			level = slog.LevelError
		}
	}
	if g.log.Enabled(ctx, level) {
		attrs := append(c.attrs(), slog.String("code", code.String()), slog.Int64("took_ms", took.Milliseconds()))
		if hidden {
			attrs = append(attrs, slog.Any("err", err))
		}
		g.log.LogAttrs(ctx, level, "call", attrs...)
	}
	return answer
}

func (c *call) attrs() []slog.Attr {
	attrs := []slog.Attr{slog.String("method", c.method)}
	if c.who != nil {
		attrs = append(attrs, slog.String("tenant", c.who.Tenant.Name), slog.String("caller", c.who.TokenID))
	}
	return attrs
}

// inProcessKey marks calls of the HTTP side.
type inProcessKey struct{}

// Invoke implements a client connection for the HTTP side. The call goes to the
// same handlers with the same encoding rules, without a socket.
func (g *gate) Invoke(ctx context.Context, full string, args, reply any, _ ...grpc.CallOption) error {
	m, ok := g.methods[full]
	if !ok {
		return unknownMethod(full)
	}
	md, _ := metadata.FromOutgoingContext(ctx)
	ctx = context.WithValue(metadata.NewIncomingContext(ctx, md), inProcessKey{}, true)
	result, err := m.handler(m.service, ctx, func(v any) error {
		r := v.(*received)
		var wire []byte
		wire, err := proto.Marshal(args.(proto.Message))
		switch {
		case err != nil: // the console has passed on what a browser sent
			r.err = malformed("a text is not valid UTF-8")
		case r.admit(len(wire)) && proto.Unmarshal(wire, r.message.(proto.Message)) != nil:
			// The library has just written it, so only its depth is wrong: a value in JSON becomes two messages.
			r.err = malformed("its objects and lists lie too deep within each other")
		}
		return nil
	}, nil)
	if err != nil {
		return err
	}
	proto.Merge(reply.(proto.Message), result.(proto.Message))
	return nil
}

// NewStream is not supported.
func (g *gate) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, status.Error(codes.Unimplemented, "streams are not supported")
}
