package store

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/jackc/pgx/v5"
)

// ErrOpenLink is the error of a connection string that allows a connection to another machine
// that is not encrypted, or whose other end is not verified.
var ErrOpenLink = errors.New("set sslmode=verify-full, and sslrootcert to the file of the CA")

// CheckLink returns an error that wraps [ErrOpenLink] unless every server that the connection
// string may lead to is on this machine or is reached by TLS that verifies its name. It
// returns nil for a text that is not a connection string, which [Open] refuses.
func CheckLink(dsn string) error {
	c, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil
	}
	if isOpen(c.Host, c.TLSConfig) {
		return openLink(c.Host)
	}
	for _, f := range c.Fallbacks {
		if isOpen(f.Host, f.TLSConfig) {
			return openLink(f.Host)
		}
	}
	return nil
}

func openLink(host string) error {
	return fmt.Errorf("%s is not on loopback, and sslmode is below verify-full: %w", host, ErrOpenLink)
}

// isOpen reports whether a link to host is open. A host that begins with a slash is a socket
// of this machine.
func isOpen(host string, conf *tls.Config) bool {
	ip := net.ParseIP(host)
	if host == "localhost" || strings.HasPrefix(host, "/") || ip != nil && ip.IsLoopback() {
		return false
	}
	return conf == nil || conf.InsecureSkipVerify
}
