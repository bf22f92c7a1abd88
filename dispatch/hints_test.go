package dispatch

import (
	"context"
	"errors"
	"net"
	"reflect"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perceptor/perceptor/task"
)

const testKey = "0123456789abcdef0123456789abcdef"

// written returns the datagram of a hint that was sent now.
func written(database int, due task.Instant) []byte {
	return hint{database: database, due: due, sender: 7, sent: time.Now()}.append(nil, testKey)
}

func TestHintIsReadAsItWasWritten(t *testing.T) {
	for _, due := range []task.Instant{0, 1, 1_700_000_000_123, task.Never} {
		for _, database := range []int{0, 7, 15} {
			want := hint{database: database, due: due, sender: 1 << 63, sent: time.UnixMicro(1_700_000_000_123_456)}
			if got, ok := parseHint(want.append(nil, testKey), testKey); !ok || !reflect.DeepEqual(got, want) {
				t.Errorf("%v was read as %v, %t", want, got, ok)
			}
		}
	}
}

func TestLagsAreReadAsTheyWereWritten(t *testing.T) {
	want := hint{kind: hintLags, sender: 3, sent: time.UnixMicro(1_700_000_000_123_456)}
	for n := range mostLags {
		want.lags = append(want.lags, task.Lag{Tenant: int32(n + 1), Wait: time.Duration(n) * time.Hour, PerSecond: float64(n * 1000)})
	}
	b := want.append(nil, testKey)
	if got, ok := parseHint(b, testKey); !ok || !reflect.DeepEqual(got, want) {
		t.Errorf("%v was read as %v, %t", want, got, ok)
	}
	body := append([]byte(nil), b[:len(b)-hintCode-1]...)
	if got, ok := parseHint(append(body, codeOf(body, testKey)...), testKey); ok {
		t.Errorf("a part of a lag was read as %v", got)
	}
}

func TestWhatIsNotAHintIsIgnored(t *testing.T) {
	good := written(3, 5)
	// change makes a datagram of a holder of the key with another byte.
	change := func(i int, b byte) []byte {
		c := append([]byte(nil), good[:hintBody]...)
		c[i] = b
		return append(c, codeOf(c, testKey)...)
	}
	for name, b := range map[string][]byte{
		"empty": nil, "short": good[:hintSize-1], "long": append(append([]byte(nil), good...), 0),
		"magic": change(0, 'X'), "version": change(4, 1), "database": change(7, 16), "negative instant": change(8, 0x80),
		"kind": change(5, 6), "negative rate": change(32, 0x80),
	} {
		if _, ok := parseHint(b, testKey); ok {
			t.Errorf("%s: parseHint accepted the datagram", name)
		}
	}
}

func TestOnlyAHolderOfTheKeyCanWriteHints(t *testing.T) {
	good := written(3, 5)
	for i := range good {
		forged := append([]byte(nil), good...)
		forged[i] ^= 1
		if _, ok := parseHint(forged, testKey); ok {
			t.Errorf("a hint whose byte %d was changed is accepted", i)
		}
	}
	for _, key := range []string{"", "x", testKey[1:], testKey + "0"} {
		if _, ok := parseHint(good, key); ok {
			t.Errorf("a hint of another key is accepted")
		}
	}
}

func TestReplaysAreRefused(t *testing.T) {
	now, a := time.UnixMicro(1_700_000_000_000_000), heard{}
	at := func(sender uint64, database int, ago time.Duration) hint {
		return hint{database: database, sender: sender, sent: now.Add(-ago)}
	}
	for _, c := range []struct {
		name string
		hint hint
		want bool
	}{
		{"first", at(1, 0, time.Second), true},
		{"the same again", at(1, 0, time.Second), false},
		{"older", at(1, 0, 2*time.Second), false},
		{"of another database", at(1, 1, 2*time.Second), true},
		{"of another sender", at(2, 0, 2*time.Second), true},
		{"newer", at(1, 0, 0), true},
		{"before the window", at(3, 0, replayWindow+time.Second), false},
		{"beyond the window", at(3, 0, -replayWindow-time.Second), false},
	} {
		if got := a.isNew(c.hint, now); got != c.want {
			t.Errorf("%s: got %t", c.name, got)
		}
	}
	for s := range uint64(2 * maxSenders) {
		a.isNew(at(s, 0, 0), now)
	}
	if len(a) > maxSenders {
		t.Errorf("%d senders are remembered, want at most %d", len(a), maxSenders)
	}
	now = now.Add(2 * replayWindow)
	if !a.isNew(at(1<<40, 0, 0), now) {
		t.Error("senders that are silent are not forgotten, so a new one is refused")
	}
}

func TestHintsArriveAfterClocksWereSetBack(t *testing.T) {
	var s stamps
	ahead, accepted := time.UnixMicro(1_700_000_000_000_000), heard{}
	send := func(what string, now time.Time) {
		t.Helper()
		sender, sent := s.next(now)
		if !accepted.isNew(hint{sender: sender, sent: sent}, now) {
			t.Errorf("%s: a hint is refused that was sent at %v, at %v", what, sent, now)
		}
	}
	send("first", ahead)
	send("at the same instant", ahead)
	first := s.sender
	send("corrected by 10 ms", ahead.Add(-10*time.Millisecond))
	if s.sender != first {
		t.Error("a small correction makes another sender")
	}
	send("set back by an hour", ahead.Add(-time.Hour))
	send("after that", ahead.Add(-time.Hour+time.Second))
}

func FuzzHint(f *testing.F) {
	f.Add(written(3, 5))
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, ok := parseHint(b, testKey); ok && (h.database < 0 || h.database >= task.Databases || h.due < 0) {
			t.Errorf("parseHint = %v, want a valid database and instant", h)
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

// gotHint is a hint that was received. due is bulkStarted for a bulk operation.
type gotHint struct {
	database int
	due      task.Instant
}

const bulkStarted task.Instant = -1

// recorded sends what it is told to the channel, except greetings, which come at any time.
type recorded chan gotHint

func (r recorded) Hint(database int, due task.Instant, _ ...int32) { r <- gotHint{database, due} }
func (r recorded) BulkStarted(database int)                        { r <- gotHint{database, bulkStarted} }
func (r recorded) Greeted()                                        {}
func (r recorded) Lagging(uint64, int, []task.Lag)                 {}

// listen opens an address and returns its owner and a channel with the hints that it receives.
func listen(t *testing.T) (owner task.Owner, hints chan gotHint) {
	t.Helper()
	hints = make(chan gotHint, 1000)
	return listenAs(t, recorded(hints)), hints
}

// listenAs opens an address, tells what it receives, and returns its owner.
func listenAs(t *testing.T, to Receiver) task.Owner {
	t.Helper()
	h, err := ListenHints("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	inBackground(t, func(ctx context.Context) error { return h.Run(ctx, to) })
	return task.Owner{HintAddr: h.Addr(), HintKey: h.Key()}
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
		0: a, 1: a, 2: b, 32: b,
		3: {HintAddr: ""}, 4: {HintAddr: "no address", HintKey: testKey},
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

// named sends the tenants of each hint to the channel.
type named chan []int32

func (n named) Hint(_ int, _ task.Instant, of ...int32) { n <- of }
func (n named) BulkStarted(int)                         {}
func (n named) Greeted()                                {}
func (n named) Lagging(uint64, int, []task.Lag)         {}

func TestHintsNameTheTenantsOfNewRuns(t *testing.T) {
	of := make(named, 10)
	h := NewHinter(&fakeOwners{owners: map[task.Shard]task.Owner{0: listenAs(t, of)}})
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	h.conn = conn
	many := make([]int32, mostNamed+1)
	for i := range many {
		many[i] = int32(i)
	}
	for _, tt := range []struct {
		hints [][]int32
		want  []int32
	}{
		{[][]int32{{7}}, []int32{7}},
		{[][]int32{{7}, {9}, {7}}, []int32{7, 9}},
		{[][]int32{{7}, {}}, nil},
		{[][]int32{{}, {7}}, nil},
		{[][]int32{many}, nil},
		{[][]int32{many[:mostNamed], {99}}, nil},
		{[][]int32{many[:mostNamed]}, many[:mostNamed]},
	} {
		for _, tenants := range tt.hints {
			h.Hint(0, 1, slices.Clone(tenants)...)
		}
		h.refresh(t.Context(), ownersEvery)
		h.send()
		if got := <-of; !slices.Equal(got, tt.want) {
			t.Errorf("hints of %v told of %v, want %v", tt.hints, got, tt.want)
		}
	}
}

func TestHinterKeepsTheOwnersItKnowsWhenTheyCannotBeRead(t *testing.T) {
	a, atA := listen(t)
	owners := &fakeOwners{owners: map[task.Shard]task.Owner{0: a}}
	h := NewHinter(owners)
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	h.conn = conn
	h.Hint(0, 1)
	h.refresh(t.Context(), ownersEvery)
	h.send()
	receive(t, atA)
	owners.err = errors.New("database is down")
	h.readAt = time.Time{}
	h.Hint(0, 2)
	h.refresh(t.Context(), ownersEvery)
	h.send()
	if got := receive(t, atA); got.due != 2 {
		t.Errorf("received %v", got)
	}
}

func TestStrayDatagramsDoNotStopTheHints(t *testing.T) {
	a, atA := listen(t)
	conn, err := net.Dial("udp", a.HintAddr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	forged := written(9, 9) // by another key
	right := hint{database: 3, due: 5, sender: 7, sent: time.Now()}.append(nil, a.HintKey)
	for _, b := range [][]byte{{}, []byte("hello"), make([]byte, 1400), forged, right, right, right} {
		if _, err := conn.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	if got := receive(t, atA); got != (gotHint{3, 5}) {
		t.Errorf("received %v", got)
	}
	if _, err := conn.Write(hint{database: 4, due: 6, sender: 7, sent: time.Now()}.append(nil, a.HintKey)); err != nil {
		t.Fatal(err)
	}
	if got := receive(t, atA); got != (gotHint{4, 6}) {
		t.Errorf("received %v after a replay", got)
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

// Not parallel, because it replaces the resolver of the process. The server of names of the test never answers.
func TestANameThatResolvesSlowlyDelaysNoHintForOthers(t *testing.T) {
	real := net.DefaultResolver
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	t.Cleanup(func() { net.DefaultResolver = real })
	a, atA := listen(t)
	h := NewHinter(&fakeOwners{owners: map[task.Shard]task.Owner{0: a, 1: {HintAddr: "dispatcher.invalid.:7000", HintKey: testKey}}})
	inBackground(t, h.Run)
	began := time.Now()
	h.Hint(0, 7)
	if got := receive(t, atA); got != (gotHint{0, 7}) {
		t.Errorf("the owner received %v", got)
	}
	if took := time.Since(began); took > lookupLimit*4/5 { // one that waits for the name takes lookupLimit
		t.Errorf("the hint took %v", took)
	}
}
