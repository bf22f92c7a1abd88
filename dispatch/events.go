package dispatch

import (
	"time"

	"github.com/perceptor/perceptor/task"
)

// Events are callbacks that feed logs, metrics and tests. Each may be nil. They are called
// from working goroutines, must not block, and must not call the dispatcher.
type Events struct {
	// Claimed is called when a claim has committed. c must not be changed.
	Claimed func(database int, form task.ClaimForm, c *task.Claim, took time.Duration)
	// StoreFailed is called when a step of the store ("claim", "peek", "settings", "take
	// tokens", "acknowledge outbox", "read outbox", "give up", "release", "note topic failures", "acquire cap lease",
	// "release cap lease") has failed. The step is tried again, except after an unknown outcome.
	StoreFailed func(database int, step string, err error)
	// ClockSet is called when a database's clock was set forward without ClockMoved, by ahead.
	// Leases keep their length.
	ClockSet func(database int, ahead time.Duration)
	// Acquired is called when shards were acquired. republished is the number of records in
	// the first part of their outbox.
	Acquired func(database int, shards []task.Shard, republished int)
	// OutboxRead is called when a further part of the outbox of acquired shards was read.
	// republished is the number of its records.
	OutboxRead func(database int, republished int)
	// Released is called when shards were released. unacknowledged is the number of records
	// left to the next owner.
	Released func(database int, shards []task.Shard, unacknowledged int)
	// Lost is called when shards were dropped. err is nil if they have another owner.
	Lost func(database int, shards []task.Shard, err error)
	// Published is called when Kafka has confirmed p. late is the time since its
	// scheduled_at by the database's clock, without the time before its row was there: that of a task that
	// was added later, or of an instant that is caught up. p must not be changed.
	Published func(p *task.Publication, late time.Duration)
	// PublishedBackground is called after Published for records that a flow claim has
	// claimed. Their tenant's backlog or limit may have made them late.
	PublishedBackground func(p *task.Publication, late time.Duration)
	// Backlogged is called when a tenant begins to have more due tasks than its share, and
	// when it no longer has.
	Backlogged func(tenant int32, begins bool)
	// TokensTaken is called when runs of a tenant with a dispatch rate were claimed. tokens
	// is their number.
	TokensTaken func(tenant int32, tokens int)
	// PublishFailed is called when records of the tenant were not confirmed. They are sent
	// again.
	PublishFailed func(tenant int32, records int, err error)
	// Dropped is called when records of a deleted tenant were dropped. They count as confirmed.
	Dropped func(tenant int32, records int)
	// BreakerOpened is called when claims begin to leave rows of the tenant where they are, and
	// BreakerClosed when they no longer do.
	BreakerOpened func(tenant int32, err error)
	BreakerClosed func(tenant int32)
	// GaveUp is called when runs were made dead because they can never be published.
	GaveUp func(database int, pubs []task.Publication, err error)
	// OutboxAcknowledged is called when parts of the outbox were removed, with or without a
	// claim.
	OutboxAcknowledged func(database int, parts int)
}

// fill returns e with functions that do nothing for the events that are nil.
func (e Events) fill() Events {
	if e.Claimed == nil {
		e.Claimed = func(int, task.ClaimForm, *task.Claim, time.Duration) {}
	}
	if e.StoreFailed == nil {
		e.StoreFailed = func(int, string, error) {}
	}
	if e.ClockSet == nil {
		e.ClockSet = func(int, time.Duration) {}
	}
	if e.Acquired == nil {
		e.Acquired = func(int, []task.Shard, int) {}
	}
	if e.OutboxRead == nil {
		e.OutboxRead = func(int, int) {}
	}
	if e.Released == nil {
		e.Released = func(int, []task.Shard, int) {}
	}
	if e.Lost == nil {
		e.Lost = func(int, []task.Shard, error) {}
	}
	if e.Published == nil {
		e.Published = func(*task.Publication, time.Duration) {}
	}
	if e.PublishedBackground == nil {
		e.PublishedBackground = func(*task.Publication, time.Duration) {}
	}
	if e.Backlogged == nil {
		e.Backlogged = func(int32, bool) {}
	}
	if e.TokensTaken == nil {
		e.TokensTaken = func(int32, int) {}
	}
	if e.PublishFailed == nil {
		e.PublishFailed = func(int32, int, error) {}
	}
	if e.Dropped == nil {
		e.Dropped = func(int32, int) {}
	}
	if e.BreakerOpened == nil {
		e.BreakerOpened = func(int32, error) {}
	}
	if e.BreakerClosed == nil {
		e.BreakerClosed = func(int32) {}
	}
	if e.GaveUp == nil {
		e.GaveUp = func(int, []task.Publication, error) {}
	}
	if e.OutboxAcknowledged == nil {
		e.OutboxAcknowledged = func(int, int) {}
	}
	return e
}
