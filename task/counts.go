package task

// Counts are exact numbers of a tenant's tasks of one type, or sums of such.
type Counts struct {
	// Added is how many tasks were ever stored. It is the sum of the living, the
	// kept and the purged ones.
	Added int64
	// Scheduled and Running are the living tasks.
	Scheduled, Running int64
	// Completed, Cancelled and Failed are finished tasks that can still be looked
	// up.
	Completed, Cancelled, Failed int64
	// PurgedCompleted, PurgedCancelled and PurgedFailed are finished tasks that
	// are no longer kept, or never were.
	PurgedCompleted, PurgedCancelled, PurgedFailed int64
	// Dead are the runs given up that are kept; Died all there ever were.
	Dead, Died int64
}

// Finished returns how many tasks have ended, kept or not.
func (c *Counts) Finished() int64 { return c.Completed + c.Cancelled + c.Failed + c.Purged() }

// Purged returns how many finished tasks are no longer kept.
func (c *Counts) Purged() int64 { return c.PurgedCompleted + c.PurgedCancelled + c.PurgedFailed }

// Plus returns the sum of both.
func (c Counts) Plus(d Counts) Counts {
	return Counts{
		Added: c.Added + d.Added, Scheduled: c.Scheduled + d.Scheduled, Running: c.Running + d.Running,
		Completed: c.Completed + d.Completed, Cancelled: c.Cancelled + d.Cancelled, Failed: c.Failed + d.Failed,
		PurgedCompleted: c.PurgedCompleted + d.PurgedCompleted, PurgedCancelled: c.PurgedCancelled + d.PurgedCancelled,
		PurgedFailed: c.PurgedFailed + d.PurgedFailed, Dead: c.Dead + d.Dead, Died: c.Died + d.Died,
	}
}

// TypeCounts are the counts of one tenant and type.
type TypeCounts struct {
	Tenant int32
	Type   Type
	Counts
}
