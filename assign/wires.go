package assign

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// maxHello bounds the first packet of a server; a longer one does not come
// from ZooKeeper.
const maxHello = 1 << 20

// holdBackFor bounds the wait for watches to be set again: there may be none.
const holdBackFor = 250 * time.Millisecond

// wires are the network connections of one session. They mend what the client
// library leaves open: they can be cut from outside, no read waits for ever,
// the session timeout that the server grants is known (it is in the first
// packet), and no answer overtakes the setting of watches.
type wires struct {
	dialer  func(ctx context.Context, network, address string) (net.Conn, error)
	watched func() bool // are there watches to be set again on a new connection?
	ctx     context.Context
	end     context.CancelFunc
	limit   time.Duration // of each read, unless the server grants more
	timeout atomic.Int64  // granted, in milliseconds

	mu   sync.Mutex
	open map[*wire]bool
}

func newWires(dialer func(context.Context, string, string) (net.Conn, error), watched func() bool, timeout time.Duration) *wires {
	ctx, end := context.WithCancel(context.Background())
	w := &wires{dialer: dialer, watched: watched, ctx: ctx, end: end, limit: timeout, open: map[*wire]bool{}}
	w.timeout.Store(timeout.Milliseconds())
	return w
}

func (w *wires) granted() time.Duration { return time.Duration(w.timeout.Load()) * time.Millisecond }

func (w *wires) dial(network, address string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(w.ctx, timeout)
	defer cancel()
	conn, err := w.dialer(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c := &wire{Conn: conn, of: w, watchesSet: make(chan struct{})}
	if !w.watched() {
		close(c.watchesSet)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ctx.Err() != nil {
		conn.Close()
		return nil, w.ctx.Err()
	}
	w.open[c] = true
	return c, nil
}

// cut closes all connections, and every one that is dialled from now on.
func (w *wires) cut() {
	w.end()
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.open {
		c.Conn.Close()
	}
}

// A wire is one connection. One goroutine of the library reads, one writes.
type wire struct {
	net.Conn
	of    *wires
	hello []byte // the first bytes read: length, protocol version, session timeout

	greeted    bool          // the first packet has been written
	requested  atomic.Bool   // a request has been written
	watchesSet chan struct{} // closed when the old watches have been set again
	released   bool          // nothing is kept back any more
}

// Each packet written has its length, its number and its operation first.
const (
	helloSize    = 12
	opAuth       = 100
	opSetWatches = 101
	opPing       = 11
)

// Write notes which requests go out.
func (c *wire) Write(p []byte) (int, error) {
	if len(p) >= helloSize && c.greeted {
		switch binary.BigEndian.Uint32(p[8:]) {
		case opSetWatches:
			select {
			case <-c.watchesSet:
			default:
				close(c.watchesSet)
			}
		case opAuth, opPing:
		default:
			c.requested.Store(true)
		}
	}
	c.greeted = true
	return c.Conn.Write(p)
}

func (c *wire) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if len(c.hello) == helloSize {
		c.holdBack()
		return n, err
	}
	c.hello = append(c.hello, p[:min(n, helloSize-len(c.hello))]...)
	if len(c.hello) >= 4 && binary.BigEndian.Uint32(c.hello) > maxHello {
		return 0, errors.New("the server does not speak ZooKeeper's protocol")
	}
	if len(c.hello) == helloSize {
		if ms := int32(binary.BigEndian.Uint32(c.hello[8:])); ms > 0 {
			c.of.timeout.Store(int64(ms))
		}
	}
	return n, err
}

// holdBack keeps an answer back until the watches of the lost connection have
// been set again. The library does that "since the last transaction seen", and
// reads which one that is while answers on the new connection move it on: it
// would miss what has happened in between.
func (c *wire) holdBack() {
	if c.released || !c.requested.Load() {
		return
	}
	c.released = true
	select {
	case <-c.watchesSet:
	case <-c.of.ctx.Done():
	case <-time.After(holdBackFor):
	}
}

// SetReadDeadline never lets a read wait for longer than the limit: the
// library waits for ten sessions for the first packet of a server that hangs,
// and for ever for the rest of a packet.
func (c *wire) SetReadDeadline(t time.Time) error {
	if latest := time.Now().Add(max(c.of.limit, c.of.granted())); t.IsZero() || t.After(latest) {
		t = latest
	}
	return c.Conn.SetReadDeadline(t)
}

// Close implements net.Conn.
func (c *wire) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// servers gives the library one server after the other, as names: it would
// look them up once and for all.
type servers struct {
	mu    sync.Mutex
	names []string
	next  int
	tried int // since the last connection
}

// Init implements zk.HostProvider.
func (s *servers) Init(names []string) error {
	s.names = slices.Clone(names)
	return nil
}

// Len implements zk.HostProvider.
func (s *servers) Len() int { return len(s.names) }

// Next implements zk.HostProvider; retryStart, after each full round, makes
// the library wait for a second.
func (s *servers) Next() (server string, retryStart bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	server = s.names[s.next]
	s.next = (s.next + 1) % len(s.names)
	retryStart = s.tried > 0 && s.tried%len(s.names) == 0
	s.tried++
	return server, retryStart
}

// Connected implements zk.HostProvider.
func (s *servers) Connected() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tried = 0
}
