package store_test

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/place"
	"github.com/perceptor/perceptor/store/storetest"
)

// pair has database 3 in two PostgreSQL databases, with the same origin.
type pair struct {
	t        *testing.T
	old, new string
	// atOld and atNew lead to the two copies and follow nobody.
	atOld, atNew *pgx.Conn
}

func newPair(t *testing.T) *pair {
	t.Helper()
	p := &pair{t: t, old: storetest.DSN(t), new: storetest.DSN(t)}
	p.atOld, p.atNew = p.direct(p.old), p.direct(p.new)
	p.exec(p.atNew, "UPDATE database_place SET state = 'incoming', number = 2, address = '%s'", p.address(p.old))
	p.exec(p.atNew, "UPDATE database_identity SET system_identifier = 1")
	var uid string
	if err := p.atOld.QueryRow(t.Context(), "SELECT uid::text FROM database_identity").Scan(&uid); err != nil {
		t.Fatal(err)
	}
	p.exec(p.atNew, "UPDATE database_identity SET uid = '%s'", uid)
	return p
}

func (p *pair) direct(dsn string) *pgx.Conn {
	p.t.Helper()
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		p.t.Fatal(err)
	}
	config.RuntimeParams["search_path"] = store.SchemaName(3)
	conn, err := pgx.ConnectConfig(p.t.Context(), config)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { conn.Close(context.Background()) }) //nolint:errcheck // the test has ended
	return conn
}

func (p *pair) address(dsn string) place.Address {
	p.t.Helper()
	a, err := place.AddressOf(dsn)
	if err != nil {
		p.t.Fatal(err)
	}
	return a
}

func (p *pair) exec(conn *pgx.Conn, statement string, args ...any) {
	p.t.Helper()
	if _, err := conn.Exec(p.t.Context(), fmt.Sprintf(statement, args...), pgx.QueryExecModeSimpleProtocol); err != nil {
		p.t.Fatal(err)
	}
}

// move decides the move as package move does.
func (p *pair) move() {
	p.t.Helper()
	p.exec(p.atOld, `BEGIN; ALTER SCHEMA perceptor_03 RENAME TO perceptor_03_moved_2; CREATE SCHEMA perceptor_03;
		CREATE TABLE perceptor_03.database_place (LIKE perceptor_03_moved_2.database_place INCLUDING ALL);
		INSERT INTO perceptor_03.database_place (number, state, address) VALUES (2, 'moved', '%s'); COMMIT`, p.address(p.new))
}

// at returns which PostgreSQL database a cluster finds database 3 in.
func at(t *testing.T, c *store.Cluster) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for {
		var name string
		err := c.Pool(3).QueryRow(ctx, "SELECT current_database() FROM owner LIMIT 1").Scan(&name)
		if err == nil {
			return name
		}
		if !strings.Contains(err.Error(), "does not exist") || ctx.Err() != nil {
			t.Fatal(err)
		}
	}
}

func name(t *testing.T, dsn string) string {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimPrefix(u.Path, "/")
}

func TestEveryProcessFollowsADatabaseThatHasMoved(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	running, misled := storetest.OpenDSN(t, p.old), storetest.OpenDSN(t, p.new)
	for _, c := range []*store.Cluster{running, misled} {
		if got := at(t, c); got != name(t, p.old) {
			t.Fatalf("before the move database 3 is in %s, want %s", got, name(t, p.old))
		}
	}
	p.move()
	for which, c := range map[string]*store.Cluster{"running": running, "misled": misled, "new": storetest.OpenDSN(t, p.old), "newer": storetest.OpenDSN(t, p.new)} {
		if got := at(t, c); got != name(t, p.new) {
			t.Errorf("%s: database 3 is in %s, want %s", which, got, name(t, p.new))
		}
		if number, address := c.Place(3); number != 2 || address != p.address(p.new) {
			t.Errorf("%s: place %d at %s", which, number, address)
		}
	}
	var state string
	var lowest int64
	if err := p.atNew.QueryRow(t.Context(), "SELECT (SELECT state FROM database_place), (SELECT min(epoch) FROM owner)").Scan(&state, &lowest); err != nil || state != place.Open || lowest == 0 {
		t.Errorf("the new copy is %s with epochs from %d, %v; want it open, and adopted", state, lowest, err)
	}
}

// TestADatabaseWhoseOldServerIsGoneIsFound: any other database knows where it is.
func TestADatabaseWhoseOldServerIsGoneIsFound(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.move()
	c := storetest.OpenDSN(t, p.old, func(cfg *store.Config) {
		others := []int{0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
		cfg.Servers = []store.Server{{DSN: p.old, Databases: others}, {DSN: "postgres://x@127.0.0.1:1/x?connect_timeout=1", Databases: []int{3}}}
	})
	if _, err := c.Pool(0).Exec(t.Context(), "INSERT INTO placement VALUES (3, 2, $1, false)", string(p.address(p.new))); err != nil {
		t.Fatal(err)
	}
	for {
		if number, _ := c.Place(3); number == 2 {
			break
		}
		time.Sleep(10 * time.Millisecond)
		if t.Context().Err() != nil {
			t.Fatal("the place is not found")
		}
	}
	if got := at(t, c); got != name(t, p.new) {
		t.Errorf("database 3 is in %s, want %s", got, name(t, p.new))
	}
}

// TestACopyFromBeforeAMoveIsRefused: the old server has come back without the commit that
// decided the move.
func TestACopyFromBeforeAMoveIsRefused(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	c := storetest.OpenDSN(t, p.old)
	if _, err := c.Pool(0).Exec(t.Context(), "INSERT INTO placement VALUES (3, 2, $1, false)", string(p.address(p.old))); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for {
		c.Pool(3).Reset()
		err := c.Locate(ctx, 3)
		if err != nil && strings.Contains(err.Error(), "it is from before a move") {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("got %v, want a refusal", err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// TestCallsWaitWhileADatabaseIsSwitched: and go on at the new place as soon as the move is decided.
func TestCallsWaitWhileADatabaseIsSwitched(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	c := storetest.OpenDSN(t, p.old)
	at(t, c)
	if _, err := c.Pool(0).Exec(t.Context(), "INSERT INTO placement VALUES (3, 1, '', true)"); err != nil {
		t.Fatal(err)
	}
	p.exec(p.atOld, "UPDATE database_place SET target = 'x:1/y', pause_until = extract(epoch FROM clock_timestamp()) * 1000 + 600000")
	awaitGate(t, c)
	began := time.Now()
	p.move()
	if got := at(t, c); got != name(t, p.new) {
		t.Errorf("database 3 is in %s after %v, want %s", got, time.Since(began), name(t, p.new))
	}
}

// awaitGate returns when a call for database 3 waits.
func awaitGate(t *testing.T, c *store.Cluster) {
	t.Helper()
	for {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		err := c.Locate(ctx, 3)
		cancel()
		if err != nil {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestASchemaIsNotMigratedWhileItsDatabaseMoves(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	p.exec(p.atOld, "UPDATE database_place SET target = 'x:1/y'")
	if err := storetest.OpenDSN(t, p.old).Migrate(t.Context(), nil); err == nil || !strings.Contains(err.Error(), store.ErrMoving.Error()) {
		t.Errorf("got %v, want %v", err, store.ErrMoving)
	}
}
