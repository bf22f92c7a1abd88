package kernel

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
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
	// UpsertPrefix is the prefix of the request_ids of upserts. The idempotency_key follows after TaskKeyPrefix.
	UpsertPrefix = "\x04"
)

// ShardOfKey returns the shard of the key row of an idempotency_key. Its database has the task.
func ShardOfKey[T string | []byte](tenant int32, key T) task.Shard {
	text := strconv.AppendInt(make([]byte, 0, 16+task.MaxKeyBytes), int64(tenant), 10)
	return task.ShardOf(append(append(text, ':'), key...))
}

// IDOfRequest derives the id of what a request of a tenant creates from its request_id, so that a repeated request
// finds it. It draws one if there is no request_id. what is the kind of thing.
func IDOfRequest(what string, tenant int32, requestID string) (int64, error) {
	var b [32]byte
	if requestID == "" {
		if _, err := rand.Read(b[:]); err != nil {
			return 0, fmt.Errorf("draw id: %w", err)
		}
	} else {
		b = sha256.Sum256(fmt.Appendf(nil, "%s %d %s", what, tenant, requestID))
	}
	return int64(binary.LittleEndian.Uint64(b[:8])>>2) + 1, nil
}
