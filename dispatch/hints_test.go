package dispatch

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perceptor/perceptor/task"
)

func TestHintIsReadAsItWasWritten(t *testing.T) {
	for _, due := range []task.Instant{0, 1, 1_700_000_000_123, task.Never} {
		for _, database := range []int{0, 7, 15} {
			db, got, ok := parseHint(appendHint(nil, database, due))
			if !ok || db != database || got != due {
				t.Errorf("hint for database %d due %d was read as %d, %d, %t", database, due, db, got, ok)
			}
		}
	}
}

func TestWhatIsNotAHintIsIgnored(t *testing.T) {
	good := appendHint(nil, 3, 5)
	change := func(i int, b byte) []byte {
		c := append([]byte(nil), good...)
		c[i] = b
		return c
	}
	for name, b := range map[string][]byte{
		"empty": nil, "short": good[:15], "long": append(append([]byte(nil), good...), 0),
		"magic": change(0, 'X'), "version": change(4, 2), "database": change(7, 16), "negative instant": change(8, 0x80),
	} {
		if _, _, ok := parseHint(b); ok {
			t.Errorf("%s: parseHint accepted the datagram", name)
		}
	}
}

func FuzzHint(f *testing.F) {
	f.Add(appendHint(nil, 3, 5))
	f.Fuzz(func(t *testing.T, b []byte) {
		if db, due, ok := parseHint(b); ok && (db < 0 || db >= task.Databases || due < 0) {
			t.Errorf("parseHint = %d, %d, want a valid database and instant", db, due)
		}
	})
}

// fakeOwners counts its calls.
type fakeOwners struct {
	owners map[task.Shard]task.Owner
	err    error
	asked  atomic.Int32
}

func (o *fakeOwners) Owners(context.Context) (map[task.Shard]task.Owner, error) {
	o.asked.Add(1)
	return o.owners, o.err
}

type gotHint struct {
	database int
	due      task.Instant
}

// listen opens an address and returns it and a channel with the hints that it receives.
func listen(t *testing.T) (address string, hints chan gotHint) {
	t.Helper()
	h, err := ListenHints("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	hints = make(chan gotHint, 1000)
	inBackground(t, func(ctx context.Context) error {
		return h.Run(ctx, func(database int, due task.Instant) { hints <- gotHint{database, due} })
	})
	return h.Addr(), hints
}

// inBackground runs f until the test ends.
func inBackground(t *testing.T, f func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func receive(t *testing.T, hints chan gotHint) gotHint {
	t.Helper()
	select {
	case h := <-hints:
		return h
	case <-time.After(time.Minute):
		t.Fatal("no hint arrived")
		return gotHint{}
	}
}

func TestHintsReachEachOwnerOfTheDatabaseOnceWithTheEarliestInstant(t *testing.T) {
	a, atA := listen(t)
	b, atB := listen(t)
	owners := &fakeOwners{owners: map[task.Shard]task.Owner{
		0: {HintAddr: a}, 1: {HintAddr: a}, 2: {HintAddr: b}, 32: {HintAddr: b},
		3: {HintAddr: ""}, 4: {HintAddr: "no address"},
	}}
	h := NewHinter(owners)
	for i := range 100 {
		h.Hint(0, task.Instant(500-i))
	}
	h.Hint(1, 7)
	h.Hint(0, task.At(time.Now().Add(time.Hour))) // too far ahead
	h.Hint(-1, 1)
	h.Hint(task.Databases, 1)
	inBackground(t, h.Run)
	if got := receive(t, atA); got != (gotHint{0, 401}) {
		t.Errorf("owner a received %v, want {0 401}", got)
	}
	seen := map[gotHint]bool{receive(t, atB): true, receive(t, atB): true}
	if !seen[gotHint{0, 401}] || !seen[gotHint{1, 7}] {
		t.Errorf("owner b received %v, want {0 401} and {1 7}", seen)
	}
	h.Hint(1, 9)
	if got := receive(t, atB); got != (gotHint{1, 9}) {
		t.Errorf("owner b received %v, want {1 9}", got)
	}
	if len(atA) != 0 {
		t.Errorf("owner a received another hint: %v", <-atA)
	}
	if n := owners.asked.Load(); n > 3 {
		t.Errorf("the owners were read %d times within a moment, want at most 3", n)
	}
}

func TestHinterKeepsTheOwnersItKnowsWhenTheyCannotBeRead(t *testing.T) {
	a, atA := listen(t)
	owners := &fakeOwners{owners: map[task.Shard]task.Owner{0: {HintAddr: a}}}
	h := NewHinter(owners)
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	h.conn = conn
	h.Hint(0, 1)
	h.send(t.Context())
	receive(t, atA)
	owners.err = errors.New("database is down")
	h.readAt = time.Time{}
	h.Hint(0, 2)
	h.send(t.Context())
	if got := receive(t, atA); got.due != 2 {
		t.Errorf("received %v", got)
	}
}

func TestStrayDatagramsDoNotStopTheHints(t *testing.T) {
	a, atA := listen(t)
	conn, err := net.Dial("udp", a)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, b := range [][]byte{{}, []byte("hello"), make([]byte, 1400), appendHint(nil, 3, 5)} {
		if _, err := conn.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	if got := receive(t, atA); got != (gotHint{3, 5}) {
		t.Errorf("received %v", got)
	}
}

func TestHintWakesASleepingDatabase(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		m := w.start("a", func(c *Config, _ *Events) { c.MaxSleep = 4 * time.Second })
		m.acquire(33)
		time.Sleep(12 * time.Second) // long enough to be idle
		for ; ; time.Sleep(time.Millisecond) {
			// Right after a peek the next one is seconds away.
			if m.dbs[1].sleepsFor(2*time.Second) && w.store.claimCount() > 1 {
				break
			}
		}
		w.store.add(id(33, 1), 1, 0, 0)
		m.Hint(1, task.At(time.Now()))
		within(t, 50*time.Millisecond, "published", func() bool { return w.kafka.total() == 1 })
		m.Hint(-1, 0)
		m.Hint(task.Databases, 0)
		m.stop()
	})
}

// sleepsFor reports whether the planner has no step for at least d.
func (b *database) sleepsFor(d time.Duration) bool {
	b.planning.mu.Lock()
	defer b.planning.mu.Unlock()
	now := time.Now()
	st := b.planning.planner.next(now, situation{shards: true, records: 1, bytes: 1})
	return st.do == sleep && st.until.Sub(now) >= d
}
