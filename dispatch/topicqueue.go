package dispatch

import "time"

// A topicQueue holds the unacknowledged records of one tenant and the breaker of its topic.
// It is pure; the pipeline guards it.
type topicQueue struct {
	tenant int32
	// queue holds the records that wait for a call. records and bytes include delayed
	// records and those in calls.
	queue          []*record
	records, bytes int

	// failing is set if the last call was not a full success. Then the tenant is published
	// alone, one call at a time, not before retryAt.
	failing bool
	inCall  bool
	retryAt time.Time
	// failures counts the calls in a row without any acknowledgement. since is when the
	// first of them ended. The breaker opens at a number of failures, or openAfter after
	// since.
	failures int
	since    time.Time
	open     bool
}

// takeRecords moves up to limit records with up to bytes bytes in total, but at least one
// record, from the queue to the end of to.
func (l *topicQueue) takeRecords(limit, bytes int, to []*record) []*record {
	n := 0
	for n < len(l.queue) && n < limit && (n == 0 || bytes >= l.queue[n].size) {
		bytes -= l.queue[n].size
		n++
	}
	to = append(to, l.queue[:n]...)
	if n == len(l.queue) {
		l.queue = nil
	} else {
		l.queue = l.queue[n:]
	}
	return to
}

// failed updates the breaker after a call in which some records were not acknowledged. some
// tells whether others were. The next call waits for at most longest. limit is the number of
// failures that opens the breaker.
func (l *topicQueue) failed(now time.Time, some bool, limit int, longest time.Duration) {
	l.failing = true
	if some || l.failures == 0 {
		l.failures, l.since = 0, now
	}
	l.retryAt = now.Add(min(firstRetry<<min(l.failures, 10), longest))
	l.failures++
	l.open = l.failures >= limit || now.Sub(l.since) >= openAfter
}

// openAfter is when the breaker of a topic opens whose calls fail slowly.
const openAfter = 10 * time.Second

// firstRetry is the wait after the first failure of a topic. It doubles with each further
// one.
const firstRetry = 100 * time.Millisecond

// succeeded closes the breaker after all records of a call were acknowledged.
func (l *topicQueue) succeeded() {
	l.failing, l.open, l.failures = false, false, 0
	l.retryAt = time.Time{}
}
