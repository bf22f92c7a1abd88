package testenv

import (
	"net"
	"sync"
	"testing"
	"time"
)

// Proxy is a TCP proxy between clients and a server that can break and delay their connections, and
// change the server. Its methods may be called concurrently.
type Proxy struct {
	listener net.Listener

	mu       sync.Mutex
	upstream string
	thawed   *sync.Cond
	frozen   bool
	down     bool
	era      int // grows with each Cut and Redirect
	delay    time.Duration
	harmed   int64
	conns    map[net.Conn]bool
	wg       sync.WaitGroup
}

// NewProxy starts a proxy in front of the server at upstream, host:port, for one test.
func NewProxy(tb testing.TB, upstream string) *Proxy {
	tb.Helper()
	p, err := StartProxy(upstream)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(p.Close)
	return p
}

// StartProxy starts a proxy in front of the server at upstream, host:port.
func StartProxy(upstream string) (*Proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{listener: listener, upstream: upstream, conns: map[net.Conn]bool{}}
	p.thawed = sync.NewCond(&p.mu)
	p.wg.Go(p.accept)
	return p, nil
}

// Close stops the proxy and closes all its connections.
func (p *Proxy) Close() {
	p.listener.Close()
	p.Cut()
	p.wg.Wait()
}

// Addr returns host:port of the proxy.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

func (p *Proxy) accept() {
	for {
		in, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		upstream, era := p.upstream, p.era
		p.mu.Unlock()
		out, err := net.DialTimeout("tcp", upstream, probeWait)
		if err != nil {
			p.mu.Lock()
			p.harmed++
			p.mu.Unlock()
			in.Close()
			continue
		}
		p.mu.Lock()
		if p.down || era != p.era { // the way that was dialed is no longer the one to go
			p.harmed++
			in.Close()
			out.Close()
		}
		p.conns[in], p.conns[out] = true, true
		p.mu.Unlock()
		p.wg.Go(func() { p.pump(in, out) })
		p.wg.Go(func() { p.pump(out, in) })
	}
}

// A piece is data that a link has taken, and when it is passed on.
type piece struct {
	data *[pieceBytes]byte
	size int
	due  time.Time
}

// A link keeps at most maxPieces of at most pieceBytes in each direction of a connection. That is
// 1 GB/s with a delay of 1 ms.
const pieceBytes, maxPieces = 32 << 10, 32

var pieces = sync.Pool{New: func() any { return new([pieceBytes]byte) }}

// pump copies data from one connection to the other until one of them ends. It reads on while data
// waits for its time, so that a delay does not limit the throughput. While the proxy is frozen, pump
// keeps the data that it has read.
func (p *Proxy) pump(from, to net.Conn) {
	defer p.forget(from, to)
	taken, ended := make(chan piece, maxPieces), make(chan struct{})
	defer close(ended)
	p.wg.Go(func() { p.take(from, taken, ended) })
	for next := range taken {
		time.Sleep(time.Until(next.due))
		p.awaitThaw()
		_, err := to.Write(next.data[:next.size])
		pieces.Put(next.data)
		if err != nil {
			return
		}
	}
}

// take reads pieces until the connection or the pump ends.
func (p *Proxy) take(from net.Conn, taken chan<- piece, ended <-chan struct{}) {
	defer close(taken)
	for {
		next := piece{data: pieces.Get().(*[pieceBytes]byte)}
		var err error
		if next.size, err = from.Read(next.data[:]); next.size > 0 {
			next.due = p.dueOf()
			select {
			case taken <- next:
			case <-ended:
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// dueOf returns when a piece that was read now is passed on, and counts it if that harms it.
func (p *Proxy) dueOf() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.frozen || p.delay > 0 {
		p.harmed++
	}
	return time.Now().Add(p.delay)
}

func (p *Proxy) awaitThaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.frozen && !p.down {
		p.thawed.Wait()
	}
}

func (p *Proxy) forget(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		c.Close()
		delete(p.conns, c)
	}
}

// Cut closes all connections, and every new one until Heal. The server gets no last message from its
// clients.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = true
	p.era++
	p.harmed += int64(len(p.conns))
	for c := range p.conns {
		c.Close()
	}
	p.conns = map[net.Conn]bool{}
	p.thawed.Broadcast()
}

// Redirect connects new connections to the server at upstream, host:port.
func (p *Proxy) Redirect(upstream string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.upstream = upstream
	p.era++
}

// Heal ends a Cut: the proxy accepts connections again.
func (p *Proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = false
}

// Freeze keeps all data in both directions until Thaw. The connections stay open.
func (p *Proxy) Freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.frozen = true
}

// Thaw ends a Freeze and delivers the kept data in order.
func (p *Proxy) Thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.frozen = false
	p.thawed.Broadcast()
}

// Delay keeps data for d before it is passed on, in both directions, from now on. It does not limit the
// throughput. 0 ends the delay.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// Connections returns the number of open connections from clients.
func (p *Proxy) Connections() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.conns) / 2
}

// Harmed returns how many connections were closed or refused, by Cut or because the server did not
// listen, plus how many pieces of data Freeze and Delay have kept, since the start. It proves that a
// disturbance of the link or of the server had an effect.
func (p *Proxy) Harmed() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.harmed
}
