package task

// Due executes the due step of a row and returns the delivery to publish, or nil. run 0
// is the row of the task. now must not be before the DueAt of the row. For a row that is
// claimed ahead of the clock, now is its DueAt, and the publication waits until then.
func (m *Machine) Due(run int64, now Instant) *Publication {
	r := m.Task
	if run != 0 {
		r = m.runRow(run)
	}
	switch {
	case r.State == Scheduled && !m.findInstant(now):
		return nil
	case r.State == Scheduled && r.Type == NonBlocking:
		return m.fireGrid(now)
	case r.State == Scheduled:
		return m.fire(now)
	case r.Type == NonBlocking && r.Run == 0:
		m.releaseBits(now)
		return nil
	case r.Out && r.unheard(now):
		m.giveUpRun(r, Silent, "no result within give_up_after "+r.GiveUpAfter.String(), now)
		return nil
	}
	return r.redeliver(now)
}

// fire claims the next run of a ONE_SHOT or BLOCKING task. The row of the task holds the
// run.
func (m *Machine) fire(now Instant) *Publication {
	t := m.Task
	missed, ok := m.dropMissed(now)
	if !ok {
		return nil
	}
	t.Seq++
	t.clearRun()
	t.State, t.Attempt, t.Out = Running, 1, true
	if t.Anchor = t.ScheduledAt; t.BackfillOf != 0 {
		t.Anchor = ^t.instantAfter(t.ScheduledAt, t.ScheduledAt)
	}
	t.FirstClaimAt = now
	t.DueAt = now.Add(t.AckTimeout)
	t.markChanged()
	return t.publication(t.Seq, t.ScheduledAt, 1, missed, now)
}

// fireGrid claims the next run of a NON_BLOCKING task and schedules the following one
// according to the misfire policy.
func (m *Machine) fireGrid(now Instant) *Publication {
	t := m.Task
	m.releaseSilent(now, now)
	from, buffered := t.ScheduledAt, t.buffered()
	missed, ok := m.dropMissed(now)
	if !ok {
		return nil
	}
	if t.Overlapped() {
		m.noteSkipped(from, missed)
		m.holdBack(now)
		return nil
	}
	m.detachOldRuns(now)
	m.recordLateClaim(now)
	at := t.ScheduledAt
	t.Seq++
	t.OpenRuns = t.OpenRuns<<1 | 1
	t.Anchor = at
	next, passed := t.nextRun(at, m.misfireAt(now))
	t.ScheduledAt = next
	t.Missed += passed
	switch {
	case t.exhausted(next):
		t.State = Running
		if t.DueAt = now.Add(t.AckTimeout); t.OpenRuns != 1 {
			t.DueAt = t.silentAt()
		}
	case next <= now && t.misfire() != FireOnce && t.Overlap == 0:
		t.DueAt = now.Add(m.catchUpInterval())
	default:
		// A claim leaves no row due. So a row that is still due after the step of
		// SQL is one that SQL did not decide.
		t.DueAt = max(next, now+1)
		if next > now.Add(MaxBitGap) {
			m.detachFrom(0, now)
		}
	}
	t.markChanged()
	p := t.publication(t.Seq, at, 1, missed+passed, now)
	if buffered {
		p.Misfire = ByOverlap
	}
	return p
}

// misfireAt returns the instant against which instants count as missed: now, minus the
// time for which the row waited for tokens of its tenant.
func (m *Machine) misfireAt(now Instant) Instant {
	if m.WaitingSince == 0 {
		return now
	}
	return min(now, max(m.WaitingSince, m.Task.DueAt))
}

// detachOldRuns detaches the open runs whose bits the next claim cannot keep. That is
// the oldest run if all bits are in use. It is every run if the next instant is off the
// grid of the last one, as every instant of a cron expression is.
func (m *Machine) detachOldRuns(now Instant) {
	t := m.Task
	if t.OpenRuns == 0 {
		return
	}
	keep := int64(OpenBits - 1)
	if t.Interval == 0 || t.ScheduledAt-t.Anchor != Instant(t.Interval.Milliseconds()) {
		keep = 0
	}
	m.detachFrom(keep, now)
}

// releaseBits detaches the silent runs of a task that has no further claim, and makes it
// due when the next one is silent.
func (m *Machine) releaseBits(now Instant) {
	m.releaseSilent(now+1, now)
	m.Task.DueAt = m.Task.silentAt()
	m.Task.markChanged()
	m.finishIfDone()
}

// redeliver delivers the open run of the row again, after silence or at the end of a
// backoff.
func (r *Row) redeliver(now Instant) *Publication {
	r.Attempt++
	r.Out, r.Holder = true, 0
	r.DueAt = now.Add(r.SilenceDelay())
	r.markChanged()
	seq := r.Run
	if seq == 0 {
		seq = r.Seq
	}
	return r.publication(seq, r.ScheduledAt, r.Attempt, 0, now)
}

func (r *Row) publication(seq int64, at Instant, attempt int32, missed int64, now Instant) *Publication {
	return &Publication{
		Tenant: r.Tenant, Task: r.ID, Seq: seq, Attempt: attempt, Type: r.Type, Kind: r.Kind,
		ScheduledAt: at, ClaimedAt: now, Missed: missed, Version: r.Version,
		AckTimeout: r.AckTimeout, Params: r.Params, Origin: r.Origin, Misfire: r.misfire(),
	}
}

// Publication returns the delivery of run seq as its claim published it. It returns nil
// if the run is closed or if another attempt is out. The dispatcher that takes over an
// outbox needs it. ClaimedAt and Missed are no longer known and are 0.
func (r *Row) Publication(seq int64, attempt int32) *Publication {
	if r.Type == NonBlocking && r.Run == 0 {
		i := r.Seq - seq
		if i < 0 || i >= OpenBits || r.OpenRuns&(1<<i) == 0 || attempt != 1 {
			return nil
		}
		return r.publication(seq, r.scheduledOf(i), 1, 0, 0)
	}
	if r.State != Running || !r.Out || r.Attempt != attempt || (r.Run == 0 && r.Seq != seq) {
		return nil
	}
	return r.publication(seq, r.ScheduledAt, attempt, 0, 0)
}

// OpenPublications returns the deliveries of the row's open runs that were claimed at an
// instant up to until, as [Row.Publication] does.
func (r *Row) OpenPublications(until Instant) (out []Publication) {
	add := func(seq int64, attempt int32) {
		if p := r.Publication(seq, attempt); p != nil && p.ScheduledAt <= until {
			out = append(out, *p)
		}
	}
	switch {
	case r.Run != 0:
		add(r.Run, r.Attempt)
	case r.Type != NonBlocking:
		add(r.Seq, r.Attempt)
	default:
		for i := range int64(OpenBits) {
			add(r.Seq-i, 1)
		}
	}
	return out
}

// GiveUp makes the run of an attempt a dead run at once and returns true if that
// attempt is out. Otherwise it returns false and changes nothing.
func (m *Machine) GiveUp(a Attempt, reason DeadReason, message string, now Instant) bool {
	r, code := m.currentRow(a)
	if code != Accepted {
		return false
	}
	if r.Type == NonBlocking && r.Run == 0 {
		r = m.detachRun(a.Seq, now)
	}
	m.giveUpRun(r, reason, message, now)
	return true
}
