package dispatch

import (
	"context"
	"reflect"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perceptor/perceptor/task"
)

func TestLatenessIsTheMeanOfAWindow(t *testing.T) {
	m := &paceMeter{}
	now := at(0)
	m.count(now, 1, 1, time.Hour) // long before the first window
	now = now.Add(time.Minute)
	if p := m.read(now); p != (task.Pace{}) {
		t.Errorf("after a pause: %+v, want none", p)
	}
	m.count(now, 300, 100, 50*time.Second)
	m.count(now.Add(100*time.Millisecond), 200, 100, 150*time.Second)
	now = now.Add(latenessWindow)
	if p := m.read(now); p != (task.Pace{Late: time.Second, PerSecond: 2000}) {
		t.Errorf("after a window: %+v, want 1 s and 2,000 per second", p)
	}
	m.count(now.Add(time.Millisecond), 10, 0, 0)
	if p := m.read(now.Add(latenessWindow)); p != (task.Pace{PerSecond: 40}) {
		t.Errorf("with repeated attempts only: %+v, want 40 per second and none late", p)
	}
	if p := m.read(now.Add(latenessWindow + latenessHolds)); p != (task.Pace{}) {
		t.Errorf("a second after the last record: %+v, want none", p)
	}
}

func TestRowsHaveWaitedSinceAClaimThatLeftNothing(t *testing.T) {
	p := idle()
	p.acquired(at(0))
	claimed := func(ms int, of []task.Shard, more bool) time.Time {
		p.took, p.decidedAt = 50*time.Millisecond, at(ms)
		since := p.waitedSince(at(ms))
		p.claimed(at(ms), at(ms+50), step{shards: of}, &task.Claim{Now: db(ms), Rows: 1, More: more}, 0)
		return since
	}
	for _, tt := range []struct {
		name string
		ms   int
		of   []task.Shard // nil: all
		more bool
		want time.Time
	}{
		{"the first claim knows nothing of the time before", 0, nil, false, time.Time{}},
		{"soon after a claim that left nothing", 150, nil, false, at(0)},
		{"long after it", 9000, nil, true, at(9000 - 100).Add(-p.cfg.MaxTick)},
		{"after one that left rows", 20_000, nil, true, at(150)},
		{"after another one", 30_000, []task.Shard{3}, false, at(150)},
		{"the other shards have rows still", 40_000, nil, false, at(150)},
		{"when nothing is left any more", 40_100, nil, false, at(40_000)},
	} {
		if got := claimed(tt.ms, tt.of, tt.more); !got.Equal(tt.want) {
			t.Errorf("%s: since %v, want %v", tt.name, got, tt.want)
		}
	}
	p.failed(at(45_000))
	if got := claimed(49_000, nil, false); !got.Equal(at(40_100)) {
		t.Errorf("after a failure: since %v, want the claim before", got)
	}
	p.decidedAt = at(49_500)
	if got, want := p.waitedSince(at(49_900)), at(49_500-100).Add(-p.cfg.MaxTick); !got.Equal(want) {
		t.Errorf("a claim that had to wait for its place: since %v, want %v", got, want)
	}
	for name, wait := range map[string]func(){
		"a process that was frozen": func() {
			p.wakeBy = at(49_200)
			p.next(at(49_200).Add(overslept), withCapacity())
		},
		"a time without capacity":    func() { p.next(at(49_300), situation{shards: true}) },
		"a time in which Kafka hung": func() { s := withCapacity(); s.gone = true; p.next(at(49_300), s) },
	} {
		p.left = false
		if wait(); !p.waitedSince(at(49_900)).Equal(at(49_000)) {
			t.Errorf("after %s: since %v, want the last claim that left nothing", name, p.waitedSince(at(49_900)))
		}
	}
	p.left, p.wakeBy = false, at(49_900)
	if p.next(at(49_910), withCapacity()); p.left {
		t.Error("a loop that wakes in time counts as frozen")
	}
	p.acquired(at(50_000))
	if got := claimed(50_100, nil, false); !got.IsZero() {
		t.Errorf("with other shards: since %v, want none", got)
	}
}

func TestThePublishedRecordsOfTheForegroundAreMeasured(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		m := w.start("a", nil)
		for n := range 50 {
			w.store.add(id(33, int64(n+1)), 1, -2*time.Second, 0)
		}
		m.acquire(33)
		within(t, time.Second, "published", func() bool { return w.kafka.total() == 50 })
		time.Sleep(latenessWindow)
		if l := m.Lateness().Foreground; l.Late < 2*time.Second || l.Late > 3*time.Second || l.PerSecond == 0 {
			t.Errorf("lateness %+v of records that were 2 s late", l)
		}
		time.Sleep(20 * time.Second)
		for n := range 50 { // added an hour after their begin
			w.store.add(id(33, int64(n+101)), 1, -time.Hour, 0)
		}
		within(t, 10*time.Second, "published", func() bool { return w.kafka.total() == 100 })
		time.Sleep(latenessWindow)
		if l := m.Lateness().Foreground; l.Late > 500*time.Millisecond || l.PerSecond == 0 {
			t.Errorf("lateness %+v of records that were published soon after their tasks were added", l)
		}
		m.stop()
	})
}

// TestRunsThatWaitForALimitOfTheirTenantAreNoBacklog has a tenant with a dispatch rate and one with a backlog.
func TestRunsThatWaitForALimitOfTheirTenantAreNoBacklog(t *testing.T) {
	m := &latenessMeter{}
	var records []*record
	var late []time.Duration
	for n := range 20 {
		records = append(records, &record{pub: task.Publication{Attempt: 1}, background: true, limited: n%2 == 0})
		late = append(late, []time.Duration{time.Hour, 2 * time.Second}[n%2])
	}
	m.confirmed(at(0), nil, nil) // the first window begins
	m.confirmed(at(0), records, late)
	if l := m.read(at(0).Add(latenessWindow)); l.Backlogs != (task.Pace{Late: 2 * time.Second, PerSecond: 80}) || l.Foreground != (task.Pace{}) {
		t.Errorf("%+v, want 80 per second and the lateness of the tenant with a backlog, 2 s", l)
	}
}

// TestTheLatenessOfABacklogLeavesOutTenantsWithARate is the same with a dispatcher.
func TestTheLatenessOfABacklogLeavesOutTenantsWithARate(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		w.store.setRates(1, task.Rates{DispatchRate: 100})
		for n := range int64(400) {
			w.store.add(id(task.Shard(n%4*32), n+1), 1, 0, 0)
		}
		m := w.start("a", nil)
		m.acquire(0, 32, 64, 96)
		time.Sleep(2500 * time.Millisecond)
		if l := m.Lateness(); l.Backlogs.Late > 0 || l.Backlogs.PerSecond == 0 {
			t.Errorf("%+v, want no lateness: the runs wait for tokens", l)
		}
		within(t, 10*time.Second, "published", func() bool { return w.kafka.total() == 400 })
		m.stop()
	})
}

func TestLatenessIsReportedToThoseWhoGreet(t *testing.T) {
	h, err := ListenHints("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	want := task.Lateness{
		Foreground: task.Pace{Late: 1500 * time.Millisecond, PerSecond: 123},
		Backlogs:   task.Pace{Late: time.Hour, PerSecond: 4}, Backlogged: []int32{3, 1 << 30},
	}
	greeted := make(greetings, 100)
	inBackground(t, func(ctx context.Context) error { return h.Run(ctx, greeted) })
	inBackground(t, func(ctx context.Context) error { return h.Report(ctx, func() task.Lateness { return want }) })
	hinter := NewHinter(&fakeOwners{owners: map[task.Shard]task.Owner{0: {HintAddr: h.Addr(), HintKey: h.Key()}}})
	if l := hinter.Lateness(); !reflect.DeepEqual(l, task.Lateness{}) {
		t.Errorf("before any report: %+v", l)
	}
	inBackground(t, hinter.Run)
	deadline := time.Now().Add(time.Minute)
	for !reflect.DeepEqual(hinter.Lateness(), want) {
		if time.Now().After(deadline) {
			t.Fatalf("reported %+v, want %+v", hinter.Lateness(), want)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// TestLatenessIsLookedAtRarelyWhileNothingIsPublished, and as soon as something is, in each window.
func TestLatenessIsLookedAtRarelyWhileNothingIsPublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for perSecond, want := range map[float64]int{0: 10, 5: 40} {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second+100*time.Millisecond)
			looks := 0
			if err := new(Hints).Report(ctx, func() (l task.Lateness) {
				looks++
				l.Backlogs.PerSecond = perSecond
				return l
			}); err != nil || looks < want || looks > want+1 { // the second look may come soon after the first
				t.Errorf("%v a second: %d looks in ten seconds, %v; want %d", perSecond, looks, err, want)
			}
			cancel()
		}
	})
}

func TestReportsOfSeveralDispatchersAreJoinedAndExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHinter(nil)
		report := func(sender uint64, kind hintKind, late time.Duration, rate int64, tenants ...int32) {
			h.reported(hint{kind: kind, sender: sender, due: task.Instant(late.Milliseconds()), rate: rate, tenants: tenants}, time.Now())
		}
		report(1, hintForeground, time.Second, 100)
		report(1, hintForeground, 2*time.Second, 200)
		report(1, hintBacklogs, time.Minute, 10, 4, 9)
		time.Sleep(latenessHolds / 2)
		report(2, hintForeground, 500*time.Millisecond, 50)
		report(2, hintBacklogs, time.Hour, 30, 2, 9)
		want := task.Lateness{
			Foreground: task.Pace{Late: 2 * time.Second, PerSecond: 250},
			Backlogs:   task.Pace{Late: time.Hour, PerSecond: 40}, Backlogged: []int32{2, 4, 9},
		}
		if l := h.Lateness(); !reflect.DeepEqual(l, want) {
			t.Errorf("two dispatchers: %+v, want %+v", l, want)
		}
		time.Sleep(latenessHolds / 2)
		want = task.Lateness{
			Foreground: task.Pace{Late: 500 * time.Millisecond, PerSecond: 50},
			Backlogs:   task.Pace{Late: time.Hour, PerSecond: 30}, Backlogged: []int32{2, 9},
		}
		if l := h.Lateness(); !reflect.DeepEqual(l, want) {
			t.Errorf("after the reports of one have expired: %+v, want %+v", l, want)
		}
	})
}

// TestPlannedLatenessIsNotCounted has runs whose instants were hours ago when their rows were written, as those of a backfill.
func TestPlannedLatenessIsNotCounted(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		var mu sync.Mutex
		var worst time.Duration
		n := 0
		m := w.start("a", func(_ *Config, e *Events) {
			e.Published = func(_ *task.Publication, late time.Duration) {
				mu.Lock()
				defer mu.Unlock()
				worst = max(worst, late)
				n++
			}
		})
		m.acquire(33)
		time.Sleep(time.Minute)
		for i := range int64(20) {
			w.store.add(id(33, i+1), 1, -2*time.Hour, 0)
			m.Hint(1, task.At(time.Now()))
			time.Sleep(3 * time.Second)
		}
		time.Sleep(time.Minute) // a sweep finds the last one, whose due_at is below the bound of claims
		m.stop()
		if n != 20 || worst > time.Second {
			t.Errorf("%d runs were published, late by up to %s, want 20 and less than a second", n, worst)
		}
	})
}
