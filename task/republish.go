package task

// Republish makes the open runs that were last delivered at since or later due at now, and
// returns their number. It serves when Kafka has lost acknowledged records. A run that a
// listener holds, or that is due already, stays as it is, and so does a run that would be
// given up. Runs without a row of their own were delivered once, after their claim.
func (m *Machine) Republish(since, now Instant) (runs int) {
	t := m.Task
	if t.Type != NonBlocking {
		if t.republish(since, now) {
			runs++
		}
		return runs
	}
	for _, r := range m.Runs {
		if r.Change != Removed && r.republish(since, now) {
			runs++
		}
	}
	for i := range int64(OpenBits) {
		if t.OpenRuns&(1<<i) != 0 && t.claimedAt(i) >= since {
			m.detachRun(t.Seq-i, now)
			runs++
		}
	}
	return runs
}

// republish makes the open run of the row due.
func (r *Row) republish(since, now Instant) bool {
	delivered := r.DueAt.Add(-r.SilenceDelay())
	switch {
	case r.State != Running, !r.Out, r.Holder != 0, r.DueAt <= now, delivered < since, r.unheard(now):
		return false
	}
	r.DueAt = now
	r.markChanged()
	return true
}

// A RepublishRequest selects the runs of one database for [Machine.Republish].
type RepublishRequest struct {
	Since Instant
	// Tenant selects the runs of one tenant. 0 selects all.
	Tenant int32
	// DryRun counts runs and changes nothing.
	DryRun bool
}

// A Republished is the result of one step.
type Republished struct {
	// Runs were made due. Busy rows were locked by others for too long and were left out.
	Runs, Busy int
	// Done is true if the step was the last one.
	Done bool
}
