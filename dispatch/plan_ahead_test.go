package dispatch

import (
	"slices"
	"testing"
	"time"

	"github.com/perceptor/perceptor/task"
)

// aheadPlanner returns an idle planner that has claimed 400 ms ahead at instant 0.
func aheadPlanner() *planner {
	p := testPlanner()
	p.cfg.ClaimAhead = 400 * time.Millisecond
	p.acquired(at(0))
	p.claimed(at(0), at(2), p.next(at(0), withCapacity()), &task.Claim{Now: db(0)}, 0)
	p.peeked(0, at(2), at(2), task.Peek{Now: db(2)})
	return p
}

func TestNextStepOfClaimsAhead(t *testing.T) {
	look := func(p *planner, ms int, due ...int) {
		p.peeked(0, at(ms), at(ms), task.Peek{Now: db(ms), Soon: soon(due...)})
	}
	full := func(from int) []int { // as many rows as a peek lists
		due := make([]int, task.MaxSoon)
		for i := range due {
			due[i] = from + i
		}
		return due
	}
	claimed := func(p *planner, ms int, c task.Claim) {
		c.Now = db(ms)
		p.claimed(at(ms), at(ms+2), step{ahead: 400 * time.Millisecond}, &c, 0)
	}
	tests := []struct {
		name    string
		prepare func(*planner)
		at      int
		want    action
		until   int
	}{
		{"idle sleeps until the next peek", func(*planner) {}, 10, sleep, 1002},
		{"a row beyond the edge is claimed a quarter of a window before it is due", func(p *planner) { look(p, 2, 700) }, 10, sleep, 600},
		{"slow claims begin half a window before", func(p *planner) { look(p, 2, 700); p.took = 10 * time.Millisecond }, 10, sleep, 500},
		{"others begin as long before as 24 claims take", func(p *planner) { look(p, 2, 700); p.took = 5 * time.Millisecond }, 10, sleep, 580},
		{"a row beyond the edge is claimed at that time", func(p *planner) { look(p, 2, 700) }, 600, claim, 0},
		{"a row before the edge is claimed when it is due", func(p *planner) { look(p, 2, 300) }, 10, sleep, 300},
		{"the first row beyond the edge may be claimed before one at the edge", func(p *planner) { look(p, 2, 390, 401) }, 10, sleep, 301},
		{"a peek over the rows of excluded tenants shows how far nothing is to be claimed", func(p *planner) {
			p.excluding = true
			p.peeked(0, at(2), at(2), task.Peek{Now: db(2), Known: db(900)})
		}, 10, sleep, 800},
		{"after a claim the rows due in its window are passed", func(p *planner) {
			look(p, 2, 700, 800, 899)
			claimed(p, 500, task.Claim{Rows: 3})
		}, 502, sleep, 1002},
		{"the next claim is for the first beyond the edge", func(p *planner) {
			look(p, 2, 700, 800, 901)
			claimed(p, 500, task.Claim{Rows: 2})
		}, 502, sleep, 801},
		{"a busy database is claimed from after three quarters of a window", func(p *planner) {
			look(p, 402, full(600)...)
			claimed(p, 500, task.Claim{Rows: 300})
		}, 502, sleep, 800},
		{"a busy database is claimed from when three quarters of a window have passed", func(p *planner) {
			look(p, 402, full(600)...)
			claimed(p, 500, task.Claim{Rows: 300})
		}, 800, claim, 0},
		{"a claim of fewer rows than known is followed by a peek", func(p *planner) {
			look(p, 2, 700, 800)
			claimed(p, 500, task.Claim{Rows: 1})
		}, 502, peek, 0},
		{"a hint for now leads to a claim immediately", func(p *planner) { p.hint(at(50), db(50)) }, 50, claim, 0},
		{"a hint for soon leads to a claim immediately", func(p *planner) { p.hint(at(50), db(99)) }, 50, claim, 0},
		{"a hint for later waits for a regular claim", func(p *planner) { p.hint(at(50), db(350)) }, 60, sleep, 300},
		{"a hint leads to an earlier claim when claims take long", func(p *planner) { p.took = 75 * time.Millisecond; p.hint(at(50), db(350)) }, 60, sleep, 200},
		{"a regular claim serves the hint", func(p *planner) {
			p.hint(at(50), db(350))
			claimed(p, 200, task.Claim{Rows: 1})
			look(p, 230)
		}, 240, sleep, 480},
		{"a row that a claim moved before the edge is claimed in time", func(p *planner) {
			claimed(p, 100, task.Claim{Rows: 30, Next: db(330)})
		}, 110, sleep, 280},
		{"claims keep their interval", func(p *planner) { p.hint(at(4), db(4)) }, 5, sleep, 20},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := aheadPlanner()
			tt.prepare(p)
			got := p.next(at(tt.at), withCapacity())
			if got.do != tt.want || got.do == sleep && !got.until.Equal(at(tt.until)) {
				t.Errorf("next = %s until %s, want %s until %d ms", got.do, got.until, tt.want, tt.until)
			}
			if got.do == claim && got.ahead != 400*time.Millisecond {
				t.Errorf("claim goes %s ahead, want 400ms", got.ahead)
			}
		})
	}
}

func TestRangeFormIsOnlyForAWindowThatWasCountedToItsEnd(t *testing.T) {
	for ms, want := range map[int]task.ClaimForm{1102: task.RangeForm, 1103: task.CappedForm} {
		p := aheadPlanner() // has counted until 1502
		p.peeked(0, at(2), at(2), task.Peek{Now: db(2), Soon: soon(1200), Rows: 1})
		if st := p.next(at(ms), withCapacity()); st.do != claim || st.form != want {
			t.Errorf("at %d ms: %s %s, want %s", ms, st.do, st.form, want)
		}
	}
}

func TestOverdueRowsAreClaimedBeforeThoseAhead(t *testing.T) {
	for _, tt := range []struct {
		name string
		due  int
		want time.Duration
	}{{"a backlog", 5, 0}, {"many rows that are due together", 300, 400 * time.Millisecond}} {
		t.Run(tt.name, func(t *testing.T) {
			p := aheadPlanner()
			p.claimed(at(10), at(15), step{ahead: 400 * time.Millisecond}, &task.Claim{Now: db(10), More: true, Rows: 5}, 0)
			p.peeked(0, at(15), at(16), task.Peek{Now: db(15), Soon: soon(tt.due, 350), Rows: 9999})
			if st := p.next(at(16), withCapacity()); st.do != claim || st.ahead != tt.want {
				t.Errorf("next = %s, %s ahead, want a claim %s ahead", st.do, st.ahead, tt.want)
			}
		})
	}
	t.Run("while Kafka is gone", func(t *testing.T) {
		p, s := aheadPlanner(), withCapacity()
		s.gone = true
		if st := p.next(at(1000), s); st.do != claim || st.ahead != 0 {
			t.Errorf("next = %s, %s ahead, want a claim 0s ahead", st.do, st.ahead)
		}
	})
}

func TestClaimAheadIsOfTheShardsThatAreDueInItsWindow(t *testing.T) {
	list := []task.Upcoming{{Due: db(500), Shard: 7}, {Due: db(790), Shard: 9}, {Due: db(1200), Shard: 11}}
	tests := []struct {
		name  string
		hint  int
		known task.Instant
		want  []task.Shard
		edge  task.Instant
	}{
		{"all rows are known", 0, task.Never, []task.Shard{7, 9}, db(800)},
		{"a hint for the window may be of any shard", 790, task.Never, nil, db(800)},
		{"the known rows end before the window", 0, db(790), nil, db(800)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := aheadPlanner()
			p.low = db(1)
			p.peeked(0, at(2), at(2), task.Peek{Now: db(2), Soon: slices.Clone(list)})
			p.known = tt.known
			if tt.hint > 0 {
				p.hint(at(399), db(tt.hint))
			}
			st := p.next(at(400), withCapacity())
			if st.do != claim || st.form != task.RangeForm || !slices.Equal(st.shards, tt.want) {
				t.Fatalf("next = %s %s of shards %v, want shards %v", st.do, st.form, st.shards, tt.want)
			}
			p.claimed(at(400), at(401), st, &task.Claim{Now: db(400), Rows: 2}, 0)
			if p.edge != tt.edge {
				t.Errorf("edge = %s, want %s", p.edge, tt.edge)
			}
		})
	}
	t.Run("a claim of some shards moves the edge to the known rows", func(t *testing.T) {
		p := aheadPlanner()
		p.peeked(0, at(2), at(2), task.Peek{Now: db(2), Soon: slices.Clone(list)})
		p.known = db(650)
		p.claimed(at(300), at(301), step{shards: []task.Shard{7}, ahead: 400 * time.Millisecond}, &task.Claim{Now: db(300), Rows: 50}, 0)
		if p.edge != db(650) {
			t.Errorf("edge = %s, want %s", p.edge, db(650))
		}
	})
}

func TestBoundStaysBehindTheClockWhenClaimsGoAhead(t *testing.T) {
	p := aheadPlanner()
	claimedAt := 20_000
	p.claimed(at(claimedAt), at(claimedAt), step{ahead: 400 * time.Millisecond}, &task.Claim{Now: db(claimedAt), Rows: 1}, 0)
	if want := db(claimedAt).Add(-p.cfg.Grace); p.low != want {
		t.Errorf("bound = %s, want %s", p.low, want)
	}
}

func TestTickOfClaimsAheadIsHalfTheWindowWhileTheyKeepUp(t *testing.T) {
	tests := []struct {
		ahead, took time.Duration
		busy        int
		want        time.Duration
	}{
		{100 * time.Millisecond, 6 * time.Millisecond, 16, 50 * time.Millisecond},
		{100 * time.Millisecond, 60 * time.Millisecond, 16, 100 * time.Millisecond}, // overloaded
		{400 * time.Millisecond, 60 * time.Millisecond, 16, 100 * time.Millisecond},
		{400 * time.Millisecond, time.Millisecond, 1, 20 * time.Millisecond},
	}
	for _, tt := range tests {
		p := testPlanner()
		p.cfg.ClaimAhead, p.took = tt.ahead, tt.took
		if got := p.tick(tt.busy); got != tt.want {
			t.Errorf("tick with %s ahead, claims of %s and %d databases = %s, want %s", tt.ahead, tt.took, tt.busy, got, tt.want)
		}
	}
}
