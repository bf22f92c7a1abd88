package dispatch

import "time"

// A topicQueue is the unacknowledged records of one tenant, and the breaker of its
// topic. It is pure; the pipeline guards it.
type topicQueue struct {
	tenant int32
	// queue waits; records and bytes count those in calls, too.
	queue          []*record
	records, bytes int

	// failing: the last call was not a full success, so the tenant is published
	// alone, one call at a time, not before retryAt.
	failing bool
	inCall  bool
	retryAt time.Time
	// failures counts calls in a row without any acknowledgement, the first of
	// which ended at since. At the limit, or after openAfter, the breaker opens.
	failures int
	since    time.Time
	open     bool
}

// takeRecords moves up to limit records, and at least one, of up to so many bytes from
// the queue to the end of to.
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

// failed: some records of a call were not acknowledged. The next one waits for
// at most longest; limit is how many failures open the breaker.
func (l *topicQueue) failed(now time.Time, some bool, limit int, longest time.Duration) {
	l.failing = true
	if some || l.failures == 0 {
		l.failures, l.since = 0, now
	}
	l.retryAt = now.Add(min(firstRetry<<min(l.failures, 10), longest))
	l.failures++
	l.open = l.failures >= limit || now.Sub(l.since) >= openAfter
}

// openAfter opens the breaker of a topic whose calls fail slowly.
const openAfter = 10 * time.Second

// firstRetry is the wait after the first failure of a topic; it doubles.
const firstRetry = 100 * time.Millisecond

// succeeded: all records of a call were acknowledged.
func (l *topicQueue) succeeded() {
	l.failing, l.open, l.failures = false, false, 0
	l.retryAt = time.Time{}
}
