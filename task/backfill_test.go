package task

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestABackfillHasTheInstantsOfItsSource compares the runs of a backfill with the instants of the
// source that a walk over the milliseconds finds, for any place of the range.
func TestABackfillHasTheInstantsOfItsSource(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		byCron := rapid.Bool().Draw(r, "cron")
		typ := rapid.SampledFrom([]Type{NonBlocking, Blocking}).Draw(r, "type")
		instant := rapid.Int64Range(0, 40)
		m := timedMachine(typ, byCron, Terms{}, func(s *Spec) {
			s.Begin = 10_300
			s.End = Instant(instant.Draw(r, "end")*900 + 11_400)
			if rapid.Bool().Draw(r, "windows") {
				from := Instant(instant.Draw(r, "closed from") * 700)
				s.Windows = NewWindows([][]Range{{{from, from + 3500}}}, nil)
			}
		})
		source := m.Task
		if source.State == Scheduled && rapid.Bool().Draw(r, "claimed") {
			m.Due(0, source.ScheduledAt+100)
		}
		b := Backfill{Operation: 7, From: Instant(instant.Draw(r, "from") * 500), OneAtATime: rapid.Bool().Draw(r, "serial")}
		b.Until = b.From + Instant(instant.Draw(r, "range")*500)
		var want []Instant
		for at := max(b.From, source.Begin); at < min(b.Until, source.End); at++ {
			onGrid := at%1000 == 300 && !byCron || at%1000 == 0 && byCron
			if onGrid && source.Windows.Open(at) {
				want = append(want, at)
			}
		}
		first, n := b.Runs(source)
		if int(n) != len(want) || n > 0 && first != want[0] || n == 0 && first != Never {
			r.Fatalf("%d runs from %d, want %d", n, first, want)
		}
		if n == 0 {
			return
		}
		if got := b.walk(source); !slices.Equal(got, want) {
			r.Fatalf("fired %d, want %d", got, want)
		}
	})
}

// walk makes the runs of a backfill, each of which gets its result 30 s after its claim, together
// with a next instant that is ignored. It returns nil if the task does not end with the last one.
func (b *Backfill) walk(source *Row) (fired []Instant) {
	now := Instant(100_000)
	row := b.Row(source, 1025, now)
	m := &Machine{Task: row, Was: row.State}
	for row.State == Scheduled && len(fired) < 1000 {
		now = max(now, row.DueAt)
		p := m.Due(0, now)
		if p == nil {
			break
		}
		fired = append(fired, p.ScheduledAt)
		if row.Type == Blocking {
			row.Holder = 9
		}
		res := Report{Attempt: Attempt{RunID{row.ID, row.Seq}, 1}, Holder: 9, Result: Result{Outcome: Success, Next: now + 1}}
		now = now.Add(30 * time.Second)
		if m.Report(res, now, 0, nil).Code != Accepted {
			return nil
		}
	}
	if row.State != Completed {
		return nil
	}
	return fired
}

func TestABackfillTaskIsOfItsSourceAndLeavesItAsItIs(t *testing.T) {
	for _, c := range []struct {
		name    string
		typ     Type
		overlap Overlap
		serial  bool
		want    Type
	}{
		{"NON_BLOCKING", NonBlocking, 0, false, NonBlocking},
		{"one at a time", NonBlocking, 0, true, Blocking},
		{"BLOCKING", Blocking, 0, false, Blocking},
		{"SKIP", NonBlocking, OverlapSkip, false, Blocking},
		{"BUFFER_ONE", NonBlocking, OverlapBufferOne, false, Blocking},
	} {
		m := timedMachine(c.typ, false, Terms{Overlap: c.overlap, MaxCount: 3, Misfire: Skip, Grace: time.Minute, Spread: 100 * time.Millisecond, Tags: []string{"red"}},
			func(s *Spec) { s.Key, s.ParamsWire = "k", []byte{10, 0} })
		before := *m.Task
		b := Backfill{Operation: 7, From: 12_000, Until: 14_000, OneAtATime: c.serial}
		got := b.Row(m.Task, 1025, 20_000)
		offset := Instant(SpreadOf(513, 100*time.Millisecond).Milliseconds())
		switch {
		case got.Type != c.want || got.ScheduledAt != 12_000+offset || got.End != 14_000 || got.DueAt != 20_000 || got.CreatedAt != 20_000:
			t.Errorf("%s: %+v", c.name, got)
		case got.BackfillOf != 513 || got.Backfill != 7 || got.ScheduleID() != 513 || got.Key != "" || got.MaxCount != 0 || got.Tags[0] != "red" || len(got.Params) != 2:
			t.Errorf("%s: %+v of %+v", c.name, got.Origin, got.Terms)
		case !got.Modeled():
			t.Errorf("%s: SQL would claim it", c.name)
		}
		if m.Task.ScheduledAt != before.ScheduledAt || m.Task.MaxCount != 3 || m.Task.Change != Kept {
			t.Errorf("%s: the source has changed: %+v", c.name, m.Task)
		}
	}
	one, again := timedMachine(OneShot, false, Terms{}).Task, timedMachine(NonBlocking, false, Terms{}).Task
	again.BackfillOf = 1
	for _, r := range []*Row{one, again} {
		if b := (Backfill{From: 0, Until: 100_000}); b.Selects(r) {
			t.Errorf("a backfill selects %+v", r)
		}
	}
}

func TestARunOfABackfillThatDiesIsFollowedByTheNextInstant(t *testing.T) {
	for _, typ := range []Type{NonBlocking, Blocking} {
		source := timedMachine(typ, false, Terms{Retry: RetryPolicy{MaxAttempts: 1}}).Task
		row := (&Backfill{From: 10_000, Until: 13_000}).Row(source, 1025, 20_000)
		m := &Machine{Task: row, Was: row.State}
		var fired []Instant
		for now := Instant(20_000); row.State == Scheduled; now += 100 {
			p := m.Due(0, now)
			fired = append(fired, p.ScheduledAt)
			row.Holder = 9
			if typ == NonBlocking {
				row.Holder = 0
			}
			res := Report{Attempt: Attempt{RunID{row.ID, row.Seq}, 1}, Holder: row.Holder, Result: Result{Outcome: Fail, Next: Never}}
			if code := m.Report(res, now, 0, nil).Code; code != Accepted {
				t.Fatalf("%s: %s", typ, code)
			}
		}
		if want := seconds(10, 12); !slices.Equal(fired, want) || len(m.Dead) != 3 || row.State != Completed {
			t.Errorf("%s: fired %d with %d dead runs, then %s; want %d", typ, fired, len(m.Dead), row.State, want)
		}
	}
}
