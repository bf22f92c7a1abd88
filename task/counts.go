package task

// Counts are exact numbers of a tenant's tasks of one type, or sums of such numbers.
type Counts struct {
	// Added is the number of tasks ever stored. It is the sum of the unfinished, the
	// kept and the purged tasks.
	Added int64
	// Scheduled and Running count unfinished tasks.
	Scheduled, Running int64
	// Completed, Cancelled and Failed count finished tasks that are still kept.
	Completed, Cancelled, Failed int64
	// PurgedCompleted, PurgedCancelled and PurgedFailed count finished tasks that were
	// purged or were never kept.
	PurgedCompleted, PurgedCancelled, PurgedFailed int64
	// Dead counts the dead runs that are kept. Died counts all dead runs ever.
	Dead, Died int64
}

// Finished returns the number of finished tasks, kept or purged.
func (c *Counts) Finished() int64 { return c.Completed + c.Cancelled + c.Failed + c.Purged() }

// Purged returns the number of finished tasks that are no longer kept.
func (c *Counts) Purged() int64 { return c.PurgedCompleted + c.PurgedCancelled + c.PurgedFailed }

// Plus returns the sum of c and d.
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

// Living returns the number of unfinished tasks.
func Living(counts []TypeCounts) (n int64) {
	for i := range counts {
		n += counts[i].Scheduled + counts[i].Running
	}
	return n
}
