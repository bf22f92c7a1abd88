package client

import (
	"time"

	"github.com/perceptor/perceptor/task"
)

// The delivery table decides what happens to each record. Kafka delivers at least
// once, a silent or failed run is delivered again as a higher attempt, and a
// rebalance gives the same record to another listener. So records of one run may
// arrive at any time and in any order. An attempt is settled when the listener has
// nothing left to do for it (as in AMQP 1.0). The rules for a record of attempt n:
//
//  1. The run is unknown here: the table queues it, starts it (BLOCKING) or checks
//     it (if the listener asks for checks), and executes it.
//  2. The run is active here (queued, starting, running, or its result or hand-back
//     is not answered yet): the record waits. The result of the active attempt is
//     sent, and sent again, under the attempt that ran. If that attempt is settled
//     and the run is not over, the highest waiting attempt is executed.
//  3. The run was over (SUCCESS, a stop or a permanent FAIL was ACCEPTED, or the
//     answer to any call was ALREADY, FINISHED or UNKNOWN): a copy of the settled
//     record is skipped. The service is asked about every other record, by a start
//     (BLOCKING) or a check. If the run is open, it is executed.
//  4. The run continued (FAIL or SNOOZE was ACCEPTED, or the answer was
//     SUPERSEDED): a copy of the settled record is skipped, and a higher attempt is
//     executed. The service is asked about every other record, as in rule 3.
//  5. HELD in answer to a start settles nothing: the record is done and the table
//     forgets it. RETRY in answer to any call: the table sends the same call again.
//
// The hard part is rule 4. Skipping every record of a "settled" run would lose the
// run: its retries arrive at the same process (same partition) and would all be
// skipped until the run is given up. And a remembered FAIL must never be sent
// again under a later attempt: that would count two attempts for one execution.
//
// The table remembers more than the service if a database loses its last commits, in
// a fail-over to a replica that was behind or in a restore. A run whose claim and
// result were lost is claimed again, under the same run id. So what the table
// remembers proves only that a record with the same attempt and the same claim time
// is a copy. All other records of a settled run may belong to a run that is open:
// those with a higher attempt, with another claim time, or with none (a dispatcher
// published it again after a take-over). They are rare, and asking costs one call.
//
// If a settled run turns out to be open, its handler is called again. Reporting the
// remembered result instead would be wrong. The contract calls a handler until its
// result is stored, and it is not stored any more. What the handler wrote may be lost
// as well, if its service uses the same server. The run may even be another one: seq
// is counted again from the state that was restored, perhaps after an edit or a
// trigger. A handler that has kept its effects recognises the run id.
//
// Invariant: a record's offset is committed only when nothing can be lost, that
// is, when its run is settled or a row in Postgres will cause another delivery.
// Such a row exists after an accepted start or heartbeat. For a waiting record it
// also exists if the run is not NON_BLOCKING, or was delivered before (attempt >
// 1). So a handler that hangs does not block a partition.
//
// The table is pure: its methods are the inputs, the actions that they append are
// the outputs. It uses no clock, goroutine or socket. It is not safe for concurrent
// use.
type table struct {
	active  map[task.RunID]*entry
	past    recentRuns // settled runs
	pending int        // records that are not released yet
	bytes   int        // size of the params of those records
	begun   int        // active entries that are not queued
}

// newTable returns a table that remembers up to limit settled runs.
func newTable(limit int) *table {
	return &table{active: map[task.RunID]*entry{}, past: newRecentRuns(limit)}
}

// action is one output of the table.
type action struct {
	verb  verb
	entry *entry      // nil for doCommit and doSkip
	rec   *arrival    // the record that the action concerns
	tries int         // number of RETRY answers so far
	res   task.Result // the result, for doReport
	// notBefore is when the service allows the next try.
	notBefore time.Time
}

// arrive adds a record to the table.
func (t *table) arrive(out []action, a *arrival) []action {
	t.countPending(a, 1)
	id := a.pub.RunID()
	if e := t.active[id]; e != nil {
		return t.addWaiting(out, e, a)
	}
	before := t.past.get(id)
	if before.covers(&a.pub) {
		return t.release(append(out, action{verb: doSkip, rec: a}), a)
	}
	e := &entry{}
	t.active[id] = e
	return t.activate(out, e, a, before)
}

// activate makes a the active record of e; before says how the run was settled
// before.
func (t *table) activate(out []action, e *entry, a *arrival, before settled) []action {
	*e = entry{rec: a, waiting: e.waiting, best: e.best, before: before, slot: e.slot}
	a.suspect = before.ends || a.pub.Attempt <= before.ran
	if a.handled {
		e.phase = queued
		return append(out, action{verb: doQueue, entry: e, rec: a})
	}
	e.phase = returning
	t.begun++
	return append(out, action{verb: doHandBack, entry: e, rec: a})
}

// addWaiting makes a wait for the active record of its run.
func (t *table) addWaiting(out []action, e *entry, a *arrival) []action {
	if e.leased || a.pub.Type != task.NonBlocking || a.pub.Attempt > 1 {
		out = commit(out, a)
		e.owed = true
	}
	e.waiting = append(e.waiting, a)
	if a.pub.Attempt > e.rec.pub.Attempt && (e.best == nil || a.pub.Attempt > e.best.pub.Attempt) {
		e.best = a
	}
	return t.releaseWaiting(out, e)
}

// releaseWaiting releases the waiting records that are not needed any more.
func (t *table) releaseWaiting(out []action, e *entry) []action {
	kept := e.waiting[:0]
	for _, w := range e.waiting {
		if w.done && w != e.best {
			out = t.release(append(out, action{verb: doSkip, rec: w}), w)
			continue
		}
		kept = append(kept, w)
	}
	clear(e.waiting[len(kept):])
	e.waiting = kept
	return out
}

// begin starts the work on a queued entry. The engine calls it when there is
// room.
func (t *table) begin(out []action, e *entry) []action {
	out, ok := t.dequeue(out, e)
	if !ok {
		return out
	}
	if e.rec.asks() {
		e.phase = starting
		return append(out, action{verb: doStart, entry: e, rec: e.rec})
	}
	e.phase = running
	return append(out, action{verb: doExecute, entry: e, rec: e.rec})
}

// putOff snoozes a queued entry without calling its handler. The engine calls
// it when the kind of the entry will be busy for a while.
func (t *table) putOff(out []action, e *entry, after time.Duration) []action {
	out, ok := t.dequeue(out, e)
	if !ok {
		return out
	}
	e.phase, e.result = reporting, task.Result{Outcome: task.Snooze, After: after, Next: task.Never}
	return append(out, action{verb: doReport, entry: e, rec: e.rec, res: e.result})
}

// dequeue prepares a queued entry for work. It returns false if there is
// nothing to do for the entry.
func (t *table) dequeue(out []action, e *entry) ([]action, bool) {
	if e.phase != queued {
		return out, false
	}
	if b := e.best; b != nil {
		// No attempt has begun, so the newest one may run first.
		out = t.swap(out, e, b)
	}
	if e.orphaned() {
		t.abandon(e)
		return out, false
	}
	t.begun++
	return out, true
}

// swap makes the waiting record b active. The active record, which has not
// begun, becomes a waiting duplicate.
func (t *table) swap(out []action, e *entry, b *arrival) []action {
	old := e.rec
	e.rec, e.best = b, nil
	b.suspect, b.check = old.suspect, old.check
	for i, w := range e.waiting {
		if w == b {
			e.waiting[i] = old
		}
	}
	// b has attempt > 1, so a row in Postgres will cause another delivery.
	return t.releaseWaiting(commit(out, old), e)
}

// orphaned reports whether another listener will read this record again,
// because its partition was reassigned before its offset was done. Executing it
// here as well would only duplicate work.
func (e *entry) orphaned() bool {
	if e.rec.done || e.owed || !e.rec.at.lost() {
		return false
	}
	for _, w := range e.waiting {
		if !w.at.lost() {
			return false
		}
	}
	return true
}

// abandon removes e and commits none of its offsets.
func (t *table) abandon(e *entry) {
	delete(t.active, e.rec.pub.RunID())
	t.past.add(e.rec.pub.RunID(), e.before)
	t.countPending(e.rec, -1)
	for _, w := range e.waiting {
		t.countPending(w, -1)
	}
	e.phase, e.waiting, e.best = 0, nil, nil
}

// startAnswered handles the answer to doStart.
func (t *table) startAnswered(out []action, e *entry, code task.Code) []action {
	if e.phase != starting {
		return out
	}
	switch code {
	case task.Accepted:
		e.phase, e.tries = running, 0
		if e.rec.pub.Type == task.Blocking {
			out = t.markLeased(out, e)
		}
		if !e.rec.handled { // the kind of the task was changed
			e.phase = returning
			return append(out, action{verb: doHandBack, entry: e, rec: e.rec})
		}
		return append(out, action{verb: doExecute, entry: e, rec: e.rec})
	case task.Retry:
		e.tries++
		return append(out, action{verb: doStart, entry: e, rec: e.rec, tries: e.tries})
	case task.Held:
		return t.forgetAttempt(out, e)
	case task.Superseded:
		return t.settleAttempt(out, e, false)
	}
	return t.settleAttempt(out, e, true) // Already, Finished, Unknown, Invalid
}

// markLeased records that a row in Postgres will cause another delivery of the
// run, and commits the offsets of its records.
func (t *table) markLeased(out []action, e *entry) []action {
	e.leased = true
	out = commit(out, e.rec)
	for _, w := range e.waiting {
		out = commit(out, w)
	}
	return t.releaseWaiting(out, e)
}

// heartbeatAccepted records that a heartbeat of the running attempt was
// accepted.
func (t *table) heartbeatAccepted(out []action, e *entry, attempt int32) []action {
	if (e.phase != running && e.phase != reporting) || e.rec.pub.Attempt != attempt {
		return out
	}
	return t.markLeased(out, e)
}

// leaseExpired records that the lease ended before the handler began. It
// applies only to a run with a lease; another run would not be delivered again.
func (t *table) leaseExpired(out []action, e *entry, attempt int32) []action {
	if e.phase != running || e.rec.pub.Attempt != attempt || !e.leased {
		return out
	}
	return t.forgetAttempt(out, e)
}

// handlerEnded records the result of the handler. Only the first result of an
// attempt counts.
func (t *table) handlerEnded(out []action, e *entry, attempt int32, r task.Result) []action {
	if e.phase != running || e.rec.pub.Attempt != attempt {
		return out
	}
	e.phase, e.result = reporting, r
	t.bytes -= len(e.rec.pub.Params) // nobody needs them any more, and the answer may take long
	e.rec.pub.Params = nil
	return append(out, action{verb: doReport, entry: e, rec: e.rec, res: e.result})
}

// reportAnswered handles the answer to doReport; refusal names the rule that an
// INVALID result broke.
func (t *table) reportAnswered(out []action, e *entry, code task.Code, refusal string) []action {
	if e.phase != reporting {
		return out
	}
	switch code {
	case task.Accepted:
		return t.settleAttempt(out, e, e.result.Ends())
	case task.Retry:
		e.tries++
		return append(out, action{verb: doReport, entry: e, rec: e.rec, tries: e.tries, res: e.result})
	case task.Invalid:
		if e.refused {
			return t.settleAttempt(out, e, false)
		}
		e.refused = true
		e.result = task.Result{Outcome: task.Fail, Error: "the result was refused: " + refusal, Next: task.Never}
		return append(out, action{verb: doReport, entry: e, rec: e.rec, res: e.result})
	case task.Superseded, task.Held:
		return t.settleAttempt(out, e, false)
	}
	return t.settleAttempt(out, e, true) // Already, Finished, Unknown
}

// handBackAnswered handles the answer to doHandBack. After any answer but RETRY
// the run is with another listener, or is delivered again.
func (t *table) handBackAnswered(out []action, e *entry, code task.Code) []action {
	if e.phase != returning {
		return out
	}
	if code == task.Retry {
		e.tries++
		return append(out, action{verb: doHandBack, entry: e, rec: e.rec, tries: e.tries})
	}
	return t.forgetAttempt(out, e)
}

// settleAttempt ends the work on the active record and remembers its outcome;
// ends reports whether the run is over.
func (t *table) settleAttempt(out []action, e *entry, ends bool) []action {
	p := &e.rec.pub
	s := settled{ran: max(p.Attempt, e.before.ran), claimed: p.ClaimedAt, ends: ends}
	if !ends && e.best != nil {
		return t.runNext(out, e, s)
	}
	t.past.add(p.RunID(), s)
	return t.closeEntry(out, e)
}

// forgetAttempt ends the work on the active record without remembering it.
func (t *table) forgetAttempt(out []action, e *entry) []action {
	if e.best != nil {
		return t.runNext(out, e, e.before)
	}
	t.past.add(e.rec.pub.RunID(), e.before)
	return t.closeEntry(out, e)
}

// runNext activates the waiting record with the highest attempt; before says how
// the run was settled before.
func (t *table) runNext(out []action, e *entry, before settled) []action {
	t.unbegin(e)
	b := e.best
	e.best = nil
	out, e.waiting = t.releaseCopies(t.release(out, e.rec), e, b)
	return t.activate(out, e, b, before)
}

// closeEntry removes e and releases its records. Those of another delivery whose
// offsets are not committed arrive again: the answer may be older than they are.
func (t *table) closeEntry(out []action, e *entry) []action {
	t.unbegin(e)
	delete(t.active, e.rec.pub.RunID())
	out, again := t.releaseCopies(t.release(out, e.rec), e, nil)
	e.phase, e.waiting, e.best = 0, nil, nil
	for _, w := range again {
		t.countPending(w, -1)
		out = t.arrive(out, w)
	}
	return out
}

// releaseCopies releases the waiting records of e but for next that nothing is
// needed for: copies of the active record, and records that a row in Postgres
// will deliver again. It returns the others but for next.
func (t *table) releaseCopies(out []action, e *entry, next *arrival) (_ []action, kept []*arrival) {
	for _, w := range e.waiting {
		switch {
		case w == next:
		case w.done || w.copies(e.rec):
			out = t.release(append(out, action{verb: doSkip, rec: w}), w)
		default:
			kept = append(kept, w)
		}
	}
	return out, kept
}

func (t *table) unbegin(e *entry) {
	if e.phase != queued {
		t.begun--
	}
}

// release commits the offset of a and stops counting a as pending.
func (t *table) release(out []action, a *arrival) []action {
	t.countPending(a, -1)
	return commit(out, a)
}

// countPending adds n times the record a to the pending counts; n is 1 or -1.
func (t *table) countPending(a *arrival, n int) {
	t.pending += n
	t.bytes += n * len(a.pub.Params)
}

func commit(out []action, a *arrival) []action {
	if a.done {
		return out
	}
	a.done = true
	return append(out, action{verb: doCommit, rec: a})
}
