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

// maxHello bounds the first packet of a server. A longer packet is not from
// ZooKeeper.
const maxHello = 1 << 20

// watchResetTimeout bounds the wait for watches to be set again. There may be
// none to set.
const watchResetTimeout = 250 * time.Millisecond

// connections are the network connections of one session. They correct what the
// client library lacks:
//
//   - the member can close them,
//   - no read waits forever,
//   - the session timeout that the server grants is known (it is in the first
//     packet),
//   - no answer is delivered before the watches are set again.
type connections struct {
	dialer  func(ctx context.Context, network, address string) (net.Conn, error)
	watched func() bool // reports whether watches must be set again on a new connection
	ctx     context.Context
	end     context.CancelFunc
	limit   time.Duration // of each read, unless the server grants a longer session
	timeout atomic.Int64  // granted session timeout, in milliseconds

	mu   sync.Mutex
	open map[*connection]bool
}

func newConnections(dialer func(context.Context, string, string) (net.Conn, error), watched func() bool, timeout time.Duration) *connections {
	ctx, end := context.WithCancel(context.Background())
	w := &connections{dialer: dialer, watched: watched, ctx: ctx, end: end, limit: timeout, open: map[*connection]bool{}}
	w.timeout.Store(timeout.Milliseconds())
	return w
}

func (w *connections) granted() time.Duration {
	return time.Duration(w.timeout.Load()) * time.Millisecond
}

func (w *connections) dial(network, address string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(w.ctx, timeout)
	defer cancel()
	conn, err := w.dialer(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c := &connection{Conn: conn, of: w, watchesSet: make(chan struct{})}
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

// closeAll closes all connections. Later dials fail.
func (w *connections) closeAll() {
	w.end()
	w.mu.Lock()
	defer w.mu.Unlock()
	for c := range w.open {
		c.Conn.Close()
	}
}

// A connection is one network connection. One goroutine of the library reads,
// one writes.
type connection struct {
	net.Conn
	of    *connections
	hello []byte // the first bytes read: length, protocol version, session timeout

	greeted    bool          // the first packet has been written
	requested  atomic.Bool   // a request has been written
	watchesSet chan struct{} // closed when the old watches have been set again
	waited     bool          // awaitWatches has returned once
}

// Each written packet begins with its length, its number and its operation.
const (
	helloSize    = 12
	opAuth       = 100
	opSetWatches = 101
	opPing       = 11
)

// Write detects which requests are sent.
func (c *connection) Write(p []byte) (int, error) {
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

func (c *connection) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if len(c.hello) == helloSize {
		c.awaitWatches()
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

// awaitWatches delays an answer until the watches of the lost connection have been
// set again.
//
// The library sets them "since the last transaction seen". It reads that number
// while answers on the new connection advance it, so without the delay it would
// miss events that happened in between.
func (c *connection) awaitWatches() {
	if c.waited || !c.requested.Load() {
		return
	}
	c.waited = true
	select {
	case <-c.watchesSet:
	case <-c.of.ctx.Done():
	case <-time.After(watchResetTimeout):
	}
}

// SetReadDeadline limits every read. The library would wait ten sessions for
// the first packet of a server that hangs, and forever for the rest of a
// packet.
func (c *connection) SetReadDeadline(t time.Time) error {
	if latest := time.Now().Add(max(c.of.limit, c.of.granted())); t.IsZero() || t.After(latest) {
		t = latest
	}
	return c.Conn.SetReadDeadline(t)
}

// Close implements net.Conn.
func (c *connection) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// servers returns the servers in turn, as names. The library's own provider
// would resolve the names only once.
type servers struct {
	mu    sync.Mutex
	names []string
	next  int
	tried int // servers returned since the last connection
}

// Init implements zk.HostProvider.
func (s *servers) Init(names []string) error {
	s.names = slices.Clone(names)
	return nil
}

// Len implements zk.HostProvider.
func (s *servers) Len() int { return len(s.names) }

// Next implements zk.HostProvider. retryStart is true after each full round and
// makes the library wait for a second.
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
