package store

import (
	"errors"
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
