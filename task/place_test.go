package task

import (
	"fmt"
	"hash/fnv"
	"math"
	"testing"
)

func TestTheShardOfARequestIsTheDocumentedHash(t *testing.T) {
	for _, id := range []string{"", "a", "order-17", "0123456789abcdef0123456789abcdef"} {
		h := fnv.New64a()
		h.Write([]byte(id))
		x := h.Sum64()
		if want := Shard((x ^ x>>32) % Shards); ShardOf(id) != want || ShardOf([]byte(id)) != want {
			t.Errorf("ShardOf(%q) = %d; want %d", id, ShardOf(id), want)
		}
	}
	// Stored requests depend on these values. They must never change.
	for id, want := range map[string]Shard{"a": 192, "order-17": 104} {
		if got := ShardOf(id); got != want {
			t.Errorf("ShardOf(%q) = %d; want %d", id, got, want)
		}
	}
}

func TestCountedRequestIDsSpreadEvenlyOverShards(t *testing.T) {
	const perShard = 200
	var n [Shards]int
	for i := range perShard * Shards {
		n[ShardOf(fmt.Sprintf("job-%06d", i))]++
	}
	for s, k := range n {
		if off := math.Abs(float64(k - perShard)); off > 6*math.Sqrt(perShard) {
			t.Errorf("shard %d has %d of %d requests; want about %d", s, k, perShard*Shards, perShard)
		}
	}
}
