// Package kafkadial opens connections to Kafka brokers of which some may be silent: their machines
// are gone, or they hang, and then the kernel still accepts connections for them. It is for the
// transports and dialers of kafka-go, which try the brokers of a list one after another within one
// limit, so that a silent one leaves no time for the next.
package kafkadial

import (
	"bufio"
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"time"
)

// Dial opens a connection.
type Dial = func(ctx context.Context, network, address string) (net.Conn, error)

// Bounded returns a dial whose connections are closed if their context passes its deadline. kafka-go
// cancels the context when it has logged in, and logs in without any other limit: a broker that falls
// silent then would hold the caller for as long as the connection lasts.
func Bounded(dial Dial) Dial {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err == nil {
			context.AfterFunc(ctx, func() {
				if errors.Is(ctx.Err(), context.DeadlineExceeded) {
					_ = conn.Close()
				}
			})
		}
		return conn, err
	}
}

// anyBroker is the network of addresses that stand for any broker of a list.
const anyBroker = "any-broker"

// Brokers is a list of brokers of which any will do. It may be used concurrently.
type Brokers struct {
	dial Dial

	mu sync.Mutex
	// addresses begin with the one that has answered last, and are in random order at first.
	addresses []string
}

// NewBrokers returns a list. dial opens connections to one broker.
func NewBrokers(addresses []string, dial Dial) *Brokers {
	b := &Brokers{dial: dial, addresses: slices.Clone(addresses)}
	rand.Shuffle(len(b.addresses), func(i, j int) { b.addresses[i], b.addresses[j] = b.addresses[j], b.addresses[i] })
	return b
}

// anyAddr is an address of the network anyBroker. It is that of one of them because kafka-go takes
// it apart.
type anyAddr string

func (anyAddr) Network() string  { return anyBroker }
func (a anyAddr) String() string { return string(a) }

// Addr returns the address of any broker of a list, for a transport with [Brokers.Dial].
func Addr(addresses []string) net.Addr {
	if len(addresses) == 0 {
		return anyAddr("")
	}
	return anyAddr(addresses[0])
}

// Dial opens a connection to address or, if that is of [Addr], to the first broker of the list that
// answers what is written first. The caller writes only one request before it reads, and the request
// may reach several brokers: kafka-go begins with a question for their versions.
func (b *Brokers) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	switch {
	case network != anyBroker:
		return b.dial(ctx, network, address)
	case address == "":
		return nil, errNoBroker
	}
	return &race{brokers: b, ctx: ctx}, nil
}

var errNoBroker = errors.New("there is no address of a Kafka broker")

func (b *Brokers) order() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.addresses)
}

func (b *Brokers) answered(address string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := slices.Index(b.addresses, address); i > 0 {
		b.addresses = slices.Insert(slices.Delete(b.addresses, i, i+1), 0, address)
	}
}

// A race is a connection to the first of several brokers that answers.
type race struct {
	brokers *Brokers
	ctx     context.Context //nolint:containedctx // of the dial, which lasts until kafka-go has logged in

	mu sync.Mutex
	// request is what was written before the first read.
	request  []byte
	winner   *runner // nil: nobody has answered yet
	deadline time.Time
	stop     context.CancelFunc // of the race while it is run
	closed   bool
}

// A runner is a connection with an answer.
type runner struct {
	net.Conn
	address string
	answer  *bufio.Reader
}

func (r *runner) Read(b []byte) (int, error) { return r.answer.Read(b) }

func (r *race) Read(b []byte) (int, error) {
	if w := r.won(); w != nil {
		return w.Read(b)
	}
	ctx, cancel := context.WithCancel(r.ctx)
	defer cancel()
	r.mu.Lock()
	if !r.deadline.IsZero() {
		ctx, cancel = context.WithDeadline(ctx, r.deadline)
		defer cancel()
	}
	r.stop = cancel
	closed, request := r.closed, r.request
	r.mu.Unlock()
	if closed {
		return 0, net.ErrClosed
	}
	w, err := r.brokers.first(ctx, request)
	if err != nil {
		return 0, err
	}
	r.mu.Lock()
	if err = w.SetDeadline(r.deadline); r.closed {
		err = errors.Join(net.ErrClosed, w.Close())
	}
	r.winner = w
	r.mu.Unlock()
	if err != nil {
		return 0, err
	}
	return w.Read(b)
}

// first returns the connection to the first broker that answers the request.
func (b *Brokers) first(ctx context.Context, request []byte) (*runner, error) {
	addresses := b.order()
	ask := func(ctx context.Context, i int) (*runner, error) { return b.ask(ctx, addresses[i], request) }
	r, failed := First(ctx, len(addresses), ask, func(late *runner) { _ = late.Close() })
	if r == nil {
		return nil, errors.Join(failed...)
	}
	b.answered(r.address)
	return r, nil
}

// ask returns a connection to a broker that has answered the request.
func (b *Brokers) ask(ctx context.Context, address string, request []byte) (*runner, error) {
	conn, err := b.dial(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	r := &runner{Conn: conn, address: address, answer: bufio.NewReader(conn)}
	unhook := context.AfterFunc(ctx, func() { _ = conn.Close() })
	if _, err = conn.Write(request); err == nil {
		_, err = r.answer.Peek(1)
	}
	if !unhook() {
		return nil, &net.OpError{Op: "ask", Net: "tcp", Addr: conn.RemoteAddr(), Err: late(ctx)}
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return r, nil
}

// late returns why a question ended with its context.
func late(ctx context.Context) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return os.ErrDeadlineExceeded
	}
	return ctx.Err()
}

func (r *race) Write(b []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed:
		return 0, net.ErrClosed
	case r.winner != nil:
		return r.winner.Write(b)
	}
	r.request = append(r.request, b...)
	return len(b), nil
}

func (r *race) won() *runner {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.winner
}

// Close ends a race that is run.
func (r *race) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	switch {
	case r.winner != nil:
		return r.winner.Close()
	case r.stop != nil:
		r.stop()
	}
	return nil
}

// SetDeadline sets the limit of later reads and writes.
func (r *race) SetDeadline(t time.Time) error {
	return r.set(t, func(c net.Conn) error { return c.SetDeadline(t) })
}

// SetReadDeadline sets the limit of later reads.
func (r *race) SetReadDeadline(t time.Time) error {
	return r.set(t, func(c net.Conn) error { return c.SetReadDeadline(t) })
}

// SetWriteDeadline sets the limit of later writes. Those before the first read do not wait.
func (r *race) SetWriteDeadline(t time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.winner == nil {
		return nil
	}
	return r.winner.SetWriteDeadline(t)
}

func (r *race) set(t time.Time, apply func(net.Conn) error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.deadline = t; r.winner == nil {
		return nil
	}
	return apply(r.winner)
}

// LocalAddr returns an empty address until a broker has answered.
func (r *race) LocalAddr() net.Addr { return r.addr(net.Conn.LocalAddr) }

// RemoteAddr returns an empty address until a broker has answered.
func (r *race) RemoteAddr() net.Addr { return r.addr(net.Conn.RemoteAddr) }

func (r *race) addr(of func(net.Conn) net.Addr) net.Addr {
	if w := r.won(); w != nil {
		return of(w)
	}
	return &net.TCPAddr{}
}
