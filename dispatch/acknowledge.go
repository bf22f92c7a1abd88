package dispatch

import "context"

// An acknowledger removes published parts from the outbox of one database when no claim has
// removed them in time. The caller is admitted to a transaction.
type acknowledger struct{ *claimer }

// acknowledge removes published parts, including parts of shards that wait to be released.
// Otherwise the step would stay due: the planner counts these parts too.
func (a *acknowledger) acknowledge(ctx context.Context) {
	owned, parts := a.tracker.published(maxParts)
	if len(parts) == 0 || a.at(ctx, BeforeAcknowledge, a.number) != nil {
		return
	}
	lost, err := a.store.AcknowledgeOutbox(ctx, a.number, owned, outboxParts(parts))
	switch {
	case err != nil:
		// This is safe if the outcome is unknown, too: the transaction claims nothing, and
		// acknowledging a removed part again does no harm.
		a.failed("acknowledge outbox", err, parts)
	case len(lost) > 0:
		a.lost(owned, lost, parts)
	default:
		a.tracker.removed(parts)
		a.planning.succeeded()
		a.events.OutboxAcknowledged(a.number, len(parts))
	}
}
