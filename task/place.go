package task

// ShardOf returns the shard that stores all tasks of an add request with this
// request_id. Callers of the API may compute it. A caller that is free to choose its
// request_ids can choose them so that tasks added together share a shard, and so that
// unavailable databases get no requests.
//
// It is FNV-1a with 64 bits, with the two halves XORed, modulo [Shards]. It never
// changes, because a repeated request must find the tasks that it stored.
func ShardOf[T string | []byte](requestID T) Shard {
	const offset, prime = 14695981039346656037, 1099511628211
	x := uint64(offset)
	for i := range len(requestID) {
		x = (x ^ uint64(requestID[i])) * prime
	}
	x ^= x >> 32 // the low bits of FNV alone depend on few bits of the input
	return Shard(x % Shards)
}

// PlacementShard returns the i-th shard, from 0, at which the adds of a second meet, which is counted since 1970: it
// needs no message for callers of one second to choose the same shards. Over the seconds it visits all shards alike.
func PlacementShard(second int64, i int) Shard {
	// The finalizer of splitmix64, of a number for each second and i.
	x := uint64(second)*Shards + uint64(i)
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	x ^= x >> 31
	return Shard(x % Shards)
}
