package task

import (
	"bytes"
	"reflect"
	"time"
)

// Edit is a change of the terms of an unfinished task.
type Edit struct {
	// If is the version that the task must have. 0 means any version.
	If int32
	// Of is the version from which Spec was made. 0 means that Spec was made without one.
	Of int32
	// Spec has all terms of the task after the edit. It has passed [Spec.Validate] and
	// is not changed.
	Spec *Spec
	// KeepBegin leaves begin_time as it is.
	KeepBegin bool
	// Params makes the edit replace params and payload by those of Spec. Otherwise they stay,
	// because handlers change them without a new version.
	Params bool
	// OfParams, if not nil, are the stored params from which those of Spec were made, because
	// the edit keeps the params or the payload. If the task has others meanwhile, the edit
	// fails as if it had another version.
	OfParams []byte
}

// Edit gives the task new terms. It also gives it a new version if anything changes.
//
// The open run of a task keeps its scheduled instant and its deadline. Every later
// delivery has the new terms, also a delivery of a run that is open now. The schedule
// continues like this:
//
//   - Before begin_time, and if the edit changes begin_time, the first instant is that of a
//     task that is added with the new terms.
//   - Later, a new interval counts from the edit: the next instant is the edit plus one
//     interval. The next instant of a cron expression is its first match after the edit.
//   - An instant that has come and was not claimed yet fires, and the new schedule
//     continues from it.
//   - The next instant after an open run of a BLOCKING task follows from its result.
//
// An edit after which the task would never fire again fails, unless a run is open.
func (m *Machine) Edit(e *Edit, now Instant) error {
	t := m.Task
	n, err := t.edited(e, now)
	if err != nil {
		return err
	}
	if sameTerms(t, n) {
		// A caller that repeats an applied edit names the version before it.
		if e.If != 0 && e.If != t.Version && e.If != t.Version-1 {
			return errVersion(t, e.If)
		}
		return nil
	}
	if e.If != 0 && e.If != t.Version {
		return errVersion(t, e.If)
	}
	if e.Of != 0 && e.Of != t.Version {
		return errVersion(t, e.Of)
	}
	if e.Params && e.OfParams != nil && !bytes.Equal(e.OfParams, t.Params) {
		return Errorf(ReasonVersionMismatch, "a handler of task %s has changed its params meanwhile", t.ID)
	}
	if err := m.reschedule(e, n, now); err != nil {
		return err
	}
	if n.Overlap != t.Overlap && n.State == Scheduled && !n.Paused {
		n.DueAt = max(n.ScheduledAt, now) // the next claim applies the new policy
	}
	n.Version++
	moved := t.DueAt != n.DueAt
	*t = *n
	if moved {
		m.spaceCatchUp(now)
	}
	t.markChanged()
	m.editRuns(e.Params)
	return nil
}

// editRuns gives the terms and the version of the task to all its run rows, so that the
// versions that its attempts see never decrease. With params it gives them the params too.
func (m *Machine) editRuns(params bool) {
	t := m.Task
	for _, r := range m.Runs {
		r.Terms, r.Calendar, r.Version = t.Terms, t.Calendar, t.Version
		if params {
			r.Params = t.Params
		}
	}
	m.Edited, m.EditedParams = true, params
}

func errVersion(t *Row, want int32) error {
	return Errorf(ReasonVersionMismatch, "task %s has version %d, and not %d", t.ID, t.Version, want)
}

// edited returns a copy of the row with the new terms and nothing else changed.
func (r *Row) edited(e *Edit, now Instant) (*Row, error) {
	s := e.Spec
	switch {
	case s.Type != r.Type:
		return nil, faulty("type", "%s: the type of the task is %s and cannot change", s.Type, r.Type)
	case r.Damaged != "":
		return nil, Errorf(ReasonTaskDamaged, "the stored terms of task %s are damaged", r.ID)
	}
	n := *r
	n.Terms, n.Calendar, n.Windows, n.Unknown = s.Terms, s.Calendar, s.Windows, MissingCalendar{}
	switch {
	case e.KeepBegin:
		n.Begin = r.Begin
	case n.Begin == Never:
		n.Begin = now
	}
	if e.Params {
		n.Params = s.ParamsWire
	}
	return &n, nil
}

func faulty(field, format string, args ...any) error {
	v := &faults{}
	v.add(field, format, args...)
	return &Error{Code: InvalidArgument, Faults: v.list}
}

// sameTerms reports whether two rows of a task have the same terms and params.
func sameTerms(a, b *Row) bool {
	return reflect.DeepEqual(&a.Terms, &b.Terms) && bytes.Equal(a.Params, b.Params)
}

// reschedule moves the next instant of n. n is the row of the task with its new terms.
func (m *Machine) reschedule(e *Edit, n *Row, now Instant) error {
	t := m.Task
	other, begin := !t.sameSchedule(&n.Terms), t.Begin != n.Begin
	if !other && !begin && t.End == n.End && t.MaxCount == n.MaxCount {
		return nil
	}
	switch {
	case begin && t.Seq > 0:
		return Errorf(ReasonTaskStarted, "begin_time cannot change any more: run %s was claimed", RunID{Task: t.ID, Seq: t.Seq})
	case t.End != n.End && n.End <= now:
		return faulty("end_time", "%s has passed (now is %s)", n.End, now)
	case n.MaxCount > 0 && n.MaxCount < n.Seq:
		return faulty("max_count", "%d: %d runs were claimed already", n.MaxCount, n.Seq)
	case t.Seq == 0:
		return m.firstInstant(e, n, other, begin, now)
	case t.Type == NonBlocking:
		return m.rescheduleGrid(e, n, other, now)
	case t.State == Running:
		if other && t.triggered() && t.planned() > now {
			n.Anchor = ^n.after(e, now).ScheduledAt
		}
		return nil
	case other && t.ScheduledAt > now:
		n.ScheduledAt = n.after(e, now).ScheduledAt
		n.Anchor = n.ScheduledAt
	}
	return n.waitForNext(other, now)
}

// firstInstant schedules the first run of a task again if the edit moved it. other and
// begin say whether the schedule and begin_time have changed.
func (m *Machine) firstInstant(e *Edit, n *Row, other, begin bool, now Instant) error {
	s, moved := *e.Spec, other || begin
	s.Begin = n.Begin
	if f := s.ResolveBegin(now); len(f) > 0 && (moved || m.Task.End != n.End) {
		return &Error{Code: InvalidArgument, Faults: f}
	}
	if moved {
		first := NewRow(n.Tenant, n.ID, &s, now)
		switch {
		case begin || n.Begin >= now || n.exhausted(first.ScheduledAt):
			n.ScheduledAt = first.ScheduledAt
		case n.ScheduledAt > now:
			n.ScheduledAt = n.after(e, now).ScheduledAt
		}
		n.Anchor = n.ScheduledAt
	}
	return n.waitForNext(moved, now)
}

// after returns a row whose first instant is the next instant of r under a schedule
// that begins now.
func (r *Row) after(e *Edit, now Instant) *Row {
	s := *e.Spec
	s.Begin = max(r.Begin, now.Add(max(r.Interval, time.Millisecond)))
	return NewRow(r.Tenant, r.ID, &s, now)
}

// waitForNext makes r due at its next instant if the edit moved that instant. It
// returns an error if there is no next instant.
func (r *Row) waitForNext(moved bool, now Instant) error {
	if r.exhausted(r.ScheduledAt) {
		return r.neverAgain()
	}
	if moved {
		r.DueAt = max(r.ScheduledAt, now)
		if r.Paused {
			r.DueAt = Never
		}
	}
	return nil
}

func (r *Row) neverAgain() error {
	if r.MaxCount > 0 && r.Seq >= r.MaxCount {
		return faulty("max_count", "%d runs were already claimed: the task would never fire again; to end it, cancel it", r.MaxCount)
	}
	if r.ScheduledAt == Never && r.Cron != nil {
		return faulty("cron.expression", "%q has no further instant: the task would never fire again; to end it, cancel it", r.Cron.Expression)
	}
	return faulty("end_time", "%s is not after the next instant %s: the task would never fire again; to end it, cancel it", r.End, r.ScheduledAt)
}

// rescheduleGrid moves the next instant of a NON_BLOCKING task that has had runs.
func (m *Machine) rescheduleGrid(e *Edit, n *Row, other bool, now Instant) error {
	t := m.Task
	waits := t.State == Scheduled
	switch {
	case waits && t.ScheduledAt <= now:
	case other:
		n.ScheduledAt = n.after(e, now).ScheduledAt
	case !waits && n.ScheduledAt <= now && n.Interval > 0:
		n.ScheduledAt = n.instantAfter(n.ScheduledAt, now)
	case !waits && n.ScheduledAt <= now:
		n.ScheduledAt = n.after(e, now).ScheduledAt
	}
	if !n.exhausted(n.ScheduledAt) {
		m.releaseFrom(n, other || n.Paused || n.ScheduledAt > now.Add(MaxBitGap), now)
		n.State = Scheduled
		return n.waitForNext(other || !waits, now)
	}
	if n.OpenCount() == 0 {
		return n.neverAgain()
	}
	m.releaseFrom(n, other, now)
	if waits {
		n.State, n.DueAt = Running, n.silentAt()
	}
	return nil
}

// releaseFrom detaches the open runs if the schedule changes, because the interval
// determines their instants, or if no claim will find the silent ones.
func (m *Machine) releaseFrom(n *Row, release bool, now Instant) {
	if release {
		t := m.Task
		m.detachFrom(0, now)
		n.OpenRuns, n.OpenRows, n.FirstClaimAt = t.OpenRuns, t.OpenRows, t.FirstClaimAt
	}
}

// Spec returns a spec with the terms of the task. It has no Params, only ParamsWire.
func (r *Row) Spec() Spec {
	return Spec{Terms: r.Terms, Type: r.Type, ParamsWire: r.Params, Origin: r.Origin, Calendar: r.Calendar, Windows: r.Windows}
}
