package task

import "time"

// Machine is the row of a task together with the run rows that a step needs. Its methods
// are the whole state machine. Each sets the Change of the rows that must be stored.
//
// When a step ends the task, Task.Change is Removed and Task.State is final. The store
// then removes all run rows of the task, including those not loaded here.
type Machine struct {
	Task *Row
	// Was is the state of the task before any step, for counters. Steps do not change
	// it.
	Was State
	// Runs are the loaded run rows, by seq. Steps add rows to it.
	Runs map[int64]*Row
	// Dead collects the runs that steps gave up.
	Dead []DeadRun
	// WaitingSince is the instant since which rows of the tenant wait for tokens, or 0:
	// see [Flow]. The claim of a flow sets it.
	WaitingSince Instant
	// Edited is true if the terms of the task and of all its run rows have changed,
	// including run rows that are not loaded. EditedParams is true if their params have
	// changed too.
	Edited, EditedParams bool
	// Skipped collects the instants that steps skipped without claiming a run.
	Skipped []Skipped
	// CatchUpInterval is the least time between two runs that catch up. 0 means
	// [DefaultCatchUpInterval].
	CatchUpInterval time.Duration
}

// ScheduledAt returns the scheduled instant of the open run seq. The result is
// undefined for a run that is not open.
func (m *Machine) ScheduledAt(seq int64) Instant {
	t := m.Task
	if r := m.runRow(seq); r != nil {
		return r.ScheduledAt
	}
	if t.Type == NonBlocking {
		return t.scheduledOf(t.Seq - seq)
	}
	return t.ScheduledAt
}

// runRow returns the run row of seq, or nil.
func (m *Machine) runRow(seq int64) *Row {
	if r := m.Runs[seq]; r != nil && r.Change != Removed {
		return r
	}
	return nil
}

// runBit returns the mask of run seq in OpenRuns. It returns 0 if the run is older than
// all bits.
func (m *Machine) runBit(seq int64) uint64 {
	i := m.Task.Seq - seq
	if i < 0 || i >= OpenBits {
		return 0
	}
	return 1 << i
}

// finish ends the task in state s.
func (m *Machine) finish(s State) {
	t := m.Task
	t.State, t.DueAt, t.Change = s, Never, Removed
	t.OpenRuns, t.OpenRows = 0, 0
	for _, r := range m.Runs {
		r.Change = Removed
	}
}

// closeRow removes the run row of a closed run.
func (m *Machine) closeRow(r *Row) {
	r.Change = Removed
	m.Task.OpenRows--
	m.Task.markChanged()
}

// finishIfDone ends a NON_BLOCKING task that has no further claim and no open run.
func (m *Machine) finishIfDone() {
	t := m.Task
	if t.Type == NonBlocking && t.State == Running && t.OpenRuns == 0 && t.OpenRows == 0 {
		m.finish(Completed)
	}
}

// giveUpRun makes the open run of r a dead run; r is the row of the task or a run row.
// A ONE_SHOT task, and one with StopOnFailure, ends as FAILED. Other tasks continue.
func (m *Machine) giveUpRun(r *Row, reason DeadReason, message string, now Instant) {
	m.recordDead(r, reason, message, now)
	t := m.Task
	if r.Run != 0 {
		m.closeRow(r)
	}
	switch {
	case t.StopOnFailure || t.Type == OneShot:
		m.finish(Failed)
	case t.Type == Blocking:
		m.scheduleNext(now)
	default:
		m.closed(now)
	}
}

// recordDead adds the open run of r to Dead.
func (m *Machine) recordDead(r *Row, reason DeadReason, message string, now Instant) {
	seq := r.Run
	if seq == 0 {
		seq = r.Seq
	}
	m.Dead = append(m.Dead, DeadRun{
		Tenant: r.Tenant, Type: r.Type, RunID: RunID{Task: r.ID, Seq: seq}, Attempt: r.Attempt, Kind: r.Kind,
		ScheduledAt: r.ScheduledAt, DiedAt: now, Reason: reason, Error: message,
	})
}

// scheduleAt schedules the next run of a BLOCKING task at next, or completes the task
// if it is exhausted.
func (m *Machine) scheduleAt(next, now Instant) {
	t := m.Task
	if t.exhausted(next) {
		m.finish(Completed)
		return
	}
	t.Anchor = next
	t.waitUntil(next, now)
	t.markChanged()
}

// scheduleNext schedules the next run of a BLOCKING task after a result at now: one
// interval later, or at the first match after now. After a triggered run it restores the
// instant that was planned before the trigger, and after a run of a backfill it takes the
// instant after it.
func (m *Machine) scheduleNext(now Instant) {
	t := m.Task
	switch {
	case t.triggered() && t.planned() != Never:
		m.scheduleAt(t.planned(), now)
	case t.Interval > 0 || t.Calendar != nil || t.exhausted(now):
		m.scheduleAt(t.instantAfter(now, now), now)
	default:
		t.waitUnreadable(now)
	}
}

// Cancel ends the task at the request of its caller.
func (m *Machine) Cancel() {
	m.Task.Version++
	m.finish(Cancelled)
}

// Pause stops further runs from being claimed. No claim finds the silent runs of a
// NON_BLOCKING task then, so its open runs get rows.
func (m *Machine) Pause(now Instant) {
	t := m.Task
	if t.Paused {
		return
	}
	t.Paused = true
	if t.State == Scheduled {
		t.DueAt = Never
		m.detachFrom(0, now)
	}
	t.markChanged()
}

// Resume allows claims again. Instants that passed during the pause follow the misfire
// policy: the next claim applies it. If SKIP leaves no instant to claim now, Resume applies
// it, so that the missed instants are told at once.
func (m *Machine) Resume(now Instant) {
	t := m.Task
	if !t.Paused {
		return
	}
	t.Paused = false
	t.markChanged()
	if t.State != Scheduled {
		return
	}
	if t.ScheduledAt == Never {
		t.DueAt = now // the instant is not known yet; see waitUnreadable
		return
	}
	t.DueAt = max(t.ScheduledAt, now)
	m.spaceCatchUp(now)
	if t.misfire() != Skip || t.unreadable() || t.Unknown.Name != "" || t.firesLate(now) {
		return
	}
	from := t.ScheduledAt
	if n, ok := m.dropMissed(now); ok {
		m.noteSkipped(from, n)
	}
}
