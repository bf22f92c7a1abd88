package task

import (
	"cmp"
	"time"
)

// DeadLetter is a dead run that is kept, with all that is needed to do it again.
type DeadLetter struct {
	DeadRun
	Type        Type // of its task
	Params      []byte
	Extra       *Extra
	Retry       RetryPolicy
	AckTimeout  time.Duration
	GiveUpAfter time.Duration
	Retention   time.Duration
}

// Again returns the row of a ONE_SHOT task that does the run again, due now: of
// the same kind, params, tags and terms of delivery.
func (d *DeadLetter) Again(id ID, now Instant) *Row {
	e := Extra{ReplayOf: d.RunID}
	if d.Extra != nil && !d.Extra.Damaged {
		e.Tags, e.TraceParent = d.Extra.Tags, d.Extra.TraceParent
	}
	s := &Spec{
		Kind: d.Kind, Type: OneShot, Begin: now, End: Never, MaxCount: 1, ParamsWire: d.Params, Retry: d.Retry,
		AckTimeout: d.AckTimeout, GiveUpAfter: d.GiveUpAfter, Retention: d.Retention, Extra: e.Seal(),
	}
	return NewRow(d.Tenant, id, s, now)
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
	return (&Filter{Tags: f.Tags}).hasTags(d.Extra)
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
