// Package certs serves the certificates and the CAs of the links between programs from
// files, and reads the files again when they change, so that a renewal needs no restart.
//
// Files are looked at when a connection begins, at most once a second. A change that cannot
// be used, such as a certificate whose key is not written yet, is logged once and tried again,
// and what was read last stays in use. Connections that are open keep what they began with.
package certs

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"
)

// Files are the files of one end of a link. Key belongs to Cert: both are given or neither.
type Files struct {
	// Cert holds the certificate of this end, with its chain, and Key its private key.
	Cert, Key string
	// CA holds the certificates that sign those of the other end. Without it, a client
	// trusts the CAs of the system.
	CA string
}

// Names are the keys of the configuration that name the certificate and the CA, for messages.
type Names struct{ Cert, CA string }

// checkEvery is the least time between two looks at the files.
const checkEvery = time.Second

// A Source has the certificates of one end of a link. Its methods may be called
// concurrently.
type Source struct {
	files Files
	names Names
	log   *slog.Logger

	mu      sync.Mutex
	current *Material
	seen    [3]stamp
	checked time.Time
	// failing says that what was seen could not be used. It is tried again: a certificate that is
	// not valid yet becomes so, and a process that has too many open files has fewer later.
	failing bool
}

// Material is what the files held when they were read. Two readings have different pointers.
type Material struct {
	cert *tls.Certificate
	pool *x509.CertPool
}

// stamp tells whether a file has changed.
type stamp struct {
	modified time.Time
	size     int64
}

// Open reads the files. Its error names the key of the file that cannot be used.
func Open(files Files, names Names, log *slog.Logger) (*Source, error) {
	s := &Source{files: files, names: names, log: log, checked: time.Now()}
	s.seen = s.stamps()
	var err error
	s.current, err = s.read()
	return s, err
}

// Newest returns what the files hold, or what they held when they could be used last.
func (s *Source) Newest() *Material {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := time.Now(); now.Sub(s.checked) >= checkEvery {
		s.checked = now
		s.reread()
	}
	return s.current
}

// reread reads the files if they have changed, or could not be used the last time.
func (s *Source) reread() {
	stamps := s.stamps()
	changed := stamps != s.seen
	if !changed && !s.failing {
		return
	}
	s.seen = stamps
	m, err := s.read()
	s.failing = err != nil
	if err != nil {
		if changed {
			s.log.Warn("changed certificates cannot be used; the last ones stay in use until they can", "err", err)
		}
		return
	}
	s.current = m
	s.log.Info("certificates were read again", "part", s.names.Cert)
}

func (s *Source) stamps() (all [3]stamp) {
	for i, f := range []string{s.files.Cert, s.files.Key, s.files.CA} {
		if info, err := os.Stat(f); err == nil {
			all[i] = stamp{info.ModTime(), info.Size()}
		}
	}
	return all
}

func (s *Source) read() (*Material, error) {
	m := &Material{}
	if s.files.Cert != "" {
		cert, err := tls.LoadX509KeyPair(s.files.Cert, s.files.Key)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.names.Cert, err) // which names the file
		}
		if err := validNow(cert.Leaf); err != nil {
			return nil, fmt.Errorf("%s: %s: %w", s.names.Cert, s.files.Cert, err)
		}
		m.cert = &cert
	}
	if s.files.CA != "" {
		pool, err := readPool(s.files.CA)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.names.CA, err)
		}
		m.pool = pool
	}
	return m, nil
}

// validNow returns an error for a certificate that every other end would refuse.
func validNow(leaf *x509.Certificate) error {
	switch now := time.Now(); {
	case now.After(leaf.NotAfter):
		return fmt.Errorf("the certificate has expired at %s", leaf.NotAfter.UTC().Format(time.RFC3339))
	case now.Before(leaf.NotBefore):
		return fmt.Errorf("the certificate is not valid before %s", leaf.NotBefore.UTC().Format(time.RFC3339))
	}
	return nil
}

func readPool(file string) (*x509.CertPool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, errors.New(file + " holds no certificate")
	}
	if endsWithin(text) {
		return nil, errors.New(file + " ends within a certificate")
	}
	return pool, nil
}

// endsWithin reports whether a file ends before the end of what it holds last: somebody writes it now.
func endsWithin(text []byte) bool {
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(text) {
		text = rest
	}
	return bytes.Contains(text, []byte("-----BEGIN "))
}

// Server returns the configuration of a listener. The source must have a certificate.
// clients says what the listener asks of callers; their certificates must be signed by a CA
// of the source. refused is called for each handshake that fails and must not block. Sessions
// are not resumed, so that a CA that was removed is forgotten.
func (s *Source) Server(clients tls.ClientAuthType, refused func()) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			m := s.Newest()
			conf := &tls.Config{
				MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*m.cert}, SessionTicketsDisabled: true,
				ClientAuth: clients, ClientCAs: m.pool,
			}
			watchHandshake(hello, conf, refused)
			return conf, nil
		},
	}
}

// Client returns the configuration of a connection that begins now. It does not follow later
// changes of the files; [Source.Dialer] does.
func (s *Source) Client() *tls.Config { return s.Newest().client() }

func (m *Material) client() *tls.Config {
	conf := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: m.pool}
	if m.cert != nil {
		conf.Certificates = []tls.Certificate{*m.cert}
	}
	return conf
}

// A Dial opens connections, as [net.Dialer.DialContext] does.
type Dial = func(ctx context.Context, network, address string) (net.Conn, error)

// Dialer returns a function that opens TLS connections over those of dial, with what the files
// hold then. It verifies that the server's certificate is for the host of the address.
func (s *Source) Dialer(dial Dial) Dial { return Dialer(dial, s.Newest) }

// Dialer is like [Source.Dialer], with the material that is used now.
func Dialer(dial Dial, now func() *Material) Dial {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		plain, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		conf := now().client()
		conf.ServerName = host
		conn := tls.Client(plain, conf)
		if err := conn.HandshakeContext(ctx); err != nil {
			_ = plain.Close() // the handshake's error says why
			return nil, fmt.Errorf("TLS with %s: %w", address, err)
		}
		return conn, nil
	}
}
