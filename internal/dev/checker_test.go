package dev

import (
	"slices"
	"strings"
	"testing"
	"time"
)

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(ms int) time.Time { return t0.Add(time.Duration(ms) * time.Millisecond) }

// history tells a checker what happened to task 1, in order.
type history struct {
	*checker
	blocking bool
}

func (h history) add(typ string, interval time.Duration, count int64) {
	h.added(1, spec{typ: typ, begin: at(0), end: at(60_000), interval: interval, count: count}, at(0))
}

// run is a whole run: called, ended, its result accepted.
func (h history) run(seq int64, scheduled, start, end int) {
	h.begin(seq, scheduled, start)
	h.end(seq, end)
}

func (h history) begin(seq int64, scheduled, start int) {
	h.started(call{task: 1, seq: seq, blocking: h.blocking, scheduled: at(scheduled)}, at(start))
}

func (h history) end(seq int64, end int) {
	h.ended(call{task: 1, seq: seq, blocking: h.blocking}, at(end))
	h.resulted(1, seq, at(end))
}

func TestCheckerFindsEveryPlantedFault(t *testing.T) {
	const end = 10_000
	for _, c := range []struct {
		name     string
		blocking bool
		tell     func(h history)
		want     []string
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
			h.run(1, 0, 5, 6)
			h.started(call{task: 1, seq: 2, scheduled: at(5000), missed: 4}, at(5001))
			h.end(2, 5002)
			h.run(3, 6000, 6001, 6002)
		}, nil},
		{"handlers of a grid may overlap", false, func(h history) {
			h.add(nonBlocking, time.Second, 2)
			h.begin(1, 0, 5)
			h.begin(2, 1000, 1001)
			h.end(2, 1002)
			h.end(1, 3000)
		}, nil},
		{"blocking as it should be", true, func(h history) {
			h.add("BLOCKING", time.Second, 2)
			h.run(1, 0, 5, 500)
			h.run(2, 1500, 1505, 1600)
		}, nil},
		{"callbacks before the answer to the add", false, func(h history) { h.run(1, 0, 5, 6); h.add(oneShot, 0, 1) }, nil},
		{"somebody else's task", false, func(h history) { h.run(7, 0, 5, 6) }, nil},
		{"delivered again without a second result", false, func(h history) {
			h.add(oneShot, 0, 1)
			h.run(1, 0, 5, 6)
			h.begin(1, 0, 100)
			h.ended(call{task: 1, seq: 1}, at(101))
		}, nil},
		{"early", false, func(h history) { h.add(oneShot, 0, 1); h.run(1, 100, 99, 100) }, []string{early}},
		{"before begin", false, func(h history) { h.add(oneShot, 0, 1); h.run(1, -1, 5, 6) }, []string{outOfBounds}},
		{"at the end", false, func(h history) { h.add(oneShot, 0, 1); h.run(1, 60_000, 60_000, 60_001) }, []string{outOfBounds}},
		{"out of bounds, known later", false, func(h history) { h.run(1, -1, 5, 6); h.add(oneShot, 0, 1) }, []string{outOfBounds}},
		{"one run too many", false, func(h history) { h.add(oneShot, 0, 1); h.run(1, 0, 5, 6); h.run(2, 10, 15, 16) }, []string{overCount}},
		{"overlap", true, func(h history) {
			h.add("BLOCKING", time.Second, 2)
			h.begin(1, 0, 5)
			h.begin(2, 1000, 1001)
			h.end(1, 1100)
			h.end(2, 1200)
		}, []string{overlapping}},
		{"two results", false, func(h history) { h.add(oneShot, 0, 1); h.run(1, 0, 5, 6); h.resulted(1, 1, at(7)) }, []string{duplicateResult}},
		{"one shot never called", false, func(h history) { h.add(oneShot, 0, 1) }, []string{lost}},
		{"last of a grid never called", false, func(h history) {
			h.add(nonBlocking, time.Second, 3)
			h.run(1, 0, 5, 6)
			h.run(2, 1000, 1005, 1006)
		}, []string{lost}},
		{"first blocking never called", true, func(h history) { h.add("BLOCKING", time.Second, 3) }, []string{lost}},
		{"next blocking never called", true, func(h history) { h.add("BLOCKING", time.Second, 3); h.run(1, 0, 5, 6) }, []string{lost}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := history{newChecker(), c.blocking}
			c.tell(h)
			h.close(at(end))
			total, examples := h.verdict()
			var got []string
			for _, e := range examples {
				kind, _, _ := strings.Cut(e, ":")
				got = append(got, kind)
			}
			if !slices.Equal(got, c.want) || total != len(c.want) {
				t.Errorf("got %v, want %v", examples, c.want)
			}
		})
	}
}

func TestNothingIsLostThatIsNotYetDue(t *testing.T) {
	h := history{newChecker(), true}
	h.add("BLOCKING", time.Second, 3)
	h.run(1, 0, 5, 500)
	if uncalled, underWay := h.open(at(1499)); uncalled != 0 || underWay != 0 {
		t.Errorf("before the interval has passed: %d uncalled, %d under way", uncalled, underWay)
	}
	if uncalled, _ := h.open(at(1500)); uncalled != 1 {
		t.Errorf("when it has: %d uncalled, want 1", uncalled)
	}
	if ids := h.unfinished(); !slices.Equal(ids, []int64{1}) {
		t.Errorf("unfinished: %v", ids)
	}
}

func TestTasksThatAreOverAreForgotten(t *testing.T) {
	h := history{newChecker(), false}
	h.add(oneShot, 0, 1)
	h.run(1, 0, 5, 6)
	h.added(2, spec{typ: oneShot, begin: at(0), count: 1}, at(0).Add(forgetAfter/2))
	if len(h.tasks) != 2 {
		t.Error("forgotten too early")
	}
	h.added(3, spec{typ: oneShot, begin: at(0), count: 1}, at(7).Add(forgetAfter))
	if h.tasks[1] != nil || h.tasks[2] == nil {
		t.Error("what is over must be forgotten, and nothing else")
	}
}
