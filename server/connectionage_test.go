package server

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"math/big"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/test/bufconn"
)

// pipes is a listener whose connections are in memory, and follow the clock of a test.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	// dialed counts connections.
	dialed int
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), closed: make(chan struct{})} }

// Accept implements [net.Listener].
func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

// Close implements [net.Listener].
func (p *pipes) Close() error {
	select {
	case <-p.closed:
	default:
		close(p.closed)
	}
	return nil
}

// Addr implements [net.Listener].
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

func (p *pipes) dial(context.Context, string, string) (net.Conn, error) {
	p.dialed++
	mine, its := net.Pipe()
	p.conns <- its
	return mine, nil
}

// onPipes serves HTTP over pipes while f runs. With TLS, both ends have the same certificate, which
// ends after validity. get returns the status of an answer and whether it ends the connection.
func onPipes(t *testing.T, validity time.Duration, f func(get func() (code int, ends bool), p *pipes)) {
	t.Helper()
	p := newPipes()
	c := Config{GRPC: bufconn.Listen(1 << 10), HTTP: p}
	transport, scheme := &http.Transport{DialContext: p.dial}, "http://"
	if validity > 0 {
		cert, pool := selfSigned(t, validity)
		c.TLS = &tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool, MinVersion: tls.VersionTLS13}
		transport.TLSClientConfig, scheme = &tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: pool, MinVersion: tls.VersionTLS13}, "https://"
	}
	s := must(New(c, someDeps()))(t)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	f(func() (int, bool) {
		r := must(http.NewRequestWithContext(ctx, http.MethodGet, scheme+"perceptor.example/v1/openapi.json", nil))(t)
		answer, err := (&http.Client{Transport: transport}).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.Copy(io.Discard, answer.Body)
		if err := errors.Join(err, answer.Body.Close()); err != nil {
			t.Error(err)
		}
		return answer.StatusCode, answer.Close
	}, p)
	transport.CloseIdleConnections()
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// selfSigned returns a certificate of both ends, and the pool that trusts it.
func selfSigned(t *testing.T, validity time.Duration) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{"perceptor.example"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(validity),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der := must(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key))(t)
	pool := x509.NewCertPool()
	pool.AddCert(must(x509.ParseCertificate(der))(t))
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

func TestAnHTTPConnectionEndsAfterAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		onPipes(t, 0, func(get func() (int, bool), p *pipes) {
			for minute := range 60 {
				if _, ends := get(); ends || p.dialed != 1 {
					t.Fatalf("after %d minutes: ends %v, %d connections", minute, ends, p.dialed)
				}
				time.Sleep(time.Minute)
			}
			if code, ends := get(); code != http.StatusOK || !ends {
				t.Errorf("after an hour: %d, ends %v", code, ends)
			}
			if _, ends := get(); ends || p.dialed != 2 {
				t.Errorf("after that: ends %v, %d connections", ends, p.dialed)
			}
		})
	})
}

func TestAConnectionDoesNotOutlastTheCertificateOfItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		onPipes(t, time.Minute, func(get func() (int, bool), _ *pipes) {
			if code, ends := get(); code != http.StatusOK || ends {
				t.Errorf("before it expires: %d, ends %v", code, ends)
			}
			time.Sleep(time.Minute + time.Second)
			if code, ends := get(); code != http.StatusUnauthorized || !ends {
				t.Errorf("after it has expired: %d, ends %v", code, ends)
			}
		})
	})
}
