package task

import "time"

// # Backfills
//
// A backfill makes the instants of a past range fire again, or for the first time. For
// each source, a recurring task, it adds a task of its own that has the schedule of the
// source, cut to the range, and [Origin.BackfillOf]. docs/adr/0052-backfills.md has the
// reasons. What is different about such a task:
//
//   - Its instants are those of the source: H and the spread follow from the source's id
//     ([Row.ScheduleID]).
//   - As a NON_BLOCKING task it catches up with all of its instants, by FIRE_ALL.
//   - As a BLOCKING task it fires the instant that follows the last one as soon as that run
//     is closed. While a run is open, Anchor holds that instant, as after a trigger (see
//     [Row.triggered]), so SQL leaves the result to this package.
//   - Its results do not move its schedule by next_execute_time.

// Limits of backfills.
const (
	// MaxBackfillRange is the longest range.
	MaxBackfillRange = 366 * 24 * time.Hour
	// MaxBackfillRuns is the most runs of one source, and MaxBackfillPart the most that
	// one operation makes in one database.
	MaxBackfillRuns = 10_000
	MaxBackfillPart = 1_000_000
)

// Backfill says what a backfill makes of its sources.
type Backfill struct {
	// Operation is the bulk operation.
	Operation int64
	// From and Until are the range [From, Until). It has passed.
	From, Until Instant
	// OneAtATime makes the runs of each source fire one after another, whatever its type.
	OneAtATime bool
}

// Selects reports whether a task may have instants that the backfill makes fire.
func (b *Backfill) Selects(r *Row) bool {
	return r.Type != OneShot && r.BackfillOf == 0 && max(b.From, r.Begin) < min(b.Until, r.End)
}

// Runs returns the first instant of a source in the range and how many there are. The
// calendar and the windows of the row must have been set. Without an instant, first is Never.
func (b *Backfill) Runs(r *Row) (first Instant, n int64) {
	from, until := max(b.From, r.Begin), min(b.Until, r.End)
	if !b.Selects(r) {
		return Never, 0
	}
	cut := *r
	cut.End = until
	first = cut.firstOpen(cut.firstFrom(from))
	if first >= until || !cut.Windows.Open(first) {
		return Never, 0
	}
	return first, 1 + cut.countInstants(first, until-1)
}

// Row returns the task that makes the instants of a source fire. There must be at least one: see
// [Backfill.Runs].
func (b *Backfill) Row(r *Row, id ID, now Instant) *Row {
	first, _ := b.Runs(r)
	t := r.Terms
	t.Begin, t.End, t.MaxCount = first, min(b.Until, r.End), 0
	t.Misfire, t.CatchUp, t.Grace, t.Overlap = FireAll, MaxBackfillRuns, 0, 0
	if t.Interval > 0 {
		t.Spread = 0 // first has it
	}
	typ := r.Type
	if b.OneAtATime || r.Overlap != 0 {
		typ = Blocking
	}
	return &Row{
		Tenant: r.Tenant, ID: id, Type: typ, State: Scheduled, DueAt: now, ScheduledAt: first, Anchor: first, Version: 1,
		Terms: t, Params: r.Params, CreatedAt: now, Origin: Origin{BackfillOf: r.ID, Backfill: b.Operation},
		Calendar: r.Calendar, Windows: r.Windows, Change: Added,
	}
}

// ScheduleID returns the id from which H and the spread of the task follow.
func (r *Row) ScheduleID() ID {
	if r.BackfillOf != 0 {
		return r.BackfillOf
	}
	return r.ID
}

// firstFrom returns the first instant of the schedule, open or closed, that is not before
// from. It may be earlier than the first run of the task.
func (r *Row) firstFrom(from Instant) Instant {
	if r.Interval > 0 {
		step := Instant(r.Interval.Milliseconds())
		return from + ((r.gridPoint()-from)%step+step)%step
	}
	if r.Calendar != nil {
		if at, ok := r.Calendar.Next(from - 1); ok {
			return at
		}
	}
	return Never
}

// gridPoint returns an instant of the schedule of a recurring task with an interval.
func (r *Row) gridPoint() Instant {
	switch {
	case r.triggered():
		return r.planned()
	case r.Type == Blocking && r.State == Running || r.ScheduledAt == Never:
		return r.Anchor
	}
	return r.ScheduledAt
}
