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
		upstream := p.upstream
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
		if p.down {
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

// pump copies data from one connection to the other until one of them ends. While
// the proxy is frozen, pump keeps the data that it has read.
func (p *Proxy) pump(from, to net.Conn) {
	defer p.forget(from, to)
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		p.mu.Lock()
		delay := p.delay
		if p.frozen || delay > 0 {
			p.harmed++
		}
		for p.frozen && !p.down {
			p.thawed.Wait()
		}
		p.mu.Unlock()
		time.Sleep(delay)
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

// Cut closes all connections, and every new one until Heal. The server gets no last message from its
// clients.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.down = true
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

// Delay keeps each piece of data for d before it is passed on, in both directions. 0 ends the delay.
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
