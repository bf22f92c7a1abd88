package dev

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perceptor/perceptor/loadtest/check"
	"github.com/perceptor/perceptor/task"
)

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(ms int) time.Time { return t0.Add(time.Duration(ms) * time.Millisecond) }

// history records the events of task 1 with an observer, in order.
type history struct {
	*observer
	blocking bool
}

func (h history) add(typ task.Type, interval time.Duration, count int64) {
	h.addAs(1, typ, interval, count, at(0))
}

func (h history) addAs(id task.ID, typ task.Type, interval time.Duration, count int64, now time.Time) {
	h.added(check.Add{
		Number: int64(id), ID: id, Type: typ, Begin: task.At(at(0)), End: task.At(at(60_000)), Interval: interval, MaxCount: count,
	}, now)
}

// run records a whole run: the handler was called and ended, its result was accepted.
func (h history) run(seq int64, scheduled, start, end int) {
	h.begin(start)
	h.end(seq, scheduled, start, end)
}

func (h history) begin(start int) { h.started(1, at(start)) }

func (h history) end(seq int64, scheduled, start, end int) {
	h.endMissing(seq, scheduled, start, end, 0)
}

func (h history) endMissing(seq int64, scheduled, start, end int, missed int64) {
	h.call(seq, 1, scheduled, start, end, missed)
	h.report(seq, end)
}

func (h history) call(seq int64, attempt int32, scheduled, start, end int, missed int64) {
	if h.blocking {
		h.replied(check.Reply{ID: 1, Seq: seq, Attempt: attempt, Call: check.Start, Code: task.Accepted}, at(start))
	}
	h.ended(check.Execution{
		Number: 1, ID: 1, Seq: seq, Attempt: attempt, ScheduledAt: task.At(at(scheduled)), Start: check.At(at(start)), Missed: missed,
	}, at(end))
}

func (h history) report(seq int64, now int) {
	h.replied(check.Reply{ID: 1, Seq: seq, Attempt: 1, Call: check.Report, Code: task.Accepted}, at(now))
}

const oneShot, nonBlocking, blocking = task.OneShot, task.NonBlocking, task.Blocking

func TestCheckerFindsEveryPlantedFault(t *testing.T) {
	const end = 10_000
	for _, c := range []struct {
		name     string
		blocking bool
		tell     func(h history)
		want     []check.Kind
	}{
		{"one shot as it should be", false, func(h history) { h.add(oneShot, 0, 1); h.run(1, 0, 5, 6) }, nil},
		{"grid as it should be", false, func(h history) {
			h.add(nonBlocking, time.Second, 3)
			for i := range 3 {
				h.run(int64(i+1), 1000*i, 1000*i+5, 1000*i+6)
			}
		}, nil},
		{"grid with missed instants", false, func(h history) {
			h.add(nonBlocking, time.Second, 3)
			h.begin(4500)
			h.endMissing(1, 0, 4500, 4501, 4)
			h.run(2, 5000, 5001, 5002)
			h.run(3, 6000, 6001, 6002)
		}, nil},
		{"handlers of a grid may overlap", false, func(h history) {
			h.add(nonBlocking, time.Second, 2)
			h.begin(5)
			h.begin(1001)
			h.end(2, 1000, 1001, 1002)
			h.end(1, 0, 5, 3000)
		}, nil},
		{"blocking as it should be", true, func(h history) {
			h.add(blocking, time.Second, 2)
			h.run(1, 0, 5, 500)
			h.run(2, 1500, 1505, 1600)
		}, nil},
		{"callbacks before the answer to the add", false, func(h history) { h.run(1, 0, 5, 6); h.add(oneShot, 0, 1) }, nil},
		{"somebody else's task", false, func(h history) { h.run(7, 0, 5, 6) }, nil},
		{"delivered again without a second result", false, func(h history) {
			h.add(oneShot, 0, 1)
			h.run(1, 0, 5, 6)
			h.begin(100)
			h.call(1, 1, 0, 100, 101, 0)
		}, nil},
		{"early", false, func(h history) { h.add(oneShot, 0, 1); h.run(1, 0, -1, 6) }, []check.Kind{check.Early}},
		{"before begin", false, func(h history) { h.add(oneShot, 0, 1); h.run(1, -1, 5, 6) }, []check.Kind{check.OutOfBounds, check.OutOfBounds}},
		{"at the end", false, func(h history) { h.add(oneShot, 0, 1); h.run(1, 60_000, 60_000, 60_001) }, []check.Kind{check.OutOfBounds, check.OutOfBounds}},
		{"out of bounds, known later", false, func(h history) { h.run(1, -1, 5, 6); h.add(oneShot, 0, 1) }, []check.Kind{check.OutOfBounds, check.OutOfBounds}},
		{"one run too many", false, func(h history) { h.add(oneShot, 0, 1); h.run(1, 0, 5, 6); h.run(2, 10, 15, 16) }, []check.Kind{check.OverCount, check.OutOfBounds}},
		{"overlap", true, func(h history) {
			h.add(blocking, time.Second, 2)
			h.begin(5)
			h.begin(1001)
			h.end(1, 0, 5, 1100)
			h.end(2, 1000, 1001, 1200)
		}, []check.Kind{check.Overlap, check.Early}},
		{"two results", false, func(h history) { h.add(oneShot, 0, 1); h.run(1, 0, 5, 6); h.report(1, 7) }, []check.Kind{check.DuplicateResult}},
		{"one shot never called", false, func(h history) { h.add(oneShot, 0, 1) }, []check.Kind{check.Lost}},
		{"last of a grid never called", false, func(h history) {
			h.add(nonBlocking, time.Second, 3)
			h.run(1, 0, 5, 6)
			h.run(2, 1000, 1005, 1006)
		}, []check.Kind{check.Lost}},
		{"first blocking never called", true, func(h history) { h.add(blocking, time.Second, 3) }, []check.Kind{check.Lost}},
		{"next blocking never called", true, func(h history) { h.add(blocking, time.Second, 3); h.run(1, 0, 5, 6) }, []check.Kind{check.Lost}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := history{newObserver(), c.blocking}
			c.tell(h)
			total, examples := h.verdict(at(end))
			var got []check.Kind
			for _, e := range examples {
				kind, _, _ := strings.Cut(e, ":")
				got = append(got, check.Kind(kind))
			}
			if !slices.Equal(got, c.want) || total != int64(len(c.want)) {
				t.Errorf("got %v, want %v", examples, c.want)
			}
		})
	}
}

func TestNothingIsLostThatIsNotYetDue(t *testing.T) {
	h := history{newObserver(), true}
	h.add(blocking, time.Second, 3)
	h.run(1, 0, 5, 500)
	if h.pending(at(1499)) {
		t.Error("pending = true before the interval has passed")
	}
	if !h.pending(at(1520)) { // clocks may differ by some ms
		t.Error("pending = false after the interval has passed")
	}
	if ids := h.unfinished(); !slices.Equal(ids, []int64{1}) {
		t.Errorf("unfinished tasks = %v", ids)
	}
}

func TestAHandlerThatRunsIsWaitedFor(t *testing.T) {
	h := history{newObserver(), false}
	h.add(oneShot, 0, 1)
	h.begin(5)
	if !h.pending(at(-1)) {
		t.Error("pending = false while a handler runs")
	}
	h.call(1, 1, 0, 5, 6, 0)
	if !h.pending(at(-1)) {
		t.Error("pending = false while a result has no answer")
	}
	h.report(1, 7)
	if h.pending(at(10_000)) {
		t.Error("pending = true when every run is done")
	}
}

func TestTasksThatAreOverAreForgotten(t *testing.T) {
	h := history{newObserver(), false}
	h.add(oneShot, 0, 1)
	h.run(1, 0, 5, 6)
	h.addAs(2, oneShot, 0, 1, at(0).Add(forgetAfter/2))
	if len(h.tasks) != 2 {
		t.Error("the task was forgotten too early")
	}
	h.addAs(3, oneShot, 0, 1, at(7).Add(forgetAfter+forgetAfter/2))
	if h.tasks[1] != nil || h.tasks[2] == nil {
		t.Error("sweep must forget exactly the tasks that are over")
	}
	if h.total != 0 {
		t.Errorf("%d violations: %v", h.total, h.examples)
	}
}
