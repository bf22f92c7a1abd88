package task

import (
	"fmt"
	"time"
)

// Code is the answer to an entry about a run in a listener's request. The numbers are
// those of the API.
type Code int16

// The codes.
const (
	Accepted   Code = 1 // the entry was applied
	Already    Code = 2 // the run has its final result
	Superseded Code = 3 // this attempt is closed or belongs to another caller; the run continues
	Finished   Code = 4 // the task has ended
	Unknown    Code = 5 // no such run of this tenant
	Held       Code = 6 // another holder has the lease
	Retry      Code = 7 // the row was locked for too long; repeat the entry
	Invalid    Code = 8 // malformed
)

// Codes lists all codes.
var Codes = []Code{Accepted, Already, Superseded, Finished, Unknown, Held, Retry, Invalid}

// String returns the code's name as it is in the API, without its prefix.
func (c Code) String() string {
	names := [...]string{1: "ACCEPTED", 2: "ALREADY", 3: "SUPERSEDED", 4: "FINISHED", 5: "UNKNOWN", 6: "HELD", 7: "RETRY", 8: "INVALID"}
	if c >= 1 && int(c) < len(names) {
		return names[c]
	}
	return fmt.Sprintf("Code(%d)", int16(c))
}

// Holder is the random identity of a listener process. 0 means no holder.
type Holder uint64

// Reply answers one entry of a listener's request.
type Reply struct {
	Code Code
	// Lease is the remaining time of the lease, for Accepted starts and heartbeats.
	Lease time.Duration
	// Field and Message name the broken rule, for Invalid.
	Field, Message string
	// Terms are set for Accepted starts and checks of a task that was edited since the
	// version that the listener has. Otherwise they are nil.
	Terms *RunTerms
	// Type is that of the task, for Accepted results; 0: not known.
	Type Type
}

// Seen is an attempt with the version of its terms that a listener has.
type Seen struct {
	Attempt
	// Version is the version in the record. 0 means that no newer terms are wanted.
	Version int32
}

// RunTerms are the terms that a handler sees.
type RunTerms struct {
	Version int32
	Kind    string
	Params  []byte // wire bytes of perceptor.v1.Params
}

// Publication is one delivery of a run. A claim passes it to the publisher.
type Publication struct {
	Tenant      int32
	Task        ID
	Seq         int64
	Attempt     int32
	Type        Type
	Kind        string
	ScheduledAt Instant
	// ClaimedAt is the instant of the claim by the database's clock. It is ScheduledAt if
	// the run was claimed ahead of that instant. 0 means that it is not known.
	ClaimedAt Instant
	// PublishedAt is what the database's clock showed at least when the delivery was published, which
	// may be before ScheduledAt, and Dispatcher is who published it. 0 and "": that is not known yet.
	PublishedAt Instant
	Dispatcher  string
	Missed      int64
	Version     int32
	AckTimeout  time.Duration
	// Params are the wire bytes of perceptor.v1.Params, unchanged since they were stored.
	Params []byte
	Origin
	// Trace is the trace context of the span that published the delivery, in the format of
	// W3C. Empty: the delivery is not traced. The store does not have it.
	Trace string
	// Misfire is the policy that applies to the task, or [ByOverlap] if its overlap policy has
	// skipped the instants in Missed. 0 means not known, as in a record.
	Misfire Misfire
}

// RunID returns the identity of the run.
func (p *Publication) RunID() RunID { return RunID{Task: p.Task, Seq: p.Seq} }
