package dispatch

import (
	"context"
	"time"
)

// An outage knows whether Kafka is gone. A topic that fails says nothing about the others, so
// failed calls only raise the question, and a ping of the brokers answers it. The outage is
// pure; the pipeline guards it.
type outage struct {
	// failedAt is when a call failed for the first time since the last answer, which is an
	// acknowledgement or a successful ping. It is zero if no call has failed since.
	failedAt time.Time
	// pinging is set while a ping is in progress. The last one ended at pingedAt.
	pinging  bool
	pingedAt time.Time
	// gone is set when a ping fails, until the next answer.
	gone bool
	// probedAt is when a flow was last claimed from while Kafka was gone.
	probedAt time.Time
}

const (
	// doubtAfter is how long calls must have failed, without any acknowledgement, before the
	// brokers are pinged. While Kafka is gone they are pinged once per probeEvery.
	doubtAfter = time.Second
	// pingTimeout bounds a ping. So Kafka counts as gone at most 3 s after the first failure.
	pingTimeout = 2 * time.Second
)

// answered records that a broker has acknowledged records.
func (o *outage) answered() { o.failedAt, o.gone = time.Time{}, false }

// failed records that a call has failed.
func (o *outage) failed(now time.Time) {
	if o.failedAt.IsZero() {
		o.failedAt = now
	}
}

// pingAt returns when to ping the brokers, or the zero time if there is no need.
func (o *outage) pingAt() time.Time {
	switch {
	case o.pinging || o.failedAt.IsZero():
		return time.Time{}
	case o.gone:
		return o.pingedAt.Add(probeEvery)
	}
	return o.failedAt.Add(doubtAfter)
}

// pinged records the result of a ping that began at start. It reports whether Kafka has
// returned. A ping that fails does not count if a record was acknowledged meanwhile.
func (o *outage) pinged(start, now time.Time, err error) (returned bool) {
	o.pinging, o.pingedAt = false, now
	switch {
	case err == nil:
		returned = o.gone
		o.answered()
	case !o.failedAt.IsZero() && !o.failedAt.After(start):
		o.gone = true
	}
	return returned
}

// pingDue reports whether to ping the brokers now. If so the caller calls ping.
func (p *pipeline) pingDue(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if at := p.outage.pingAt(); at.IsZero() || now.Before(at) {
		return false
	}
	p.outage.pinging = true
	return true
}

// ping asks whether any broker answers. If Kafka has returned, the topics that fail are tried
// again at once.
func (p *pipeline) ping(ctx context.Context) {
	start := time.Now()
	ctx, cancel := context.WithTimeout(ctx, pingTimeout)
	defer cancel()
	err := p.publisher.Ping(ctx)
	now := time.Now()
	p.mu.Lock()
	if p.outage.pinged(start, now, err) {
		p.retryNow(now)
	}
	reopen := p.reopened(now)
	p.mu.Unlock()
	if reopen {
		p.settler.capacityFreed()
	}
	p.wake()
}

// probing records that a flow is claimed from although Kafka is gone.
func (p *pipeline) probing(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.outage.probedAt = now
}
