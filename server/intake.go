package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/tap"

	"github.com/perceptor/perceptor/internal/share"
	"github.com/perceptor/perceptor/task"
)

const (
	// receiveWithin is how long a request may take to arrive, from its headers to its end.
	receiveWithin = 10 * time.Second
	// A tenant may receive half of intakeRequests requests of the largest size at once, and
	// connIntakeRequests on one connection.
	intakeRequests     = 64
	connIntakeRequests = 16
	// streamWindow is how much of a request the sender may send before it is read. It is
	// fixed, because the library would raise it for connections that send fast.
	streamWindow = 64 << 10
	connWindow   = 1 << 20
	// unreadBytes is charged for an HTTP body of any size.
	unreadBytes = 64 << 10
)

// intake bounds the requests in memory: those that arrive, and those in progress.
//
// The size of a gRPC request is known only when it has arrived, so a call is charged for the
// largest request before its first byte is read, and afterwards for what it has and for its entries,
// which take more in memory. A call
// whose tenant or connection has no share left waits. Meanwhile flow control stops its sender.
type intake struct {
	*budget
	largest int64
	health  *share.Pool[source] // requests to the health service that arrive
}

func newIntake(within time.Duration, largest int64) *intake {
	return &intake{newBudget(within, intakeRequests*largest, connIntakeRequests*largest), largest, share.NewPool[source](arrivingHealth, 0)}
}

// A budget bounds bytes in memory, by tenant and by connection.
type budget struct {
	within  time.Duration // the longest wait for a share
	tenants *share.Pool[int32]
	conns   *share.Pool[user]
	largest int64 // what one call is charged at most
}

// user is a tenant on a connection. Tenants that share the connection of a proxy do not share
// what the connection may have.
type user struct {
	tenant int32
	conn   netip.AddrPort
}

// newBudget returns a budget of a number of bytes, of which one connection has at most each.
func newBudget(within time.Duration, bytes, each int64) *budget {
	return &budget{within, share.NewPool[int32](bytes, 0), share.NewPool[user](bytes, each), each / 2}
}

var (
	errRequestSlow = reasoned(task.ReasonRequestSlow, "the request did not arrive in time")
	errTenantBusy  = reasoned(task.ReasonTenantBusy, "too many calls of the tenant are in progress; try again")
)

// uncompressed refuses compressed requests over gRPC: some bytes would become the largest request
// in memory, of callers without a token, too.
type uncompressed struct{}

// Type implements [grpc.Decompressor].
func (uncompressed) Type() string { return "gzip" }

// Do implements [grpc.Decompressor].
func (uncompressed) Do(io.Reader) ([]byte, error) { return nil, errCompressed }

var errCompressed = errors.New("requests over gRPC must not be compressed")

// healthArrival is a request to the health service, which is not behind the gate, while it arrives.
type healthArrival struct {
	timer *time.Timer
	leave func()
}

type arrivalKey struct{}

// arrivingHealth is the most requests to the health service that arrive at once.
const arrivingHealth = 64

// begin is called with the headers of each stream. Of streams of the health service few arrive at
// once, and one whose request does not arrive in time is ended.
func (i *intake) begin(ctx context.Context, call *tap.Info) (context.Context, error) {
	if !strings.HasPrefix(call.FullMethodName, "/"+grpc_health_v1.Health_ServiceDesc.ServiceName+"/") {
		return ctx, nil
	}
	from := callSource(ctx)
	if !i.health.Take(from, 1) {
		return nil, errBusy
	}
	ctx, cancel := context.WithCancel(ctx)
	leave := sync.OnceFunc(func() { i.health.Give(from, 1) })
	context.AfterFunc(ctx, leave)
	return context.WithValue(ctx, arrivalKey{}, &healthArrival{time.AfterFunc(i.within, cancel), leave}), nil
}

// arrived removes the deadline of a request to the health service.
func arrived(ctx context.Context) {
	if a, ok := ctx.Value(arrivalKey{}).(*healthArrival); ok {
		a.timer.Stop()
		a.leave()
	}
}

// charge is what a call holds of a budget.
type charge struct {
	of    *budget
	by    user
	bytes int64
}

// charge waits until a call may have n bytes, at most for the time of the budget.
func (b *budget) charge(ctx context.Context, tenant int32, conn netip.AddrPort, n int64) (*charge, error) {
	c := &charge{of: b, by: user{tenant, conn}}
	if err := c.grow(ctx, n); err != nil {
		return nil, err
	}
	return c, nil
}

// grow waits until the call may have n bytes in total.
func (c *charge) grow(ctx context.Context, n int64) error {
	more := min(n, c.of.largest) - c.bytes
	if more <= 0 {
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, c.of.within, errTenantBusy)
	defer cancel()
	// The tenant first: what waits for its tenant's share must not hold what the connections
	// of other tenants need.
	if err := c.of.tenants.Wait(ctx, c.by.tenant, more); err != nil {
		return err
	}
	if err := c.of.conns.Wait(ctx, c.by, more); err != nil {
		c.of.tenants.Give(c.by.tenant, more)
		return err
	}
	c.bytes += more
	return nil
}

// shrink reduces the charge to the n bytes that have arrived.
func (c *charge) shrink(n int64) {
	if n = min(n, c.bytes); n < c.bytes {
		c.of.conns.Give(c.by, c.bytes-n)
		c.of.tenants.Give(c.by.tenant, c.bytes-n)
		c.bytes = n
	}
}

// size returns what is charged for the request, once it has arrived. A nil charge has none.
func (c *charge) size() int {
	if c == nil {
		return 0
	}
	return int(c.bytes)
}

// release ends the charge. A nil charge holds nothing.
func (c *charge) release() {
	if c != nil {
		c.shrink(0)
	}
}

// receive decodes the request of a call over gRPC. Release the charge when the call ends.
//
// The library reads a request without a deadline, and answers by itself if its context ends.
// So it reads beside the call, and ends with it.
func (i *intake) receive(ctx context.Context, tenant int32, dec func(any) error, r *received) (*charge, arrival, error) {
	began := time.Now()
	c, err := i.charge(ctx, tenant, connOf(ctx), i.largest)
	if err != nil {
		return nil, arrival{}, err
	}
	done := make(chan error, 1)
	go func() { done <- decode(dec, r) }()
	late := time.NewTimer(i.within - time.Since(began))
	defer late.Stop()
	select {
	case err := <-done:
		c.shrink(int64(r.bytes + r.entries*entryBytes))
		return c, r.arrival, err
	case <-late.C:
		return c, arrival{bytes: c.size()}, errRequestSlow
	case <-ctx.Done():
		return c, arrival{bytes: c.size()}, ctx.Err()
	}
}

// decode decodes a request. It never panics, because it runs beside the call.
func decode(dec func(any) error, r *received) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("decoding panicked: %v", p)
		}
	}()
	if err := dec(r); err != nil {
		return err
	}
	switch {
	case r.refused:
		return r.refusal
	case r.err != nil:
		return r.err
	}
	return nil
}

// connOf returns the address of the other end of a call's connection. It is invalid if that
// is not an IP address.
func connOf(ctx context.Context) netip.AddrPort {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return netip.AddrPort{}
	}
	return addrPortOf(p.Addr)
}

// chargeBody charges the body of an HTTP request, and bounds the time in which it arrives.
func (i *intake) chargeBody(w http.ResponseWriter, r *http.Request, tenant int32, conn netip.AddrPort) (*charge, error) {
	if r.Body == nil || r.Body == http.NoBody {
		return nil, nil
	}
	n := i.largest
	if r.ContentLength >= 0 {
		n = min(max(r.ContentLength, unreadBytes), i.largest)
	}
	c, err := i.charge(r.Context(), tenant, conn, n)
	if err != nil {
		return nil, err
	}
	control := http.NewResponseController(w)
	if control.SetReadDeadline(time.Now().Add(i.within)) == nil {
		r.Body = &timedBody{ReadCloser: r.Body, control: control}
	}
	return c, nil
}

// decodedBody is a body in JSON, which is charged for what it takes in memory once it is decoded: that
// may be fifty times its size. Bodies that arrive have a budget of their own, so that those that wait
// here do not hold what they need to go on.
type decodedBody struct {
	io.ReadCloser
	entryCounter
	ctx  context.Context //nolint:containedctx // that of the request; a reader has none
	of   *budget
	by   user
	held *charge // nil until the body has arrived
}

var errBodyBusy = errors.New(bodyBusy)

// Read implements [io.Reader]. The end comes when the body may be decoded.
func (b *decodedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.count(p[:n])
	if errors.Is(err, io.EOF) && b.held == nil {
		var busy error
		if b.held, busy = b.of.charge(b.ctx, b.by.tenant, b.by.conn, int64(min(b.entries, maxEntries))*entryBytes); busy != nil {
			return n, errBodyBusy
		}
	}
	return n, err
}

// timedBody removes the deadline of the connection when the body has arrived. Otherwise it
// would end the call.
type timedBody struct {
	io.ReadCloser
	control *http.ResponseController
}

// Read implements [io.Reader].
func (b *timedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		_ = b.control.SetReadDeadline(time.Time{}) // the server sets the next one
	}
	return n, err
}
