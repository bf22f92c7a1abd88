package testenv

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perceptor/perceptor/internal/tempdir"
)

// CA is a certificate authority for tests. Its methods may be called concurrently.
type CA struct {
	// File holds its certificate, as PEM.
	File string

	dir    string
	cert   *x509.Certificate
	key    *ecdsa.PrivateKey
	issued atomic.Int64
	// place, if set, is the directory that this process owns as long as it is reachable.
	place *tempdir.Dir
}

// Certificate names the files of a certificate. CombinedFile holds both, as Java wants it.
type Certificate struct{ CertFile, KeyFile, CombinedFile string }

// Use is what a certificate is for.
type Use = x509.ExtKeyUsage

// The uses of certificates.
const (
	Server = x509.ExtKeyUsageServerAuth
	Client = x509.ExtKeyUsageClientAuth
)

// CertificateOption changes a certificate that [CA.Issue] makes.
type CertificateOption func(*x509.Certificate)

// Valid sets when the certificate is valid, relative to now. The default is from an hour ago
// to a day ahead.
func Valid(from, to time.Duration) CertificateOption {
	return func(c *x509.Certificate) { c.NotBefore, c.NotAfter = time.Now().Add(from), time.Now().Add(to) }
}

// Host makes the certificate that of another host than this machine's loopback.
func Host(name string) CertificateOption {
	return func(c *x509.Certificate) { c.DNSNames, c.IPAddresses = []string{name}, nil }
}

// Subject sets the common name of the certificate.
func Subject(name string) CertificateOption {
	return func(c *x509.Certificate) { c.Subject = pkix.Name{CommonName: name} }
}

// NewCA returns a CA whose files are removed when the test ends.
func NewCA(tb testing.TB) *CA {
	tb.Helper()
	ca, err := StartCA(tb.TempDir())
	if err != nil {
		tb.Fatal(err)
	}
	return ca
}

// StartCA returns a CA that keeps its files in dir, which exists.
func StartCA(dir string) (*CA, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: "perceptor test CA " + randomName()}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	ca := &CA{File: filepath.Join(dir, "ca.pem"), dir: dir, key: key}
	if ca.cert, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	// The servers' users read it, too.
	return ca, os.WriteFile(ca.File, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644)
}

// Trust returns the configuration of a client that trusts only the CA in a file; nil without
// a file.
func Trust(file string) (*tls.Config, error) {
	if file == "" {
		return nil, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, errors.New(file + " holds no certificate")
	}
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, nil
}

// Trust returns the configuration of a client that trusts only this CA.
func (ca *CA) Trust() *tls.Config {
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	return &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
}

// Issue returns a certificate for the loopback addresses of this machine.
func (ca *CA) Issue(tb testing.TB, use Use, options ...CertificateOption) Certificate {
	tb.Helper()
	c, err := ca.Sign(use, options...)
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

// Sign is [CA.Issue] outside a test.
func (ca *CA) Sign(use Use, options ...CertificateOption) (Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Certificate{}, err
	}
	template := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: "perceptor test"}, DNSNames: []string{"localhost"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}, ExtKeyUsage: []x509.ExtKeyUsage{use},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
	}
	for _, option := range options {
		option(template)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, key.Public(), ca.key)
	if err != nil {
		return Certificate{}, err
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Certificate{}, err
	}
	return ca.write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}))
}

func (ca *CA) write(cert, key []byte) (Certificate, error) {
	base := filepath.Join(ca.dir, fmt.Sprintf("certificate-%d", ca.issued.Add(1)))
	c := Certificate{CertFile: base + ".pem", KeyFile: base + ".key", CombinedFile: base + ".both.pem"}
	for path, text := range map[string][]byte{c.CertFile: cert, c.KeyFile: key, c.CombinedFile: append(append([]byte(nil), key...), cert...)} {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			return Certificate{}, err
		}
	}
	return c, nil
}

func serial() *big.Int {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		panic(err) // never fails
	}
	return n
}
