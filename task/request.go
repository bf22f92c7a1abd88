package task

// AddRequest asks the store to keep new tasks.
type AddRequest struct {
	Tenant int32
	// RequestID makes the request safe to repeat. If it is empty, the request is not.
	RequestID string
	// Hash identifies the body. A request with a known RequestID must have the same Hash.
	Hash [32]byte
	// Key is the idempotency_key of the request's only task. Empty means none. It replaces
	// RequestID, which then serves to recognise a repeated upsert whose task has ended.
	Key string
	// Upsert gives the unfinished task of a known Key the terms of the spec, and
	// adds a new task in the place of a finished one.
	Upsert bool
	// Expected, if set, is what the caller of an upsert has read under Key. The upsert does nothing if it is
	// true no more.
	Expected *Expected
	// KeepBegin makes an upsert leave begin_time unchanged.
	KeepBegin bool
	// Specs have passed [Spec.Validate]. Begin is [Never] if the store must set it to
	// now. The store calls [Spec.ResolveBegin].
	Specs []Spec
}

// Expected is an unfinished task of a key and its version. The id is 0 if no task has had the key.
type Expected struct {
	ID      ID
	Version int32
}

// AddResult answers an [AddRequest].
type AddResult struct {
	// Items has one item for each spec, in the order of the specs.
	Items []AddItem
	// Replayed is true if the RequestID or the Key was known and nothing was stored. The
	// items are then those of the first call.
	Replayed bool
	// Updated is true if an upsert has changed the existing task.
	Updated bool
}

// AddItem is the result for one spec: an id, or faults with paths relative to the task.
type AddItem struct {
	ID     ID
	Faults []Fault
}

// Snapshot is a task as its callers see it.
type Snapshot struct {
	Row
	// FinishedAt is the instant at which the task reached its final state. It is [Never]
	// for an unfinished task.
	FinishedAt Instant
}
