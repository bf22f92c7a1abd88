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
	addr := a.Addr().Unmap().WithZone("")
	if addr.Is6() {
		p, err := addr.Prefix(64)
		if err == nil {
			return p.Addr()
		}
	}
	return addr
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

// limitedListener closes connections that exceed the share of their source.
type limitedListener struct {
	net.Listener
	places  *share.Pool[source]
	refused func()
}

// Accept implements [net.Listener].
func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		from := sourceOf(addrPortOf(c.RemoteAddr()))
		if l.places.Take(from, 1) {
			return &limitedConn{Conn: c, give: sync.OnceFunc(func() { l.places.Give(from, 1) })}, nil
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
