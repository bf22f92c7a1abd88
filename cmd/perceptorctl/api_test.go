package main

import (
	"crypto/tls"
	"errors"
	"net"
	"os"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/perceptor/perceptor/internal/cli"
	"github.com/perceptor/perceptor/internal/testenv"
)

// TestALinkWhoseEndsDisagreeAboutTLSIsExplained: somebody listens, so "is taskd running?" would mislead.
func TestALinkWhoseEndsDisagreeAboutTLSIsExplained(t *testing.T) {
	ca, other := testenv.NewCA(t), testenv.NewCA(t)
	files := ca.Issue(t, testenv.Server)
	cert, err := tls.LoadX509KeyPair(files.CertFile, files.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	serve := func(opts ...grpc.ServerOption) string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s := grpc.NewServer(opts...)
		go s.Serve(l) //nolint:errcheck // it ends with Stop
		t.Cleanup(s.Stop)
		return l.Addr().String()
	}
	elsewhere := ca.Issue(t, testenv.Server, testenv.Host("taskd-1.example.com"))
	named, err := tls.LoadX509KeyPair(elsewhere.CertFile, elsewhere.KeyFile)
	if err != nil {
		t.Fatal(err)
	}
	secure, open := serve(grpc.Creds(credentials.NewServerTLSFromCert(&cert))), serve()
	t.Setenv("PERCEPTOR_TOKEN", "pct_1_x")
	for _, c := range []struct{ name, address, flag, hint string }{
		{"open to a server with TLS", secure, "--insecure", "set --tls or --tls-ca-file"},
		{"TLS to a server without it", open, "--tls", "has no TLS"},
		{"another name", serve(grpc.Creds(credentials.NewServerTLSFromCert(&named))), "--tls-ca-file=" + ca.File, "set --address to a name that the certificate of taskd has"},
		{"another CA", secure, "--tls-ca-file=" + other.File, "set --tls-ca-file to the certificate that signs that of taskd"},
	} {
		out := ctlOver(t)(cli.Unavailable, "tenant", "list", "--address", c.address, c.flag)
		if !strings.Contains(out, "hint: ") || !strings.Contains(out, c.hint) || strings.Contains(out, "is taskd running") {
			t.Errorf("%s: %s", c.name, out)
		}
	}
}

// A call may wait for longer than the library waits for a connection, and then tells of the connection.
func TestATaskdThatHangsIsNotTakenForOneWithTLS(t *testing.T) {
	t.Parallel()
	c := &ctl{address: "taskd-1:7070"}
	hangs := status.Error(codes.Unavailable, `connection error: desc = "error reading server preface: raw-read tcp 127.0.0.1:46646->127.0.0.1:7070: use of closed network connection"`)
	var told *cli.Error
	if !errors.As(c.explain(hangs), &told) || told.Code != cli.Unavailable || !strings.Contains(told.Error(), "taskd-1:7070 accepts connections and does not answer") || strings.Contains(told.Hint, "TLS") {
		t.Errorf("%v, hint %q", told, told.Hint)
	}
}

// Services and perceptorctl share PERCEPTOR_ADDRESS, and services may have several addresses.
func TestTheFirstOfSeveralAddressesThatAnswersIsCalled(t *testing.T) {
	s := &tasks{}
	s.serve(t)
	address := os.Getenv("PERCEPTOR_ADDRESS")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed := l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PERCEPTOR_TOKEN", "pct_1_x")
	t.Setenv("PERCEPTOR_ADDRESS", closed+", "+address)
	if code, out, said := runCtl(t, "task", "add", "--type", "one-shot", "--kind", "a"); code != 0 || len(s.adds) != 1 {
		t.Errorf("ended with %d: %s%s", code, out, said)
	}
	for addresses, want := range map[string]string{
		address + ",":                      `"" is not host:port`,
		address + ",taskd-2":               `"taskd-2" is not host:port`,
		address + ",example.com:7070":      "is not on loopback, and the token would be sent in the clear",
		"example.com:7070, 127.0.0.1:7070": "is not on loopback, and the token would be sent in the clear",
	} {
		if code, _, said := runCtl(t, "task", "list", "--address", addresses); code != cli.Usage || !strings.Contains(said, want) {
			t.Errorf("%s: ended with %d: %s", addresses, code, said)
		}
	}
}
