package certs

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/perceptor/perceptor/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	quiet = slog.New(slog.DiscardHandler)
	names = Names{Cert: "x.cert_file", CA: "x.ca_file"}
)

// filesOf are those of a certificate that ca has issued, and of the CA that is trusted.
func filesOf(c testenv.Certificate, trusted *testenv.CA) Files {
	return Files{Cert: c.CertFile, Key: c.KeyFile, CA: trusted.File}
}

func open(t *testing.T, f Files) *Source {
	t.Helper()
	s, err := Open(f, names, quiet)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// serve accepts TLS connections and answers each with one byte. It returns the address and
// the number of refused connections.
func serve(t *testing.T, s *Source, clients tls.ClientAuthType) (string, *atomic.Int64) {
	t.Helper()
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	refused := new(atomic.Int64)
	count := func() { refused.Add(1) }
	l := tls.NewListener(CountClearText(plain, count), s.Server(clients, count))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.SetDeadline(time.Now().Add(time.Minute))
			_, _ = conn.Write([]byte("x"))
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
	return plain.Addr().String(), refused
}

// get connects with the certificates of s and reads the answer.
func get(t *testing.T, s *Source, address string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conn, err := s.Dialer((&net.Dialer{}).DialContext)(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = io.ReadFull(conn, make([]byte, 1))
	return err
}

func TestOnlyCertificatesOfTheRightCAThatAreValidNowAreAccepted(t *testing.T) {
	ours, theirs := testenv.NewCA(t), testenv.NewCA(t)
	day := 24 * time.Hour
	address, refused := serve(t, open(t, filesOf(ours.Issue(t, testenv.Server), ours)), tls.RequireAndVerifyClientCert)
	for _, c := range []struct {
		name  string
		files Files
		ok    bool
	}{
		{"right", filesOf(ours.Issue(t, testenv.Client), ours), true},
		{"no certificate", Files{CA: ours.File}, false},
		{"certificate of another CA", filesOf(theirs.Issue(t, testenv.Client), ours), false},
		{"another CA is trusted", filesOf(ours.Issue(t, testenv.Client), theirs), false},
	} {
		before := refused.Load()
		if err := get(t, open(t, c.files), address); (err == nil) != c.ok {
			t.Errorf("%s: got %v", c.name, err)
		}
		if c.ok {
			continue
		}
		await(t, c.name+" is counted", func() bool { return refused.Load() == before+1 })
	}
	for _, c := range []testenv.Certificate{
		ours.Issue(t, testenv.Client, testenv.Valid(-2*day, -day)), ours.Issue(t, testenv.Client, testenv.Valid(day, 2*day)),
	} {
		cert, err := tls.LoadX509KeyPair(c.CertFile, c.KeyFile)
		if err != nil {
			t.Fatal(err)
		}
		pool, err := readPool(ours.File)
		if err != nil {
			t.Fatal(err)
		}
		if err := dialWith(t, address, &tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: pool, ServerName: "127.0.0.1"}); err == nil {
			t.Errorf("a certificate that is valid from %s to %s is accepted", cert.Leaf.NotBefore, cert.Leaf.NotAfter)
		}
	}
}

// dialWith connects with a configuration that this package would not make.
func dialWith(t *testing.T, address string, c *tls.Config) error {
	t.Helper()
	conn, err := (&tls.Dialer{Config: c}).DialContext(t.Context(), "tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	_, err = io.ReadFull(conn, make([]byte, 1))
	return err
}

func TestAServerForAnotherHostIsRefused(t *testing.T) {
	ca := testenv.NewCA(t)
	address, _ := serve(t, open(t, filesOf(ca.Issue(t, testenv.Server, testenv.Host("db.example")), ca)), tls.NoClientCert)
	if err := get(t, open(t, Files{CA: ca.File}), address); err == nil || !strings.Contains(err.Error(), "127.0.0.1") {
		t.Errorf("got %v, want an error about the host", err)
	}
}

func TestClearTextIsCounted(t *testing.T) {
	ca := testenv.NewCA(t)
	address, refused := serve(t, open(t, filesOf(ca.Issue(t, testenv.Server), ca)), tls.NoClientCert)
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET / HTTP/1.0\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	await(t, "clear text is counted", func() bool { return refused.Load() == 1 })
}

func TestFilesThatCannotBeUsedAreNamed(t *testing.T) {
	ca := testenv.NewCA(t)
	good, other := ca.Issue(t, testenv.Server), ca.Issue(t, testenv.Server)
	expired := ca.Issue(t, testenv.Server, testenv.Valid(-2*time.Hour, -time.Hour))
	early := ca.Issue(t, testenv.Server, testenv.Valid(time.Hour, 2*time.Hour))
	text, err := os.ReadFile(ca.File)
	if err != nil {
		t.Fatal(err)
	}
	half := filepath.Join(t.TempDir(), "half")
	if err := os.WriteFile(half, append(text, text[:len(text)/2]...), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		files Files
		want  string
	}{
		{"missing", Files{Cert: "/no/such", Key: "/no/such"}, "x.cert_file: open /no/such"},
		{"key of another certificate", Files{Cert: good.CertFile, Key: other.KeyFile}, "x.cert_file: tls: private key does not match"},
		{"expired", Files{Cert: expired.CertFile, Key: expired.KeyFile}, "x.cert_file: " + expired.CertFile + ": the certificate has expired at "},
		{"not yet valid", Files{Cert: early.CertFile, Key: early.KeyFile}, "the certificate is not valid before "},
		{"one CA and half of another", Files{CA: half}, "x.ca_file: " + half + " ends within a certificate"},
		{"no CA", Files{CA: good.KeyFile}, "x.ca_file: " + good.KeyFile + " holds no certificate"},
	} {
		if _, err := Open(c.files, names, quiet); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
}

func TestChangedFilesAreReadAgain(t *testing.T) {
	before, after := testenv.NewCA(t), testenv.NewCA(t)
	dir := t.TempDir()
	files := Files{Cert: filepath.Join(dir, "cert"), Key: filepath.Join(dir, "key"), CA: filepath.Join(dir, "ca")}
	put := func(ca *testenv.CA) {
		c := ca.Issue(t, testenv.Server)
		for to, from := range map[string]string{files.Cert: c.CertFile, files.Key: c.KeyFile, files.CA: ca.File} {
			text, err := os.ReadFile(from)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(to, text, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	put(before)
	address, _ := serve(t, open(t, files), tls.RequireAndVerifyClientCert)
	old := open(t, filesOf(before.Issue(t, testenv.Client), before))
	renewed := open(t, filesOf(after.Issue(t, testenv.Client), after))
	if err := get(t, old, address); err != nil {
		t.Fatal(err)
	}
	if err := get(t, renewed, address); err == nil {
		t.Fatal("the new certificates work before the change")
	}
	if err := os.WriteFile(files.Key, []byte("half written"), 0o600); err != nil {
		t.Fatal(err)
	}
	time.Sleep(checkEvery) // the files are not looked at before
	if err := get(t, old, address); err != nil {
		t.Errorf("a change that cannot be used has ended the link: %v", err)
	}
	put(after)
	await(t, "the new certificates", func() bool { return get(t, renewed, address) == nil })
	if err := get(t, old, address); err == nil {
		t.Error("the CA that was removed still counts")
	}
}

func TestACertificateThatIsNotValidYetIsUsedWhenItIs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca := testenv.NewCA(t)
		dir := t.TempDir()
		files := Files{Cert: filepath.Join(dir, "cert"), Key: filepath.Join(dir, "key")}
		put := func(c testenv.Certificate) {
			for to, from := range map[string]string{files.Cert: c.CertFile, files.Key: c.KeyFile} {
				text, err := os.ReadFile(from)
				if err == nil {
					err = os.WriteFile(to, text, 0o600)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
		}
		put(ca.Issue(t, testenv.Server))
		var log bytes.Buffer
		s, err := Open(files, names, slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		first := s.Newest().cert
		put(ca.Issue(t, testenv.Server, testenv.Valid(10*time.Second, time.Hour)))
		for range 4 {
			time.Sleep(2 * time.Second)
			if s.Newest().cert != first {
				t.Fatal("a certificate is used before it is valid")
			}
		}
		time.Sleep(4 * time.Second)
		if s.Newest().cert == first {
			t.Error("the certificate is valid, and still the last one is used")
		}
		if n := strings.Count(log.String(), "cannot be used"); n != 1 {
			t.Errorf("%d warnings:\n%s", n, &log)
		}
	})
}

func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
	}
}
