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

// wires are the network connections of one session. They mend what the client
// library leaves open: they can be cut from outside, no read waits for ever,
// and the session timeout that the server grants is known (it is in the first
// packet).
type wires struct {
	dialer  func(ctx context.Context, network, address string) (net.Conn, error)
	ctx     context.Context
	end     context.CancelFunc
	limit   time.Duration // of each read, unless the server grants more
	timeout atomic.Int64  // granted, in milliseconds

	mu   sync.Mutex
	open map[*wire]bool
}

func newWires(dialer func(context.Context, string, string) (net.Conn, error), timeout time.Duration) *wires {
	ctx, end := context.WithCancel(context.Background())
	w := &wires{dialer: dialer, ctx: ctx, end: end, limit: timeout, open: map[*wire]bool{}}
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
	c := &wire{Conn: conn, of: w}
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

// A wire is one connection.
type wire struct {
	net.Conn
	of    *wires
	hello []byte // the first bytes read: length, protocol version, session timeout
}

const helloSize = 12

func (c *wire) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if len(c.hello) == helloSize {
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
