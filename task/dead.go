package task

import (
	"cmp"
	"time"
)

// DeadLetter is a dead run that is kept, with all data for its replay.
type DeadLetter struct {
	DeadRun
	Params []byte
	// Terms are those of its task, without the schedule, which no replay needs.
	Terms  Terms
	Origin Origin
}

// Again returns the row of a ONE_SHOT task that repeats the run and is due now. The
// task has the kind, params, tags and delivery terms of the run.
func (d *DeadLetter) Again(id ID, now Instant) *Row {
	t := Terms{
		Kind: d.Kind, Begin: now, End: Never, MaxCount: 1, Retry: d.Terms.Retry, AckTimeout: d.Terms.AckTimeout,
		GiveUpAfter: d.Terms.GiveUpAfter, Retention: d.Terms.Retention, Tags: d.Terms.Tags,
	}
	o := Origin{ReplayOf: d.RunID, TraceParent: d.Origin.TraceParent}
	return NewRow(d.Tenant, id, &Spec{Terms: t, Type: OneShot, ParamsWire: d.Params, Origin: o}, now)
}

// DeadFilter selects dead runs; the zero value selects all.
type DeadFilter struct {
	Kind   string
	Type   Type
	Reason DeadReason
	// Task is the task of the runs. 0 means any task.
	Task ID
	// Tags are tags that the task must have, all of them.
	Tags []string
	// DiedFrom and DiedUntil select runs that died in [DiedFrom, DiedUntil). A DiedUntil
	// of 0 means no end.
	DiedFrom, DiedUntil Instant
}

// Matches reports whether a dead run is selected.
func (f *DeadFilter) Matches(d *DeadLetter) bool {
	switch {
	case f.Kind != "" && d.Kind != f.Kind, f.Type != 0 && d.Type != f.Type, f.Reason != 0 && d.Reason != f.Reason,
		f.Task != 0 && d.RunID.Task != f.Task, d.DiedAt < f.DiedFrom, f.DiedUntil > 0 && d.DiedAt >= f.DiedUntil:
		return false
	}
	return (&Filter{Tags: f.Tags}).hasTags(d.Terms.Tags)
}

// DeadQuery selects a page of a tenant's dead runs, newest first.
type DeadQuery struct {
	Tenant int32
	// After is the position after which the page begins. nil means the newest run.
	After *DeadCursor
	// Limit is the most runs in the page, at least 1.
	Limit int
	DeadFilter
}

// DeadWaiting is a tenant with dead runs that may not have reached its dead-letter
// topic yet.
type DeadWaiting struct {
	Tenant int32
	// Age is the time since the first of them died.
	Age time.Duration
}

// DeadCursor is a position among dead runs.
type DeadCursor struct {
	DiedAt Instant
	RunID
}

// Cursor returns the position of a dead run.
func (d *DeadRun) Cursor() DeadCursor { return DeadCursor{d.DiedAt, d.RunID} }

// Compare returns a negative number if c is older than other and so comes after it.
func (c DeadCursor) Compare(other DeadCursor) int {
	return cmp.Or(cmp.Compare(c.DiedAt, other.DiedAt), cmp.Compare(c.Task, other.Task), cmp.Compare(c.Seq, other.Seq))
}

// DeadPage is one page. It may be short, or empty, although another page follows.
type DeadPage struct {
	Runs []*DeadLetter
	// Next is the position after which the next page begins. nil means that this is the
	// last page.
	Next *DeadCursor
}

// Replayed is the result of a replay.
type Replayed struct {
	// ID is the task that repeats the run.
	ID ID
	// Before is true if the run had been replayed before. Then nothing was stored.
	Before bool
}
