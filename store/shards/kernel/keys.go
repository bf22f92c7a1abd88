package kernel

// Prefixes of the keys in the table of keys. The request_ids of adds begin with none of
// these.
const (
	// TaskKeyPrefix is the prefix of idempotency_keys. SQL statements contain it, too.
	TaskKeyPrefix = "\x01"
	// TriggerPrefix is the prefix of the request_ids of triggers.
	TriggerPrefix = "\x02"
	// ReplayPrefix is the prefix of the replays of dead runs.
	ReplayPrefix = "\x03"
)
