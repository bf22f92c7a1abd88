package task

import "time"

// Ownership proves that a dispatcher owns a shard. Every claiming transaction asserts
// it. Only the store creates one, by raising the shard's epoch.
type Ownership struct {
	Shard Shard
	// Epoch numbers the ownerships of the shard; it only grows.
	Epoch int64
	// Nonce is drawn at random by each acquisition, so that a restored epoch
	// cannot be mistaken for this one.
	Nonce int64
}

// Owner names the owner of a shard. People read it, and hints are sent to it.
type Owner struct {
	// Name identifies the process.
	Name string
	// HintAddr is the UDP address, host:port, at which the owner receives hints. It may
	// be empty.
	HintAddr string
	// HintKey authenticates hints to the owner. It is secret, and empty if HintAddr is.
	HintKey string
}

// ClaimForm is how a claim finds due rows.
type ClaimForm int

const (
	// RangeForm claims every due row of the shards in one statement. It costs least per
	// row, but suits only times when few rows are due.
	RangeForm ClaimForm = iota + 1
	// CappedForm claims at most MaxRows rows, oldest first in each shard, and skips
	// locked rows.
	CappedForm
)

// String returns "range" or "capped".
func (f ClaimForm) String() string {
	if f == CappedForm {
		return "capped"
	}
	return "range"
}

// MaxBlock bounds how long a first delivery is deferred because the topic of its tenant fails.
const MaxBlock = 30 * time.Second

// ClaimRequest asks for the due rows of some shards of one database.
type ClaimRequest struct {
	Database int
	// Owned are the shards to claim from, in ascending order.
	Owned []Ownership
	Form  ClaimForm
	// Low is an exclusive lower bound of due_at. No row at or below it is due, so the
	// dead index entries there need not be visited. 0: no bound.
	Low Instant
	// Ahead is how far beyond the database's clock SCHEDULED rows are claimed. They
	// are moved as if claimed at their due instant, and must not be published before.
	// 0: only due rows.
	Ahead time.Duration
	// MaxRows bounds CappedForm: how many rows one transaction may claim.
	MaxRows int
	// SteadyNow is the most that the database's clock would show if it had not been set,
	// and SetFor is how long ago it was seen to have been set forward. A lease that ends
	// after SteadyNow and may be longer than SetFor is still held, whatever the clock
	// shows. A SteadyNow of 0 means that the clock decides.
	SteadyNow Instant
	SetFor    time.Duration
	// Blocked tenants are not claimed; their due rows are deferred. BlockedFor is, for each of them, how
	// long its topic has failed: retries wait that long, and first deliveries at most MaxBlock.
	Blocked    []int32
	BlockedFor []time.Duration
	// Acknowledged are published parts of the outbox, removed in the same transaction.
	Acknowledged []OutboxPart
	// Settings is the version of the tenants' settings on which the request is based.
	// If the database has another version, the claim does nothing. 0: any.
	Settings int64
	// ExcludedTenants are tenants of which only open runs are claimed: retries and
	// redeliveries.
	ExcludedTenants []int32
	// Flows, if not empty, replace the foreground: only the rows that they select are
	// claimed, and Low and ExcludedTenants have no effect, nor has MaxRows unless they
	// are claimed Together. RangeForm has an effect if there is one flow, of all kinds: its
	// rows are claimed as a range. That costs least for many rows.
	Flows []Flow
	// Together says that the flows, which have no kinds then, are claimed by one scan from the
	// lowest of their bounds. It takes at most MaxRows rows in all, the oldest ones first.
	Together bool
	// CapLease, if not 0, is the cap lease of the kind of the only flow. Claimed rows
	// count against the cap. If the lease has ended, nothing is claimed.
	CapLease int64
	// CapLimit, if not 0, is the most runs of the kind of the only flow that may be open in
	// the database afterwards. Without a CapLease it is the kind's cap, and the part of the
	// cap that the database may use alone is a limit, too. The claim takes what the limits
	// leave.
	CapLimit int
	// CapPart is the part of the cap of which CapLimit assumes that the database has it. If
	// it has lent some of it, the rest is the limit also under the CapLease.
	CapPart int
	// ExcludedKinds are kinds of which flows without a kind claim nothing.
	ExcludedKinds []TenantKind
}

// A Flow selects the oldest first runs of one tenant.
type Flow struct {
	// Kind restricts the flow to one kind. Empty: all kinds but the excluded ones.
	TenantKind
	// Rows is the most rows to claim.
	Rows int
	// Low is an exclusive lower bound of due_at, as in ClaimRequest.
	Low Instant
	// WaitingSince is the instant since which rows of the tenant wait for tokens.
	// Instants that passed after it were not missed. [Never]: no row waits.
	WaitingSince Instant
}

// TenantKind is a kind of a tenant.
type TenantKind struct {
	Tenant int32
	Kind   string
}

// OutboxPart names the shards of an outbox row for which this process has received the
// acknowledgement of all records from Kafka.
type OutboxPart struct {
	Row    int64
	Shards []Shard
}

// Claim is the result of a claim. If the claim was rolled back because shards were
// lost, only Lost is set.
type Claim struct {
	// Now is the database's clock in the claiming transaction.
	Now Instant
	// Form is the form that was used. A range claim that meets a lock is repeated in the
	// capped form.
	Form ClaimForm
	// Lost are the shards that this dispatcher no longer owns. If there are any, the claim
	// claimed nothing and acknowledged no outbox part.
	Lost []Shard
	// Outbox is the row that holds the publications until they are acknowledged. 0 means
	// that there are none.
	Outbox int64
	// Publications may be published at their ScheduledAt or later. Only those of a claim
	// ahead may have to wait.
	Publications []Publication
	// Rows is the number of rows that the claim moved, including those that it did not
	// publish.
	Rows int
	// Next is the first instant at which a row that SQL moved is due again. [Never] or 0
	// means that no such row exists.
	Next Instant
	// More is true if the claim reached its limit and the next one should follow at once, or
	// if rows of a capped kind are, or may be, due that the CapLimit did not allow.
	More bool
	// Deferred counts rows of blocked tenants that were deferred.
	Deferred int
	// Missed counts scheduled instants that passed without firing.
	Missed int64
	// Dead are the runs that were given up.
	Dead []DeadRun
	// Settings is the version in the database if it differs from the version in the
	// request. Then the claim did nothing. Otherwise it is 0.
	Settings int64
	// FlowRows is the number of rows that each flow moved.
	FlowRows []int
	// CapRoom is how many runs a claim with a CapLimit could claim, and Open is the number
	// of open runs of the kind in the database after it.
	CapRoom, Open int
}

// OutboxBatch is the unacknowledged content of an outbox row for some shards.
type OutboxBatch struct {
	Part         OutboxPart
	Publications []Publication
}

// OutboxStats describes the outbox of one database.
type OutboxStats struct {
	// Rows counts the rows that wait until they are published. Waiting counts the rows
	// that only a newer program can read, Quarantined the damaged rows.
	Rows, Waiting, Quarantined int
	// Oldest is when the oldest of Rows was written, or 0. Now is the database's clock.
	Oldest, Now Instant
}

// A PeekRequest asks which rows of some shards of a database will be due, and when.
type PeekRequest struct {
	Shards []Shard
	// Low is an exclusive lower bound of due_at.
	Low Instant
	// Rows that are due after From (or Low, if that is later) and until now + Window
	// are counted, up to Limit.
	From   Instant
	Window time.Duration
	Limit  int
	// ExcludedTenants are tenants whose first runs are neither listed nor counted.
	// With them the peek reads only some thousand rows.
	ExcludedTenants []int32
}

// Peek says which rows of some shards will be due.
type Peek struct {
	// Now is the database's clock.
	Now Instant
	// Rows is how many rows were counted.
	Rows int
	// Soon are the rows that are due first, up to [MaxSoon], in the order of Due.
	Soon []Upcoming
	// Known is the instant up to which the peek read, if it stopped before it had
	// found all of Soon. Otherwise it is 0.
	Known Instant
	// ExcludedDue is the due instant of the first row of an excluded tenant that the peek
	// read. 0 means that it read no such row.
	ExcludedDue Instant
	// Settings is the version of the tenants' settings.
	Settings int64
}

// MaxSoon bounds [Peek.Soon]. If Soon is shorter, it lists all waiting rows.
const MaxSoon = 64

// Upcoming is a row that is, or will be, due.
type Upcoming struct {
	Due   Instant
	Shard Shard
}

// DeadRun is a run that was given up.
type DeadRun struct {
	Tenant      int32
	Type        Type // of its task
	RunID       RunID
	Attempt     int32
	Kind        string
	ScheduledAt Instant
	DiedAt      Instant
	Reason      DeadReason
	Error       string
}

// DeadReason says why a run was given up. The numbers are stored.
type DeadReason int16

// The reasons for giving up a run.
const (
	OutOfAttempts DeadReason = 1 // the last allowed attempt failed
	Silent        DeadReason = 2 // no word for give_up_after, or only snoozes
	Unpublishable DeadReason = 3 // its record can never be published
	Permanent     DeadReason = 4 // its handler said that no attempt can succeed
)

// String returns the reason as metrics and the API spell it.
func (r DeadReason) String() string {
	switch r {
	case OutOfAttempts:
		return "OUT_OF_ATTEMPTS"
	case Silent:
		return "SILENT"
	case Unpublishable:
		return "UNPUBLISHABLE"
	case Permanent:
		return "PERMANENT"
	}
	return "UNKNOWN"
}
