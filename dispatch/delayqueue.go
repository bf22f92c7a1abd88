package dispatch

import (
	"time"

	"github.com/perceptor/perceptor/internal/slots"
)

// A delayQueue keeps the records of all databases that were claimed ahead until they are to be published: when they
// are due, or a little before if their listeners hold them. It is one sequence of time slices, so that records whose time
// comes at nearly the same instant go into the same call. It is pure; the pipeline guards it.
//
// Our own monotonic clock says when a record is due: the time that the database's clock
// still had to advance, counted from the arrival of the answer that reported it (see
// [reading]). That is never early, since the database read its clock before we had the
// answer.
type delayQueue struct {
	zero  time.Time // slices are counted from here
	queue slots.Queue[*record]
}

func newDelayQueue(slice time.Duration, zero time.Time) delayQueue {
	return delayQueue{zero: zero, queue: slots.Queue[*record]{Slice: slice}}
}

// len returns the number of records.
func (s *delayQueue) len() int { return s.queue.Len() }

// put adds the record, to be kept until the instant until.
func (s *delayQueue) put(r *record, until time.Time) { s.queue.Put(r, until.Sub(s.zero)) }

// takeDue removes and returns the records of the slices whose instant has come.
func (s *delayQueue) takeDue(now time.Time) []*record { return s.queue.TakeDue(now.Sub(s.zero)) }

// next returns the instant of the next slice, or the zero time if the queue is empty.
func (s *delayQueue) next() time.Time {
	at, ok := s.queue.Next()
	if !ok {
		return time.Time{}
	}
	return s.zero.Add(at)
}

// remove removes and returns the records that match.
func (s *delayQueue) remove(match func(*record) bool) []*record { return s.queue.Remove(match) }
