package task

import (
	"time"
)

// # When instants pass without firing
//
// A row has one instant that fires next, ScheduledAt. When it is claimed late,
// instants after it may have passed as well. Two steps of a claim decide about them:
// [Machine.dropMissed] decides which instant fires, and [Row.nextRun] decides which
// one is next.
//
//	             fires                               next
//	FIRE_ONCE    the stored one                      the first that has not passed
//	FIRE_ALL     the oldest of the newest CatchUp    the one after it, one catch-up interval later,
//	                                                 also after a resume or an edit
//	SKIP         the first within the grace          the first after it within the grace
//
// All other instants that have passed are counted in Missed. A BLOCKING task has only
// its stored instant until the run has its result, so FIRE_ALL is FIRE_ONCE for it. A task
// with an overlap policy never catches up: what is next is as under FIRE_ONCE (overlap.go).

// Skipped are instants that passed without a claim.
type Skipped struct {
	// Seq is the number that the run of the first instant would have had.
	Seq int64
	// From is the first instant.
	From Instant
	N    int64
	// Overlap is true if the overlap policy has skipped them, and not the misfire policy.
	Overlap bool
}

// MissedCounts count instants that passed without firing, by tenant, type and the policy
// that was applied. The zero value counts none.
type MissedCounts map[MissedBy]int64

// MissedBy is the key of [MissedCounts]. Policy is [ByOverlap] for instants that the overlap
// policy has skipped.
type MissedBy struct {
	Tenant int32
	Type   Type
	Policy Misfire
}

// Add counts n instants.
func (c *MissedCounts) Add(tenant int32, t Type, policy Misfire, n int64) {
	if *c == nil {
		*c = MissedCounts{}
	}
	(*c)[MissedBy{tenant, t, policy}] += n
}

// misfire returns the misfire policy that applies to the row.
func (r *Row) misfire() Misfire { return r.MisfirePolicy(r.Type) }

// unreadable reports whether this program cannot read the terms of the task. Then it
// must not compute instants.
func (r *Row) unreadable() bool { return r.Unreadable() != "" }

// Unreadable says why this program cannot read the terms of the task. It returns "" if it
// can. The calendar of the row must have been set.
func (r *Row) Unreadable() string {
	switch {
	case r.Damaged != "" && r.Damaged[0] > sealedFormat:
		return "its terms have a newer format than this program knows"
	case r.Damaged != "":
		return "its terms cannot be read: they are damaged, or a newer program wrote them"
	case r.Cron != nil && r.Calendar == nil:
		return "its cron expression cannot be read"
	}
	return ""
}

// gridAfter returns the first instant of the schedule, open or closed, that is later than
// both at and x. at must be an instant of the schedule. It returns Never if there is no
// such instant. It ignores End and MaxCount.
func (r *Row) gridAfter(at, x Instant) Instant {
	x = max(at, x)
	if r.Interval > 0 {
		step := Instant(r.Interval.Milliseconds())
		return at + ((x-at)/step+1)*step
	}
	if r.Type != OneShot && r.Calendar != nil {
		if next, ok := r.Calendar.Next(x); ok {
			return next
		}
	}
	return Never
}

// gridCount counts the instants of the schedule, open or closed, that are later than x,
// not later than y, and before End. at must be an instant of the schedule, and not be later
// than x.
func (r *Row) gridCount(at, x, y Instant) int64 {
	y = min(y, r.End-1)
	switch {
	case y <= x || r.Type == OneShot:
		return 0
	case r.Interval > 0:
		step := Instant(r.Interval.Milliseconds())
		return int64((y-at)/step - (x-at)/step)
	case r.Calendar != nil:
		return r.Calendar.Count(x, y)
	}
	return 0
}

// nthInstant returns instant number n after at. That instant must not be after limit.
func (r *Row) nthInstant(at Instant, n int64, limit Instant) Instant {
	if r.Interval > 0 && r.Windows == nil {
		return at + Instant(n*r.Interval.Milliseconds())
	}
	low, high := at, limit // the instant is in (low, high]; it is number n after low
	for high-low > 1 {
		middle := low + (high-low)/2
		// What lies before low is not counted again: a claim waits for this.
		if count := r.countOpen(at, low, middle); count >= n {
			high = middle
		} else {
			low, n = middle, n-count
		}
	}
	return high
}

// skipMissed moves ScheduledAt past the instants that will not fire, for a claim at
// now (see misfireAt), and returns their number.
func (r *Row) skipMissed(now Instant) (n int64) {
	at := r.ScheduledAt
	switch r.misfire() {
	case Skip:
		if oldest := now.Add(-r.Grace); at < oldest {
			n = 1 + r.countInstants(at, oldest-1)
			r.ScheduledAt = r.instantAfter(at, oldest-1)
		}
	case FireAll:
		if n = max(0, 1+r.countInstants(at, now)-int64(r.catchUp())); n > 0 {
			r.ScheduledAt = r.nthInstant(at, n, now)
		}
	}
	r.Missed += n
	return n
}

// firesLate reports whether an instant of a SCHEDULED row that has come will fire, by the
// misfire policy.
func (r *Row) firesLate(now Instant) bool {
	late := *r
	late.skipMissed(now)
	return late.ScheduledAt <= now && !late.exhausted(late.ScheduledAt)
}

func (r *Row) catchUp() int32 {
	if r.CatchUp > 0 {
		return r.CatchUp
	}
	return DefaultCatchUp
}

// nextRun returns the instant that follows at after a claim at now (see misfireAt),
// and the number of instants that are missed between them.
func (r *Row) nextRun(at, now Instant) (next Instant, missed int64) {
	x := at
	if r.MaxCount == 0 || r.Seq < r.MaxCount {
		switch misfire := r.misfire(); {
		case misfire == FireOnce || r.Overlap != 0:
			x = now - 1
		case misfire == Skip:
			x = now.Add(-r.Grace) - 1
		}
	}
	return r.instantAfter(at, x), r.countInstants(at, x)
}

// findInstant makes sure that the next instant of a SCHEDULED task is known. If it
// cannot be computed, or lies in the future, findInstant makes the row wait and returns
// false.
func (m *Machine) findInstant(now Instant) bool {
	t := m.Task
	if t.Type == NonBlocking && (t.unreadable() || t.Unknown.Name != "") {
		m.releaseSilent(now, now)
	}
	if t.unreadable() {
		t.DueAt = now.Add(UnreadableDelay)
		t.markChanged()
		return false
	}
	if t.Unknown.Name != "" {
		if t.DueAt = now.Add(CalendarDelay); t.Unknown.Reading {
			t.DueAt = now.Add(CalendarReadDelay)
		}
		t.markChanged()
		return false
	}
	if t.ScheduledAt != Never {
		return m.leaveClosed(now)
	}
	t.ScheduledAt = t.instantAfter(t.Anchor, t.Anchor)
	t.markChanged()
	return m.claimable(now)
}

// waitUnreadable makes a BLOCKING row wait if its expression cannot be read. The next
// instant is the first match after Anchor. A program that can read the expression will
// compute it.
func (r *Row) waitUnreadable(now Instant) {
	r.Anchor = now
	r.waitUntil(Never, now)
	if !r.Paused {
		r.DueAt = now.Add(UnreadableDelay)
	}
	r.markChanged()
}

// dropMissed moves a SCHEDULED task past missed instants to the one that fires. It
// returns false if that instant has not come, or if the task has ended. Then Skipped
// holds the missed instants.
func (m *Machine) dropMissed(now Instant) (missed int64, ok bool) {
	t := m.Task
	from := t.ScheduledAt
	n := t.skipMissed(m.misfireAt(now))
	if n == 0 {
		return 0, true
	}
	t.markChanged()
	if m.leaveClosed(now) && m.claimable(now) {
		return n, true
	}
	m.noteSkipped(from, n)
	return 0, false
}

// noteSkipped adds n instants, the first of which is from, to Skipped.
func (m *Machine) noteSkipped(from Instant, n int64) {
	if n > 0 {
		m.Skipped = append(m.Skipped, Skipped{Seq: m.Task.Seq + 1, From: from, N: n})
	}
}

// claimable reports whether the instant of a SCHEDULED task has come. If not, it makes
// the task wait for the instant. A task without a further instant ends with its last
// open run.
func (m *Machine) claimable(now Instant) bool {
	t := m.Task
	switch {
	case !t.exhausted(t.ScheduledAt):
		if t.ScheduledAt <= now {
			return true
		}
		if t.DueAt = t.ScheduledAt; t.Type == NonBlocking && t.DueAt > now.Add(MaxBitGap) {
			m.detachFrom(0, now)
		}
	case t.Type == NonBlocking:
		t.State, t.DueAt = Running, t.silentAt()
		m.finishIfDone()
	default:
		m.finish(Completed)
	}
	return false
}

// spaceCatchUp defers a task that is catching up by one catch-up interval. Its last run
// may just have been claimed, and the instant of that claim is no longer known.
func (m *Machine) spaceCatchUp(now Instant) {
	t := m.Task
	if t.misfire() == FireAll && t.State == Scheduled && !t.Paused && t.Seq > 0 && t.ScheduledAt <= now {
		t.DueAt = max(t.DueAt, now.Add(m.catchUpInterval()))
	}
}

// catchUpInterval returns the least time between two runs that catch up.
func (m *Machine) catchUpInterval() time.Duration {
	if m.CatchUpInterval > 0 {
		return m.CatchUpInterval
	}
	return DefaultCatchUpInterval
}

// Upcoming returns the next n instants later than after at which runs of a SCHEDULED
// task will be scheduled. It assumes that each fires on time and that runs of BLOCKING
// have their results at once. It returns none from [LastInstant] on, because formats of time end soon after it.
func (r *Row) Upcoming(after Instant, n int) []Instant {
	at := r.ScheduledAt
	left := int64(n)
	if r.MaxCount > 0 {
		left = min(left, r.MaxCount-r.Seq)
	}
	if at <= after {
		if r.MaxCount > 0 {
			left = min(int64(n), r.MaxCount-r.Seq-1-r.countInstants(at, after))
		}
		at = r.instantAfter(at, after)
	}
	var out []Instant
	for at = r.firstOpen(at); left > 0 && at < min(r.End, LastInstant) && r.Windows.Open(at); left-- {
		out = append(out, at)
		at = r.instantAfter(at, at)
	}
	return out
}
