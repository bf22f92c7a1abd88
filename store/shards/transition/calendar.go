package transition

import (
	"errors"
	"time"

	"github.com/perceptor/perceptor/schedule"
	"github.com/perceptor/perceptor/task"
)

// # Calendars
//
// A row stores the cron expression of its instants. Its calendar is made when the row is
// locked for a step. Parsed expressions are cached. If a stored expression cannot be
// parsed, for example because this program does not know its time zone, the row gets no
// calendar. The state machine then defers the task and never fires it by another rule.

// complainEvery is the shortest distance between two log lines about tasks that cannot
// be read: there may be many such tasks.
const complainEvery = 10 * time.Second

// CalendarOf returns the calendar of an expression for a task. With a spread, or an H
// in the expression, the calendar depends on the task's id.
func (m *Machines) CalendarOf(cron task.Cron, id task.ID, spread time.Duration) (task.Calendar, error) {
	return m.calendars.Of(cron, id, spread)
}

// WindowsOf returns the windows of a task that excludes some calendars and is limited to others,
// and false if one of them is not known.
func (m *Machines) WindowsOf(tenant int32, exclude, only []string) (*task.Windows, bool) {
	w, missing := m.windowsOf(tenant, &task.Terms{Exclude: exclude, Only: only})
	return w, missing.Name == ""
}

// OfTask reports whether another task with the expression of a row may have other instants. The
// calendar of the row must have been set.
func OfTask(r *task.Row) bool {
	c, ok := r.Calendar.(schedule.Calendar)
	return ok && c.OfTask()
}

// SetCalendar sets the calendar of a task's row, if the task has an expression.
func (m *Machines) SetCalendar(r *task.Row) {
	if r.Damaged != "" {
		m.complain(r, errors.New("the stored terms of the task cannot be read"))
		return
	}
	r.Windows, r.Unknown = m.windowsOf(r.Tenant, &r.Terms)
	if r.Cron == nil {
		return
	}
	calendar, err := m.CalendarOf(*r.Cron, r.ScheduleID(), r.Spread)
	if err != nil {
		m.complain(r, err)
		return
	}
	r.Calendar = calendar
}

// windowsOf returns the windows of a task, nil if it names no calendars, or the name of a
// calendar that is not known.
func (m *Machines) windowsOf(tenant int32, t *task.Terms) (w *task.Windows, missing task.MissingCalendar) {
	switch {
	case !t.UsesCalendars():
		return nil, missing
	case m.cfg.Windows == nil:
		return nil, task.MissingCalendar{Name: t.CalendarNames()[0]}
	}
	return m.cfg.Windows(tenant, t.Exclude, t.Only)
}

// resolveWindows sets the windows of a spec. The fault names a calendar that is not known.
func (m *Machines) resolveWindows(tenant int32, spec *task.Spec) []task.Fault {
	var missing task.MissingCalendar
	if spec.Windows, missing = m.windowsOf(tenant, &spec.Terms); missing.Name == "" {
		return nil
	}
	return []task.Fault{task.CalendarFault(&spec.Terms, missing.Name)}
}

func (m *Machines) complain(r *task.Row, err error) {
	last, now := m.complained.Load(), time.Now()
	if (last == nil || now.Sub(*last) > complainEvery) && m.complained.CompareAndSwap(last, &now) {
		m.db.Log.Error("schedule of the task cannot be read; the task is deferred", "tenant", r.Tenant, "task_id", int64(r.ID), "err", err)
	}
}

// Place completes the spec of a new task that has its id, and returns the task's row, or
// the faults of a task that could never fire. With a spread, or an H in the expression,
// the first instant depends on the id.
func (m *Machines) Place(tenant int32, id task.ID, spec *task.Spec, now task.Instant) (*task.Row, []task.Fault) {
	faults := spec.ResolveBegin(now)
	if len(faults) == 0 {
		faults = m.resolveCalendar(tenant, spec, id, now)
	}
	if len(faults) > 0 {
		return nil, faults
	}
	return task.NewRow(tenant, id, spec, now), nil
}

// resolveCalendar sets the calendar of a spec by its id, and returns the faults of a task
// that could never fire.
func (m *Machines) resolveCalendar(tenant int32, spec *task.Spec, id task.ID, now task.Instant) []task.Fault {
	if faults := m.resolveWindows(tenant, spec); len(faults) > 0 {
		return faults
	}
	if cron := spec.Cron; cron != nil {
		calendar, err := m.CalendarOf(*cron, id, spec.Spread)
		if err != nil {
			return []task.Fault{schedule.FaultOf(err)}
		}
		spec.Calendar = calendar
	}
	return spec.NeverFires(id, now)
}

// SetEditCalendar gives an edit a copy of its spec with the calendar of the task's id and
// the windows of the tenant. It returns an error if the edit is invalid.
func (m *Machines) SetEditCalendar(e *task.Edit, tenant int32, id task.ID) *task.Error {
	spec := *e.Spec
	if faults := m.resolveWindows(tenant, &spec); len(faults) > 0 {
		return &task.Error{Code: task.InvalidArgument, Faults: faults}
	}
	if spec.Cron != nil {
		calendar, err := m.CalendarOf(*spec.Cron, id, spec.Spread)
		if err != nil {
			return &task.Error{Code: task.InvalidArgument, Faults: []task.Fault{schedule.FaultOf(err)}}
		}
		spec.Calendar = calendar
	}
	e.Spec = &spec
	return nil
}
