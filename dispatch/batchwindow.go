package dispatch

import "time"

// A batchWindow says when to publish records ahead: those that are due within a window are published together, a lead before
// its begin. If there are many, windows are shorter and the lead is longer: then calls are large all the same, and it is their way to
// the listener that takes long. Windows are counted from a round time of the wall clock, so that dispatchers publish at the same time,
// and a listener fetches at once what several of them have published. See [Config.PublishAhead].
type batchWindow struct {
	zero  time.Time
	ahead time.Duration // 0 if nothing is published ahead
	// length and short are the lengths of windows with few records and with many.
	length, short time.Duration
}

const (
	// leadPart is the part of PublishAhead that is left at least for the way to the listener.
	leadPart = 5
	// manyDelayed is the number of delayed records from which on there are many.
	manyDelayed = 2000
)

// newBatchWindow returns windows whose records are published at most that long ahead. The delay queue has slices of the given
// length, so leads and windows are no shorter.
func newBatchWindow(ahead, slice time.Duration, now time.Time) batchWindow {
	lead := max(ahead/leadPart, slice)
	length := ahead - lead
	if length < slice { // too short to collect anything
		return batchWindow{zero: now}
	}
	return batchWindow{
		zero: now.Add(-time.Duration(now.UnixNano()) % length), ahead: ahead, length: length, short: max(length/2, slice),
	}
}

// publishAt returns when to publish a record that is due at an instant.
func (w batchWindow) publishAt(due time.Time, many bool) time.Time {
	if w.ahead == 0 || due.Before(w.zero) {
		return due
	}
	length := w.length
	if many {
		length = w.short
	}
	return w.zero.Add(due.Sub(w.zero).Truncate(length) + length - w.ahead)
}
