package task

import (
	"cmp"
	"time"
)

// DeadLetter is a dead run that is kept, with all that is needed to do it again.
type DeadLetter struct {
	DeadRun
	Type   Type // of its task
	Params []byte
	// Terms are those of its task, but for the schedule, which no other run needs.
	Terms  Terms
	Origin Origin
}

// Again returns the row of a ONE_SHOT task that does the run again, due now: of
// the same kind, params, tags and terms of delivery.
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
	// Task is the task that they are of; 0: any.
	Task ID
	// Tags must all be among the task's.
	Tags []string
	// They died in [DiedFrom, DiedUntil); DiedUntil 0: no end.
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
	// After is where the page begins; nil: the newest.
	After *DeadCursor
	// Limit is the longest page wanted, at least 1.
	Limit int
	DeadFilter
}

// DeadWaiting is a tenant with dead runs that are not known to be on its dead-letter
// topic.
type DeadWaiting struct {
	Tenant int32
	// Age is how long ago the first of them died.
	Age time.Duration
}

// DeadCursor is a place among dead runs: that of one that was looked at.
type DeadCursor struct {
	DiedAt Instant
	RunID
}

// Cursor returns the place of a dead run.
func (d *DeadRun) Cursor() DeadCursor { return DeadCursor{d.DiedAt, d.RunID} }

// Compare is below 0 when c is older than other, and so comes after it.
func (c DeadCursor) Compare(other DeadCursor) int {
	return cmp.Or(cmp.Compare(c.DiedAt, other.DiedAt), cmp.Compare(c.Task, other.Task), cmp.Compare(c.Seq, other.Seq))
}

// DeadPage is one page. It may be short, even empty, and still have a next one.
type DeadPage struct {
	Runs []*DeadLetter
	// Next is where the next page begins; nil: there is none.
	Next *DeadCursor
}

// Replayed is what became of a dead run that was to be done again.
type Replayed struct {
	// ID is the task that does it.
	ID ID
	// Before: it had been replayed before, and nothing was stored now.
	Before bool
}
