package task

// Start gives the lease of a BLOCKING run to holder. The deadline is moved only
// when less than half of the lease is left.
func (k *Machine) Start(a Attempt, h Holder, now Instant) Reply {
	if k.Task.Type != Blocking {
		return Reply{Code: Invalid, Field: "task_id", Message: "a " + k.Task.Type.String() + " run is not started; only BLOCKING runs are"}
	}
	r, code := k.outNow(a)
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
	r.touch()
	return Reply{Code: Accepted, Lease: r.DueAt.Sub(now)}
}

// Heartbeat moves the deadline of an attempt that is being worked on. The first
// one of a NON_BLOCKING run gives it a row of its own.
func (k *Machine) Heartbeat(a Attempt, h Holder, now Instant) Reply {
	r, code := k.outNow(a)
	if code != Accepted {
		return Reply{Code: code}
	}
	if r.Type == Blocking && r.Holder != h {
		return Reply{Code: Superseded}
	}
	due := now.Add(r.AckTimeout)
	if r.Type == NonBlocking && r.Run == 0 {
		r = k.spawn(a.Seq, now, due)
	}
	r.DueAt = max(r.DueAt, due)
	r.touch()
	return Reply{Code: Accepted, Lease: r.DueAt.Sub(now)}
}

// HandBack takes a run back that its listener cannot handle. It is delivered
// again after a delay that grows each time, as a new attempt; no failure is
// counted.
func (k *Machine) HandBack(a Attempt, h Holder, now Instant) Reply {
	r, code := k.outNow(a)
	if code != Accepted {
		return Reply{Code: code}
	}
	if r.Holder != 0 && r.Holder != h && r.DueAt > now {
		return Reply{Code: Held}
	}
	if r.Type == NonBlocking && r.Run == 0 {
		r = k.spawn(a.Seq, now, now)
	}
	r.Holder = 0
	r.DueAt = now.Add(doubled(HandBackDelay, r.silent()))
	r.touch()
	return Reply{Code: Accepted}
}

// outNow finds the row of an attempt that must be the current one, and out.
func (k *Machine) outNow(a Attempt) (*Row, Code) {
	r, code := k.open(a)
	if code != Accepted {
		return nil, code
	}
	if attempt, out := k.current(r, a.Seq); attempt != a.Attempt || !out {
		return nil, Superseded
	}
	return r, Accepted
}
