package cli

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/perceptor/perceptor/internal/config"
)

// certificate writes a new certificate and its key, and returns their paths.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"taskd.example.com"}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, kind string, bytes []byte) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: bytes}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return write("cert.pem", "CERTIFICATE", der), write("key.pem", "PRIVATE KEY", keyDER)
}

// program serves what a program for operators does, with a status.
func program(t *testing.T, status int) *httptest.Server {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/readyz" || r.Header.Get("Authorization") != "Bearer token" {
			status = http.StatusTeapot
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte("the state\n"))
	}))
	t.Cleanup(s.Close)
	return s
}

func TestHealthTellsWhatTheProgramAnswers(t *testing.T) {
	t.Parallel()
	for status, fails := range map[int]bool{200: false, 503: true} {
		s := program(t, status)
		s.Start()
		_, port, _ := net.SplitHostPort(s.Listener.Addr().String())
		c := &config.Config{Ops: config.Ops{Token: "token"}}
		answer, err := askHealth(t.Context(), c, "0.0.0.0:"+port)
		if (err != nil) != fails || err == nil && answer != "the state\n" || err != nil && !strings.Contains(err.Error(), "503: the state") {
			t.Errorf("%d: got %q, %v", status, answer, err)
		}
	}
}

func TestHealthAcceptsTheCertificateOfItsConfigurationAndNoOther(t *testing.T) {
	t.Parallel()
	cert, key := certificate(t)
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	s := program(t, 200)
	s.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	s.StartTLS()
	c := &config.Config{Ops: config.Ops{Token: "token"}}
	c.Ops.TLS.CertFile, c.Ops.TLS.KeyFile = cert, key
	if answer, err := askHealth(t.Context(), c, s.Listener.Addr().String()); err != nil || answer != "the state\n" {
		t.Errorf("got %q, %v", answer, err)
	}
	c.Ops.TLS.CertFile, c.Ops.TLS.KeyFile = certificate(t)
	if _, err := askHealth(t.Context(), c, s.Listener.Addr().String()); err == nil || !strings.Contains(err.Error(), "is not the one in ops.tls.cert_file") {
		t.Errorf("another certificate: %v", err)
	}
}

func TestHealthNeedsAnAddress(t *testing.T) {
	t.Parallel()
	if _, err := askHealth(t.Context(), &config.Config{}, ""); err == nil || !strings.Contains(err.Error(), "no address for operators") {
		t.Errorf("got %v", err)
	}
}
