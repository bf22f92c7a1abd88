package task

import "slices"

// Filter selects tasks. The zero value selects all unfinished tasks.
type Filter struct {
	Kind  string // empty: every kind
	Type  Type   // 0: every type
	State State  // 0: every state of unfinished tasks
	// Tags are tags that the task must have, all of them.
	Tags []string
	// Task selects one task. Backfill selects the tasks that a backfill has added. 0: every task.
	Task     ID    `json:",omitempty"`
	Backfill int64 `json:",omitempty"`
	// DueFrom and DueUntil select tasks that are due in [DueFrom, DueUntil). A DueUntil
	// of 0 means no end. With either bound, tasks without a due instant (paused ones)
	// are not selected.
	DueFrom, DueUntil Instant
	// AddedFrom and AddedUntil select tasks that were added in [AddedFrom, AddedUntil).
	// An AddedUntil of 0 means no end.
	AddedFrom, AddedUntil Instant
}

// HasDue reports whether the filter bounds the due instant.
func (f *Filter) HasDue() bool { return f.DueFrom > 0 || f.DueUntil > 0 }

// Narrow reports whether the filter may reject tasks that a listing has read: by kind,
// type, tags, id, backfill or the instant of their add.
func (f *Filter) Narrow() bool {
	return f.Kind != "" || f.Type != 0 || len(f.Tags) > 0 || f.Task != 0 || f.Backfill != 0 || f.AddedFrom > 0 || f.AddedUntil > 0
}

// DueEnd returns DueUntil, or Never if there is no end.
func (f *Filter) DueEnd() Instant {
	if f.DueUntil == 0 {
		return Never
	}
	return f.DueUntil
}

// Matches reports whether a task is selected. r is the row of the task, not a run row.
func (f *Filter) Matches(r *Row) bool {
	switch {
	case f.State == 0 && r.State.Final(), f.State != 0 && r.State != f.State:
		return false
	case f.Kind != "" && r.Kind != f.Kind, f.Type != 0 && r.Type != f.Type:
		return false
	case f.HasDue() && (r.DueAt < f.DueFrom || r.DueAt >= f.DueEnd()):
		return false
	case f.Task != 0 && r.ID != f.Task, f.Backfill != 0 && r.Backfill != f.Backfill:
		return false
	case r.CreatedAt < f.AddedFrom, f.AddedUntil > 0 && r.CreatedAt >= f.AddedUntil:
		return false
	}
	return f.hasTags(r.Tags)
}

// MayShare reports whether a task could match both filters, at the same time or one after the
// other: states and due instants change, so they do not count.
func (f *Filter) MayShare(g *Filter) bool {
	differ := f.Kind != "" && g.Kind != "" && f.Kind != g.Kind ||
		f.Type != 0 && g.Type != 0 && f.Type != g.Type ||
		f.Task != 0 && g.Task != 0 && f.Task != g.Task ||
		f.Backfill != 0 && g.Backfill != 0 && f.Backfill != g.Backfill ||
		f.AddedUntil > 0 && f.AddedUntil <= g.AddedFrom || g.AddedUntil > 0 && g.AddedUntil <= f.AddedFrom
	return !differ
}

func (f *Filter) hasTags(tags []string) bool {
	for _, t := range f.Tags {
		if _, ok := slices.BinarySearch(tags, t); !ok {
			return false
		}
	}
	return true
}
