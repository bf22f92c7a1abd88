package task

// MoveNext moves the next run to another instant, from which the schedule continues. An
// instant before begin_time moves begin_time too. A past instant means now. MoveNext
// fails if an open run must end before another can be claimed, and if the task would
// never fire.
func (m *Machine) MoveNext(next, now Instant) error {
	t := m.Task
	next = min(max(next, 0), LastInstant-1)
	switch {
	case t.State != Scheduled:
		return Errorf(ReasonTaskNotScheduled, "task %d is %s: it has no next run", t.ID, t.State)
	case next >= t.End:
		return Errorf(ReasonEndTimeReached, "task %d: %s is not before its end_time %s", t.ID, next, t.End)
	}
	earlier := next < t.Begin
	t.Begin = min(t.Begin, next)
	if t.Type != NonBlocking || t.Seq == 0 {
		t.Anchor = next
	}
	t.Version++
	t.waitUntil(next, now)
	if t.Type == NonBlocking && next > now.Add(MaxBitGap) {
		m.detachFrom(0, now)
	}
	t.markChanged()
	if earlier || t.OpenRows > 0 {
		m.editRuns(false)
	}
	return nil
}
