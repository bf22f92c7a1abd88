package testenv

import (
	"net"
	"sync"
	"testing"
)

// Proxy stands between a client and a server, and spoils their connections. Its methods may be called
// concurrently.
type Proxy struct {
	listener net.Listener

	mu       sync.Mutex
	upstream string
	thawed   *sync.Cond
	frozen   bool
	down     bool
	conns    map[net.Conn]bool
	wg       sync.WaitGroup
}

// NewProxy starts a proxy for one test.
func NewProxy(tb testing.TB, upstream string) *Proxy {
	tb.Helper()
	p, err := StartProxy(upstream)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(p.Close)
	return p
}

// StartProxy starts a proxy in front of host:port.
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

// Close ends the proxy and all its connections.
func (p *Proxy) Close() {
	p.listener.Close()
	p.Cut()
	p.wg.Wait()
}

// Addr is host:port.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

func (p *Proxy) accept() {
	for {
		in, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		upstream := p.upstream
		p.mu.Unlock()
		out, err := net.Dial("tcp", upstream)
		if err != nil {
			in.Close()
			continue
		}
		p.mu.Lock()
		if p.down {
			in.Close()
			out.Close()
		}
		p.conns[in], p.conns[out] = true, true
		p.mu.Unlock()
		p.wg.Go(func() { p.pump(in, out) })
		p.wg.Go(func() { p.pump(out, in) })
	}
}

// pump copies until one side ends. While the proxy is frozen it keeps the data
// that it has read.
func (p *Proxy) pump(from, to net.Conn) {
	defer p.forget(from, to)
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		p.mu.Lock()
		for p.frozen && !p.down {
			p.thawed.Wait()
		}
		p.mu.Unlock()
		if _, err := to.Write(buf[:n]); err != nil {
			return
		}
		if err != nil {
			return
		}
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

// Cut closes all connections, without a word of the client to the server, and every new one until Heal.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = true
	for c := range p.conns {
		c.Close()
	}
	p.conns = map[net.Conn]bool{}
	p.thawed.Broadcast()
}

// Redirect sends new connections to another server.
func (p *Proxy) Redirect(upstream string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.upstream = upstream
}

// Heal lets connections through again.
func (p *Proxy) Heal() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = false
}

// Freeze holds all bytes back, in both directions; the connections stay.
func (p *Proxy) Freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.frozen = true
}

// Thaw delivers the data that Freeze has kept, in order.
func (p *Proxy) Thaw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.frozen = false
	p.thawed.Broadcast()
}
