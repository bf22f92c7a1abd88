package store

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/perceptor/perceptor/internal/testenv"
)

func TestOnlyVerifiedLinksToOtherMachinesAreClosed(t *testing.T) {
	ca := testenv.NewCA(t)
	cert := ca.Issue(t, testenv.Client)
	verified := "sslmode=verify-full&sslrootcert=" + ca.File
	for dsn, open := range map[string]bool{
		"postgres://u:p@127.0.0.1:5432/x?sslmode=disable": false,
		"postgres://u:p@localhost/x":                      false,
		"postgres://u:p@[::1]:5432/x":                     false,
		"host=/var/run/postgresql dbname=x":               false,
		"postgres://u:hush@db/x?" + verified:              false,
		"postgres://u:hush@db/x?sslmode=verify-full":      false,
		"postgres://u:hush@db/x?" + verified + "&sslcert=" + cert.CertFile + "&sslkey=" + cert.KeyFile: false,
		"postgres://u:hush@db/x":                               true, // prefer is the default
		"postgres://u:hush@db/x?sslmode=disable":               true,
		"postgres://u:hush@db/x?sslmode=allow":                 true,
		"postgres://u:hush@db/x?sslmode=require":               true,
		"host=db password=hush sslmode=verify-ca":              true,
		"postgres://u:hush@10.0.0.1/x":                         true,
		"postgres://u:hush@localhost,db/x":                     true,
		"postgres://u:hush@localhost.example.com:5432/x":       true,
		"postgres://u:hush@db,localhost/x?sslmode=verify-full": false,
		"not a connection string":                              false,
	} {
		err := CheckLink(dsn)
		if errors.Is(err, ErrOpenLink) != open {
			t.Errorf("%s: got %v", dsn, err)
		}
		if err != nil && strings.Contains(err.Error(), "hush") {
			t.Errorf("a password is shown: %v", err)
		}
	}
}

func TestRenewedCertificatesAreUsedByNewConnections(t *testing.T) {
	before, after := testenv.NewCA(t), testenv.NewCA(t)
	file := filepath.Join(t.TempDir(), "ca.pem")
	put := func(from string) {
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put(before.File)
	cluster, err := Open(t.Context(), Config{Servers: []Server{{DSN: "postgres://u@db/x?sslmode=verify-full&sslrootcert=" + file}}})
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	pool := cluster.Pool(0).Config()
	first := pool.ConnConfig.Copy()
	if err := pool.BeforeConnect(t.Context(), first); err != nil || !first.TLSConfig.RootCAs.Equal(pool.ConnConfig.TLSConfig.RootCAs) {
		t.Errorf("the CA differs although the file has not changed: %v", err)
	}
	r := &renewal{dsn: "postgres://u@db/x?sslmode=verify-full&sslrootcert=" + file}
	for _, c := range []struct {
		write func()
		same  bool
	}{{func() {}, true}, {func() { put(after.File) }, false}, {func() { put("/dev/null") }, false}} {
		c.write()
		r.read = r.read.Add(-rereadEvery)
		conn := pool.ConnConfig.Copy()
		if err := r.renew(t.Context(), conn); err != nil {
			t.Fatal(err)
		}
		if same := conn.TLSConfig.RootCAs.Equal(pool.ConnConfig.TLSConfig.RootCAs); same != c.same || conn.TLSConfig.ServerName != "db" {
			t.Errorf("the CA is the old one: %t, want %t", same, c.same)
		}
	}
}
