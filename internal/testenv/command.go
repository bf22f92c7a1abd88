package testenv

import "strings"

// WithoutSecrets moves the connection strings of a command line, which hold passwords, to the
// environment: programs refuse them as flags.
func WithoutSecrets(args []string) (rest, environ []string) {
	for _, a := range args {
		if dsn, ok := strings.CutPrefix(a, "--postgres.servers="); ok {
			environ = append(environ, "PERCEPTOR_POSTGRES_SERVERS="+dsn)
		} else {
			rest = append(rest, a)
		}
	}
	return rest, environ
}
