package client

import (
	"time"

	"github.com/perceptor/perceptor/task"
)

// Events are callbacks for events in a listener, for metrics and tests. Any
// field may be nil. The functions are called from several goroutines, must
// return quickly, must not call the listener and must not panic: unlike that of a
// handler, a panic in one of them ends the program.
type Events struct {
	// HandlerStarted is called before a handler is called.
	HandlerStarted func(Delivery)
	// HandlerEnded is called after a handler has ended. err is nil for SUCCESS
	// and a [SnoozeError] for SNOOZE.
	HandlerEnded func(d Delivery, took time.Duration, err error)
	// HandlerStuck is called when a handler ignores the end of its context and
	// the listener reports FAIL for it. The handler still occupies a worker. A
	// listener without another worker leaves its consumer group until one returns.
	HandlerStuck func(Delivery)
	// Reported is called with every answer to a result, such as "ACCEPTED".
	Reported func(d Delivery, code string)
	// Started is called with every answer to the start of a BLOCKING run.
	Started func(d Delivery, code string)
	// Checked is called with every answer to a check; see [CheckPolicy].
	Checked func(d Delivery, code string)
	// HandedBack is called with every answer to a hand-back. A run is handed
	// back if its kind has no handler here.
	HandedBack func(d Delivery, code string)
	// Reopened is called for a run that was settled here and that the service
	// says is open: its database has lost commits, in a fail-over or a restore.
	// The handler is called again.
	Reopened func(Delivery)
	// Skipped is called for a record that is a duplicate or is outdated.
	Skipped func(Delivery)
	// PutOff is called for a record that is snoozed without calling its
	// handler, because its kind is busy; see [MaxConcurrent].
	PutOff func(d Delivery, after time.Duration)
	// Poison is called for a record that cannot be decoded, or for a batch of
	// records that is too large to be unpacked, with its last offset. Both are skipped.
	Poison func(partition int, offset int64, err error)
	// Forged is called for a record that the service has not signed: its signature
	// is missing or wrong, or is made with a key that is unknown or has ended. The
	// record is skipped and no handler is called. If the service did send it, it
	// delivers the run again after its ack_timeout.
	Forged func(partition int, offset int64, err error)
	// OutOfRange is called when a partition does not have the offset to read next. The listener
	// continues with the records that are there.
	OutOfRange func(OutOfRange)
	// Assigned is called when partitions were assigned: at the start and after
	// every rebalance.
	Assigned func(partitions []int)
	// Committed is called after offsets were committed.
	Committed func(offsets map[int]int64)
}

// OutOfRange says what a partition has instead of the offset to read next. The runs of lost
// records are delivered again after their ack_timeout, because the service has no result for
// them.
type OutOfRange struct {
	Partition int
	// Next is the offset to read next. The partition has the offsets from First to before End.
	Next, First, End int64

	// anew is set if the topic was created again, whatever offsets it has.
	anew bool
}

// Lost returns how many records Kafka has deleted before they were read. It returns -1 if that
// is unknown because the topic was created again, or the partition ends before Next: then it was, or Kafka
// has lost records, and the listener reads those of the last minutes again, or all if it has read none.
func (o OutOfRange) Lost() int64 {
	if o.Next > o.End || o.anew {
		return -1
	}
	return max(o.First-o.Next, 0)
}

// Delivery names one delivery of one run.
type Delivery struct {
	TaskID  int64
	Seq     int64
	Attempt int
	Type    Type
	Kind    string
	// ScheduledAt is the instant that the run was meant to fire at.
	ScheduledAt time.Time
}

// RunID returns the id of the run, which is the same in all its deliveries.
func (d Delivery) RunID() string { return RunID(d.TaskID, d.Seq) }

func deliveryOf(p *task.Publication) Delivery {
	return Delivery{
		TaskID: int64(p.Task), Seq: p.Seq, Attempt: int(p.Attempt),
		Type: Type(p.Type), Kind: p.Kind, ScheduledAt: p.ScheduledAt.Time(),
	}
}

// fire calls f with the delivery of p. f may be nil.
func fire(f func(Delivery), p *task.Publication) {
	if f != nil {
		f(deliveryOf(p))
	}
}

// fireCode calls f with the delivery of p and the answer of the service. f may
// be nil.
func fireCode(f func(Delivery, string), p *task.Publication, code task.Code) {
	if f != nil {
		f(deliveryOf(p), code.String())
	}
}
