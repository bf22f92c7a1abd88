package client

import (
	"time"

	"github.com/perceptor/perceptor/task"
)

// Events are called when something happens in a listener: for metrics and
// tests. Every field may be nil. The functions are called from several
// goroutines, must be quick and must not call the listener.
type Events struct {
	// HandlerStarted is called before a handler is.
	HandlerStarted func(Delivery)
	// HandlerEnded is called after a handler has ended; err is nil for
	// SUCCESS, and a [SnoozeError] for SNOOZE.
	HandlerEnded func(d Delivery, took time.Duration, err error)
	// HandlerStuck is called when a handler has ignored the end of its context
	// and FAIL is reported in its place. It still occupies a worker.
	HandlerStuck func(Delivery)
	// Reported is called with every answer to a result, such as "ACCEPTED".
	Reported func(d Delivery, code string)
	// Started is called with every answer to the start of a BLOCKING run.
	Started func(d Delivery, code string)
	// Checked is called with every answer to the question whether a run shall still
	// be handled; see [CheckPolicy].
	Checked func(d Delivery, code string)
	// HandedBack is called with every answer to a hand-back: the kind has no
	// handler here.
	HandedBack func(d Delivery, code string)
	// Skipped is called for a record that was a duplicate, or too old to run.
	Skipped func(Delivery)
	// PutOff is called for a record whose kind was busy here for too long: it is
	// snoozed, without its handler; see [MaxConcurrent].
	PutOff func(d Delivery, after time.Duration)
	// Poison is called for a record that cannot be decoded; it is skipped.
	Poison func(partition int, offset int64, err error)
	// Assigned is called when partitions were assigned: at the start, and after
	// every rebalance.
	Assigned func(partitions []int)
	// Committed is called after offsets were committed.
	Committed func(offsets map[int]int64)
}

// Delivery names one delivery of one run.
type Delivery struct {
	TaskID  int64
	Seq     int64
	Attempt int
	Type    Type
	Kind    string
	// ScheduledAt is the instant the run was meant to fire.
	ScheduledAt time.Time
}

// RunID returns the identity of the run, the same in all its deliveries.
func (d Delivery) RunID() string { return RunID(d.TaskID, d.Seq) }

func deliveryOf(p *task.Publication) Delivery {
	return Delivery{
		TaskID: int64(p.Task), Seq: p.Seq, Attempt: int(p.Attempt),
		Type: Type(p.Type), Kind: p.Kind, ScheduledAt: p.ScheduledAt.Time(),
	}
}

// fire calls f, if there is one, with the delivery of p.
func fire(f func(Delivery), p *task.Publication) {
	if f != nil {
		f(deliveryOf(p))
	}
}

// fireCode is [fire] with the answer of the service.
func fireCode(f func(Delivery, string), p *task.Publication, code task.Code) {
	if f != nil {
		f(deliveryOf(p), code.String())
	}
}
