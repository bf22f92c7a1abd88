package task

// Start gives the lease of a BLOCKING run to h. It moves the deadline only if less than
// half of the lease is left, or if the clock was set back since.
func (m *Machine) Start(a Attempt, h Holder, now Instant) Reply {
	if m.Task.Type != Blocking {
		return Reply{Code: Invalid, Field: "task_id", Message: "a " + m.Task.Type.String() + " run is not started; only BLOCKING runs are"}
	}
	r, code := m.currentRow(a)
	if code != Accepted {
		return Reply{Code: code}
	}
	if r.Holder != 0 && r.Holder != h {
		return Reply{Code: Held}
	}
	r.Holder = h
	if r.DueAt.Sub(now) < r.AckTimeout/2 {
		r.DueAt = now.Add(r.AckTimeout)
	}
	r.endBySilence(now)
	r.markChanged()
	return Reply{Code: Accepted, Lease: r.DueAt.Sub(now)}
}

// endBySilence moves a deadline that is farther away than any that is set at now, because
// the clock was set back.
func (r *Row) endBySilence(now Instant) { r.DueAt = min(r.DueAt, now.Add(r.SilenceDelay())) }

// Heartbeat moves the deadline of an attempt that is being executed. The first
// heartbeat of a NON_BLOCKING run detaches the run.
func (m *Machine) Heartbeat(a Attempt, h Holder, now Instant) Reply {
	r, code := m.currentRow(a)
	if code != Accepted {
		return Reply{Code: code}
	}
	if r.Type == Blocking && r.Holder != h {
		return Reply{Code: Superseded}
	}
	due := now.Add(r.AckTimeout)
	if r.Type == NonBlocking && r.Run == 0 {
		r = m.detachRun(a.Seq, due)
	}
	r.DueAt = max(r.DueAt, due)
	r.endBySilence(now)
	r.heardAt(now)
	r.markChanged()
	return Reply{Code: Accepted, Lease: r.DueAt.Sub(now)}
}

// HandBack accepts a run back from a listener that cannot handle it. The run is
// delivered again as a new attempt, after a delay that doubles each time. HandBack
// counts no failure.
func (m *Machine) HandBack(a Attempt, h Holder, now Instant) Reply {
	r, code := m.currentRow(a)
	if code != Accepted {
		return Reply{Code: code}
	}
	if r.Holder != 0 && r.Holder != h {
		return Reply{Code: Held} // its lease may go on although the clock says that it is over
	}
	if r.Type == NonBlocking && r.Run == 0 {
		r = m.detachRun(a.Seq, now)
	}
	r.Holder = 0
	r.DueAt = now.Add(doubled(HandBackDelay, r.silent()))
	r.markChanged()
	return Reply{Code: Accepted}
}

// currentRow returns the row of the attempt if it is the current attempt and out.
func (m *Machine) currentRow(a Attempt) (*Row, Code) {
	r, code := m.openRow(a)
	if code != Accepted {
		return nil, code
	}
	if attempt, out := m.currentAttempt(r, a.Seq); attempt != a.Attempt || !out {
		return nil, Superseded
	}
	return r, Accepted
}
