package task

import "slices"

// Filter selects tasks; the zero value selects all that live.
type Filter struct {
	Kind  string // empty: every kind
	Type  Type   // 0: every type
	State State  // 0: every living state
	// Tags must all be tags of the task.
	Tags []string
	// The task is due in [DueFrom, DueUntil); DueUntil 0: no end. With either bound,
	// tasks without a due instant (paused ones) are not selected.
	DueFrom, DueUntil Instant
	// The task was added in [AddedFrom, AddedUntil); AddedUntil 0: no end.
	AddedFrom, AddedUntil Instant
}

// HasDue reports whether the filter bounds the due instant.
func (f *Filter) HasDue() bool { return f.DueFrom > 0 || f.DueUntil > 0 }

// Narrow reports whether the filter rejects tasks that a listing has to read
// nevertheless: by kind, type, tags or the instant of their add.
func (f *Filter) Narrow() bool {
	return f.Kind != "" || f.Type != 0 || len(f.Tags) > 0 || f.AddedFrom > 0 || f.AddedUntil > 0
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
	case r.CreatedAt < f.AddedFrom, f.AddedUntil > 0 && r.CreatedAt >= f.AddedUntil:
		return false
	}
	return f.hasTags(r.Tags)
}

func (f *Filter) hasTags(tags []string) bool {
	for _, t := range f.Tags {
		if _, ok := slices.BinarySearch(tags, t); !ok {
			return false
		}
	}
	return true
}
