package store

import (
	"crypto/x509"
	"errors"
	"net"
	"os"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"
)

// cures say what to do about errors of PostgreSQL, by their codes.
var cures = map[string]string{
	"53300":  "the server, the role or the database admits no more connections: perceptorctl doctor counts them when it gets one; raise max_connections of the server, lower postgres.server_connections, or end what else is connected",
	"28P01":  "the password is wrong: look at the dsn in postgres.servers, and at what the role has",
	"28000":  "the server does not let this role in: does it exist, may it log in, does pg_hba.conf have a line for it from this address?",
	"3D000":  "create the database, see docs/first-installation.md",
	"3F000":  "run perceptorctl migrate up",
	"42P01":  "run perceptorctl migrate up",
	"42501":  "the role lacks a right: grant what docs/first-installation.md grants to the role of the programs",
	"53200":  "raise max_locks_per_transaction of the server to 256 and restart it",
	diskFull: "make room on the disk of the server, or make it larger; then everything goes on by itself",
	"XX001":  "the server cannot read what it has stored: look at its disk and its log, and at Damaged data in docs/operations.md",
	"57P03":  "wait: the server starts, stops or recovers",
	"25006":  "the server is a standby, or default_transaction_read_only is on: connect to its primary, or set it to off",
	"08P01":  "is a pooler between this program and PostgreSQL? It must keep sessions and allow the parameters of the dsn",
}

// initFileRoutine is the function of PostgreSQL that ends a new session if it cannot write a cache of the catalogs.
// Its error, XX000, does not say why: the disk is full.
const initFileRoutine = "write_item"

// Cure says what to do about an error of a connection or a statement, in words for the person who
// sees it; "" if nothing is known that the error does not say itself.
func Cure(err error) string {
	var state *pgconn.PgError
	var unknown x509.UnknownAuthorityError
	var host x509.HostnameError
	var dns *net.DNSError
	switch {
	case err == nil, errors.Is(err, ErrPooled), errors.Is(err, ErrSchemaOld), errors.Is(err, ErrSchemaNew):
		return ""
	case errors.As(err, &state) && state.Routine == initFileRoutine:
		return cures[diskFull]
	case errors.As(err, &state):
		return cures[state.Code]
	case errors.Is(err, ErrNoRight):
		return cures["42501"]
	case errors.Is(err, ErrFull):
		return cures[diskFull]
	case errors.Is(err, ErrReadOnly):
		return cures["25006"]
	case errors.As(err, &unknown):
		return "set sslrootcert in the dsn to the file of the CA that signs the server's certificate"
	case errors.As(err, &host):
		return "connect by a name that the server's certificate has, or give it a certificate with this name"
	case strings.Contains(err.Error(), "server refused TLS connection"):
		return "turn TLS on in the server: ssl, ssl_cert_file and ssl_key_file"
	case errors.As(err, &dns):
		return "look at the host in the dsn of postgres.servers"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "is the server running, and does it listen on this address (listen_addresses, port)?"
	case errors.Is(err, ErrNoConnection):
		return "raise postgres.server_connections, and max_connections of the server with it"
	case errors.Is(err, ErrStalled):
		return "look at the server: it keeps its connections and answers nothing"
	case errors.Is(err, os.ErrDeadlineExceeded), pgconn.Timeout(err):
		return "is a firewall between this machine and the server, or is the server overloaded?"
	}
	return ""
}
