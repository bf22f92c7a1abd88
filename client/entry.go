package client

import (
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/perceptor/perceptor/task"
)

// phase is the stage that an active run has reached.
type phase uint8

const (
	queued    phase = iota + 1 // waits for a worker or a lease
	starting                   // a start was requested and is not answered
	running                    // the handler runs, or may begin
	reporting                  // the handler has ended, its result is not answered
	returning                  // a hand-back was sent and is not answered
)

// entry is an active run.
type entry struct {
	phase phase
	// rec is the active record. Its attempt is the one that is reported.
	rec *arrival
	// best is the waiting record with the highest attempt above that of rec;
	// nil: none.
	best *arrival
	// before says how the run was settled before. The table remembers it if rec
	// is forgotten.
	before settled
	// waiting has all waiting records that are not released, including best.
	waiting []*arrival
	// leased is set after an accepted start or heartbeat: a row in Postgres
	// will cause another delivery.
	leased bool
	// owed is set when a duplicate's offset was committed because this entry is
	// being executed. The entry must then be executed even if another listener
	// reads its own record again.
	owed bool
	// tries counts consecutive RETRY answers.
	tries int
	// result is the result to report.
	result task.Result
	// refused is set when the result was INVALID and was replaced by a FAIL
	// that says so.
	refused bool
	// execution and slot belong to the engine: the execution of rec, and the
	// slot of the kind's limit that it occupies.
	execution *execution
	slot      *limit
	// unanswered belongs to the engine, too: the last call was not answered.
	unanswered bool
}

// next is the record that runs if the work on e, which is queued, begins now.
func (e *entry) next() *arrival {
	if e.best != nil {
		return e.best
	}
	return e.rec
}

// arrival is a record from Kafka.
type arrival struct {
	pub task.Publication
	// handled: this listener has a handler for the kind.
	handled bool
	// at is the record's position on its partition.
	at position
	// done: the tracker knows that the offset may be committed.
	done bool
	// check: the service is asked, before the handler is called, whether to run
	// the record, or the waiting one that takes its place.
	check bool
	// holdUntil is when the run is due, as by [engine.since]; 0: it was published when it was due.
	holdUntil time.Duration
	// times has the stages of the record here, for the history.
	times stages
	// report is the span of the report of the result; nil: none.
	report trace.Span
	// suspect: the run was settled here, so this is a duplicate, or the service has
	// lost the result. The service is asked before the handler is called.
	suspect bool
}

// asks reports whether the service is asked before the handler is called.
func (a *arrival) asks() bool { return a.check || a.suspect || a.pub.Type == task.Blocking }

// copies reports whether a is certainly a copy of the record of b.
func (a *arrival) copies(b *arrival) bool {
	return a.pub.Attempt == b.pub.Attempt && a.pub.ClaimedAt == b.pub.ClaimedAt && a.pub.ClaimedAt != 0
}

// renew replaces the terms of a pending record by newer ones of its task.
func (t *table) renew(a *arrival, terms *task.RunTerms, handled bool) {
	t.bytes += len(terms.Params) - len(a.pub.Params)
	a.pub.Version, a.pub.Kind, a.pub.Params, a.handled = terms.Version, terms.Kind, terms.Params, handled
}

// verb is what an action asks the engine to do.
type verb uint8

const (
	doQueue    verb = iota + 1 // put the entry in the queue; call begin when there is room
	doStart                    // request the lease or check; answer with startAnswered
	doExecute                  // run the handler; answer with handlerEnded or leaseExpired
	doReport                   // report the result; answer with reportAnswered
	doHandBack                 // hand the attempt back; answer with handBackAnswered
	doCommit                   // mark the record's offset as done
	doSkip                     // call Events.Skipped for the record
)

// String returns the verb as tests write it.
func (v verb) String() string {
	return [...]string{doQueue: "queue", doStart: "start", doExecute: "execute", doReport: "report",
		doHandBack: "hand back", doCommit: "commit", doSkip: "skip"}[v]
}
