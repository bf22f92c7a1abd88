package task

// Trigger opens a run now, in addition to the schedule, and returns its number. The run
// is stored like a retry that is due: its first delivery is attempt 1.
//
// The run counts like every other run. Its scheduled instant is now, even before
// begin_time and while the task is paused. Trigger fails at and after end_time, and
// if max_count is used up.
//
//   - The next instant of a NON_BLOCKING task does not change.
//   - The next instant of a BLOCKING task stays planned. Until the run has its result, the
//     Anchor of the row holds it: see [Row.triggered]. If it has passed by then, it fires at
//     once, or the misfire policy skips it.
//   - For a ONE_SHOT task it is the only run.
func (m *Machine) Trigger(now Instant) (int64, error) {
	t := m.Task
	switch {
	case t.Type != NonBlocking && t.State == Running:
		return 0, Errorf(ReasonRunOpen, "run %s is open, and a %s task has one run at a time", RunID{Task: t.ID, Seq: t.Seq}, t.Type)
	case now >= t.End:
		return 0, Errorf(ReasonEndTimeReached, "task %s has reached its end_time %s", t.ID, t.End)
	case t.MaxCount > 0 && t.Seq >= t.MaxCount:
		return 0, Errorf(ReasonMaxCountReached, "task %s has had all of its %d runs", t.ID, t.MaxCount)
	}
	if t.Type == NonBlocking {
		m.triggerBeside(now)
		return t.Seq, nil
	}
	t.clearRun()
	t.Seq++
	t.State, t.FirstClaimAt = Running, now
	t.Anchor = ^t.ScheduledAt
	t.ScheduledAt, t.DueAt = now, now
	t.markChanged()
	return t.Seq, nil
}

// triggerBeside makes a run row for the new run of a NON_BLOCKING task. It detaches the
// runs that are open as bits, because bits count from the newest run on a grid and the
// new run is not on a grid.
func (m *Machine) triggerBeside(now Instant) {
	t := m.Task
	m.detachFrom(0, now)
	r := *t
	t.Seq++
	t.OpenRows++
	r.Run, r.State, r.Paused, r.Change = t.Seq, Running, false, Added
	r.OpenRuns, r.OpenRows, r.Missed = 0, 0, 0
	r.clearRun()
	r.ScheduledAt, r.FirstClaimAt, r.DueAt = now, now, now
	if m.Runs == nil {
		m.Runs = map[int64]*Row{}
	}
	m.Runs[t.Seq] = &r
	if t.State == Scheduled && t.exhausted(t.ScheduledAt) {
		t.State, t.DueAt = Running, Never
	}
	t.markChanged()
}

// triggered reports whether Trigger opened the open run of a ONE_SHOT or BLOCKING task, or
// whether the run is one of a backfill: the instant after it is planned already. The Anchor
// of such a row is the bitwise complement of the planned instant. So it is negative, which
// no instant of a schedule is.
func (r *Row) triggered() bool {
	return r.Type != NonBlocking && r.State == Running && r.Anchor < 0
}

// planned returns the next instant of a row whose open run was triggered.
func (r *Row) planned() Instant { return ^r.Anchor }

// PlannedNext returns the instant with which a BLOCKING task goes on after its open run, if that
// run was triggered. ok is false for all other tasks, and if no run will follow.
func (r *Row) PlannedNext() (at Instant, ok bool) {
	if r.Type != Blocking || r.BackfillOf != 0 || !r.triggered() || r.planned() == Never || r.exhausted(r.planned()) {
		return Never, false
	}
	return r.planned(), true
}
