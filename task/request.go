package task

// AddRequest asks the store to keep new tasks.
type AddRequest struct {
	Tenant int32
	// RequestID makes the request safe to repeat; empty: it is not.
	RequestID string
	// Hash identifies what was asked: a repeated RequestID must come with it.
	Hash [32]byte
	// Key is the idempotency_key of the request's only task; empty: none. It takes
	// the place of RequestID.
	Key string
	// Upsert gives the unfinished task of a known Key the terms of the spec, and
	// adds a new task in the place of a finished one.
	Upsert bool
	// KeepBegin: an upsert leaves begin_time as it is.
	KeepBegin bool
	// Specs have passed [Spec.Validate]. Begin is [Never] where the store has to
	// fill in now. [Spec.ResolveBegin] is the store's to call.
	Specs []Spec
}

// AddResult answers an [AddRequest].
type AddResult struct {
	// Items has one item for each spec, in their order.
	Items []AddItem
	// Replayed: the RequestID or the Key was known, and nothing was stored; the
	// items are those of the first call.
	Replayed bool
	// Updated: an upsert has changed the task that was there.
	Updated bool
}

// AddItem is what became of one spec: an id, or faults with paths relative to
// the task.
type AddItem struct {
	ID     ID
	Faults []Fault
}

// Snapshot is a task as its callers may see it.
type Snapshot struct {
	Row
	// FinishedAt is when the final state was reached; [Never] before.
	FinishedAt Instant
}
