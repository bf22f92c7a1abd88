package task

import "time"

// Ownership proves that a dispatcher owns a shard: every claiming transaction
// asserts it. Only the store makes one, by raising the shard's epoch.
type Ownership struct {
	Shard Shard
	// Epoch numbers the ownerships of the shard; it only grows.
	Epoch int64
	// Nonce is drawn at random by each acquisition, so that a restored epoch
	// cannot be mistaken for this one.
	Nonce int64
}

// Owner says who owns a shard: for people, and for hints.
type Owner struct {
	// Name identifies the process.
	Name string
	// HintAddr is where it takes hints, host:port (UDP); may be empty.
	HintAddr string
}

// ClaimForm is how a claim finds due rows.
type ClaimForm int

const (
	// RangeForm takes every due row of the shards in one statement. Cheapest
	// per row; only for when few rows are due.
	RangeForm ClaimForm = iota + 1
	// CappedForm takes at most MaxRows, oldest first in each shard, and passes
	// over locked rows.
	CappedForm
)

// String returns "range" or "capped".
func (f ClaimForm) String() string {
	if f == CappedForm {
		return "capped"
	}
	return "range"
}

// ClaimRequest asks for the due rows of some shards of one database.
type ClaimRequest struct {
	Database int
	// Owned are the shards to claim from, in ascending order.
	Owned []Ownership
	Form  ClaimForm
	// Low is an exclusive lower bound of due_at: nothing at or below it is due,
	// so the dead index entries there need no visit. 0: no bound.
	Low Instant
	// Ahead is how far beyond the database's clock rows of state SCHEDULED are
	// taken. They are moved as if claimed when they are due, and must not be
	// published before. 0: what is due now.
	Ahead time.Duration
	// MaxRows bounds CappedForm: how many rows one transaction may claim.
	MaxRows int
	// Blocked tenants are not claimed but put off by BlockedFor.
	Blocked    []int32
	BlockedFor time.Duration
	// Acknowledged are published parts of the outbox, removed in the same transaction.
	Acknowledged []OutboxPart
	// Settings is the version of the tenants' settings that the request is made by.
	// If the database has another one nothing is done. 0: any.
	Settings int64
	// ExcludedTenants are tenants of whom only open runs are taken: retries and redeliveries.
	ExcludedTenants []int32
	// Lanes, if there are any, make it a claim of tenants that are held apart: only
	// what they say is taken, whatever Form, Low, MaxRows and Apart say.
	Flows []Flow
	// CapLease, if not 0, is the turn of a kind with a cap: of the only lane's. What is
	// taken counts against the cap. If the turn is over nothing is taken.
	CapLease int64
	// ExcludedKinds are kinds of which lanes without a kind take nothing.
	ExcludedKinds []TenantKind
}

// A Flow is a part of a claim: the oldest first runs of one tenant.
type Flow struct {
	// Kind: only of this one. Empty: of all but those that are left out.
	TenantKind
	// Rows is how many at most.
	Rows int
	// Low is as in ClaimRequest.
	Low Instant
	// WaitingSince is since when rows wait for the tenant's turns: what passed since then was
	// not missed. [Never]: they do not.
	WaitingSince Instant
}

// TenantKind is a kind of a tenant.
type TenantKind struct {
	Tenant int32
	Kind   string
}

// OutboxPart names the shards of an outbox row whose records have all been
// acknowledged to this process.
type OutboxPart struct {
	Row    int64
	Shards []Shard
}

// Claim is what a committed claim has taken. A claim that did not commit
// because shards were lost has only Lost.
type Claim struct {
	// Now is the database's clock in the claiming transaction.
	Now Instant
	// Form is how it was done: a range claim that meets a lock is done again in
	// the capped form.
	Form ClaimForm
	// Lost are shards whose ownership is no longer the one in the request. If
	// there are any, nothing was claimed and nothing taken off.
	Lost []Shard
	// Outbox is the row that holds the publications until they are taken off;
	// 0 when there are none.
	Outbox int64
	// Publications are to be published when their ScheduledAt has come; only
	// those of a claim ahead may have to wait for it.
	Publications []Publication
	// Rows is how many rows the claim has moved, with those it did not publish.
	Rows int
	// Next is when the first of those that SQL has moved is due again; [Never] or
	// 0 when there are none.
	Next Instant
	// More is true when the cap was reached: claim again at once.
	More bool
	// Deferred counts rows of blocked tenants that were put off.
	Deferred int
	// Missed counts scheduled instants that passed without firing.
	Missed int64
	// Dead are the runs that were given up.
	Dead []DeadRun
	// Settings is the version that the database has, if it is another one than that of
	// the request: then nothing was done. Else 0.
	Settings int64
	// FlowRows is how many rows each lane has moved.
	FlowRows []int
}

// OutboxBatch is what an outbox row still holds for some shards.
type OutboxBatch struct {
	Part         OutboxPart
	Publications []Publication
}

// A PeekRequest asks what is coming up in some shards of a database.
type PeekRequest struct {
	Shards []Shard
	// Low is the bound after which rows count at all.
	Low Instant
	// Rows after From, if that is later, are counted, until now + Window, up to Limit.
	From   Instant
	Window time.Duration
	Limit  int
	// ExcludedTenants are tenants whose first claims are not listed and not counted; then the
	// look goes no further than some thousand rows.
	ExcludedTenants []int32
}

// Peek tells what is coming up in some shards.
type Peek struct {
	// Now is the database's clock.
	Now Instant
	// Rows is how many rows were counted.
	Rows int
	// Soon are the rows that are due first, up to [MaxSoon], in the order of Due.
	Soon []Upcoming
	// Known is how far the look went, if that was not far enough for Soon; else 0.
	Known Instant
	// ExcludedDue is when the first row of those that are held apart is due, as far as
	// the look went; 0: it met none.
	ExcludedDue Instant
	// Settings is the version of the tenants' settings.
	Settings int64
}

// MaxSoon bounds [Peek.Soon]. If there are fewer, nothing else waits.
const MaxSoon = 64

// Upcoming is a row that is, or will be, due.
type Upcoming struct {
	Due   Instant
	Shard Shard
}

// DeadRun is a run that was given up.
type DeadRun struct {
	Tenant      int32
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

// Why runs are given up.
const (
	OutOfAttempts DeadReason = 1 // the last allowed attempt failed
	Silent        DeadReason = 2 // no result within give_up_after, or only snoozes
	Unpublishable DeadReason = 3 // its record can never be published
	Permanent     DeadReason = 4 // its handler said that no attempt can succeed
)

// String returns the reason in the words of metrics and the API.
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
