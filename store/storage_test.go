package store

import (
	"testing"

	"github.com/perceptor/perceptor/store/place"
)

// TestAServerIsWhereItsDatabasesAre: two that have another name for one server have one server, and a database that
// moves has the disk of the server to which it has moved.
func TestAServerIsWhereItsDatabasesAre(t *testing.T) {
	c, err := Open(t.Context(), Config{Servers: []Server{
		{DSN: "postgres://u@127.0.0.1:1001/a", Storage: 100}, {DSN: "host=db.example port=1002 user=u dbname=b", Storage: 200}, {DSN: "postgres://u@127.0.0.1:1001/c", Storage: 100},
		{DSN: "postgres://u@[::1]:1003/d"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	check := func(d, first int, storage int64, local bool) {
		t.Helper()
		if c.FirstOfServer(d) != first || c.Storage(d) != storage || c.Local(d) != local {
			t.Errorf("database %d: first %d, storage %d, local %t; want %d, %d, %t", d, c.FirstOfServer(d), c.Storage(d), c.Local(d), first, storage, local)
		}
	}
	check(0, 0, 100, true)
	check(5, 4, 200, false)
	check(9, 0, 100, true)
	check(15, 12, 0, true)
	if err := c.placed[15].learn(7, place.Address("db.example:1002/d")); err != nil {
		t.Fatal(err)
	}
	check(15, 4, 200, false)
}
