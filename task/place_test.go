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

func TestSecondsMeetInAllShardsAlike(t *testing.T) {
	const seconds = 100 * Shards
	var met [Shards]int
	for s := range int64(seconds) {
		met[PlacementShard(1_700_000_000+s, 0)]++
	}
	for shard, n := range met {
		if n < 50 || n > 150 { // 100 ± 10 by chance
			t.Errorf("shard %d is that of %d of %d seconds", shard, n, seconds)
		}
	}
	of := map[Shard]bool{}
	for i := range 10 {
		of[PlacementShard(1_700_000_000, i)] = true
	}
	if len(of) < 9 {
		t.Errorf("ten shards of a second are %d", len(of))
	}
}
