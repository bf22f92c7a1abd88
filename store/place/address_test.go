package place_test

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store/place"
)

// TestAnAddressReplacesServersAndKeepsTheRest: what a program logs in with is its own.
func TestAnAddressReplacesServersAndKeepsTheRest(t *testing.T) {
	for _, dsn := range []string{
		"postgres://u:p%3F@old:1/x", "postgres://u:p%3F@old:1", "postgres://u:p%3F@old/x?sslmode=disable", "postgresql://u:p%3F@old:1,older:2/x?application_name=a",
		"host=old port=1 dbname=x user=u password='p?'", "user=u password=p?",
	} {
		for _, address := range []place.Address{"new:5433/y", "[::1]:5433/y", "new:5433,newer:5434/y z", "/var/run/pg:5432/y'", "10.0.0.1:5433/x"} {
			moved, err := address.DSN(dsn)
			if err != nil {
				t.Fatal(err)
			}
			c, err := pgx.ParseConfig(moved)
			if err != nil {
				t.Fatalf("%s at %s: %v", dsn, address, err)
			}
			if got, err := place.AddressOf(moved); got != address || err != nil || c.User != "u" || c.Password != "p?" {
				t.Errorf("%s at %s: user %q, password %q, address %s, %v", dsn, address, c.User, c.Password, got, err)
			}
		}
	}
}

func TestTextsThatAreNoAddressesAreRefused(t *testing.T) {
	for _, address := range []place.Address{"", "x", "host/x", "host:5432", "host:5432/", ":5432/x", "host:/x", "a:1,b/x"} {
		if _, err := address.DSN("host=x"); !errors.Is(err, place.ErrAddress) {
			t.Errorf("%q: %v", address, err)
		}
	}
}
