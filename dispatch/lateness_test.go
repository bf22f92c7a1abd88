package dispatch

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perceptor/perceptor/task"
)

func TestLatenessIsTheMeanOfTheForeground(t *testing.T) {
	m := &latenessMeter{}
	now := at(0)
	m.count(now, 1, 1, time.Hour) // long before the first window
	now = now.Add(time.Minute)
	if l := m.read(now); l != (Lateness{}) {
		t.Errorf("after a pause: %+v, want none", l)
	}
	m.count(now, 300, 100, 50*time.Second)
	m.count(now.Add(100*time.Millisecond), 200, 100, 150*time.Second)
	now = now.Add(latenessWindow)
	want := Lateness{Late: time.Second, PerSecond: 2000}
	if l := m.read(now); l != want {
		t.Errorf("after a window: %+v, want %+v", l, want)
	}
	m.count(now.Add(time.Millisecond), 10, 0, 0)
	if l := m.read(now.Add(latenessWindow)); l != (Lateness{PerSecond: 40}) {
		t.Errorf("with records of backlogs only: %+v, want 40 per second and none late", l)
	}
	if l := m.read(now.Add(latenessWindow + latenessHolds)); l != (Lateness{}) {
		t.Errorf("a second after the last record: %+v, want none", l)
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
		if l := m.Lateness(); l.Late < 2*time.Second || l.Late > 3*time.Second || l.PerSecond == 0 {
			t.Errorf("lateness %+v of records that were 2 s late", l)
		}
		m.stop()
	})
}

func TestLatenessIsReportedToThoseWhoGreet(t *testing.T) {
	h, err := ListenHints("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	greeted := make(greetings, 100)
	inBackground(t, func(ctx context.Context) error { return h.Run(ctx, greeted) })
	inBackground(t, func(ctx context.Context) error {
		return h.Report(ctx, func() Lateness { return Lateness{Late: 1500 * time.Millisecond, PerSecond: 123} })
	})
	hinter := NewHinter(&fakeOwners{owners: map[task.Shard]task.Owner{0: {HintAddr: h.Addr(), HintKey: h.Key()}}})
	if l := hinter.Lateness(); l != (Lateness{}) {
		t.Errorf("before any report: %+v", l)
	}
	inBackground(t, hinter.Run)
	deadline := time.Now().Add(time.Minute)
	for hinter.Lateness() != (Lateness{Late: 1500 * time.Millisecond, PerSecond: 123}) {
		if time.Now().After(deadline) {
			t.Fatalf("reported %+v, want 1.5 s and 123 per second", hinter.Lateness())
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestReportsOfSeveralDispatchersAreJoinedAndExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHinter(nil)
		report := func(sender uint64, late time.Duration, rate int64) {
			h.reported(hint{kind: hintLateness, sender: sender, due: task.Instant(late.Milliseconds()), rate: rate}, time.Now())
		}
		report(1, time.Second, 100)
		report(1, 2*time.Second, 200)
		time.Sleep(latenessHolds / 2)
		report(2, 500*time.Millisecond, 50)
		if l := h.Lateness(); l != (Lateness{2 * time.Second, 250}) {
			t.Errorf("two dispatchers: %+v, want 2 s and 250 per second", l)
		}
		time.Sleep(latenessHolds / 2)
		if l := h.Lateness(); l != (Lateness{500 * time.Millisecond, 50}) {
			t.Errorf("after the report of one has expired: %+v, want that of the other", l)
		}
	})
}
