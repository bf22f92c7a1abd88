package task

import "fmt"

// # Overlap
//
// The instants of a NON_BLOCKING task come whether its earlier runs are open or not. The
// overlap policy says what happens to an instant that is claimed while one is open:
//
//	ALLOW       it fires
//	SKIP        it does not fire and is missed; the next one is the first that has not passed
//	BUFFER_ONE  it stays the next one and fires when no run is open; later ones are missed then
//
// A run is open from its claim, or its trigger, until it is closed: retries and silence
// do not close it. The rest follows from a few rules:
//
//   - Of the instants that have passed, at most one fires. So nextRun passes over the
//     others, as under FIRE_ONCE, and FIRE_ALL is refused.
//   - The claim is the only place that looks at the open runs. The row of an instant that
//     waits is due again when the next instant comes, and at the latest after MaxBitGap, so
//     silent runs are found as by any other claim. It has a due_at after its scheduled_at:
//     by this SQL knows that a result needs package task (row_of_result in report.sql).
//   - The step that closes the last open run makes the row due ([Machine.closed]).
//   - The row is not claimed ahead while a run is open ([Row.Overlapped]): the run may be
//     closed before the instant comes.

// Overlap is a policy for instants that come while an earlier run of the task is open. The
// numbers are stored and are those of the API.
type Overlap int16

// The overlap policies. Terms have 0 for OverlapAllow.
const (
	OverlapAllow     Overlap = 1 // the instant fires
	OverlapSkip      Overlap = 2 // the instant does not fire
	OverlapBufferOne Overlap = 3 // the first such instant fires when no run is open
)

// String returns the policy's name as it is in the API.
func (o Overlap) String() string {
	switch o {
	case 0, OverlapAllow:
		return "ALLOW"
	case OverlapSkip:
		return "SKIP"
	case OverlapBufferOne:
		return "BUFFER_ONE"
	}
	return fmt.Sprintf("Overlap(%d)", int16(o))
}

// Overlapped reports whether the next instant of the row cannot fire while its open runs
// are open. Such a row must not be claimed ahead of its due_at.
func (r *Row) Overlapped() bool {
	return r.Overlap != 0 && r.Run == 0 && r.State == Scheduled && r.OpenCount() > 0
}

// buffered reports whether the row has an instant that was claimed and waits until no run
// is open.
func (r *Row) buffered() bool {
	return r.Overlap == OverlapBufferOne && r.State == Scheduled && r.DueAt > r.ScheduledAt
}

// holdBack applies the overlap policy to an instant that was claimed while a run is open.
func (m *Machine) holdBack(now Instant) {
	t := m.Task
	at, next := t.ScheduledAt, t.ScheduledAt
	look := t.instantAfter(at, now)
	if t.Overlap == OverlapSkip {
		var passed int64
		next, passed = t.nextRun(at, m.misfireAt(now))
		look = next
		t.Missed += 1 + passed
		m.Skipped = append(m.Skipped, Skipped{Seq: t.Seq + 1, From: at, N: 1 + passed, Overlap: true})
	}
	t.ScheduledAt = next
	t.markChanged()
	if t.exhausted(next) {
		t.State, t.DueAt = Running, t.silentAt()
		return
	}
	if look > now.Add(MaxBitGap) {
		m.detachFrom(0, now)
	}
	if t.DueAt = max(look, now+1); t.Overlap == OverlapBufferOne {
		t.DueAt = min(t.DueAt, now.Add(MaxBitGap))
	}
}

// closed follows a step that has closed a run of a NON_BLOCKING task.
func (m *Machine) closed(now Instant) {
	m.finishIfDone()
	if t := m.Task; t.buffered() && !t.Overlapped() && !t.Paused {
		t.DueAt = now
		t.markChanged()
	}
}
