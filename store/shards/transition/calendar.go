package transition

import (
	"errors"
	"time"

	"github.com/perceptor/perceptor/schedule"
	"github.com/perceptor/perceptor/task"
)

// # Calendars
//
// A row says by which expression its instants come; the calendar is made when
// somebody locks the row to take a step. What has been parsed is kept. A stored
// expression that cannot be parsed, such as one of a zone that this program does
// not know, leaves the row without a calendar: the state machine then puts the
// task off, and never fires it by another rule.

// complainEvery is the shortest distance of two log lines about tasks that cannot
// be read: there may be many.
const complainEvery = 10 * time.Second

// CalendarOf returns the calendar of an expression for a task; with a spread, or an H
// in the expression, it is the task's own.
func (m *Machines) CalendarOf(cron task.Cron, id task.ID, spread time.Duration) (task.Calendar, error) {
	return m.calendars.Of(cron, id, spread)
}

// SetCalendar gives the row of a task its calendar, if it has an expression.
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

// Place completes the spec of a new task that has got its id, and returns the task's
// row, or the faults of one that could never fire. With a spread, or an H in its
// expression, the first instant depends on the id.
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

// resolveCalendar gives a spec the calendar of its id, and returns the faults
// of a task that could never fire.
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

// SetEditCalendar gives the spec of an edit, which stays as it is, the calendar of
// the task's id. The error is of the caller's making.
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
