package dispatch

import (
	"slices"
	"testing"
	"time"

	"github.com/perceptor/perceptor/task"
)

// begun is the instant at which planner tests start.
var begun = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(ms int) time.Time    { return begun.Add(time.Duration(ms) * time.Millisecond) }
func db(ms int) task.Instant { return task.At(at(ms)) }
func testPlanner() *planner {
	return &planner{cfg: Config{ClaimShare: 0.5, MinTick: 20 * time.Millisecond, MaxRows: 2000}.withDefaults()}
}
func withCapacity() situation {
	return situation{shards: true, records: 50_000, bytes: 64 << 20, busy: 1}
}
func soon(ms ...int) (list []task.Upcoming) {
	for _, m := range ms {
		list = append(list, task.Upcoming{Due: db(m), Shard: 3})
	}
	return list
}
func pubs(n int) []task.Publication { return make([]task.Publication, n) }

// idle returns a planner that has swept at 0 and knows no due row.
func idle() *planner {
	p := testPlanner()
	p.acquired(at(0))
	p.claimed(at(0), at(2), p.next(at(0), withCapacity()), &task.Claim{Now: db(0)}, 0)
	p.peeked(0, at(2), at(2), task.Peek{Now: db(2)})
	return p
}

func TestNextStep(t *testing.T) {
	tests := []struct {
		name    string
		prepare func(*planner, *situation)
		at      int
		want    action
		until   int // end of a sleep in ms; -1 if only a wake ends it
	}{
		{"no shard is owned", func(_ *planner, s *situation) { s.shards = false }, 10, sleep, -1},
		{"idle sleeps until the next peek", func(*planner, *situation) {}, 10, sleep, 1002},
		{"idle peeks", func(*planner, *situation) {}, 1002, peek, 0},
		{"sweep comes when it is due", func(p *planner, _ *situation) { p.sweepAt = at(5002) }, 5002, claim, 0},
		{"a row is due later", func(p *planner, _ *situation) { p.peeked(0, at(2), at(2), task.Peek{Now: db(2), Soon: soon(300)}) }, 10, sleep, 310},
		{"a row is due", func(p *planner, _ *situation) { p.peeked(0, at(2), at(2), task.Peek{Now: db(2), Soon: soon(300)}) }, 310, claim, 0},
		{"a row that is due much later is peeked at again", func(p *planner, _ *situation) { p.peeked(0, at(2), at(2), task.Peek{Now: db(2), Soon: soon(90_000)}) }, 10, sleep, 1002},
		{"a hint wakes", func(p *planner, _ *situation) { p.hint(at(50), db(40)) }, 50, claim, 0},
		{"a hint for later sleeps until then", func(p *planner, _ *situation) { p.hint(at(50), db(70)) }, 60, sleep, 70},
		{"a hint for later does not defer the next peek", func(p *planner, _ *situation) { p.hint(at(50), db(1500)) }, 1002, peek, 0},
		{"known rows are claimed before the next peek", func(p *planner, _ *situation) {
			p.peeked(0, at(2), at(2), task.Peek{Now: db(2), Soon: soon(300, 303, 340)})
			p.claimed(at(310), at(315), step{}, &task.Claim{Now: db(310), Rows: 2}, 0)
		}, 315, sleep, 350},
		{"beyond the known rows claims come at every tick", func(p *planner, _ *situation) {
			p.peeked(0, at(2), at(2), task.Peek{Now: db(2), Soon: soon(make([]int, task.MaxSoon)...)})
			p.claimed(at(310), at(320), step{}, &task.Claim{Now: db(310), Rows: fewRows}, 0)
		}, 320, sleep, 330},
		{"beyond the known rows a small claim is followed by a peek", func(p *planner, _ *situation) {
			p.peeked(0, at(2), at(2), task.Peek{Now: db(2), Soon: soon(make([]int, task.MaxSoon)...)})
			p.claimed(at(310), at(315), step{}, &task.Claim{Now: db(310), Rows: fewRows - 1}, 0)
		}, 315, peek, 0},
		{"after the row of a hint it peeks", func(p *planner, _ *situation) {
			p.hint(at(50), db(60))
			p.claimed(at(60), at(62), step{}, &task.Claim{Now: db(60), Rows: 1}, 0)
		}, 82, peek, 0},
		{"a hint that came during a claim is kept", func(p *planner, _ *situation) {
			p.hint(at(61), db(55))
			p.claimed(at(60), at(62), step{}, &task.Claim{Now: db(60), Rows: 1}, 0)
		}, 80, claim, 0},
		{"a hint for a row that the next peek finds is dropped", func(p *planner, _ *situation) { p.hint(at(50), db(1500)) }, 60, sleep, 1002},
		{"a later hint does not defer an earlier one", func(p *planner, _ *situation) { p.hint(at(50), db(70)); p.hint(at(50), db(700)) }, 70, claim, 0},
		{"a hint that came during a peek counts", func(p *planner, _ *situation) {
			p.hint(at(50), db(60))
			p.peeked(0, at(50), at(55), task.Peek{Now: db(50), Soon: soon(900)})
		}, 60, claim, 0},
		{"a hint from before a peek does not count", func(p *planner, _ *situation) {
			p.hint(at(49), db(60))
			p.peeked(0, at(50), at(50), task.Peek{Now: db(50), Soon: soon(900)})
		}, 60, sleep, 910},
		{"claims keep their interval", func(p *planner, _ *situation) { p.hint(at(4), db(4)) }, 5, sleep, 20},
		{"after a full batch it peeks for the oldest rows", func(p *planner, _ *situation) {
			p.claimed(at(10), at(15), step{}, &task.Claim{Now: db(10), More: true, Rows: 5}, 0)
		}, 15, peek, 0},
		{"after a full batch and a peek it claims immediately", func(p *planner, _ *situation) {
			p.claimed(at(10), at(15), step{}, &task.Claim{Now: db(10), More: true, Rows: 5}, 0)
			p.peeked(0, at(15), at(16), task.Peek{Now: db(15), Soon: soon(5), Rows: 9999})
		}, 16, claim, 0},
		{"no capacity for records", func(p *planner, s *situation) { p.hint(at(4), db(4)); s.records = 0 }, 60, sleep, -1},
		{"no capacity for bytes", func(p *planner, s *situation) { p.hint(at(4), db(4)); s.bytes = 0 }, 60, sleep, -1},
		{"published parts wait for a claim", func(_ *planner, s *situation) { s.publishedAt = at(10) }, 20, sleep, 510},
		{"published parts are acknowledged without a claim", func(_ *planner, s *situation) { s.publishedAt = at(10) }, 510, acknowledge, 0},
		{"published parts are acknowledged without capacity, too", func(_ *planner, s *situation) { s.publishedAt, s.records = at(10), 0 }, 510, acknowledge, 0},
		{"published parts are acknowledged by a claim", func(p *planner, s *situation) { s.publishedAt = at(10); p.hint(at(510), db(510)) }, 510, claim, 0},
		{"unpublishable records go first", func(p *planner, s *situation) { s.giveUpAt = at(10); p.hint(at(510), db(510)) }, 510, giveUp, 0},
		{"unpublishable records wait for their retry", func(_ *planner, s *situation) { s.giveUpAt = at(510) }, 10, sleep, 510},
		{"after a failure", func(p *planner, _ *situation) { p.hint(at(10), db(10)); p.failed(at(30)) }, 40, sleep, 50},
		{"Kafka is gone", func(p *planner, s *situation) { p.hint(at(4), db(4)); s.gone = true }, 60, sleep, 1000},
		{"Kafka is gone: the probe", func(p *planner, s *situation) { p.hint(at(4), db(4)); s.gone = true }, 1000, claim, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, s := idle(), withCapacity()
			tt.prepare(p, &s)
			got := p.next(at(tt.at), s)
			if got.do != tt.want {
				t.Fatalf("next = %s, want %s", got.do, tt.want)
			}
			if got.do != sleep {
				return
			}
			want := time.Time{}
			if tt.until >= 0 {
				want = at(tt.until)
			}
			if !got.until.Equal(want) {
				t.Errorf("sleep until %s, want %s", got.until, want)
			}
		})
	}
}

func TestFirstClaimOfNewShardsHasNoBoundAndIsSmall(t *testing.T) {
	p := idle()
	p.acquired(at(100))
	st := p.next(at(100), withCapacity())
	if st.do != claim || st.low != 0 || st.form != task.CappedForm {
		t.Errorf("next = %+v, want a capped claim without a bound", st)
	}
	if st = testPlanner().next(at(0), withCapacity()); st.rows > firstRows {
		t.Errorf("claim of %d rows before the size of any record is known, want at most firstRows", st.rows)
	}
}

func TestFormIsRangeOnlyWhileFewRowsWereCounted(t *testing.T) {
	tests := []struct {
		name string
		rows int
		at   int
		want task.ClaimForm
	}{
		{"few", 10, 310, task.RangeForm},
		{"at the cap", 200, 310, task.RangeForm},
		{"beyond the cap", 201, 310, task.CappedForm},
		{"the window has passed", 10, 1103, task.CappedForm},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := idle()
			p.peeked(0, at(2), at(2), task.Peek{Now: db(2), Soon: soon(300), Rows: tt.rows})
			if st := p.next(at(tt.at), withCapacity()); st.do != claim || st.form != tt.want {
				t.Errorf("next = %s %s, want a claim in form %s", st.do, st.form, tt.want)
			}
		})
	}
	t.Run("after a range claim met a lock", func(t *testing.T) {
		p := idle()
		p.claimed(at(100), at(300), step{form: task.RangeForm}, &task.Claim{Now: db(100), Form: task.CappedForm}, 0)
		for _, ms := range []int{400, 5200, 5400} {
			p.peeked(0, at(ms), at(ms), task.Peek{Now: db(ms), Soon: soon(ms), Rows: 1})
			want := task.CappedForm
			if ms > 5300 {
				want = task.RangeForm
			}
			if st := p.next(at(ms+50), withCapacity()); st.do != claim || st.form != want {
				t.Errorf("at %d ms: %s %s, want %s", ms, st.do, st.form, want)
			}
		}
	})
	t.Run("after a failure", func(t *testing.T) {
		p := idle()
		p.peeked(0, at(2), at(2), task.Peek{Now: db(2), Soon: soon(300), Rows: 1})
		p.failed(at(250))
		if st := p.next(at(310), withCapacity()); st.form != task.CappedForm {
			t.Error("a claim after a failure has the range form, which a locked row can block again")
		}
	})
}

func TestLowerBoundMovesOnlyPastWhatWasTaken(t *testing.T) {
	grace := Config{}.withDefaults().Grace
	p := idle()
	tick := func(ms int, more bool, now task.Instant) step {
		p.hint(at(ms), db(ms))
		st := p.next(at(ms), withCapacity())
		if st.do == peek {
			p.peeked(0, at(ms), at(ms), task.Peek{Now: db(ms)})
			st = p.next(at(ms), withCapacity())
		}
		if st.do != claim {
			t.Fatalf("at %d ms: next = %s, want a claim", ms, st.do)
		}
		p.claimed(at(ms), at(ms), st, &task.Claim{Now: now, More: more, Rows: 1}, 0)
		return st
	}
	if tick(1000, false, db(1000)); p.low != db(1000).Add(-grace) {
		t.Errorf("bound = %s after a claim of all due rows", p.low)
	}
	low := p.low
	if tick(2000, true, db(2000)); p.low != low {
		t.Error("the bound moved past unclaimed rows")
	}
	if st := tick(6000, true, db(6000)); st.low != 0 || p.low != 0 {
		t.Errorf("sweep with bound %s, want 0", st.low)
	}
	if st := tick(6001, false, db(6001)); st.low != 0 || p.low != db(6001).Add(-grace) {
		t.Error("the sweep ended before a claim that was not full")
	}
	if st := tick(7000, false, db(7000)); st.low == 0 {
		t.Error("a claim after the sweep had no bound")
	}
	if tick(8000, false, db(500)); p.low != 0 {
		t.Error("a clock that went back did not reset the bound")
	}
	if st := p.next(at(8100), withCapacity()); st.do != claim || st.low != 0 {
		t.Errorf("next = %s with bound %s, want a sweep", st.do, st.low)
	}
}

func TestSweepsAreRareOnlyWhereNothingHappens(t *testing.T) {
	for name, c := range map[string]struct {
		act  func(*planner)
		want int // ms
	}{
		"no event ever":       {func(*planner) {}, 70_000 + 30_000},
		"fired a minute ago":  {func(p *planner) { p.firedAt = at(10_000) }, 70_000 + 30_000},
		"fired less long ago": {func(p *planner) { p.firedAt = at(10_001) }, 70_000 + 5_000},
		"a hint came":         {func(p *planner) { p.hintedAt = at(69_000) }, 70_000 + 5_000},
	} {
		t.Run(name, func(t *testing.T) {
			p := idle()
			c.act(p)
			p.claimed(at(70_000), at(70_000), step{do: claim, form: task.RangeForm}, &task.Claim{Now: db(70_000)}, 0)
			if !p.sweepAt.Equal(at(c.want)) {
				t.Errorf("the next sweep is at %s, want %s", p.sweepAt, at(c.want))
			}
		})
	}
}

func TestALookThatSeesAnEarlierClockLeadsToASweep(t *testing.T) {
	p := idle()
	p.peeked(0, at(1000), at(1000), task.Peek{Now: db(-500)})
	if st := p.next(at(1000), withCapacity()); st.do != claim || st.low != 0 {
		t.Errorf("next = %s with bound %s, want a sweep", st.do, st.low)
	}
}

func TestARowThatFiresBringsTheSweepOfAnIdleDatabaseNearer(t *testing.T) {
	p := idle()
	if !p.sweepAt.Equal(at(2 + 30_000)) {
		t.Fatalf("the sweep of an idle database is at %s, want %s", p.sweepAt, at(2+30_000))
	}
	p.claimed(at(100), at(100), step{do: claim, form: task.RangeForm, low: 1}, &task.Claim{Now: db(100), Rows: 1}, 0)
	if !p.sweepAt.Equal(at(100 + 5_000)) {
		t.Errorf("the sweep is at %s, want %s", p.sweepAt, at(100+5_000))
	}
	p.claimed(at(200), at(200), step{do: claim, form: task.RangeForm, low: 1}, &task.Claim{Now: db(200), Rows: 1}, 0)
	if !p.sweepAt.Equal(at(100 + 5_000)) {
		t.Errorf("a claim deferred the sweep to %s", p.sweepAt)
	}
}

func TestAClaimIsOfTheShardsInWhichSomethingIsDue(t *testing.T) {
	list := []task.Upcoming{{Due: db(300), Shard: 7}, {Due: db(301), Shard: 9}, {Due: db(302), Shard: 7}, {Due: db(900), Shard: 11}}
	tests := []struct {
		name    string
		prepare func(*planner)
		want    []task.Shard
	}{
		{"all rows are known", func(*planner) {}, []task.Shard{7, 9}},
		{"a hint may be of any shard", func(p *planner) { p.hint(at(50), db(60)) }, nil},
		{"the known rows end before the claim", func(p *planner) { p.known = db(305) }, nil},
		{"a backlog: the oldest rows", func(p *planner) { p.known, p.rangeRows = db(305), 9999 }, []task.Shard{7, 9}},
		{"a sweep", func(p *planner) { p.sweepAt = at(310) }, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := idle()
			p.low = db(1)
			p.peeked(0, at(2), at(2), task.Peek{Now: db(2), Soon: slices.Clone(list)})
			tt.prepare(p)
			st := p.next(at(310), withCapacity())
			if st.do != claim || !slices.Equal(st.shards, tt.want) {
				t.Fatalf("next = %s of shards %v, want a claim of %v", st.do, st.shards, tt.want)
			}
			p.claimed(at(310), at(312), st, &task.Claim{Now: db(310), Rows: 3}, 0)
			if len(p.soon) != 1 || p.soon[0].Shard != 11 {
				t.Errorf("known rows after the claim = %v, want that of shard 11", p.soon)
			}
			if st.shards != nil && p.low != db(1) {
				t.Error("the bound moved past shards that were not claimed from")
			}
		})
	}
	t.Run("rows of other shards stay known", func(t *testing.T) {
		p := idle()
		p.peeked(0, at(2), at(2), task.Peek{Now: db(2), Soon: slices.Clone(list)})
		p.claimed(at(310), at(312), step{shards: []task.Shard{9}}, &task.Claim{Now: db(310), Rows: 1}, 0)
		if len(p.soon) != 3 {
			t.Errorf("known rows = %v, want 3", p.soon)
		}
	})
}

func TestFailedClaimDoesNotMoveTheBound(t *testing.T) {
	p := idle()
	low := p.low
	p.failed(at(5000))
	p.lost()
	if p.low != low {
		t.Error("the bound moved without a commit")
	}
}

func TestTickGrowsWithTheCostOfClaims(t *testing.T) {
	tests := []struct {
		took time.Duration
		busy int
		want time.Duration
	}{
		{time.Millisecond, 1, 20 * time.Millisecond},
		{2 * time.Millisecond, 16, 64 * time.Millisecond},
		{20 * time.Millisecond, 1, 40 * time.Millisecond},
		{500 * time.Millisecond, 16, 100 * time.Millisecond},
	}
	for _, tt := range tests {
		p := testPlanner()
		p.took = tt.took
		if got := p.tick(tt.busy); got != tt.want {
			t.Errorf("tick after claims of %s with %d busy databases = %s, want %s", tt.took, tt.busy, got, tt.want)
		}
	}
}

func TestRowsOfAClaimFollowTheSizeOfRecords(t *testing.T) {
	p := idle()
	p.claimed(at(10), at(11), step{}, &task.Claim{Now: db(10), Rows: 10, Publications: pubs(10)}, 10*(1<<20))
	p.hint(at(50), db(50))
	s := withCapacity()
	s.bytes = 40 << 20
	if st := p.next(at(50), s); st.do != claim || st.rows != 8 {
		t.Errorf("next = %s of %d rows, want a claim of 8 rows of 1 MiB each, an eighth of the memory", st.do, st.rows)
	}
	s.bytes = 1
	if st := p.next(at(50), s); st.rows != 1 {
		t.Errorf("claim of %d rows, want 1", st.rows)
	}
}

func TestFailuresBackOffUpToABound(t *testing.T) {
	p := idle()
	now, last := at(0), time.Duration(0)
	for range 20 {
		p.failed(now)
		wait := p.retryAt.Sub(now)
		if wait < last || wait > maxBackoff {
			t.Fatalf("wait of %s after one of %s", wait, last)
		}
		now, last = p.retryAt, wait
	}
	if last != maxBackoff {
		t.Errorf("last wait = %s, want maxBackoff", last)
	}
	if p.ok(); p.failures != 0 {
		t.Error("the backoff did not end after a success")
	}
}

func TestActiveDatabaseIsLookedAtMoreOften(t *testing.T) {
	p := idle()
	p.claimed(at(2000), at(2001), step{}, &task.Claim{Now: db(2000), Rows: 1}, 0)
	p.peeked(0, at(2001), at(2001), task.Peek{Now: db(2001)})
	if st := p.next(at(2100), withCapacity()); st.do != sleep || !st.until.Equal(at(2251)) {
		t.Errorf("next = %s until %s, want sleep until %s", st.do, st.until, at(2251))
	}
}

func TestLooksCountEachRowOnce(t *testing.T) {
	p := testPlanner()
	p.acquired(at(0))
	p.claimed(at(0), at(2), p.next(at(0), withCapacity()), &task.Claim{Now: db(0)}, 0)
	look := func(ms, rows int) task.Instant {
		from := p.countFrom(at(ms))
		p.peeked(from, at(ms), at(ms), task.Peek{Now: db(ms), Rows: rows})
		return from
	}
	form := func(ms int) task.ClaimForm { return p.claim(at(ms), withCapacity()).form }
	if from := look(10, 150); from != p.low {
		t.Fatalf("the first peek counts from %d, want %d, the lower bound", from, p.low)
	}
	end := p.rangeUntil
	if from := look(500, 50); from != end || form(500) != task.RangeForm {
		t.Fatalf("the second peek counts from %d and allows form %s, want %d, the end of the first, and %s", from, form(500), end, task.RangeForm)
	}
	if look(600, 1); form(600) != task.CappedForm {
		t.Errorf("three peeks have counted more rows than the cap, but the form is still %s", form(600))
	}
	p.claimed(at(700), at(701), step{form: task.CappedForm, low: p.low}, &task.Claim{Now: db(700), Rows: 100}, 0)
	if form(710) != task.RangeForm {
		t.Errorf("after a claim of 100 rows the form is %s, want %s", form(710), task.RangeForm)
	}
	if look(800, p.cfg.MaxRows+1); form(810) != task.CappedForm || p.countFrom(at(820)) != p.low {
		t.Errorf("after a truncated count form = %s, next count from %d, want %s, from %d", form(810), p.countFrom(at(820)), task.CappedForm, p.low)
	}
	look(900, 10)
	if p.hint(at(910), db(920)); p.countFrom(at(915)) != p.low {
		t.Error("after a hint the next peek does not count from the lower bound")
	}
	look(950, 10)
	if p.countFrom(at(6000)) != p.low {
		t.Error("a count is used for longer than SweepEvery")
	}
}
