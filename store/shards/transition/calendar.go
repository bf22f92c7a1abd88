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

// SetCalendar sets the calendar of a task's row, if the task has an expression.
func (m *Machines) SetCalendar(r *task.Row) {
	if r.Damaged != "" {
		m.complain(r, errors.New("the stored terms of the task cannot be read"))
		return
	}
	if r.Cron == nil {
		return
	}
	calendar, err := m.CalendarOf(*r.Cron, r.ID, r.Spread)
	if err != nil {
		m.complain(r, err)
		return
	}
	r.Calendar = calendar
}

func (m *Machines) complain(r *task.Row, err error) {
	last := m.complained.Load()
	if now := time.Now().UnixNano(); now-last > int64(complainEvery) && m.complained.CompareAndSwap(last, now) {
		m.db.Log.Error("schedule of the task cannot be read; the task is deferred", "tenant", r.Tenant, "task_id", int64(r.ID), "err", err)
	}
}

// Place completes the spec of a new task that has its id, and returns the task's row, or
// the faults of a task that could never fire. With a spread, or an H in the expression,
// the first instant depends on the id.
func (m *Machines) Place(tenant int32, id task.ID, spec *task.Spec, now task.Instant) (*task.Row, []task.Fault) {
	faults := spec.ResolveBegin(now)
	if len(faults) == 0 {
		faults = m.resolveCalendar(spec, id, now)
	}
	if len(faults) > 0 {
		return nil, faults
	}
	return task.NewRow(tenant, id, spec, now), nil
}

// resolveCalendar sets the calendar of a spec by its id, and returns the faults of a task
// that could never fire.
func (m *Machines) resolveCalendar(spec *task.Spec, id task.ID, now task.Instant) []task.Fault {
	if cron := spec.Cron; cron != nil {
		calendar, err := m.CalendarOf(*cron, id, spec.Spread)
		if err != nil {
			return []task.Fault{schedule.FaultOf(err)}
		}
		spec.Calendar = calendar
	}
	return spec.NeverFires(id, now)
}

// SetEditCalendar gives an edit a copy of its spec with the calendar of the task's id. It
// returns an error if the edit is invalid.
func (m *Machines) SetEditCalendar(e *task.Edit, id task.ID) *task.Error {
	if e.Spec.Cron == nil {
		return nil
	}
	calendar, err := m.CalendarOf(*e.Spec.Cron, id, e.Spec.Spread)
	if err != nil {
		return &task.Error{Code: task.InvalidArgument, Faults: []task.Fault{schedule.FaultOf(err)}}
	}
	spec := *e.Spec
	spec.Calendar, e.Spec = calendar, &spec
	return nil
}
