package shards

import (
	"context"
	"time"

	"github.com/perceptor/perceptor/store/shards/sql"
	"github.com/perceptor/perceptor/task"
)

// # Adds whose schedules take long
//
// To find the first instant of a recurrence rule may take milliseconds, and a request may have a thousand of
// them. In the transaction of a group all other adds of the database would wait for it, and a server ends a session that
// computes for seconds. So the schedules of a request are tried first. If they take long, the
// request is stored beside the groups, and its rows are made before its transaction begins.

// slowAdd is how long the schedules of one request may take within a group, which has up to 256 requests.
const slowAdd = time.Millisecond

// placed is the outcome of a spec: a row, or faults.
type placed struct {
	row    *task.Row
	faults []task.Fault
}

// takesLong tries how long the schedules of a request take. The ids and the clock of the database are not
// known yet, so the instants are thrown away.
func (s *Store) takesLong(a *adding) bool {
	began := time.Now()
	now := task.At(began)
	for i := range a.req.Specs {
		spec := a.req.Specs[i] // a copy: Begin may be filled in
		if !spec.UsesCalendars() && (spec.Cron == nil || spec.Cron.Dialect != task.RRuleCron) {
			continue
		}
		s.machines.Place(a.req.Tenant, task.NewID(int64(i+1), a.home), &spec, now)
		if time.Since(began) > slowAdd {
			return true
		}
	}
	return false
}

// errSlowAdd refuses a slow request while its caller still waits.
var errSlowAdd = task.Errorf(task.ReasonRequestTooLarge, "computing the schedules of the tasks takes too long for one call: send fewer of them in a call")

// placeAhead makes the rows of a slow request, whose ids are drawn. It may take half of the time that is left to
// the call; the transaction needs some, too.
func (db *database) placeAhead(ctx context.Context, a *adding) error {
	var now task.Instant
	if err := sql.Now.QueryRow(ctx, db.store.db.Pool(db.d)).Scan(&now); err != nil {
		return err
	}
	if until, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, time.Until(until)/2, errSlowAdd)
		defer cancel()
	}
	list := make([]placed, len(a.req.Specs))
	for i := range list {
		if ctx.Err() != nil {
			return context.Cause(ctx) // nothing is stored
		}
		spec := a.req.Specs[i]
		list[i].row, list[i].faults = db.store.machines.Place(a.req.Tenant, a.idOf(i), &spec, now)
	}
	a.placed = list
	return nil
}

// place returns the row of a spec, or its faults. now is the clock of the transaction.
func (db *database) place(a *adding, i int, now task.Instant) (*task.Row, []task.Fault) {
	if a.placed == nil {
		spec := a.req.Specs[i] // a copy: Begin may be filled in
		return db.store.machines.Place(a.req.Tenant, a.idOf(i), &spec, now)
	}
	p := &a.placed[i]
	if p.row != nil {
		p.row.CreatedAt, p.row.DueAt = now, max(p.row.DueAt, now)
	}
	return p.row, p.faults
}
