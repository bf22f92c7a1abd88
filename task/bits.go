package task

import (
	"math/bits"
	"time"
)

// # Open runs without a row
//
// A NON_BLOCKING task keeps its open runs as bits of OpenRuns while results come. A run
// whose ack_timeout has passed without a result is silent, and gets a row of its own, from
// which it is delivered again:
//
//   - by the first claim of the task after that instant, which writes the row of the task
//     anyway;
//   - if no claim will come within a day ([MaxBitGap]), because the last run was claimed, the
//     task is paused or the next instant is later, at its ack_timeout. By the next instant
//     Kafka might have deleted the record.
//
// So a run that gets its result in time costs no write and no index entry more.
//
// An ack_timeout counts from the claim. The claim of a run that has only a bit is not
// stored: it is the scheduled instant, except for a late claim. FirstClaimAt holds the
// instant of the last late claim, and all open bits were claimed then or later. A late
// claim that finds older open runs gives them rows first.

// maxTolerance bounds the lateness of a claim that is not stored.
const maxTolerance = 10 * time.Second

// tolerance is the lateness up to which a claim counts as made at its scheduled instant.
// The fragment late_claim in SQL has the same rule.
func (r *Row) tolerance() time.Duration {
	return min(r.AckTimeout/16, maxTolerance).Truncate(time.Millisecond)
}

// scheduledOf returns the scheduled instant of the run of bit i.
func (r *Row) scheduledOf(i int64) Instant {
	return r.Anchor - Instant(i*r.Interval.Milliseconds())
}

// CurrentInstant returns the scheduled instant of the current run of a RUNNING task, or of the next
// run of a SCHEDULED one. After the last claim of a NON_BLOCKING task ScheduledAt is an instant that
// does not fire, and the current run is the newest open one. If open runs have rows of
// their own, it is the newest run of the schedule.
func (r *Row) CurrentInstant() Instant {
	switch {
	case r.Type != NonBlocking || r.Run != 0 || r.State != Running:
		return r.ScheduledAt
	case r.OpenRuns == 0:
		return r.Anchor
	}
	return r.scheduledOf(int64(bits.TrailingZeros64(r.OpenRuns)))
}

// claimedAt returns the instant of the claim of the run of bit i. It may be earlier than
// the claim by the tolerance.
func (r *Row) claimedAt(i int64) Instant { return max(r.scheduledOf(i), r.FirstClaimAt) }

// silentAt returns the instant at which the oldest run of OpenRuns is silent, or Never.
func (r *Row) silentAt() Instant {
	if r.OpenRuns == 0 {
		return Never
	}
	return r.claimedAt(r.oldestBit()).Add(r.AckTimeout)
}

// oldestBit returns the highest set bit of OpenRuns, which must not be 0.
func (r *Row) oldestBit() int64 { return int64(bits.Len64(r.OpenRuns)) - 1 }

// clearBit closes the run of bit i.
func (r *Row) clearBit(i int64) {
	if r.OpenRuns &^= 1 << i; r.OpenRuns == 0 {
		r.FirstClaimAt = 0
	}
	r.markChanged()
}

// recordLateClaim records the instant of a claim if it is late. Claims within the
// tolerance count as one: they are those of a task that catches up.
func (m *Machine) recordLateClaim(now Instant) {
	t := m.Task
	switch {
	case now.Sub(t.ScheduledAt) <= t.tolerance():
	case t.FirstClaimAt == 0 || now.Sub(t.FirstClaimAt) > t.tolerance():
		m.detachFrom(0, now)
		t.FirstClaimAt = now
	}
}

// releaseSilent detaches the runs that were silent before an instant.
func (m *Machine) releaseSilent(before, now Instant) {
	for t := m.Task; t.silentAt() < before; {
		m.detachRun(t.Seq-t.oldestBit(), now)
	}
}

// detachFrom detaches the open runs of bit i and of all older bits. Each keeps its
// ack_timeout.
func (m *Machine) detachFrom(i int64, now Instant) {
	t := m.Task
	for ; i < OpenBits; i++ {
		if t.OpenRuns&(1<<i) != 0 {
			m.detachRun(t.Seq-i, max(now, t.claimedAt(i).Add(t.AckTimeout)))
		}
	}
}

// detachRun clears the bit of run seq and makes its run row, with the first attempt out.
func (m *Machine) detachRun(seq int64, due Instant) *Row {
	t := m.Task
	i := t.Seq - seq
	r := *t
	r.Run, r.State, r.Paused, r.Change = seq, Running, false, Added
	r.ScheduledAt, r.FirstClaimAt, r.DueAt = t.scheduledOf(i), t.claimedAt(i), due
	r.OpenRuns, r.OpenRows, r.Missed = 0, 0, 0
	r.Attempt, r.Out = 1, true
	t.clearBit(i)
	t.OpenRows++
	if m.Runs == nil {
		m.Runs = map[int64]*Row{}
	}
	m.Runs[seq] = &r
	return &r
}
