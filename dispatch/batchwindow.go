package dispatch

import "time"

// A batchWindow says when to publish records ahead: those that are due within a window are published together, a lead before
// its begin. Windows are counted from a round time of the wall clock, so that dispatchers publish at the same time, and a
// listener fetches at once what several of them have published. See [Config.PublishAhead].
type batchWindow struct {
	zero time.Time
	// length is 0 if nothing is published ahead.
	length, lead time.Duration
}

// leadPart is the part of PublishAhead that is left for the way to the listener.
const leadPart = 5

// newBatchWindow returns windows whose records are published at most that long ahead. The lead is no shorter than a
// slice of the delay queue.
func newBatchWindow(ahead, slice time.Duration, now time.Time) batchWindow {
	lead := max(ahead/leadPart, slice)
	length := ahead - lead
	if length < slice { // too short to collect anything
		return batchWindow{zero: now}
	}
	return batchWindow{zero: now.Add(-time.Duration(now.UnixNano()) % length), length: length, lead: lead}
}

// publishAt returns when to publish a record that is due at an instant.
func (w batchWindow) publishAt(due time.Time) time.Time {
	if w.length == 0 || due.Before(w.zero) {
		return due
	}
	return w.zero.Add(due.Sub(w.zero).Truncate(w.length) - w.lead)
}
