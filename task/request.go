package task

// AddRequest asks the store to keep new tasks.
type AddRequest struct {
	Tenant int32
	// RequestID makes the request safe to repeat; empty: it is not.
	RequestID string
	// Hash identifies what was asked: a repeated RequestID must come with it.
	Hash [32]byte
	// Specs have passed [Spec.Validate]. Begin is [Never] where the store has to
	// fill in now, and a Retention below 0 has been replaced by the tenant's.
	// [Spec.Settle] is the store's to call.
	Specs []Spec
}

// AddResult answers an [AddRequest].
type AddResult struct {
	// Items has one item for each spec, in their order.
	Items []AddItem
	// Replayed: the RequestID was known; the items are those of the first call.
	Replayed bool
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
