package store_test

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/internal/testenv"
	"github.com/perceptor/perceptor/store"
)

// silent returns the address of a server that accepts connections and never answers.
func silent(t *testing.T) *net.TCPAddr {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l.Addr().(*net.TCPAddr)
}

// behindSilent returns the connection string of a server whose first host is silent.
func behindSilent(t *testing.T, dsn string) string {
	t.Helper()
	old := silent(t)
	at, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("host=%s,%s port=%d,%d user=%s password='%s' dbname=%s sslmode=disable", old.IP, at.Host, old.Port, at.Port, at.User, at.Password, at.Database)
}

// The machine of an old primary is gone, and the connection string names it first.
func TestAServerIsNotStalledForEverBecauseTheFirstOfItsHostsIsSilent(t *testing.T) {
	t.Parallel()
	dsn := behindSilent(t, testenv.Database(t))
	c, err := store.Open(context.Background(), store.Config{Servers: []store.Server{{DSN: testenv.Database(t)}, {DSN: dsn}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	if _, err := query(t, c, 0, 10*time.Second, "SELECT 1"); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(40 * time.Second); ; time.Sleep(200 * time.Millisecond) {
		if _, err = query(t, c, upper, 10*time.Second, "SELECT 1"); err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the other host of the server is not used: %v", err)
		}
	}
}

// The limit of a connection is not an answer.
func TestAServerThatHangsIsStalledUntilItAnswersWhateverTheLimitOfConnections(t *testing.T) {
	t.Parallel()
	addr := silent(t)
	dsn := fmt.Sprintf("host=%s port=%d user=u dbname=d sslmode=disable connect_timeout=1", addr.IP, addr.Port)
	c, err := store.Open(context.Background(), store.Config{Servers: []store.Server{{DSN: testenv.Database(t)}, {DSN: dsn}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	stalls := make(chan bool, 100)
	c.OnStall(func(_ string, stalled bool) { stalls <- stalled })
	if _, err := query(t, c, 0, 10*time.Second, "SELECT 1"); err != nil {
		t.Fatal(err)
	}
	_, _ = query(t, c, upper, 10*time.Second, "SELECT 1") // which begins the stall
	awaitStalls(t, stalls, true)
	select {
	case <-stalls:
		t.Error("the stall has ended, and the server has not answered")
	case <-time.After(3 * time.Second):
	}
}

func TestALoginIsRenewedAlthoughTheFirstOfItsHostsIsSilent(t *testing.T) {
	t.Parallel()
	old, server := silent(t), testenv.Database(t)
	at, err := pgx.ParseConfig(server)
	if err != nil {
		t.Fatal(err)
	}
	dsn := fmt.Sprintf("host=%s,%s port=%d,%d dbname=%s sslmode=disable", old.IP, at.Host, old.Port, at.Port, at.Database)
	r := newRotation(t, server, dsn+" user=before password=before")
	r.write(fmt.Sprintf("%s user=%s password='%s'", dsn, at.User, at.Password))
	if err := r.until(1); err != nil {
		t.Errorf("the login is not renewed: %v", err)
	}
}

func TestSessionsAreCheckedAlthoughTheFirstHostIsSilent(t *testing.T) {
	t.Parallel()
	c, err := store.Open(context.Background(), store.Config{Servers: []store.Server{{DSN: behindSilent(t, testenv.Database(t)) + " connect_timeout=3"}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	if found, err := c.CheckSessions(t.Context()); err != nil || found[c.ServerAddress(0)] != store.Direct {
		t.Errorf("found %v, %v", found, err)
	}
}

// Each connection to the second host would wait for the first one otherwise.
func TestOnlyTheFirstConnectionWaitsForAHostThatIsSilent(t *testing.T) {
	t.Parallel()
	c, err := store.Open(context.Background(), store.Config{Servers: []store.Server{{DSN: behindSilent(t, testenv.Database(t)) + " connect_timeout=2"}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	if _, err := c.CheckSessions(t.Context()); err != nil {
		t.Fatal(err)
	}
	for d := range 8 {
		if took, err := query(t, c, d, 1900*time.Millisecond, "SELECT 1"); err != nil {
			t.Fatalf("database %d after %v: %v", d, took, err)
		}
	}
}
