package task

// ShardOf returns the shard in which an add request with this request_id is
// stored, all its tasks together. Every caller of the API may know: one that is
// free to draw its request_ids can draw them so that tasks which are added
// together lie together, and so that databases which are away are left out.
//
// It is FNV-1a with 64 bits, both halves folded together, modulo [Shards]. It
// never changes, for a request that is repeated must find what it stored.
func ShardOf[T string | []byte](requestID T) Shard {
	const offset, prime = 14695981039346656037, 1099511628211
	x := uint64(offset)
	for i := range len(requestID) {
		x = (x ^ uint64(requestID[i])) * prime
	}
	x ^= x >> 32 // FNV's low bits alone depend on few bits of the input
	return Shard(x % Shards)
}
