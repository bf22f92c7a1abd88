package task

// ShardOf returns the shard that stores the key of an add request with this request_id, and
// its tasks, unless they are few: those lie in another shard of the same database. Callers
// of the API may compute it. A caller that is free to choose its request_ids can choose them
// so that tasks added together share a shard, and so that unavailable databases get no
// requests.
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
