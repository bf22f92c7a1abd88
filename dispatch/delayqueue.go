package dispatch

import (
	"slices"
	"time"
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
	// slice is the duration of a slice. Slices are counted from zero.
	slice time.Duration
	zero  time.Time
	// slices are in ascending order and never empty.
	slices  []timeSlice
	records int
}

// A timeSlice holds the records to release at the instant zero + number*slice. Their time is
// that instant or less than a slice before it.
type timeSlice struct {
	number  int64
	records []*record
}

func (s *delayQueue) at(number int64) time.Time { return s.zero.Add(time.Duration(number) * s.slice) }

// put adds the record, to be kept until the instant until.
func (s *delayQueue) put(r *record, until time.Time) {
	number := int64((until.Sub(s.zero) + s.slice - 1) / s.slice)
	i, found := slices.BinarySearchFunc(s.slices, number, func(t timeSlice, n int64) int { return int(t.number - n) })
	if !found {
		s.slices = slices.Insert(s.slices, i, timeSlice{number: number})
	}
	s.slices[i].records = append(s.slices[i].records, r)
	s.records++
}

// takeDue removes and returns the records of the slices whose instant has come.
func (s *delayQueue) takeDue(now time.Time) []*record {
	var due []*record
	n := 0
	for ; n < len(s.slices) && !now.Before(s.at(s.slices[n].number)); n++ {
		due = append(due, s.slices[n].records...)
	}
	s.slices = slices.Delete(s.slices, 0, n)
	s.records -= len(due)
	return due
}

// next returns the instant of the next slice, or the zero time if the queue is empty.
func (s *delayQueue) next() time.Time {
	if len(s.slices) == 0 {
		return time.Time{}
	}
	return s.at(s.slices[0].number)
}

// remove removes and returns the records that match.
func (s *delayQueue) remove(match func(*record) bool) []*record {
	var gone []*record
	for i := range s.slices {
		t := &s.slices[i]
		t.records = slices.DeleteFunc(t.records, func(r *record) bool {
			if match(r) {
				gone = append(gone, r)
				return true
			}
			return false
		})
	}
	s.slices = slices.DeleteFunc(s.slices, func(t timeSlice) bool { return len(t.records) == 0 })
	s.records -= len(gone)
	return gone
}
