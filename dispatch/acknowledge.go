package dispatch

import "context"

// An acknowledger removes published parts from the outbox of one database when no claim
// has come by to do it. The caller has the turn of a transaction.
type acknowledger struct{ *claimer }

// acknowledge removes published parts, also those of shards that wait to be released:
// whatever makes the step due has to go by it.
func (a *acknowledger) acknowledge(ctx context.Context) {
	owned, parts := a.tracker.published(maxParts)
	if len(parts) == 0 || a.at(ctx, BeforeAcknowledge, a.number) != nil {
		return
	}
	lost, err := a.store.AcknowledgeOutbox(ctx, a.number, owned, outboxParts(parts))
	switch {
	case err != nil:
		// Also when the outcome is unknown: it claims nothing, and to acknowledge again
		// what is gone does no harm.
		a.failed("acknowledge outbox", err, parts)
	case len(lost) > 0:
		a.lost(owned, lost, parts)
	default:
		a.tracker.removed(parts)
		a.planning.succeeded()
		a.events.OutboxAcknowledged(a.number, len(parts))
	}
}
