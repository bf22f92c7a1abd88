package dispatch

import (
	"time"

	"github.com/perceptor/perceptor/task"
)

// A Tracer makes the traces of deliveries. Its methods must not block, and may be called
// concurrently. A dispatcher without one does nothing for traces.
type Tracer interface {
	// Begin begins the trace of a delivery of a task with a trace context, or returns nil.
	// The step, [StepClaim] or [StepReadOutbox], has taken from begin to end. p is valid
	// during the call.
	Begin(p *task.Publication, step string, begin, end time.Time) Trace
}

// The steps that a trace of a delivery begins with.
const (
	StepClaim      = "claim"
	StepReadOutbox = "read outbox"
)

// A Trace is the trace of one delivery. Its methods must not block. They are called by one
// goroutine at a time.
type Trace interface {
	// Send begins the span of a call of the publisher, and returns its trace context in the
	// format of W3C.
	Send() string
	// Sent ends the span of the call. err is its outcome for the record.
	Sent(err error)
	// End ends the trace: this process has nothing more to do for the delivery.
	End()
}

// trace begins the traces of records.
func (e *env) trace(records []*record, step string, begin, end time.Time) {
	if e.cfg.Tracer == nil {
		return
	}
	for _, r := range records {
		if r.pub.TraceParent != "" {
			r.trace = e.cfg.Tracer.Begin(&r.pub, step, begin, end)
		}
	}
}

// endTraces ends the traces of records that leave memory.
func (e *env) endTraces(records []*record) {
	if e.cfg.Tracer == nil {
		return
	}
	for _, r := range records {
		if r.trace != nil {
			r.trace.End()
			r.trace = nil
		}
	}
}

// publicationsOf appends what a dispatcher publishes of the records of a call. traced says
// that some are traced.
func publicationsOf(pubs []task.Publication, records []*record, now time.Time, dispatcher string) (_ []task.Publication, traced bool) {
	for i, r := range records {
		pubs = append(pubs, r.publication(now, dispatcher))
		if r.trace != nil {
			pubs[i].Trace = r.trace.Send()
			traced = true
		}
	}
	return pubs, traced
}

// sent ends the spans of the call for the records at the indexes.
func sent(records []*record, index []int, err error) {
	for _, i := range index {
		if t := records[i].trace; t != nil {
			t.Sent(err)
		}
	}
}
