// Package slots keeps what waits for an instant in slices of time: items whose time comes at nearly the same
// instant are taken together, none early and none later than a slice.
package slots

import (
	"slices"
	"time"
)

// A Queue keeps items until their time comes. Times are durations since an instant that its user
// chooses, such as the start of the program by its monotonic clock. Set Slice before use.
// It is not safe for concurrent use.
type Queue[T any] struct {
	// Slice is the duration of a slice.
	Slice time.Duration
	// slots are in ascending order and never empty.
	slots []slot[T]
	items int
}

// A slot holds the items to take at number times the slice: their time is that, or less than a slice before.
type slot[T any] struct {
	number int64
	items  []T
}

func (q *Queue[T]) at(number int64) time.Duration { return time.Duration(number) * q.Slice }

// Len returns the number of items.
func (q *Queue[T]) Len() int { return q.items }

// Put adds an item, to be kept until a time that is not negative.
func (q *Queue[T]) Put(item T, until time.Duration) {
	number := int64((until + q.Slice - 1) / q.Slice)
	i, found := slices.BinarySearchFunc(q.slots, number, func(s slot[T], n int64) int { return int(s.number - n) })
	if !found {
		q.slots = slices.Insert(q.slots, i, slot[T]{number: number})
	}
	q.slots[i].items = append(q.slots[i].items, item)
	q.items++
}

// Next returns when items can be taken, or false if there are none.
func (q *Queue[T]) Next() (at time.Duration, ok bool) {
	if len(q.slots) == 0 {
		return 0, false
	}
	return q.at(q.slots[0].number), true
}

// TakeDue removes and returns the items whose slices have come.
func (q *Queue[T]) TakeDue(now time.Duration) (due []T) {
	n := 0
	for ; n < len(q.slots) && q.at(q.slots[n].number) <= now; n++ {
		due = append(due, q.slots[n].items...)
	}
	q.slots = slices.Delete(q.slots, 0, n)
	q.items -= len(due)
	return due
}

// Remove removes and returns the items that match.
func (q *Queue[T]) Remove(match func(T) bool) (gone []T) {
	for i := range q.slots {
		s := &q.slots[i]
		s.items = slices.DeleteFunc(s.items, func(item T) bool {
			if match(item) {
				gone = append(gone, item)
				return true
			}
			return false
		})
	}
	q.slots = slices.DeleteFunc(q.slots, func(s slot[T]) bool { return len(s.items) == 0 })
	q.items -= len(gone)
	return gone
}
