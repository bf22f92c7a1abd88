package kernel

import (
	"strconv"

	"github.com/perceptor/perceptor/task"
)

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

// ShardOfKey returns the shard of the key row of an idempotency_key. Its database has the task.
func ShardOfKey[T string | []byte](tenant int32, key T) task.Shard {
	text := strconv.AppendInt(make([]byte, 0, 16+task.MaxKeyBytes), int64(tenant), 10)
	return task.ShardOf(append(append(text, ':'), key...))
}
