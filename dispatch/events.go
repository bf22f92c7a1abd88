package dispatch

import (
	"time"

	"github.com/perceptor/perceptor/task"
)

// Events feed logs, metrics and tests. Each may be nil. They are called from
// working goroutines, must not block, and must not call the dispatcher.
type Events struct {
	// Claimed: a claim has committed. c must not be changed.
	Claimed func(database int, form task.ClaimForm, c *task.Claim, took time.Duration)
	// StoreFailed: a step of the store ("claim", "peek", "settings", "take tokens",
	// "acknowledge outbox", "give up", "release", "acquire cap lease", "release cap lease")
	// failed; it will be tried again, except after an unknown outcome.
	StoreFailed func(database int, step string, err error)
	// Acquired: shards were acquired; republished records stood in the outbox.
	Acquired func(database int, shards []task.Shard, republished int)
	// Released: shards were let go of; unacknowledged records were left to the
	// next owner.
	Released func(database int, shards []task.Shard, unacknowledged int)
	// Lost: shards were dropped; err is nil when another owner has them.
	Lost func(database int, shards []task.Shard, err error)
	// Published: p has been acknowledged, late after its scheduled_at by the
	// database's clock. p must not be changed.
	Published func(p *task.Publication, late time.Duration)
	// PublishedBackground is called after Published for records that a flow claim has
	// taken: their tenant's backlog or limit may be what made them late.
	PublishedBackground func(p *task.Publication, late time.Duration)
	// Backlogged: the tenant has more due tasks than its share, or no longer has.
	Backlogged func(tenant int32, begins bool)
	// TokensTaken: runs of a tenant with a dispatch rate were claimed.
	TokensTaken func(tenant int32, tokens int)
	// PublishFailed: records of the tenant were not acknowledged; they are tried
	// again.
	PublishFailed func(tenant int32, records int, err error)
	// BreakerOpened and BreakerClosed: claims defer rows of the tenant,
	// and no longer do.
	BreakerOpened func(tenant int32, err error)
	BreakerClosed func(tenant int32)
	// GaveUp: runs were made dead because they can never be published.
	GaveUp func(database int, pubs []task.Publication, err error)
	// OutboxAcknowledged: parts of the outbox were removed, with or without a claim.
	OutboxAcknowledged func(database int, parts int)
}

// fill makes every event callable.
func (e Events) fill() Events {
	if e.Claimed == nil {
		e.Claimed = func(int, task.ClaimForm, *task.Claim, time.Duration) {}
	}
	if e.StoreFailed == nil {
		e.StoreFailed = func(int, string, error) {}
	}
	if e.Acquired == nil {
		e.Acquired = func(int, []task.Shard, int) {}
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
