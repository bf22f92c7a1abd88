package server

import (
	"context"
	"net"
	"net/netip"
	"sync"

	"github.com/perceptor/perceptor/internal/share"
)

// source tells callers apart before they are known: an IPv4 address, or an IPv6 network of
// 64 bits, of which one caller has all addresses. Connections without an IP address share one
// source.
type source = netip.Addr

// sourceOf returns the source of an address.
func sourceOf(a netip.AddrPort) source {
	return share.Network(a.Addr(), share.CallerBits)
}

// siteOf returns the IPv4 address, or the IPv6 network of 48 bits, which is the largest that is
// given to one customer (RFC 6177).
func siteOf(a netip.AddrPort) source {
	return share.Network(a.Addr(), 48)
}

type sourceKey struct{}

// withSource returns a context of a call that came over HTTP from a source.
func withSource(ctx context.Context, from source) context.Context {
	return context.WithValue(ctx, sourceKey{}, from)
}

// callSource returns the source of a call.
func callSource(ctx context.Context) source {
	if from, ok := ctx.Value(sourceKey{}).(source); ok {
		return from
	}
	return sourceOf(connOf(ctx))
}

// addrPortOf returns the IP address and port of a. It is invalid if a has none.
func addrPortOf(a net.Addr) netip.AddrPort {
	if known, ok := a.(connectionAddr); ok {
		a = known.Addr
	}
	if tcp, ok := a.(*net.TCPAddr); ok {
		return tcp.AddrPort()
	}
	return netip.AddrPort{}
}

// connectionPlaces are the connections of all sources. The networks of one site have together at
// most what one party may have.
type connectionPlaces struct {
	sources, sites *share.Pool[source]
}

func newConnectionPlaces(n int) *connectionPlaces {
	return &connectionPlaces{share.NewPool[source](int64(n), 0), share.NewPool[source](int64(n), 0)}
}

// take takes a place for a connection. Call give when it has ended.
func (p *connectionPlaces) take(from netip.AddrPort) (give func(), ok bool) {
	network, site := sourceOf(from), siteOf(from)
	if !p.sites.Take(site, 1) {
		return nil, false
	}
	if !p.sources.Take(network, 1) {
		p.sites.Give(site, 1)
		return nil, false
	}
	return sync.OnceFunc(func() {
		p.sources.Give(network, 1)
		p.sites.Give(site, 1)
	}), true
}

// limitedListener closes connections that exceed the share of their source.
type limitedListener struct {
	net.Listener
	places  *connectionPlaces
	refused func()
}

// Accept implements [net.Listener].
func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if give, ok := l.places.take(addrPortOf(c.RemoteAddr())); ok {
			return &limitedConn{Conn: c, give: give}, nil
		}
		l.refused()
		_ = c.Close() // nothing was sent on it
	}
}

// limitedConn returns its place when it is closed.
type limitedConn struct {
	net.Conn
	give func()
}

// Close implements [net.Conn].
func (c *limitedConn) Close() error {
	defer c.give()
	return c.Conn.Close()
}
