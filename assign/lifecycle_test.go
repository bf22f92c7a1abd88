package assign

import (
	"slices"
	"testing"
	"time"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(d time.Duration) time.Time { return epoch.Add(d) }

// others returns a view, read at t, in which another member has items.
func others(t time.Time, items ...int) *view {
	return &view{at: t, nodesRead: true, members: []registration{{id: "other", read: true, current: items}}}
}

func wants(ids ...int) map[int]bool {
	m := map[int]bool{}
	for _, id := range ids {
		m[id] = true
	}
	return m
}

// owning returns a lifecycle that owns the given items of one group since the
// epoch.
func owning(t *testing.T, fenced bool, ids ...int) *lifecycle {
	t.Helper()
	h := newLifecycle(plainItems(4), fenced, 5*time.Second)
	h.setRequested(wants(ids...), epoch)
	take(t, h, at(0), ids...)
	return h
}

// take announces and acquires the announceable items, which must be ids.
func take(t *testing.T, h *lifecycle, now time.Time, ids ...int) {
	t.Helper()
	got, _ := h.announceable(others(now.Add(1)), "self", now)
	if !slices.Equal(got, ids) {
		t.Fatalf("announceable: %v, want %v", got, ids)
	}
	h.announced(got, func(int) bool { return false })
	finish(t, h, now, true, nil, ids...)
}

// finish expects one call, about ids, and ends it.
func finish(t *testing.T, h *lifecycle, now time.Time, acquire bool, err error, ids ...int) {
	t.Helper()
	h.done(expectCall(t, h, now, acquire, ids...), err, now)
}

func expectCall(t *testing.T, h *lifecycle, now time.Time, acquire bool, ids ...int) call {
	t.Helper()
	calls, _ := h.calls(now)
	if len(calls) != 1 || calls[0].acquire != acquire || !slices.Equal(idsOf(calls[0].items), ids) {
		t.Fatalf("calls: %+v, want one with acquire %v for %v", calls, acquire, ids)
	}
	return calls[0]
}

func expectNoCall(t *testing.T, h *lifecycle, now time.Time) {
	t.Helper()
	if calls, _ := h.calls(now); len(calls) != 0 {
		t.Fatalf("calls: %+v, want none", calls)
	}
}

func TestNothingIsAnnouncedWhileAnotherMemberHasIt(t *testing.T) {
	h := newLifecycle(plainItems(4), true, 5*time.Second)
	h.setRequested(wants(0, 1), epoch)
	for _, c := range []struct {
		name  string
		view  *view
		after time.Duration
		ids   []int
		wake  time.Duration
	}{
		{"no view", nil, 0, nil, 0},
		{"the members' nodes were not read", &view{at: at(1)}, 0, nil, 0},
		{"nobody holds anything", others(at(1)), 0, []int{0, 1}, 0},
		{"one has another owner", others(at(1), 1), time.Second, []int{0}, 5 * time.Second},
		{"one has another owner for too long", others(at(1), 1), 5 * time.Second, []int{0, 1}, 0},
		{"a node cannot be understood", &view{at: at(1), nodesRead: true, members: []registration{{id: "other"}}}, time.Second, nil, 5 * time.Second},
		{"the own node lists it", &view{at: at(1), nodesRead: true, members: []registration{{id: "self", read: true, current: []int{0, 1}}}}, 0, []int{0, 1}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			ids, wake := h.announceable(c.view, "self", at(c.after))
			if !slices.Equal(ids, c.ids) {
				t.Errorf("announceable %v, want %v", ids, c.ids)
			}
			if c.wake == 0 && !wake.IsZero() || c.wake > 0 && !wake.Equal(at(c.wake)) {
				t.Errorf("wake at %v, want %v", wake, c.wake)
			}
		})
	}
	h.fenced = false
	if ids, wake := h.announceable(others(at(1), 1), "self", at(time.Hour)); !slices.Equal(ids, []int{0}) || !wake.IsZero() {
		t.Errorf("unfenced: announceable %v, wake %v", ids, wake)
	}
}

func TestTheTakeoverClockStartsWithTheRequest(t *testing.T) {
	h := newLifecycle(plainItems(1), true, 5*time.Second)
	h.setRequested(wants(0), at(0))
	h.setRequested(wants(), at(4*time.Second)) // the plan has changed
	h.setRequested(wants(0), at(6*time.Second))
	if ids, wake := h.announceable(others(at(1), 0), "self", at(10*time.Second)); len(ids) != 0 || !wake.Equal(at(11*time.Second)) {
		t.Errorf("announceable %v, wake %v", ids, wake)
	}
	h.setRequested(wants(0), at(10*time.Second)) // a newer plan with the same request
	if ids, _ := h.announceable(others(at(1), 0), "self", at(11*time.Second)); !slices.Equal(ids, []int{0}) {
		t.Errorf("announceable %v", ids)
	}
}

func TestAnItemThatMovesAwayDuringItsAcquireIsReleasedAfterwards(t *testing.T) {
	h := newLifecycle(plainItems(1), true, time.Second)
	h.setRequested(wants(0), epoch)
	h.announced([]int{0}, func(int) bool { return false })
	c := expectCall(t, h, epoch, true, 0)
	h.setRequested(wants(), epoch)
	expectNoCall(t, h, epoch) // one call at a time
	h.done(c, nil, epoch)
	if !slices.Equal(h.current(), []int{0}) {
		t.Errorf("current items %v before its release", h.current())
	}
	finish(t, h, epoch, false, nil, 0)
	if len(h.current()) != 0 {
		t.Errorf("current items %v after its release", h.current())
	}
}

func TestAnAnnouncementThatIsNoLongerWantedIsWithdrawnWithoutACall(t *testing.T) {
	h := newLifecycle(plainItems(1), true, time.Second)
	h.setRequested(wants(0), epoch)
	h.announced([]int{0}, func(int) bool { return false })
	h.setRequested(wants(), epoch)
	expectNoCall(t, h, epoch)
	if len(h.current()) != 0 {
		t.Errorf("current items %v", h.current())
	}
}

func TestAFailedAcquireKeepsItsAnnouncementAndWaitsLongerEachTime(t *testing.T) {
	h := newLifecycle(plainItems(1), true, time.Second)
	h.setRequested(wants(0), epoch)
	h.announced([]int{0}, func(int) bool { return false })
	now := epoch
	for _, delay := range []time.Duration{100, 200, 400, 800, 1600, 3200, 5000, 5000} {
		finish(t, h, now, true, errPlanted, 0)
		if !slices.Equal(h.current(), []int{0}) {
			t.Fatalf("current items %v", h.current())
		}
		calls, wake := h.calls(now)
		if want := now.Add(delay * time.Millisecond); len(calls) != 0 || !wake.Equal(want) {
			t.Fatalf("calls %v, wake %v, want %v", calls, wake, want)
		}
		now = wake
	}
}

func TestAFailedReleaseMustSucceedEvenIfThePlanComesBack(t *testing.T) {
	h := owning(t, true, 0)
	h.setRequested(wants(), at(1))
	finish(t, h, at(1), false, errPlanted, 0)
	h.setRequested(wants(0), at(2)) // the worker may have stopped half of the work
	finish(t, h, at(time.Second), false, nil, 0)
	if ids, _ := h.announceable(others(at(2*time.Second)), "self", at(2*time.Second)); !slices.Equal(ids, []int{0}) {
		t.Errorf("announceable %v", ids)
	}
}

func TestALostItemIsAnnouncedOnlyByALaterView(t *testing.T) {
	h := owning(t, true, 0, 1)
	if lost := h.dropLost([]int{0, 3, 9}, at(time.Second)); !slices.Equal(lost, []int{0}) {
		t.Errorf("lost %v", lost)
	}
	expectNoCall(t, h, at(time.Second)) // the worker already knows
	if ids, _ := h.announceable(others(at(time.Second)), "self", at(time.Second)); len(ids) != 0 {
		t.Errorf("announceable %v with a view that is not newer than the loss", ids)
	}
	if !h.readAfter().Equal(at(time.Second)) || !h.missing() {
		t.Errorf("read after %v, missing %v", h.readAfter(), h.missing())
	}
	h.setRequested(wants(1), at(2*time.Second)) // the plan, read again, names another member
	if ids, _ := h.announceable(others(at(2*time.Second)), "self", at(2*time.Second)); len(ids) != 0 {
		t.Errorf("announceable %v against the plan", ids)
	}
}

func TestItemsLostAgainAndAgainAreTakenLessAndLessOften(t *testing.T) {
	h := owning(t, true, 0)
	now := at(0)
	for _, delay := range []time.Duration{0, 200, 400, 800} {
		now = now.Add(time.Millisecond)
		h.dropLost([]int{0}, now)
		early := now.Add(max(0, delay*time.Millisecond-1))
		if ids, _ := h.announceable(others(early.Add(1)), "self", early); delay > 0 && len(ids) != 0 {
			t.Fatalf("announceable %v before %v have passed", ids, delay)
		}
		now = now.Add(delay * time.Millisecond)
		take(t, h, now, 0)
	}
	now = now.Add(stableAfter)
	h.dropLost([]int{0}, now)
	take(t, h, now, 0) // at once, because the last loss is long ago
}

func TestAnItemLostDuringItsReleaseIsGone(t *testing.T) {
	h := owning(t, true, 0)
	h.setRequested(wants(), at(1))
	c := expectCall(t, h, at(1), false, 0)
	h.dropLost([]int{0}, at(2))
	h.done(c, errPlanted, at(3))
	expectNoCall(t, h, at(time.Minute))
	if len(h.current()) != 0 {
		t.Errorf("current items %v", h.current())
	}
}

func TestWithoutContactAnUnfencedMemberReleasesEverythingAndTakesNothing(t *testing.T) {
	h := owning(t, false, 0, 1)
	h.setRequested(wants(0, 1, 2), at(1))
	h.announced([]int{2}, func(int) bool { return false })
	h.cutOff = true
	finish(t, h, at(2), false, nil, 0, 1)
	if ids, _ := h.announceable(others(at(3)), "self", at(3)); len(ids) != 0 || len(h.current()) != 0 {
		t.Errorf("announceable %v, current items %v", ids, h.current())
	}
	h.cutOff = false
	take(t, h, at(4), 0, 1, 2)
}

func TestReleasesComeBeforeAcquiresOfTheSameGroup(t *testing.T) {
	h := owning(t, true, 0, 1)
	h.setRequested(wants(1, 2), at(1))
	h.announced([]int{2}, func(int) bool { return false })
	finish(t, h, at(1), false, nil, 0)
	finish(t, h, at(1), true, nil, 2)
	if !slices.Equal(h.current(), []int{1, 2}) {
		t.Errorf("current items %v", h.current())
	}
}
