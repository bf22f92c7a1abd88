package kernel

// What keys in the table of keys begin with, beside the request_ids of adds, which
// begin with none of these.
const (
	// TaskKeyPrefix is that of idempotency_keys. The statements know it, too.
	TaskKeyPrefix = "\x01"
	// TriggerPrefix is that of the request_ids of triggers.
	TriggerPrefix = "\x02"
	// ReplayPrefix is that of replays of dead runs.
	ReplayPrefix = "\x03"
)
