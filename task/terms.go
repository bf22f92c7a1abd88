package task

import (
	"fmt"
	"slices"
	"time"
)

// Terms are what the caller of a task may say about it and change by an edit,
// except for its params, which handlers change too. Specs, rows and dead runs
// contain them and take them by assignment. Two values that say the same are deeply
// equal after [Spec.Validate].
//
// A new term without a column needs a field here, a line in seal.go, its range in
// spec.go, a field in proto/perceptor/v1/task.proto, a conversion in
// server/terms.go, client/types.go and cmd/perceptorctl/taskterms.go, and a word in
// docs/editing.md. If a statement must compare it, it needs a column instead of the
// line: see store/shards/kernel/terms.go.
type Terms struct {
	Kind string
	// Begin is [Never] until the store sets it to now, when the caller gave none.
	Begin Instant
	// End is Never when the task goes on for ever.
	End Instant
	// Interval is 0 for ONE_SHOT, and where Cron says when.
	Interval time.Duration
	// MaxCount is 0 when there is no limit; 1 for ONE_SHOT.
	MaxCount      int64
	Retry         RetryPolicy
	AckTimeout    time.Duration
	GiveUpAfter   time.Duration
	StopOnFailure bool
	// Retention is how long the finished task is kept.
	Retention time.Duration
	// Cron says when runs are scheduled; nil: an interval does, or ONE_SHOT.
	Cron *Cron
	// Misfire is the policy for instants that passed without firing; 0: FireOnce.
	Misfire Misfire
	// CatchUp is how many missed instants FireAll fires at most.
	CatchUp int32
	// Grace is how late an instant may fire under Skip.
	Grace time.Duration
	// Spread is the window over which the instants of like tasks are spread: each
	// of this task's is later by the same part of it, which follows from its id.
	Spread time.Duration
	// Tags find the task: sorted, each once.
	Tags []string
	// Damaged are the stored bytes that cannot be read, or were written by a newer
	// program; empty: they could be read. Such a task is put off and not fired by a
	// rule that is not its own; its bytes are kept.
	Damaged string
}

// Origin says where a task comes from. The add sets it, and nothing changes it.
type Origin struct {
	// Key is the idempotency_key that the task was added with.
	Key string
	// ReplayOf is the dead run that the task replays; zero: none.
	ReplayOf RunID
	// TraceParent is the trace context of the add, as W3C writes it.
	TraceParent string
}

// RetryPolicy says what happens when a handler fails. In a request zero fields
// take their defaults, and so does a Jitter of [UnsetJitter].
type RetryPolicy struct {
	MaxAttempts    int32
	InitialBackoff time.Duration
	Multiplier     float64
	MaxBackoff     time.Duration
	Jitter         float64
}

// Cron is a schedule by expression, in the words of the API.
type Cron struct {
	Dialect    Dialect
	Expression string
	// Zone is the IANA name of a time zone.
	Zone string
}

// Dialect is the language of a cron expression. The numbers are stored.
type Dialect int16

// The dialects.
const (
	StandardCron Dialect = 1 // five fields, or six with seconds; H
	QuartzCron   Dialect = 2 // six or seven fields; L, W, #, ?
	NamedCron    Dialect = 3 // @hourly, @daily, ...
)

// String returns the dialect's name as it is in the API.
func (d Dialect) String() string {
	switch d {
	case StandardCron:
		return "STANDARD"
	case QuartzCron:
		return "QUARTZ"
	case NamedCron:
		return "NAMED"
	}
	return fmt.Sprintf("Dialect(%d)", int16(d))
}

// Misfire says what happens to instants that passed without firing. The numbers
// are stored, and those of the API.
type Misfire int16

// The misfire policies.
const (
	FireOnce Misfire = 1 // the stored instant fires, late; then the first one after now
	FireAll  Misfire = 2 // each instant fires, one after the other
	Skip     Misfire = 3 // what is older than a grace does not fire
)

// String returns the policy's name as it is in the API.
func (m Misfire) String() string {
	switch m {
	case 0, FireOnce:
		return "FIRE_ONCE"
	case FireAll:
		return "FIRE_ALL"
	case Skip:
		return "SKIP"
	}
	return fmt.Sprintf("Misfire(%d)", int16(m))
}

// A Calendar is the set of instants that a cron expression matches in its zone.
// It is safe for concurrent use.
type Calendar interface {
	// Next returns the first instant strictly after one; false: there is none.
	Next(after Instant) (Instant, bool)
	// Count returns how many instants lie in (after, until].
	Count(after, until Instant) int64
}

// Modeled reports whether package task alone can compute the task's instants: SQL
// knows intervals that fire once.
func (t *Terms) Modeled() bool {
	return t.Cron != nil || t.Misfire > FireOnce || t.Damaged != ""
}

// MisfirePolicy returns the policy that governs a task of the type.
func (t *Terms) MisfirePolicy(typ Type) Misfire {
	if t.Misfire == 0 || (t.Misfire == FireAll && typ != NonBlocking) {
		return FireOnce
	}
	return t.Misfire
}

// sameSchedule reports whether the instants of tasks with either terms follow the
// same rule.
func (t *Terms) sameSchedule(o *Terms) bool {
	sameCron := t.Cron == o.Cron || (t.Cron != nil && o.Cron != nil && *t.Cron == *o.Cron)
	return t.Interval == o.Interval && t.Spread == o.Spread && sameCron
}

// SpreadOf returns by how much the instants of a task are later: a part of the
// window that looks random and follows from the id, in whole milliseconds. The
// mixer is the finaliser of MurmurHash3 (Austin Appleby, public domain).
func SpreadOf(id ID, window time.Duration) time.Duration {
	if window <= 0 {
		return 0
	}
	h := uint64(id)
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	h ^= h >> 33
	return time.Duration(h%uint64(max(1, window.Milliseconds()))) * time.Millisecond
}

// SortTags returns tags in the order in which they are stored, each once; nil for
// none.
func SortTags(tags []string) []string {
	if len(tags) == 0 {
		return nil
	}
	out := slices.Clone(tags)
	slices.Sort(out)
	return slices.Compact(out)
}
