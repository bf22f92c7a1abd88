package shards

import (
	"context"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/perceptor/perceptor/task"
)

// naive is a task that knows all its instants by heart. It is written from the
// rules alone and shares nothing with package task; all its times are in
// milliseconds.
type naive struct {
	typ              task.Type
	policy           task.Misfire
	overlap          task.Overlap
	end              int64
	interval         int64 // 0: by matches
	matches          []int64
	grace, pace, max int64
	limit            int

	due, next int64 // next: the instant that fires next
	paused    bool
	open      bool // BLOCKING: a run is; with overlap, too
	waits     bool // the next instant was claimed while a run was open
	ended     bool
	fired     []int64
	told      []int64 // how many were missed, as each run's record says
	missed    int64
}

// after returns the first instant of the grid of x that is later than y.
func (n *naive) after(x, y int64) int64 {
	if n.typ == task.OneShot {
		return n.end
	}
	if n.interval == 0 {
		for _, m := range n.matches {
			if m > x && m > y {
				return m
			}
		}
		return n.end
	}
	for x += n.interval; x <= y; x += n.interval {
	}
	return x
}

// drop counts the next instant as missed.
func (n *naive) drop() {
	n.missed++
	n.next = n.after(n.next, n.next)
}

// behind lists the instants from the next one on that are not later than now.
func (n *naive) behind(now int64) (list []int64) {
	for x := n.next; x <= now && x < n.end; x = n.after(x, x) {
		list = append(list, x)
	}
	return list
}

// claim is a claim at an instant, which takes what is scheduled some time ahead.
func (n *naive) claim(now, ahead int64) {
	if n.ended || n.paused || n.open && n.overlap == 0 || n.next >= n.end || (n.max > 0 && int64(len(n.fired)) >= n.max) {
		return
	}
	switch {
	case n.due <= now:
	case n.due <= now+ahead && n.next > now && !n.open:
		now = n.due
	default:
		return
	}
	before := n.missed
	switch {
	case n.policy == task.Skip:
		for n.next < now-n.grace && n.next < n.end {
			n.drop()
		}
	case n.policy == task.FireAll && n.typ == task.NonBlocking:
		for len(n.behind(now)) > n.limit {
			n.drop()
		}
	}
	if n.next >= n.end {
		n.ended = true
		return
	}
	if n.next > now {
		n.due = n.next
		return
	}
	if n.open {
		n.holdBack(now)
		return
	}
	n.fired, n.waits, n.open = append(n.fired, n.next), false, n.overlap != 0
	last := n.max > 0 && int64(len(n.fired)) >= n.max
	if n.typ != task.NonBlocking {
		n.open, n.told = true, append(n.told, n.missed-before)
		return
	}
	n.next = n.after(n.next, n.next)
	for (n.policy == task.FireOnce || n.overlap != 0) && n.next < now && n.next < n.end && !last {
		n.drop()
	}
	n.told = append(n.told, n.missed-before)
	n.due = max(n.next, now+1)
	if n.next <= now && n.overlap == 0 {
		n.due = now + n.pace
	}
	n.ended = last || n.next >= n.end
}

// holdBack is what happens to an instant that comes while a run is open.
func (n *naive) holdBack(now int64) {
	if n.overlap == task.OverlapBufferOne {
		n.waits, n.due = true, min(n.after(n.next, now), now+86_400_000)
		return
	}
	for n.drop(); n.next < now && n.next < n.end; n.drop() {
	}
	n.due, n.ended = max(n.next, now+1), n.next >= n.end
}

// resumed makes the next instant due, at once if it has passed, but what catches up
// keeps its distance; if Skip leaves nothing to claim, it drops what is too old at once.
func (n *naive) resumed(now int64) {
	if n.paused || n.ended || n.open && n.overlap == 0 {
		return
	}
	first := n.next
	for n.policy == task.Skip && first < now-n.grace && first < n.end {
		first = n.after(first, first)
	}
	if first > now || first >= n.end { // else the claim drops what is too old, and tells its run
		for n.next != first {
			n.drop()
		}
	}
	n.ended = n.next >= n.end
	n.due = max(n.next, now)
	if n.policy == task.FireAll && n.typ == task.NonBlocking && len(n.fired) > 0 && n.next <= now {
		n.due = now + n.pace
	}
}

// succeed is the result of an open run. next is what its handler says of the next one; 0
// says nothing.
func (n *naive) succeed(now, next int64) {
	n.open = false
	if n.typ == task.OneShot || (n.max > 0 && int64(len(n.fired)) >= n.max) {
		n.ended = true
		return
	}
	switch {
	case n.typ == task.NonBlocking && next == 0:
		if n.waits {
			n.due = now
		}
		return
	case next != 0:
		next = max(next, now)
		for n.typ == task.NonBlocking && n.next <= now && n.next < next && n.next < n.end {
			n.drop()
		}
		n.next = next
	case n.interval == 0:
		n.next = n.after(now, now)
	default:
		n.next = now + n.interval
	}
	n.due = n.next
	n.ended = n.next >= n.end
}

// eachSecond lists the instants that a test of the time of day accepts, by looking
// at every second of a day and a half.
func eachSecond(from, later int64, accept func(h, m, s int) bool) (list []int64) {
	for at := (from + 999) / 1000; at < from/1000+130_000; at++ {
		if t := time.Unix(at, 0).UTC(); accept(t.Hour(), t.Minute(), t.Second()) {
			list = append(list, at*1000+later)
		}
	}
	return list
}

var naiveCrons = map[string]func(h, m, s int) bool{
	"* * * * * *":         func(_, _, _ int) bool { return true },
	"*/7 * * * * *":       func(_, _, s int) bool { return s%7 == 0 },
	"10,20 */3 * * * *":   func(_, m, s int) bool { return (s == 10 || s == 20) && m%3 == 0 },
	"*/20 * * * *":        func(_, m, s int) bool { return m%20 == 0 && s == 0 },
	"30 3,4,17-19 * * *":  func(h, m, s int) bool { return s == 0 && m == 30 && (h == 3 || h == 4 || h >= 17 && h <= 19) },
	"0 0 * * *":           func(h, m, s int) bool { return h+m+s == 0 },
	"59 59 23,1-2 * * *":  func(h, m, s int) bool { return s == 59 && m == 59 && (h == 23 || h == 1 || h == 2) },
	"0 */5 9 * * *":       func(h, m, s int) bool { return s == 0 && m%5 == 0 && h == 9 },
	"5-8 0-59/30 * * * *": func(_, m, s int) bool { return s >= 5 && s <= 8 && m%30 == 0 },
}

// drawNaive draws a task for the store and for the model. The model's instants
// follow from the id, and are set by begin.
func drawNaive(rt *rapid.T, b *bundle, overlaps []task.Overlap) (task.Spec, *naive) {
	n := &naive{pace: task.DefaultCatchUpInterval.Milliseconds(), end: 1 << 62}
	types, misfires := task.Types, []task.Misfire{0, task.FireAll, task.Skip}
	if n.overlap = rapid.SampledFrom(overlaps).Draw(rt, "overlap"); n.overlap != 0 {
		types, misfires = []task.Type{task.NonBlocking}, []task.Misfire{0, task.Skip}
	}
	n.typ = rapid.SampledFrom(types).Draw(rt, "type")
	spec := b.spec(n.typ, func(s *task.Spec) {
		s.Begin = b.now.Add(time.Duration(rapid.IntRange(-40_000, 40_000).Draw(rt, "begin")) * time.Millisecond)
		s.AckTimeout, s.GiveUpAfter, s.Retention = 24*time.Hour, 30*24*time.Hour, 90*24*time.Hour
		if rapid.Bool().Draw(rt, "bounded") {
			s.End = max(s.Begin, b.now).Add(time.Duration(rapid.IntRange(2000, 400_000).Draw(rt, "end")) * time.Millisecond)
			n.end = int64(s.End)
		}
		if n.typ != task.OneShot {
			s.Interval = time.Duration(rapid.IntRange(900, 20_000).Draw(rt, "interval")) * time.Millisecond
			s.MaxCount = rapid.SampledFrom([]int64{0, 0, 1, 3, 10}).Draw(rt, "max count")
		}
		if rapid.Bool().Draw(rt, "by cron") {
			s.Interval = 0
			expr := rapid.SampledFrom(slices.Sorted(mapKeys(naiveCrons))).Draw(rt, "expression")
			s.Cron = &task.Cron{Dialect: task.StandardCron, Expression: expr, Zone: "UTC"}
		}
		n.interval, n.max = s.Interval.Milliseconds(), s.MaxCount
		s.Spread = rapid.SampledFrom([]time.Duration{0, 0, 800 * time.Millisecond}).Draw(rt, "spread")
		s.Overlap = n.overlap
		switch s.Misfire = rapid.SampledFrom(misfires).Draw(rt, "misfire"); s.Misfire {
		case task.FireAll:
			n.limit = rapid.SampledFrom([]int{1, 2, 7, 1000}).Draw(rt, "limit")
			s.CatchUp = int32(n.limit)
		case task.Skip:
			n.grace = int64(rapid.SampledFrom([]int{0, 500, 3000, 60_000}).Draw(rt, "grace"))
			s.Grace = time.Duration(n.grace) * time.Millisecond
		}
		n.policy = max(s.Misfire, task.FireOnce)
	})
	return spec, n
}

func mapKeys[K comparable, V any](m map[K]V) func(func(K) bool) {
	return func(yield func(K) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// begin sets the instants of a task whose spread makes them so much later.
func (n *naive) begin(s *task.Spec, later, now int64) {
	n.next = int64(s.Begin) + later
	if s.Cron != nil {
		n.matches = eachSecond(int64(s.Begin), later, naiveCrons[s.Cron.Expression])
		n.next = n.matches[0]
	}
	n.due = max(n.next, now)
}

// impossible reports whether the instants that have been set never fire.
func (n *naive) impossible(now int64) bool {
	first := n.next
	for n.policy == task.Skip && first < now-n.grace && first < n.end {
		first = n.after(first, first)
	}
	return first >= n.end
}

func TestWhatFiresAndWhatIsMissedIsWhatANaiveModelSays(t *testing.T) {
	compareWithNaive(t, []task.Overlap{0})
}

func TestWhatFiresBesideOpenRunsIsWhatANaiveModelSays(t *testing.T) {
	compareWithNaive(t, []task.Overlap{task.OverlapSkip, task.OverlapBufferOne})
}

func compareWithNaive(t *testing.T, overlaps []task.Overlap) {
	var told missedSum
	b := setup(t, nearOnly, told.collect)
	rapid.Check(t, func(rt *rapid.T) {
		b.empty()
		told.take()
		b.setClock(1_767_225_600_000 + task.Instant(rapid.IntRange(0, 86_400_000).Draw(rt, "start")))
		spec, n := drawNaive(rt, b, overlaps)
		item := b.tryAdd(spec)[0]
		if len(item.Faults) > 0 {
			n.begin(&spec, 0, int64(b.now))
			early := n.impossible(int64(b.now))
			n.begin(&spec, max(0, spec.Spread.Milliseconds()-1), int64(b.now))
			if !early && !n.impossible(int64(b.now)) {
				rt.Fatalf("refused: %v", item.Faults)
			}
			return
		}
		n.begin(&spec, task.SpreadOf(item.ID, spec.Spread).Milliseconds(), int64(b.now))
		if n.impossible(int64(b.now)) {
			rt.Fatal("taken, though it never fires")
		}
		live(rt, b, n, item.ID)
		n.checkTold(rt, b.tenant, told.take())
	})
}

// checkTold compares the counts of missed instants with those of the model.
func (n *naive) checkTold(rt *rapid.T, tenant int32, got task.MissedCounts) {
	policy, counted := n.policy, int64(0)
	if policy == task.FireAll && n.typ != task.NonBlocking {
		policy = task.FireOnce
	}
	for by, missed := range got {
		if by.Tenant == tenant && by.Type == n.typ && (by.Policy == policy || by.Policy == task.ByOverlap && n.overlap != 0) {
			counted += missed
		}
	}
	if counted != n.missed || (n.missed == 0) != (len(got) == 0) {
		rt.Fatalf("told that %v were missed, the model: %d by %s and %s", got, n.missed, policy, n.overlap)
	}
}

// steps are those of a life; the first ones are drawn more often. Runs of tasks with an
// overlap policy are open for longer.
func (n *naive) steps() []string {
	if n.overlap != 0 {
		return []string{"claim", "outage", "claim", "succeed", "claim", "pause"}
	}
	return []string{"outage", "pause", "succeed", "succeed", "claim", "claim", "claim", "claim", "claim", "claim", "claim", "claim"}
}

// live takes the store and the model through the same outages.
func live(rt *rapid.T, b *bundle, n *naive, id task.ID) {
	var fired, told []int64
	var open []task.Attempt
	succeed := func() {
		for _, a := range open {
			if n.typ == task.Blocking {
				b.start(7, a)
			}
			r, next := success(id, a.Seq, a.Attempt, 7), int64(0)
			if rapid.IntRange(0, 5).Draw(rt, "says when") == 0 {
				r.Next = b.now.Add(time.Duration(rapid.IntRange(-5000, 60_000).Draw(rt, "next")) * time.Millisecond)
				next = int64(r.Next)
			}
			if codes := b.report(r); codes[0] != task.Accepted {
				rt.Fatalf("result of run %d: %s", a.Seq, codes[0])
			}
			n.succeed(int64(b.now), next)
		}
		open = nil
	}
	for range rapid.IntRange(1, 40).Draw(rt, "steps") {
		switch rapid.SampledFrom(n.steps()).Draw(rt, "step") {
		case "outage":
			b.advance(time.Duration(rapid.IntRange(1, 90_000).Draw(rt, "outage")) * time.Millisecond)
		case "pause":
			n.paused = !n.paused
			pause(rt, b, id, n)
			n.resumed(int64(b.now))
		case "succeed":
			succeed()
		default:
			b.advance(time.Duration(rapid.SampledFrom([]int{0, 1, 99, 100, 350, 1000, 2500, 9000}).Draw(rt, "ms")) * time.Millisecond)
			form := rapid.SampledFrom([]task.ClaimForm{task.RangeForm, task.CappedForm}).Draw(rt, "form")
			ahead := time.Duration(rapid.SampledFrom([]int{0, 0, 400}).Draw(rt, "ahead")) * time.Millisecond
			for _, p := range b.claimAhead(form, ahead).Publications {
				if p.Attempt > 1 {
					continue
				}
				fired, told = append(fired, int64(p.ScheduledAt)), append(told, p.Missed)
				open = append(open, attempt(id, p.Seq, p.Attempt))
			}
			n.claim(int64(b.now), ahead.Milliseconds())
			if n.typ == task.NonBlocking && n.overlap == 0 {
				succeed()
			}
		}
		if !slices.Equal(fired, n.fired) || !slices.Equal(told, n.told) {
			rt.Fatalf("at %s: fired %v with %v missed, the model %v with %v", b.now, fired, told, n.fired, n.told)
		}
	}
	got, err := b.Get(context.Background(), b.tenant, id)
	if err != nil || got.Missed != n.missed || got.Seq != int64(len(fired)) || (got.State == task.Completed) != (n.ended && len(open) == 0) {
		rt.Fatalf("at %s: %+v, %v; the model: %d missed, ended %t", b.now, got, err, n.missed, n.ended)
	}
}

// pause pauses or resumes the stored task.
func pause(rt *rapid.T, b *bundle, id task.ID, n *naive) {
	step := b.Resume
	if n.paused {
		step = b.Pause
	}
	_, err := step(context.Background(), b.tenant, id)
	if n.ended && len(n.fired) == 0 || err == nil {
		return
	}
	if task.CodeOf(err) != task.FailedPrecondition {
		rt.Fatal(err)
	}
}
