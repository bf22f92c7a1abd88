package check

import (
	"testing"
	"time"

	"github.com/perceptor/perceptor/task"
)

// series returns the history of a NON_BLOCKING task with the given terms, whose claims are
// sometimes seconds late. With a cron expression it is due every third second.
func (t *teller) series(terms Terms) *Task {
	a := t.add(task.NonBlocking, 0)
	a.End, a.Terms = a.Begin+40_000, &terms
	if terms.Cron != "" {
		a.Interval = 0
	}
	d := &Task{Add: a, ID: a.ID}
	f := &Final{ID: a.ID, Number: a.Number, Type: a.Type, State: task.Completed, Begin: a.Begin, End: a.End, Interval: a.Interval}
	d.Final = f
	instants, now := t.instants(a), a.Begin
	for i := 0; i < len(instants); i++ {
		at := instants[i]
		now = max(now, at) + task.Instant(t.IntN(50))
		if !t.calm && t.IntN(4) == 0 {
			now += task.Instant(t.IntN(12_000))
		}
		passed := func(limit task.Instant) (n int) {
			for i+n < len(instants) && instants[i+n] < limit {
				n++
			}
			return n
		}
		var over int64 // instants skipped before the run
		switch terms.Misfire {
		case task.Skip:
			over = int64(passed(now.Add(-terms.Grace)))
		case task.FireAll:
			over = int64(max(0, passed(now+1)-int(terms.Limit)))
		}
		f.Missed += over
		if i += int(over); i == len(instants) {
			break
		}
		if at = instants[i]; at > now { // not due yet
			i--
			continue
		}
		f.Runs++
		missed := int64(0)
		if terms.Misfire == task.FireOnce {
			missed = int64(max(0, passed(now)-1))
			i += int(missed)
			f.Missed += missed
		}
		t.deliver(d, f.Runs, at, Of(now), missed)
	}
	return d
}

// instants computes the instants of a task in another way than the checker.
func (t *teller) instants(a *Add) (all []task.Instant) {
	part := task.Instant(task.SpreadOf(a.ID, a.Terms.Spread).Milliseconds())
	for at := a.Begin; at+part < a.End; at++ {
		on := a.Terms.Cron == "" && (at-a.Begin)%1000 == 0 || a.Terms.Cron != "" && at%3000 == 0
		if on {
			all = append(all, at+part)
		}
	}
	return all
}

// termsOf has the combinations of terms that the series are generated with.
var termsOf = map[string]Terms{
	"interval, FIRE_ONCE": {Misfire: task.FireOnce},
	"interval, FIRE_ALL":  {Misfire: task.FireAll, Limit: 4},
	"interval, SKIP":      {Misfire: task.Skip, Grace: 1500 * time.Millisecond},
	"interval, spread":    {Misfire: task.FireOnce, Spread: 900 * time.Millisecond},
	"cron, FIRE_ONCE":     {Misfire: task.FireOnce, Cron: "*/3 * * * * *", Zone: "Asia/Kathmandu"},
	"cron, FIRE_ALL":      {Misfire: task.FireAll, Limit: 2, Cron: "*/3 * * * * *", Zone: "UTC"},
	"cron, SKIP":          {Misfire: task.Skip, Grace: 500 * time.Millisecond, Cron: "0-59/3 * * * * *", Zone: "America/Lima"},
	"cron, spread":        {Misfire: task.FireOnce, Spread: 20 * time.Second, Cron: "*/3 * * * * *", Zone: "UTC"},
}

func TestASeriesThatFollowsItsTermsHasNoViolation(t *testing.T) {
	for name, terms := range termsOf {
		for seed := range uint64(30) {
			if r := examine(config(), newTeller(seed).series(terms)); r.Total() != 0 {
				t.Errorf("%s, seed %d: found %v, want no violation", name, seed, r.Examples)
			}
		}
	}
}

// later returns a change that delays a run and all its records.
func later(seq int64, by time.Duration) func(*Task) {
	return everyExecution(seq, func(e *Execution) {
		e.ScheduledAt = e.ScheduledAt.Add(by)
		e.Start, e.End = e.Start.Add(by), e.End.Add(by)
	})
}

var seriesFaults = []struct {
	name, terms string
	kind        Kind
	change      func(*Task)
}{
	{"an instant of FIRE_ALL is skipped", "interval, FIRE_ALL", Lost, func(d *Task) { removeRun(d, 3); d.Final.Missed++ }},
	{"an instant is skipped within its grace", "interval, SKIP", Lost, func(d *Task) { removeRun(d, 2); d.Final.Missed++ }},
	{"an instant of a calendar is not counted", "cron, FIRE_ONCE", Lost, func(d *Task) { removeRun(d, 2) }},
	{"a skipped instant is not counted", "interval, SKIP", Lost, func(d *Task) {
		lateRun(d)
		d.Final.Missed -= 2
	}},
	{"more instants are counted than were skipped", "interval, SKIP", Mismatch, func(d *Task) { d.Final.Missed++ }},
	{"a run is called long after its grace", "interval, SKIP", Late, func(d *Task) {
		everyExecution(2, func(e *Execution) { e.Start, e.End = e.Start.Add(time.Minute), e.End.Add(time.Minute) })(d)
	}},
	{"a run is off its calendar", "cron, FIRE_ALL", OutOfBounds, later(2, time.Second)},
	{"a run ignores its part of the spread", "interval, spread", OutOfBounds, later(2, 7*time.Millisecond)},
	{"a calendar ignores its part of the spread", "cron, spread", OutOfBounds, later(1, 100*time.Millisecond)},
	{"a calendar ends too soon", "cron, FIRE_ALL", Lost, func(d *Task) {
		removeRun(d, d.Executions[len(d.Executions)-1].Seq)
	}},
}

// removeRun removes a run from the history and renumbers the later runs.
func removeRun(d *Task, seq int64) {
	dropRun(seq)(d)
	for i := range d.Executions {
		if d.Executions[i].Seq > seq {
			d.Executions[i].Seq--
		}
	}
	for i := range d.Replies {
		if d.Replies[i].Seq > seq {
			d.Replies[i].Seq--
		}
	}
	d.Final.Runs--
}

// lateRun makes the last run one that came just within its grace, two instants after the
// other runs.
func lateRun(d *Task) {
	last := d.Executions[len(d.Executions)-1]
	for _, e := range d.Executions {
		if e.Seq == last.Seq {
			last = e
		}
	}
	removeRun(d, last.Seq)
	for range 2 {
		if n := len(d.Executions); n > 0 {
			removeRun(d, d.Executions[n-1].Seq)
		}
	}
	d.Final.Missed += 3
}

func TestEveryFaultOfASeriesIsFound(t *testing.T) {
	for _, f := range seriesFaults {
		t.Run(f.name, func(t *testing.T) {
			for seed := range uint64(20) {
				planted := calm(seed, termsOf[f.terms])
				f.change(planted)
				if r := examine(config(), planted); r.Violations[f.kind] == 0 {
					t.Fatalf("seed %d: found %v, want a violation of kind %s", seed, r.Examples, f.kind)
				}
			}
		})
	}
}

// calm returns a series without missed instants in which every run comes once and in time.
func calm(seed uint64, terms Terms) *Task {
	tell := newTeller(seed)
	tell.calm = true
	return tell.series(terms)
}

func TestAnExpressionThatTheCheckCannotReadIsNoSilentPass(t *testing.T) {
	for _, terms := range []Terms{{Cron: "* * * * *"}, {Cron: "0 0 0 L * *"}, {Cron: "*/0 * * * * *"}, {Cron: "61 * * * * *"}, {Cron: "0 * * * * *", Zone: "Mars/Olympus"}} {
		d := newTeller(1).typical(task.NonBlocking)
		d.Add.Terms = &terms
		if r := examine(config(), d); r.Total() == 0 {
			t.Errorf("%q in %q: found no violation", terms.Cron, terms.Zone)
		}
	}
}

func TestACalendarMatchesTheSecondsOfItsZone(t *testing.T) {
	day := time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC) // a Sunday
	for _, test := range []struct {
		cron, zone, want string
	}{
		{"30 15 0 * * *", "UTC", "00:15:30"},
		{"0 0 6 * * *", "Asia/Kathmandu", "00:15:00"},
		{"0 0 1,2 * * 0", "Europe/Berlin", "00:00:00 01:00:00"},
		{"0 0/20 0 22 11 *", "UTC", "00:00:00 00:20:00 00:40:00"},
		{"0 0 2-4 * * 1-6", "UTC", ""},
	} {
		c, err := newCalendar(test.cron, test.zone)
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		for _, at := range c.between(task.At(day), task.At(day.Add(6*time.Hour))) {
			got += " " + at.Time().Format("15:04:05")
		}
		if len(got) > 0 {
			got = got[1:]
		}
		if got != test.want {
			t.Errorf("instants of %s in %s = %q, want %q", test.cron, test.zone, got, test.want)
		}
	}
}

func TestADailyTaskIsDueAgainTheNextDay(t *testing.T) {
	c := New(config())
	a := &Add{Type: task.NonBlocking, Begin: t0, End: task.Never, Terms: &Terms{Cron: "30 10 8 * * *", Zone: "UTC", Spread: time.Minute}}
	g, err := c.gridOf(a, 1024)
	if err != nil {
		t.Fatal(err)
	}
	if next := g.next(g.first + 1); g.first == task.Never || next.Sub(g.first) != 24*time.Hour {
		t.Errorf("due at %v and then at %v, want the same time of the day on successive days", g.first, next)
	}
}
