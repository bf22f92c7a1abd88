package task

// Merge applies a patch to stored params and returns the new bytes. It returns an error
// that names the rule that the result breaks.
type Merge func(params []byte, p *ParamsPatch) ([]byte, error)

// Report applies the result of an attempt. u in [0, 1) is a random number for the
// jitter of a backoff.
//
// FAIL is accepted only for the current attempt while it is out. SUCCESS of ONE_SHOT
// and NON_BLOCKING is accepted from any attempt while the run is open. For BLOCKING
// both are accepted only from the holder of the current attempt. SNOOZE follows the
// rules of FAIL, but any listener may snooze a BLOCKING run that has no holder: a
// listener that is too busy to start the run postpones it.
func (m *Machine) Report(res Report, now Instant, u float64, merge Merge) Reply {
	r, code := m.openRow(res.Attempt)
	if code != Accepted {
		return Reply{Code: code}
	}
	unheld := res.Outcome == Snooze && r.Holder == 0
	if r.Type == Blocking && (res.Attempt.Attempt != r.Attempt || !r.Out || res.Holder == 0 || res.Holder != r.Holder && !unheld) {
		return Reply{Code: Superseded}
	}
	attempt, out := m.currentAttempt(r, res.Seq)
	if res.Outcome != Success && (res.Attempt.Attempt != attempt || !out) {
		return Reply{Code: Superseded}
	}
	if res.Outcome == Snooze {
		m.snooze(r, res, now)
		return Reply{Code: Accepted}
	}
	if res.Patch != nil {
		params, err := merge(m.Task.Params, res.Patch)
		if err != nil {
			return Reply{Code: Invalid, Field: "params_patch", Message: err.Error()}
		}
		if m.isFinal(r, res) {
			m.Task.Params = params
		}
	}
	m.applyResult(r, res, now, u)
	return Reply{Code: Accepted}
}

// openRow returns the row that holds the open run of an attempt: a run row, or the row
// of the task. If there is none, it returns a code other than Accepted with the cause.
func (m *Machine) openRow(a Attempt) (*Row, Code) {
	t := m.Task
	if a.Seq < 1 || a.Seq > t.Seq || a.Attempt < 1 {
		return nil, Unknown
	}
	r := t
	if t.Type == NonBlocking {
		if r = m.runRow(a.Seq); r == nil {
			if t.OpenRuns&m.runBit(a.Seq) == 0 {
				return nil, Already
			}
			r = t
		}
	} else if t.State != Running || a.Seq < t.Seq {
		return nil, Already
	}
	if attempt, _ := m.currentAttempt(r, a.Seq); a.Attempt > attempt {
		return nil, Unknown
	}
	return r, Accepted
}

// currentAttempt returns the current attempt of the run in r, and whether it is out. A
// run that has only a bit was delivered once.
func (m *Machine) currentAttempt(r *Row, seq int64) (attempt int32, out bool) {
	if r.Type == NonBlocking && r.Run == 0 {
		return 1, true
	}
	return r.Attempt, r.Out
}

// isFinal reports whether an accepted result ends its run.
func (m *Machine) isFinal(r *Row, res Report) bool {
	if res.Ends() {
		return true
	}
	failures := int32(0)
	if r.Type != NonBlocking || r.Run != 0 {
		failures = r.Failures
	}
	return failures+1 >= r.Retry.MaxAttempts
}

// applyResult applies an accepted SUCCESS or FAIL.
func (m *Machine) applyResult(r *Row, res Report, now Instant, u float64) {
	m.Task.markChanged()
	if r.Type == NonBlocking && r.Run == 0 {
		if res.Outcome == Success || res.Stop {
			m.Task.clearBit(m.Task.Seq - res.Seq)
			m.continueAfter(res, now)
			return
		}
		r = m.detachRun(res.Seq, now)
	}
	if res.Outcome == Success || res.Stop {
		if r.Run != 0 {
			m.closeRow(r)
		}
		m.continueAfter(res, now)
		return
	}
	r.Failures++
	r.heardAt(now)
	switch {
	case res.Permanent:
		m.giveUpRun(r, Permanent, res.Error, now)
		return
	case r.Failures >= r.Retry.MaxAttempts:
		m.giveUpRun(r, OutOfAttempts, res.Error, now)
		return
	case res.After > 0:
		r.DueAt = now.Add(res.After)
	default:
		r.DueAt = now.Add(r.Retry.Backoff(r.Failures, u))
	}
	r.Out, r.Holder = false, 0
	r.markChanged()
}

// snooze schedules another delivery of the run after the delay in the result, but at the
// latest at give_up_after. That delivery is the last one: a snooze after it gives up the
// run as silence does. So give_up_after bounds the time of a run even if its handler
// snoozes it again and again.
func (m *Machine) snooze(r *Row, res Report, now Instant) {
	m.Task.markChanged()
	if r.Type == NonBlocking && r.Run == 0 {
		r = m.detachRun(res.Seq, now)
	}
	last := r.FirstClaimAt.Add(r.GiveUpAfter)
	if now >= last {
		m.giveUpRun(r, Silent, "snoozed until give_up_after "+r.GiveUpAfter.String()+" was over", now)
		return
	}
	r.Snoozes = min(r.Snoozes+1, MaxSnoozes)
	r.Out, r.Holder = false, 0
	r.DueAt = min(now.Add(res.After), last)
	r.markChanged()
}

// continueAfter schedules the next run, or ends the task, after SUCCESS or stop has
// closed a run.
func (m *Machine) continueAfter(res Report, now Instant) {
	t := m.Task
	if t.BackfillOf != 0 {
		res.Next = Never // its instants are those of the source
	}
	switch {
	case res.Stop || t.Type == OneShot:
		m.finish(Completed)
	case t.Type == Blocking && res.Next != Never:
		next := max(res.Next, now)
		if t.triggered() {
			m.passOver(t.planned(), next, now)
		}
		m.scheduleAt(next, now)
	case t.Type == Blocking:
		m.scheduleNext(now)
	default:
		if res.Next != Never {
			m.moveGrid(max(res.Next, now), now)
		}
		m.closed(now)
	}
}

// moveGrid moves the next run of a NON_BLOCKING task to an instant that a handler
// chose. The grid continues from there. A task that had no next run, because the next
// instant was not before its end_time, has one again.
func (m *Machine) moveGrid(next, now Instant) {
	t := m.Task
	if t.State == Scheduled {
		m.passOver(t.ScheduledAt, next, now)
	}
	switch {
	case !t.exhausted(next):
		t.waitUntil(next, now)
		if t.Paused || next > now.Add(MaxBitGap) {
			m.detachFrom(0, now)
		}
	case t.State == Scheduled:
		t.ScheduledAt, t.State, t.DueAt = next, Running, t.silentAt()
	}
}

// passOver counts the instants that a handler's choice of the next instant drops: those
// from at on that have come and are before next. An instant that has not come is not
// missed; the choice replaces it.
func (m *Machine) passOver(at, next, now Instant) {
	t := m.Task
	last := min(now, next-1)
	if at > last {
		return
	}
	n := int64(1)
	if t.Type == NonBlocking || t.misfire() == Skip {
		n += t.countInstants(at, last)
	}
	t.Missed += n
	m.noteSkipped(at, n)
}
