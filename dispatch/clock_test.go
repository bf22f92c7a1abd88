package dispatch

import (
	"testing"
	"time"

	"github.com/perceptor/perceptor/task"
)

func TestReadingOfTheClockIsTheBestThatAnswersGive(t *testing.T) {
	first := reading{}.next(at(90), read(db(95), at(100))) // the answer took 5 ms longer than known
	tests := []struct {
		name          string
		start, answer int
		clock         int
		due           int // when 3000 is due
	}{
		{"a slow answer does not change the reading", 500, 900, 510, 3008},
		{"a quick answer counts", 500, 503, 502, 3004},
		{"a clock that was set back counts", 500, 510, 300, 3213},
		{"an instant that the last answer has shown is due", 2900, 3500, 3000, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := first.next(at(tt.start), read(db(tt.clock), at(tt.answer)))
			due := r.due(db(3000))
			if tt.due == 0 {
				if !due.IsZero() {
					t.Errorf("due = %s, want the zero time", due)
				}
				return
			}
			if d := due.Sub(at(tt.due)); d < -time.Millisecond || d > time.Millisecond {
				t.Errorf("due = %s, want %s", due, at(tt.due))
			}
		})
	}
}

func TestAPlannerLooksAnewWhenTheClockWasSet(t *testing.T) {
	p := planner{cfg: Config{}.withDefaults(), known: task.Never, soon: []task.Upcoming{{Due: db(500)}}, peekAt: at(9000), sweepAt: at(9000), hintAt: at(8000)}
	if st := p.next(at(100), situation{shards: true, records: 1, bytes: 1}); st.do == peek {
		t.Fatalf("next before the clock was set = %s, want no peek", st.do)
	}
	p.clockMoved(at(101))
	if st := p.next(at(101), situation{shards: true, records: 1, bytes: 1}); st.do != peek {
		t.Errorf("next after the clock was set = %s, want a peek", st.do)
	}
}

func TestAPlannerBelievesAClockThatStandsStill(t *testing.T) {
	p := planner{cfg: Config{}.withDefaults(), clock: db(0), known: task.Never, soon: []task.Upcoming{{Due: db(300)}}, peekAt: at(9000), sweepAt: at(9000)}
	p.claimed(at(299), at(301), step{do: claim}, &task.Claim{Now: db(0)}, 0)
	if due := p.localTime(db(300)); due.Before(at(590)) {
		t.Errorf("the row is expected at %s though the clock stands still", due)
	}
}

func TestLeasesAreMeasuredByAClockThatIsNeverSetForward(t *testing.T) {
	const hour = 3_600_000
	type answer struct{ start, now, shown int }
	tests := []struct {
		name    string
		answers []answer
		at      int
		most    int // without the tolerance
		setFor  int // -1: the clock decides
	}{
		{"no answer", nil, 0, 0, -1},
		{"an answer", []answer{{1000, 1010, 5000}}, 2000, 6001, 0},
		{"a clock that goes on", []answer{{1000, 1010, 5000}, {3000, 3010, 7005}}, 4000, 8001, 0},
		{"a slow answer says less", []answer{{1000, 1010, 5000}, {3000, 9000, 12990}}, 9000, 13008, 0},
		{"an hour forward", []answer{{1000, 1010, 5000}, {3000, 3010, 7005 + hour}}, 4000, 8003, 990},
		{"an hour forward, seen again", []answer{{1000, 1010, 5000}, {3000, 3010, 7005 + hour}, {5000, 5010, 9005 + hour}}, 6000, 10005, 2990},
		{"an hour forward twice", []answer{{1000, 1010, 5000}, {3000, 3010, 7005 + hour}, {5000, 5010, 9005 + 2*hour}}, 6000, 10005, 990},
		{"forward and back", []answer{{1000, 1010, 5000}, {3000, 3010, 7005 + hour}, {5000, 5010, 9003}}, 6000, 10004, 0},
		{"an hour back", []answer{{1000, 1010, 5000 + hour}, {3000, 3010, 7005}}, 4000, 8006, 0},
		{"forward, a day ago", []answer{{1000, 1010, 5000}, {3000, 3010, 7005 + hour}, {24 * hour, 24*hour + 10, 25 * hour}, {24*hour + 4000, 24*hour + 4010, 25*hour + 4000}}, 24*hour + 5000, 25*hour + 5001, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var c steadyClock
			for _, a := range tt.answers {
				c = c.next(at(a.start), at(a.now), db(a.shown))
			}
			steady, setFor := c.leases(at(tt.at))
			if tt.setFor < 0 {
				if steady != 0 || setFor != 0 {
					t.Errorf("leases = %s, %s, want nothing", steady, setFor)
				}
				return
			}
			if d := steady.Sub(db(tt.most)) - setBy; d < -3*time.Millisecond || d > 3*time.Millisecond || setFor != time.Duration(tt.setFor)*time.Millisecond {
				t.Errorf("leases = %s, set for %s; want %s and %d ms", steady.Add(-setBy), setFor, db(tt.most), tt.setFor)
			}
		})
	}
}

func TestClaimsAfterAClockWasSetForwardHoldTheLeasesBeforeIt(t *testing.T) {
	inBubble(t, func(t *testing.T, w *world) {
		var told []time.Duration
		m := w.start("a", func(_ *Config, e *Events) {
			e.ClockSet = func(_ int, ahead time.Duration) { told = append(told, ahead.Round(time.Second)) }
		})
		w.store.add(id(0, 1), 100, 0, 100*time.Millisecond)
		m.acquire(0)
		time.Sleep(2 * time.Second)
		before := w.store.now()
		w.store.skew.Store(int64(time.Hour))
		time.Sleep(2 * time.Second)
		if c := w.store.lastClaim(); c.SteadyNow > before.Add(2*time.Second+2*setBy) || c.SetFor < time.Second || c.SetFor > 2*time.Second {
			t.Errorf("2 s after the clock was set forward, leases end by %s (it showed %s) or after %s", c.SteadyNow, before, c.SetFor)
		}
		m.ClockMoved(0) // it was meant
		time.Sleep(2 * time.Second)
		if c := w.store.lastClaim(); c.SteadyNow < w.store.now() || c.SetFor != 0 {
			t.Errorf("leases end by %s, after %s; the clock shows %s", c.SteadyNow, c.SetFor, w.store.now())
		}
		m.stop()
		if len(told) != 1 || told[0] != time.Hour {
			t.Errorf("the steps %v were told, want one of an hour", told)
		}
	})
}
