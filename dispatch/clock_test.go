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
