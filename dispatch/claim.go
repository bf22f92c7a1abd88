package dispatch

import (
	"context"
	"errors"
	"time"

	"github.com/perceptor/perceptor/task"
)

// A claimer makes the claims of one database, for the foreground and for flows, and handles
// their failures. The caller is admitted to a transaction.
type claimer struct {
	*env
	number    int
	tracker   *tracker
	ownership *ownership
	planning  *planning
	flows     *tenantFlows
	scheduler *scheduler
}

// claim makes the claim and returns its outcome, or nil if the claim has failed or has moved
// no rows. parts are those that the request acknowledges.
func (c *claimer) claim(ctx context.Context, req task.ClaimRequest, parts []*part) *task.Claim {
	claim, err := c.store.Claim(ctx, req)
	switch {
	case c.killed() != nil:
	case errors.Is(err, task.ErrOutcomeUnknown):
		c.events.StoreFailed(c.number, "claim", err)
		c.ownership.drop(req.Owned, err)
	case errors.Is(err, task.ErrCapLeaseOver):
		return nil // a claim that took long
	case err != nil:
		c.failed("claim", err, parts)
	case len(claim.Lost) > 0:
		c.lost(req.Owned, claim.Lost, parts)
	case claim.Settings != 0:
		c.tracker.putBack(parts)
		c.readSettings(ctx)
	case c.at(ctx, AfterCommit, c.number) == nil:
		return &claim
	}
	return nil
}

// failed puts parts back after an error with a known outcome: the transaction changed
// nothing.
func (c *claimer) failed(step string, err error, parts []*part) {
	c.tracker.putBack(parts)
	c.planning.failed()
	c.events.StoreFailed(c.number, step, err)
}

// lost drops the shards that have another owner now. Parts of the other shards wait for the
// next transaction.
func (c *claimer) lost(owned []task.Ownership, lost []task.Shard, parts []*part) {
	dropped := c.ownership.dropLost(owned, lost)
	c.tracker.putBack(parts)
	if dropped {
		c.planning.lost()
	} else {
		c.planning.failed()
	}
}

// knowsSettings reads the settings of tenants if they are not known yet. It returns false if
// that fails.
func (c *claimer) knowsSettings(ctx context.Context) bool {
	return c.flows.excluded().settings.Version != 0 || c.readSettings(ctx)
}

// readSettings reads the database's settings of tenants. It returns false if that fails.
func (c *claimer) readSettings(ctx context.Context) bool {
	s, err := c.store.Settings(ctx, c.number)
	if err != nil {
		c.failed("settings", err, nil)
		return false
	}
	now := time.Now()
	c.flows.setSettings(now, c.planning.clock(now), s, c.scheduler.backlogged())
	c.planning.wake()
	return true
}
