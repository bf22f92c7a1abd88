package shards

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/internal/testenv"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/shards/kernel"
	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/store/storetest"
	"github.com/perceptor/perceptor/task"
)

// wire is a proxy before PostgreSQL that counts what the sessions of one database send, and cuts the
// connection at one of it. It does not count what a session sends before it has the search_path of the
// database, nor the sessions of other databases, which the store has to hear of moves.
type wire struct {
	server string
	schema []byte // of the database
	sent   atomic.Int32
	// cutAt is the number of the message group that is the last; 0: none. If pass
	// is set the server still gets it, and only its answer is lost.
	cutAt atomic.Int32
	pass  atomic.Bool
}

// setupWired is setup in a database that is not the one which a store asks for the places of all.
func setupWired(t *testing.T) *bundle {
	t.Helper()
	b := setup(t)
	for b.d == 0 {
		b = setup(t)
	}
	return b
}

// throughWire returns a store whose connections to the bundle's database lead through a wire.
func (b *bundle) throughWire() (*Store, *wire) {
	b.t.Helper()
	dsn, err := url.Parse(testenv.PackageDatabase(b.t, checked()))
	if err != nil {
		b.t.Fatal(err)
	}
	w := &wire{server: dsn.Host, schema: []byte(store.SchemaName(b.d))}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.t.Fatal(err)
	}
	var serving sync.WaitGroup
	b.t.Cleanup(serving.Wait)
	b.t.Cleanup(func() { _ = l.Close() })
	serving.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { w.serve(client) })
		}
	})
	dsn.Host = l.Addr().String()
	return New(storetest.OpenDSN(b.t, dsn.String()), b.cfg), w
}

func (w *wire) serve(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", w.server)
	if err != nil {
		return
	}
	defer server.Close()
	var silent atomic.Bool
	answered := make(chan struct{})
	go func() {
		defer close(answered)
		buf := make([]byte, 64<<10)
		for {
			n, err := server.Read(buf)
			if silent.Load() {
				return
			}
			if err != nil {
				_ = client.Close()
				return
			}
			if _, err := client.Write(buf[:n]); err != nil {
				return
			}
		}
	}()
	buf := make([]byte, 64<<10) // more than a group in these tests
	for counts := false; ; {
		n, err := client.Read(buf)
		if err != nil {
			return
		}
		if !counts {
			counts = bytes.Contains(buf[:n], w.schema)
		} else if at := w.cutAt.Load(); w.sent.Add(1) == at {
			if silent.Store(true); w.pass.Load() {
				_, _ = server.Write(buf[:n])
				<-answered
			}
			return
		}
		if _, err := server.Write(buf[:n]); err != nil {
			return
		}
	}
}

// warm makes the connection know all statements of a claim, and zeroes the count.
func (w *wire) warm(t *testing.T, b *bundle, s *Store) {
	t.Helper()
	for range 2 {
		b.add(b.spec(task.OneShot))
		if _, err := s.Claim(t.Context(), claimAll(b)); err != nil {
			t.Fatal(err)
		}
	}
	w.sent.Store(0)
}

func claimAll(b *bundle) task.ClaimRequest {
	return task.ClaimRequest{Database: b.d, Owned: b.owned, Form: task.RangeForm}
}

func TestClaimTakesTwoRoundTrips(t *testing.T) {
	b := setupWired(t)
	s, w := b.throughWire()
	w.warm(t, b, s)
	b.add(b.spec(task.OneShot))
	if c, err := s.Claim(t.Context(), claimAll(b)); err != nil || len(c.Publications) != 1 {
		t.Fatalf("claim = %+v, %v", c, err)
	}
	if n := w.sent.Load(); n != 2 {
		t.Errorf("a claim sent %d times", n)
	}
}

func TestStartTakesOneRoundTrip(t *testing.T) {
	b := setupWired(t)
	s, w := b.throughWire()
	ids := b.add(b.spec(task.Blocking), b.spec(task.Blocking))
	b.claim(task.RangeForm)
	for i, id := range ids {
		w.sent.Store(0)
		in := []held{{tenant: b.tenant, Attempt: task.Attempt{RunID: task.RunID{Task: id, Seq: 1}, Attempt: 1}, holder: 7}}
		if got := s.doStarts(context.Background(), b.d, in); got[0].Code != task.Accepted {
			t.Fatalf("start %d = %+v", i, got)
		}
	}
	if n := w.sent.Load(); n != 1 {
		t.Errorf("a start sent %d times", n)
	}
}

// TestOutcomeIsUnknownFromTheCommitOn cuts the connection at each thing that a
// claim sends.
func TestOutcomeIsUnknownFromTheCommitOn(t *testing.T) {
	for name, c := range map[string]struct {
		cutAt              int32
		pass               bool
		unknown, committed bool
	}{
		"the claim does not arrive":              {1, false, false, false},
		"the claim's answer is lost":             {1, true, false, false},
		"the last statements do not arrive":      {2, false, true, false},
		"the answer of the last statements lost": {2, true, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			b := setupWired(t)
			s, w := b.throughWire()
			w.warm(t, b, s)
			id := b.add(b.spec(task.OneShot))[0]
			w.pass.Store(c.pass)
			w.cutAt.Store(c.cutAt)
			_, err := s.Claim(t.Context(), claimAll(b))
			if err == nil || errors.Is(err, task.ErrOutcomeUnknown) != c.unknown {
				t.Errorf("error %v: outcome unknown is to be %v", err, c.unknown)
			}
			deadline := time.Now().Add(10 * time.Second)
			for { // until the server has noticed
				got, err := b.Get(t.Context(), b.tenant, id)
				if err != nil {
					t.Fatal(err)
				}
				if committed := got.State == task.Running; committed == c.committed {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("the task is %v", got.State)
				}
			}
		})
	}
}

func TestRefusedLastStatementLeavesNothingAndIsKnown(t *testing.T) {
	b := setup(t)
	id := b.add(b.spec(task.OneShot))[0]
	b.exec(`ALTER TABLE outbox ADD CONSTRAINT refused CHECK (false) NOT VALID`)
	_, err := b.Claim(t.Context(), claimAll(b))
	b.exec(`ALTER TABLE outbox DROP CONSTRAINT refused`)
	if !kernel.DataError(err) || errors.Is(err, task.ErrOutcomeUnknown) {
		t.Errorf("claim: %v", err)
	}
	if got, err := b.Get(t.Context(), b.tenant, id); err != nil || got.State != task.Scheduled {
		t.Errorf("the task is %+v, %v", got, err)
	}
}

func TestNothingCanBeSentAfterTheLastStatements(t *testing.T) {
	b := setup(t)
	err := b.db.InTx(t.Context(), b.d, "test", func(tx pgx.Tx) error {
		last := &pgx.Batch{}
		sql.Now.Queue(last)
		if err := kernel.SendLast(t.Context(), tx, last); err != nil {
			return err
		}
		_, err := kernel.Clock(t.Context(), tx)
		return err
	})
	if !errors.Is(err, pgx.ErrTxClosed) {
		t.Errorf("error %v", err)
	}
}
