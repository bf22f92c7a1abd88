package dispatch

import (
	"testing"
	"time"

	"github.com/perceptor/perceptor/internal/ctxtime"
	"github.com/perceptor/perceptor/task"
)

// listening returns an idle planner that has been idle for long, and whose last peek at the
// instant showed the rows.
func listening(ms int, rows ...int) *planner {
	p := idle()
	p.listen(at(ms), task.Peek{Now: db(ms), Soon: soon(rows...)})
	p.hears = true
	p.peeked(0, at(ms), at(ms), task.Peek{Now: db(ms), Soon: soon(rows...)})
	return p
}

func TestDatabasesSleepLongerWhileHintsArrive(t *testing.T) {
	const long = 100_000
	for _, tt := range []struct {
		name    string
		prepare func(*planner)
		want    time.Duration
	}{
		{"hints arrive", func(*planner) {}, ctxtime.Beat(at(long), 5*time.Second)},
		{"no hints arrive", func(p *planner) { p.hears = false }, time.Second},
		{"fired lately", func(p *planner) { p.firedAt = at(long - 30_000) }, time.Second},
		{"fired just now", func(p *planner) { p.firedAt = at(long) }, 250 * time.Millisecond},
		{"fired just now, and hints come", func(p *planner) { p.firedAt, p.toldAt = at(long), at(long-5000) }, time.Second},
		{"fired just now, and no hints arrive", func(p *planner) { p.firedAt, p.toldAt, p.hears = at(long), at(long), false }, 250 * time.Millisecond},
		{"fired just now, and senders may not know this owner", func(p *planner) { p.firedAt, p.toldAt, p.acquiredAt = at(long), at(long), at(long-30_000) }, 250 * time.Millisecond},
		{"senders may not know this owner", func(p *planner) { p.acquiredAt = at(long - 30_000) }, time.Second},
		{"configured to sleep longer", func(p *planner) { p.cfg.MaxSleep = 8 * time.Second }, ctxtime.Beat(at(long), 8*time.Second)},
	} {
		p := listening(long)
		tt.prepare(p)
		if got := p.peekAgain(at(long)); got != tt.want {
			t.Errorf("%s: sleeps for %v, want %v", tt.name, got, tt.want)
		}
	}
	if hintAhead < longestSleep+time.Second+gatherHints {
		t.Errorf("hints are sent %v ahead, which a sleep of %v may miss", hintAhead, longestSleep)
	}
}

// peekBeforeSweep returns the planner of an idle database whose count is old and whose sweep is due. It has peeked,
// which took so long, in milliseconds.
func peekBeforeSweep(t *testing.T, sweep, took int) *planner {
	t.Helper()
	p := listening(sweep - 4000)
	p.sweepAt = at(sweep)
	if st := p.next(at(sweep), withCapacity()); st.do != peek {
		t.Fatalf("with an old count: %v, want a peek", st.do)
	}
	p.listen(at(sweep), task.Peek{Now: db(sweep)})
	p.peeked(0, at(sweep), at(sweep+took), task.Peek{Now: db(sweep)})
	return p
}

func TestASweepOfAnIdleDatabaseFollowsAPeek(t *testing.T) {
	const sweep = 104_000
	p, s := peekBeforeSweep(t, sweep, 0), withCapacity()
	if st := p.next(at(sweep+1), s); st.do != claim || st.form != task.RangeForm || st.low != 0 {
		t.Errorf("after the peek: %v from %d in %v form, want a claim from 0 in range form", st.do, st.low, st.form)
	}
	p.sweepAt = at(sweep + 3000)
	p.hint(at(sweep+2000), db(sweep+2500))
	if st := p.next(at(sweep+3000), s); st.do != claim {
		t.Errorf("with a hint: %v, want a claim at once", st.do)
	}
}

// TestSlowPeeksDoNotPutOffSweeps has a database whose peeks take longer than their counts are valid.
func TestSlowPeeksDoNotPutOffSweeps(t *testing.T) {
	const sweep = 104_000
	p := peekBeforeSweep(t, sweep, 1500)
	if st := p.next(at(sweep+1500), withCapacity()); st.do != claim {
		t.Errorf("after a peek of 1.5 s: %v, want a claim", st.do)
	}
}

func TestAHintThatDoesNotArriveIsNoticed(t *testing.T) {
	const first, second, third = 100_000, 105_000, 110_000
	for _, tt := range []struct {
		name   string
		shown  []int // at the second peek
		before func(*planner)
		after  func(*planner)
		want   bool
	}{
		{name: "nothing new"},
		{name: "a known row", shown: []int{103_000}, before: func(p *planner) { p.soon = soon(103_000) }},
		{name: "a new row", shown: []int{105_500}, want: true},
		{name: "a new row that is overdue", shown: []int{99_000}, want: true},
		{name: "a new row that is due later than hints reach", shown: []int{first + 6500}},
		{name: "its hint came before the peek", shown: []int{105_500}, before: func(p *planner) { p.toldAt = at(first + 2000) }},
		{name: "its hint came after the peek", shown: []int{105_500}, after: func(p *planner) { p.toldAt = at(second + 200) }},
		{name: "a claim since the last peek may have written it", shown: []int{105_500}, before: func(p *planner) { p.claimedAt = at(first + 10) }},
		{name: "other shards since the last peek", shown: []int{105_500}, before: func(p *planner) { p.acquired(at(first + 10)) }},
	} {
		p := listening(first)
		if tt.before != nil {
			tt.before(p)
		}
		k := task.Peek{Now: db(second), Soon: soon(tt.shown...)}
		if p.listen(at(second), k) {
			t.Errorf("%s: missed at once, though its hint may be under way", tt.name)
		}
		p.peeked(0, at(second), at(second), k)
		if tt.after != nil {
			tt.after(p)
		}
		if got := p.listen(at(third), task.Peek{Now: db(third)}); got != tt.want {
			t.Errorf("%s: missed %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestHearing(t *testing.T) {
	h := &hearing{}
	now := at(0)
	check := func(want bool, when string) {
		t.Helper()
		if h.hears(now) != want {
			t.Errorf("hears %v %s, want %v", !want, when, want)
		}
	}
	check(false, "before the first hint")
	h.heard(now)
	check(true, "after a hint")
	now = now.Add(hearFor)
	check(false, "long after the last hint")
	h.heard(now)
	h.missed(now)
	check(false, "after a missed hint")
	now = now.Add(deafFor)
	check(false, "an hour after it, without another hint")
	h.heard(now)
	check(true, "an hour after it, with another hint")
}

// An idle database is peeked at every 5 s while greetings
// come, and a hint of a row that is due in some seconds still wakes it in time.
func TestIdleDatabasesArePeekedAtRarelyWhileGreetingsCome(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		m := w.start("a", nil)
		m.acquire(33)
		minute := func() {
			for range time.Minute / greetEvery {
				m.Greeted()
				time.Sleep(greetEvery)
			}
		}
		minute()
		minute()
		before := w.store.peekCount()
		minute()
		if n := w.store.peekCount() - before; n < 10 || n > 16 {
			t.Errorf("%d peeks in an idle minute, want about 12 and some for sweeps", n)
		}
		w.store.add(id(33, 1), 1, 3*time.Second, 0)
		m.Hint(1, task.At(time.Now().Add(3*time.Second)))
		time.Sleep(2990 * time.Millisecond)
		within(t, 60*time.Millisecond, "published", func() bool { return w.kafka.total() == 1 })
		m.stop()
	})
}

func TestReceiversAreGreeted(t *testing.T) {
	greeted := make(greetings, 100)
	owner := listenAs(t, greeted)
	hinter := NewHinter(&fakeOwners{owners: map[task.Shard]task.Owner{0: owner, 40: owner, task.ChoresShard(3): owner}})
	inBackground(t, hinter.Run)
	select {
	case <-greeted:
	case <-time.After(time.Minute):
		t.Fatal("no greeting arrived")
	}
	hinter.BulkStarted(3)
	hinter.BulkStarted(task.Databases)
	if got := <-greeted; got != 3 {
		t.Errorf("received %d, want the bulk operation of database 3, and one greeting before it", got)
	}
	hinter.Lags(make([]task.Lag, 300), 3)
	for range mostLags {
		if got := <-greeted; got != -2 {
			t.Fatalf("received %d, want a tenant that lags", got)
		}
	}
	hinter.BulkStarted(3)
	if got := <-greeted; got != 3 {
		t.Errorf("received %d, want the bulk operation of database 3, after at most %d tenants that lag", got, mostLags)
	}
}

// greetings receives -1 for each greeting, -2 for each tenant that lags, and the database of each bulk operation.
type greetings chan int

func (g greetings) Hint(int, task.Instant, ...int32) {}
func (g greetings) Greeted()                         { g <- -1 }
func (g greetings) BulkStarted(d int)                { g <- d }
func (g greetings) Lagging(_ uint64, processes int, l []task.Lag) {
	for range l {
		g <- 1 - processes
	}
}
