package testenv

import (
	"os"
	"sync"

	"github.com/perceptor/perceptor/internal/pgserver"
)

// SecureVariable is an environment variable. If it is set, every PostgreSQL server refuses
// connections without TLS, its connection strings verify it, and the stacks of load runs have
// TLS and logins on every link. `make test-secure` sets it.
const SecureVariable = "PERCEPTOR_TEST_SECURE"

// Secured reports whether [SecureVariable] is set.
func Secured() bool { return os.Getenv(SecureVariable) != "" }

// processCA returns the CA of the servers of this process. They share one, because a standby
// may take the place of another server. The next process removes its files, since nothing
// tells when the last server is stopped.
var processCA = sync.OnceValues(func() (*CA, error) {
	place, err := newScratch()
	if err != nil {
		return nil, err
	}
	ca, err := StartCA(place.Path)
	if err == nil {
		ca.place = place
	}
	return ca, err
})

// secure closes the links to a PostgreSQL server, unless they are closed already.
func secure(o *pgserver.Options) error {
	if !Secured() || o.TLS != nil {
		return nil
	}
	ca, err := processCA()
	if err != nil {
		return err
	}
	cert, err := ca.Sign(Server)
	if err == nil {
		SecurePostgres(ca, cert)(o)
	}
	return err
}
