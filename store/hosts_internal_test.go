package store

import (
	"context"
	"net"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
)

// TestTheHostAndTheAddressThatHaveAnsweredComeFirst has two hosts, each with two addresses.
func TestTheHostAndTheAddressThatHaveAnsweredComeFirst(t *testing.T) {
	t.Parallel()
	of := map[string][]string{"db-a": {"10.0.0.1", "10.0.0.2"}, "db-b": {"10.0.1.1", "10.0.1.2"}}
	configured, err := pgx.ParseConfig("host=db-a,db-b port=5432,5433 user=u dbname=d sslmode=prefer")
	if err != nil {
		t.Fatal(err)
	}
	configured.LookupFunc = func(_ context.Context, host string) ([]string, error) { return of[host], nil }
	var h hosts
	// tried returns the hosts in their order, and the addresses of the first one.
	tried := func() (order, addresses []string) {
		c := configured.Copy()
		h.order(c)
		order = append(order, hostPort(c.Host, c.Port))
		for _, f := range c.Fallbacks {
			if next := hostPort(f.Host, f.Port); order[len(order)-1] != next {
				order = append(order, next)
			}
			if _, err := c.LookupFunc(t.Context(), f.Host); err != nil {
				t.Fatal(err)
			}
		}
		if addresses, err = c.LookupFunc(t.Context(), c.Host); err != nil {
			t.Fatal(err)
		}
		return order, addresses
	}
	want := func(order, addresses []string) {
		t.Helper()
		if o, a := tried(); !slices.Equal(o, order) || !slices.Equal(a, addresses) {
			t.Errorf("hosts %v, addresses %v; want %v, %v", o, a, order, addresses)
		}
	}
	want([]string{"db-a:5432", "db-b:5433"}, []string{"10.0.0.1", "10.0.0.2"})
	h.reached(&net.TCPAddr{IP: net.ParseIP("10.0.1.2"), Port: 5433})
	want([]string{"db-b:5433", "db-a:5432"}, []string{"10.0.1.2", "10.0.1.1"})
	h.reached(&net.TCPAddr{IP: net.ParseIP("10.0.0.2"), Port: 5432})
	want([]string{"db-a:5432", "db-b:5433"}, []string{"10.0.0.2", "10.0.0.1"})
}
