package client

import (
	"time"

	"github.com/perceptor/perceptor/task"
)

// The duplicate table decides what becomes of each record. Kafka delivers at
// least once, silent and failed runs come again under a higher attempt, and a
// rebalance hands the same record to somebody else; so the same run may be seen
// at any time, in any order. The rules, for a record of attempt n:
//
//  1. The run is unknown here: it is queued, started if it is BLOCKING or checked if
//     the listener wants that, and run.
//  2. The run is active here (queued, starting, running, its result or its
//     hand-back not answered): the record waits. The result of the active one is
//     sent, and sent again, under the attempt that ran. When the run is settled
//     without being over, the highest waiting attempt is run.
//  3. The run is over (SUCCESS, stop or a permanent FAIL ACCEPTED; or ALREADY, FINISHED, UNKNOWN
//     to whatever was asked): the record is skipped.
//  4. The run goes on (FAIL or SNOOZE ACCEPTED, or SUPERSEDED): an attempt not above the one
//     that was settled is skipped, a higher one runs.
//  5. HELD to a start settles nothing: the record is done, the table forgets it.
//     RETRY to anything: the same is sent again.
//
// Rule 4 is the one that is easily got wrong: skipping every record of a run
// that has been "settled" buries the run, because its retries come to the same
// process (same partition) and are skipped one after the other until it is
// given up. And a remembered FAIL is never sent again under a later attempt:
// that would spend two attempts on one execution.
//
// A record's offset may be committed when nothing can be lost any more: its run
// is settled, or a row in Postgres brings it back by itself. A row does when the
// start or a heartbeat was accepted; for a record that waits also when the run
// is not NON_BLOCKING, or has been delivered before (attempt > 1). So one stuck
// handler does not pin a partition.
//
// The table is pure: inputs are its methods, outputs the actions they append.
// It knows no clock, goroutine or socket, and is not safe for concurrent use.
type table struct {
	active map[task.RunID]*entry
	past   memory // settled runs
	held   int    // arrivals not freed
	bytes  int    // their params
	begun  int    // active entries that are not queued
}

// newTable returns a table that remembers so many settled runs.
func newTable(limit int) *table {
	return &table{active: map[task.RunID]*entry{}, past: newMemory(limit)}
}

// phase is where an active run is.
type phase uint8

const (
	queued    phase = iota + 1 // waits for room
	starting                   // Start is asked for, not answered
	running                    // the handler runs, or may begin
	reporting                  // the handler has ended, its result is not answered
	returning                  // handed back, not answered
)

// entry is an active run.
type entry struct {
	phase phase
	// rec is the record that is active; its attempt is the one that ran.
	rec *arrival
	// best is the waiting record of the highest attempt above rec's, if any.
	best *arrival
	// before is the last attempt that was settled here without ending the run; 0:
	// none. It is remembered when rec is given up.
	before int32
	// waiting are all waiting records that are not freed, best among them.
	waiting []*arrival
	// leased: a row in Postgres brings the run back (Start or heartbeat accepted).
	leased bool
	// owed: a duplicate's offset was done because this entry is worked on, so it
	// must be, even if its own record will be read by somebody else.
	owed bool
	// tries counts RETRY answers in a row.
	tries int
	// result is what is reported.
	result result
	// refused: the result was INVALID, and a FAIL that says so took its place.
	refused bool
	// flight and slot belong to the driver: the execution of rec, and the place
	// among the runs of its kind that is taken for it.
	flight *flight
	slot   *limit
}

// arrival is one record from Kafka.
type arrival struct {
	pub task.Publication
	// handled: there is a handler for the kind.
	handled bool
	// at is the record's place on its partition.
	at position
	// done: the offset has been given to the tracker.
	done bool
	// check: whether it shall still be handled is asked first.
	check bool
}

// asks reports whether the service is asked before the handler is called.
func (a *arrival) asks() bool { return a.check || a.pub.Type == task.Blocking }

// renew gives a record that is held the newer terms of its task.
func (t *table) renew(a *arrival, terms *task.Terms, handled bool) {
	t.bytes += len(terms.Params) - len(a.pub.Params)
	a.pub.Version, a.pub.Kind, a.pub.Params, a.handled = terms.Version, terms.Kind, terms.Params, handled
}

// result is how a handler ended.
type result struct {
	failed    bool
	snoozed   bool
	permanent bool
	stop      bool
	errmsg    string
	after     time.Duration // of a snooze, or of a retry unless 0
	next      task.Instant  // Never: by the interval
	patch     *task.ParamsPatch
}

// ends reports whether the run is over when the result is accepted.
func (r *result) ends() bool { return r.stop || r.permanent || !r.failed && !r.snoozed }

// verb is what an action asks the driver to do.
type verb uint8

const (
	doQueue    verb = iota + 1 // put the entry in the queue; call begin when there is room
	doStart                    // ask for the lease; answer with startAnswered
	doExecute                  // run the handler; answer with ended or dropped
	doReport                   // report the result; answer with reportAnswered
	doHandBack                 // hand the attempt back; answer with handBackAnswered
	doCommit                   // the record's offset is done
	doSkip                     // tell whoever watches that the record was skipped
)

// String returns the verb in the words of the tests.
func (v verb) String() string {
	return [...]string{doQueue: "queue", doStart: "start", doExecute: "execute", doReport: "report",
		doHandBack: "hand back", doCommit: "commit", doSkip: "skip"}[v]
}

// action is one output of the table.
type action struct {
	verb  verb
	entry *entry   // but for doCommit and doSkip
	rec   *arrival // the record it is about
	tries int      // how often this was answered RETRY
	res   result   // for doReport
}

// arrive takes a record in.
func (t *table) arrive(out []action, a *arrival) []action {
	t.count(a, 1)
	id := a.pub.RunID()
	if e := t.active[id]; e != nil {
		return t.wait(out, e, a)
	}
	before := int32(0)
	if m, ok := t.past.runs[id]; ok {
		if m.ends || a.pub.Attempt <= m.ran {
			return t.release(append(out, action{verb: doSkip, rec: a}), a)
		}
		t.past.drop(id)
		before = m.ran
	}
	e := &entry{}
	t.active[id] = e
	return t.activate(out, e, a, before)
}

// activate makes a the record of e that is worked on, after the attempt before
// was settled.
func (t *table) activate(out []action, e *entry, a *arrival, before int32) []action {
	*e = entry{rec: a, waiting: e.waiting, best: e.best, before: before, slot: e.slot}
	if a.handled {
		e.phase = queued
		return append(out, action{verb: doQueue, entry: e, rec: a})
	}
	e.phase = returning
	t.begun++
	return append(out, action{verb: doHandBack, entry: e, rec: a})
}

// wait lets a wait for the active record of its run.
func (t *table) wait(out []action, e *entry, a *arrival) []action {
	if e.leased || a.pub.Type != task.NonBlocking || a.pub.Attempt > 1 {
		out = commit(out, a)
		e.owed = true
	}
	e.waiting = append(e.waiting, a)
	if a.pub.Attempt > e.rec.pub.Attempt && (e.best == nil || a.pub.Attempt > e.best.pub.Attempt) {
		e.best = a
	}
	return t.tidy(out, e)
}

// tidy frees waiting records of which nothing is needed any more.
func (t *table) tidy(out []action, e *entry) []action {
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

// begin says that there is room to work on a queued entry.
func (t *table) begin(out []action, e *entry) []action {
	out, ok := t.take(out, e)
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

// putOff says that there will be no room for a queued entry for a while: it is
// snoozed as its handler would do it.
func (t *table) putOff(out []action, e *entry, after time.Duration) []action {
	out, ok := t.take(out, e)
	if !ok {
		return out
	}
	e.phase, e.result = reporting, result{snoozed: true, after: after, next: task.Never}
	return append(out, action{verb: doReport, entry: e, rec: e.rec, res: e.result})
}

// take takes an entry out of the queue; false: there is nothing to be done for it.
func (t *table) take(out []action, e *entry) ([]action, bool) {
	if e.phase != queued {
		return out, false
	}
	if b := e.best; b != nil {
		// Nothing has begun yet, so the newest attempt may as well be the first.
		out = t.swap(out, e, b)
	}
	if e.orphaned() {
		t.abandon(e)
		return out, false
	}
	t.begun++
	return out, true
}

// swap makes the waiting record b active; the active one, which has not begun,
// waits like a duplicate.
func (t *table) swap(out []action, e *entry, b *arrival) []action {
	old := e.rec
	e.rec, e.best = b, nil
	for i, w := range e.waiting {
		if w == b {
			e.waiting[i] = old
		}
	}
	// b has attempt > 1, so a row holds the run.
	return t.tidy(commit(out, old), e)
}

// orphaned reports whether somebody else will read this record again: its
// partition was taken away before its offset was done. Running it here as well
// would only double the work.
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

// abandon drops e as if it had never come: nothing of it is committed.
func (t *table) abandon(e *entry) {
	delete(t.active, e.rec.pub.RunID())
	t.past.note(e.rec.pub.RunID(), e.before, false)
	t.count(e.rec, -1)
	for _, w := range e.waiting {
		t.count(w, -1)
	}
	e.phase, e.waiting, e.best = 0, nil, nil
}

// startAnswered takes the answer to doStart.
func (t *table) startAnswered(out []action, e *entry, code task.Code) []action {
	if e.phase != starting {
		return out
	}
	switch code {
	case task.Accepted:
		e.phase, e.tries = running, 0
		if e.rec.pub.Type == task.Blocking {
			out = t.hold(out, e)
		}
		if !e.rec.handled { // under the kind that the task has by now
			e.phase = returning
			return append(out, action{verb: doHandBack, entry: e, rec: e.rec})
		}
		return append(out, action{verb: doExecute, entry: e, rec: e.rec})
	case task.Retry:
		e.tries++
		return append(out, action{verb: doStart, entry: e, rec: e.rec, tries: e.tries})
	case task.Held:
		return t.forget(out, e)
	case task.Superseded:
		return t.settle(out, e, false)
	}
	return t.settle(out, e, true) // Already, Finished, Unknown, Invalid
}

// hold notes that a row in Postgres brings the run back.
func (t *table) hold(out []action, e *entry) []action {
	e.leased = true
	out = commit(out, e.rec)
	for _, w := range e.waiting {
		out = commit(out, w)
	}
	return t.tidy(out, e)
}

// heartbeatAccepted says that a heartbeat of the running attempt was accepted.
func (t *table) heartbeatAccepted(out []action, e *entry, attempt int32) []action {
	if (e.phase != running && e.phase != reporting) || e.rec.pub.Attempt != attempt {
		return out
	}
	return t.hold(out, e)
}

// dropped says that the lease was over before the handler began. Only a leased
// run may be dropped: nothing else would bring it back.
func (t *table) dropped(out []action, e *entry, attempt int32) []action {
	if e.phase != running || e.rec.pub.Attempt != attempt || !e.leased {
		return out
	}
	return t.forget(out, e)
}

// ended takes the result of the handler. Only the first one of an attempt counts.
func (t *table) ended(out []action, e *entry, attempt int32, r result) []action {
	if e.phase != running || e.rec.pub.Attempt != attempt {
		return out
	}
	e.phase, e.result = reporting, r
	return append(out, action{verb: doReport, entry: e, rec: e.rec, res: e.result})
}

// reportAnswered takes the answer to doReport; refusal says what an INVALID
// result broke.
func (t *table) reportAnswered(out []action, e *entry, code task.Code, refusal string) []action {
	if e.phase != reporting {
		return out
	}
	switch code {
	case task.Accepted:
		return t.settle(out, e, e.result.ends())
	case task.Retry:
		e.tries++
		return append(out, action{verb: doReport, entry: e, rec: e.rec, tries: e.tries, res: e.result})
	case task.Invalid:
		if e.refused {
			return t.settle(out, e, false)
		}
		e.refused = true
		e.result = result{failed: true, errmsg: "the result was refused: " + refusal, next: task.Never}
		return append(out, action{verb: doReport, entry: e, rec: e.rec, res: e.result})
	case task.Superseded, task.Held:
		return t.settle(out, e, false)
	}
	return t.settle(out, e, true) // Already, Finished, Unknown
}

// handBackAnswered takes the answer to doHandBack. Whatever it is, somebody else
// has the run, or it comes again.
func (t *table) handBackAnswered(out []action, e *entry, code task.Code) []action {
	if e.phase != returning {
		return out
	}
	if code == task.Retry {
		e.tries++
		return append(out, action{verb: doHandBack, entry: e, rec: e.rec, tries: e.tries})
	}
	return t.forget(out, e)
}

// settle ends the work on the active record and remembers how.
func (t *table) settle(out []action, e *entry, ends bool) []action {
	if !ends && e.best != nil {
		return t.goOn(out, e, e.rec.pub.Attempt)
	}
	t.past.note(e.rec.pub.RunID(), e.rec.pub.Attempt, ends)
	return t.close(out, e)
}

// forget ends the work on the active record without a trace of it.
func (t *table) forget(out []action, e *entry) []action {
	if e.best != nil {
		return t.goOn(out, e, e.before)
	}
	t.past.note(e.rec.pub.RunID(), e.before, false)
	return t.close(out, e)
}

// goOn runs the highest waiting attempt after the active one; before is the last
// one that was settled.
func (t *table) goOn(out []action, e *entry, before int32) []action {
	t.unbegin(e)
	out = t.release(out, e.rec)
	b := e.best
	e.best = nil
	for _, w := range e.waiting {
		if w != b {
			out = t.release(append(out, action{verb: doSkip, rec: w}), w)
		}
	}
	clear(e.waiting)
	e.waiting = e.waiting[:0]
	return t.activate(out, e, b, before)
}

// close removes e and releases all its records.
func (t *table) close(out []action, e *entry) []action {
	t.unbegin(e)
	delete(t.active, e.rec.pub.RunID())
	out = t.release(out, e.rec)
	for _, w := range e.waiting {
		out = t.release(append(out, action{verb: doSkip, rec: w}), w)
	}
	e.phase, e.waiting, e.best = 0, nil, nil
	return out
}

func (t *table) unbegin(e *entry) {
	if e.phase != queued {
		t.begun--
	}
}

// release commits a and stops counting it.
func (t *table) release(out []action, a *arrival) []action {
	t.count(a, -1)
	return commit(out, a)
}

// count counts a n times more among what is held.
func (t *table) count(a *arrival, n int) {
	t.held += n
	t.bytes += n * len(a.pub.Params)
}

func commit(out []action, a *arrival) []action {
	if a.done {
		return out
	}
	a.done = true
	return append(out, action{verb: doCommit, rec: a})
}
