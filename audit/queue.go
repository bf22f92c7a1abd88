package audit

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/perceptor/perceptor/task"
)

const (
	// queueEvents is the most events that wait for a sink.
	queueEvents = 4096
	// batchEvents is the most events of one call of a sink.
	batchEvents = 256
	writeLimit  = 20 * time.Second // of one call of a sink
	firstRetry  = 100 * time.Millisecond
	lastRetry   = 5 * time.Second
	// stopWait is how long a stopping process tries to hand over what still waits.
	stopWait = 3 * time.Second
)

// queue holds the events that wait for a sink.
type queue struct {
	sink     Sink
	log      *slog.Logger
	recorded func(sink string, n int)
	waiting  chan waiting
	dropped  atomic.Int64 // since the sink was last told
	// late says that an operator has waited in vain since the sink last stored events.
	late atomic.Bool
}

// waiting is an event in a queue. done is closed when the sink has stored it.
type waiting struct {
	event task.AuditEvent
	done  chan struct{}
}

func newQueue(s Sink, log *slog.Logger, recorded func(string, int)) *queue {
	return &queue{sink: s, log: log, recorded: recorded, waiting: make(chan waiting, queueEvents)}
}

// put adds an event. It returns false if there is no room. The last quarter of the room is for
// operators.
func (q *queue) put(e task.AuditEvent) (done <-chan struct{}, ok bool) {
	w := waiting{e, make(chan struct{})}
	if e.Operator || len(q.waiting) < queueEvents*3/4 {
		select {
		case q.waiting <- w:
			return w.done, true
		default:
		}
	}
	q.dropped.Add(1)
	return nil, false
}

// run hands events to the sink until ctx ends and the queue is empty, or stopWait is over.
func (q *queue) run(ctx context.Context) error {
	last, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(stopWait, cancel) })
	defer stop()
	for {
		batch, more := q.next(ctx)
		if !more {
			return nil
		}
		if !q.write(last, batch) {
			q.log.Error("audit events are lost", "part", q.sink.Name(), "events", len(batch)+len(q.waiting))
			return nil
		}
	}
}

// next waits for events. more is false when ctx has ended and no event waits.
func (q *queue) next(ctx context.Context) (batch []waiting, more bool) {
	select {
	case w := <-q.waiting:
		batch = append(batch, w)
	default:
		select {
		case w := <-q.waiting:
			batch = append(batch, w)
		case <-ctx.Done():
			return nil, len(q.waiting) > 0
		}
	}
	for len(batch) < batchEvents {
		select {
		case w := <-q.waiting:
			batch = append(batch, w)
		default:
			return batch, true
		}
	}
	return batch, true
}

// write hands a batch to the sink, again and again until that stores it. It returns false if
// ctx ends first.
func (q *queue) write(ctx context.Context, batch []waiting) bool {
	events := make([]task.AuditEvent, 0, len(batch)+1)
	for _, w := range batch {
		events = append(events, w.event)
	}
	lost := q.dropped.Swap(0)
	if lost > 0 {
		events = append(events, droppedEvent(drop{dropKey{tenant: task.AuditInstallation, operator: true}, int(lost)}))
	}
	if !q.persist(ctx, events) {
		q.dropped.Add(lost)
		return false
	}
	q.late.Store(false)
	q.recorded(q.sink.Name(), len(events))
	for _, w := range batch {
		close(w.done)
	}
	return true
}

func (q *queue) persist(ctx context.Context, events []task.AuditEvent) bool {
	failed := false
	for pause := firstRetry; ; pause = min(2*pause, lastRetry) {
		err := q.once(ctx, events)
		if err == nil {
			if failed {
				q.log.Info("audit events are recorded again", "part", q.sink.Name())
			}
			return true
		}
		if !failed {
			failed = true
			q.log.Warn("audit events cannot be recorded; trying again", "part", q.sink.Name(), "err", err)
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(pause):
		}
	}
}

func (q *queue) once(ctx context.Context, events []task.AuditEvent) error {
	ctx, cancel := context.WithTimeout(ctx, writeLimit)
	defer cancel()
	return q.sink.Write(ctx, events)
}
