package certs

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"sync/atomic"
)

// watchHandshake calls refused if the handshake of hello fails. conf is its configuration.
func watchHandshake(hello *tls.ClientHelloInfo, conf *tls.Config, refused func()) {
	var agreed atomic.Bool
	conf.VerifyConnection = func(tls.ConnectionState) error {
		agreed.Store(true)
		return nil
	}
	context.AfterFunc(hello.Context(), func() { // ends with the handshake
		if !agreed.Load() {
			refused()
		}
	})
}

// handshakeRecord is the first byte that a caller sends who speaks TLS.
const handshakeRecord = 22

// CountClearText returns l, which is a listener of TLS connections before their TLS, with a
// callback for each caller that speaks in the clear. refused must not block.
func CountClearText(l net.Listener, refused func()) net.Listener { return &watched{l, refused} }

type watched struct {
	net.Listener
	refused func()
}

// Accept implements net.Listener.
func (l *watched) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &watchedConn{Conn: conn, refused: l.refused}, nil
}

type watchedConn struct {
	net.Conn
	refused func()
	first   sync.Once
}

// Read implements net.Conn.
func (c *watchedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.first.Do(func() {
			if p[0] != handshakeRecord {
				c.refused()
			}
		})
	}
	return n, err
}
