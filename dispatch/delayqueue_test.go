package dispatch

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/perceptor/perceptor/task"
)

func TestDelayQueueHandsOutNothingEarlyAndNothingLaterThanASlice(t *testing.T) {
	const slice = 10 * time.Millisecond
	rapid.Check(t, func(rt *rapid.T) {
		s := newDelayQueue(slice, begun)
		due := rapid.SliceOfN(rapid.IntRange(1, 2_000_000), 1, 50).Draw(rt, "due µs")
		for _, d := range due {
			at := begun.Add(time.Duration(d) * time.Microsecond)
			s.put(&record{dueAt: at}, at)
		}
		out := 0
		for next := s.next(); !next.IsZero(); next = s.next() {
			if early := s.takeDue(next.Add(-1)); len(early) > 0 {
				rt.Fatalf("%d records released before their slice at %s", len(early), next)
			}
			for _, r := range s.takeDue(next) {
				if out++; next.Before(r.dueAt) || next.Sub(r.dueAt) >= slice {
					rt.Fatalf("record due at %s was released at %s", r.dueAt, next)
				}
			}
			if s.len() != len(due)-out {
				rt.Fatalf("records = %d, want %d", s.len(), len(due)-out)
			}
		}
		if out != len(due) {
			rt.Fatalf("released %d of %d records", out, len(due))
		}
	})
}

func TestAWindowIsPublishedInTimeForAllOfItAndNotTooEarly(t *testing.T) {
	const slice = 10 * time.Millisecond
	rapid.Check(t, func(rt *rapid.T) {
		ahead := time.Duration(rapid.IntRange(0, 500).Draw(rt, "ahead ms")) * time.Millisecond
		p := newBatchWindow(ahead, slice, begun)
		s := newDelayQueue(slice, p.zero)
		r := &record{dueAt: begun.Add(time.Duration(rapid.IntRange(1_000_000, 2_000_000).Draw(rt, "due µs")) * time.Microsecond)}
		s.put(r, p.publishAt(r.dueAt, rapid.Bool().Draw(rt, "many")))
		switch by := r.dueAt.Sub(s.next()); {
		case p.ahead == 0 && (by > 0 || by <= -slice):
			rt.Fatalf("a record that is not published ahead is published %s ahead", by)
		case p.ahead > 0 && (by > ahead || by < 0):
			rt.Fatalf("published %s ahead, want at most %s and not late", by, ahead)
		}
	})
}

func TestDelayQueueRemovesWhatMatches(t *testing.T) {
	s := newDelayQueue(10*time.Millisecond, begun)
	gone := &part{}
	for i := range 20 {
		r := &record{part: &part{}, dueAt: at(i + 1)}
		if i != 3 {
			r.part = gone
		}
		s.put(r, r.dueAt)
	}
	removed := s.remove(func(r *record) bool { return r.part == gone })
	if len(removed) != 19 || s.len() != 1 || !s.next().Equal(at(10)) {
		t.Errorf("removed %d records and left %d, next at %s, want 19, 1 and 10 ms", len(removed), s.len(), s.next())
	}
	if left := s.takeDue(s.next()); len(left) != 1 || !s.next().IsZero() {
		t.Errorf("the next slice has %d records and another one follows at %s, want 1 record in 1 slice", len(left), s.next())
	}
}

func TestWhatTheSetClockHasShownIsNotDelayedAnyLonger(t *testing.T) {
	const b, other = 1, 2
	c := &pipeline{signal: newSignal(), topics: map[int32]*topicQueue{7: {tenant: 7}}, delayed: newDelayQueue(10*time.Millisecond, begun)}
	for _, r := range []*record{
		{part: &part{database: b}, pub: task.Publication{Tenant: 7, ScheduledAt: db(100)}},
		{part: &part{database: b}, pub: task.Publication{Tenant: 7, ScheduledAt: db(101)}},
		{part: &part{database: other}, pub: task.Publication{Tenant: 7, ScheduledAt: db(100)}},
	} {
		r.dueAt = at(3_600_000)
		c.delayed.put(r, r.dueAt)
	}
	c.comeDue(b, db(100))
	if queue := c.topics[7].queue; len(queue) != 1 || queue[0].part.database != b || queue[0].pub.ScheduledAt != db(100) || c.delayed.len() != 2 {
		t.Errorf("%d records are queued and %d delayed, want 1 and 2", len(queue), c.delayed.len())
	}
}
