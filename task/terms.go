package task

import (
	"fmt"
	"slices"
	"time"
)

// Terms are the properties of a task that its caller sets and may change by an edit,
// except for its params, which handlers change too. Specs, rows and dead runs contain
// them and copy them by assignment. Two equivalent values are deeply equal after
// [Spec.Validate].
//
// A new term without a column needs a field here, a line in seal.go, its range in
// spec.go, a field in proto/perceptor/v1/task.proto, a conversion in
// server/terms.go, client/types.go, client/encoded.go, export/line/line.go and
// cmd/perceptorctl/taskterms.go, and a word in docs/editing.md. If a statement must compare it, it needs a column instead of the
// line in seal.go: see store/shards/kernel/terms.go.
type Terms struct {
	Kind string
	// Begin is [Never] until the store sets it to now, if the caller gave none.
	Begin Instant
	// End is Never if the task has no end.
	End Instant
	// Interval is 0 for ONE_SHOT and for a task with Cron.
	Interval time.Duration
	// MaxCount is 0 if there is no limit, and 1 for ONE_SHOT.
	MaxCount      int64
	Retry         RetryPolicy
	AckTimeout    time.Duration
	GiveUpAfter   time.Duration
	StopOnFailure bool
	// Retention is how long the finished task is kept.
	Retention time.Duration
	// Cron says when runs are scheduled. nil means Interval does, or a ONE_SHOT at Begin.
	Cron *Cron
	// Misfire is the policy for instants that passed without firing. 0 means FireOnce.
	Misfire Misfire
	// CatchUp is the most missed instants that FireAll fires.
	CatchUp int32
	// Grace is the most lateness at which an instant still fires under Skip.
	Grace time.Duration
	// Overlap is the policy for instants that come while an earlier run is open. 0 means
	// OverlapAllow.
	Overlap Overlap
	// Spread is the window over which the instants of like tasks are distributed. Each
	// instant of this task is later by the same part of the window, which its id
	// determines.
	Spread time.Duration
	// Exclude and Only are the names of the tenant's day calendars that the schedule excludes
	// and is limited to. They are sorted and distinct.
	Exclude, Only []string
	// Tags find the task. They are sorted and distinct.
	Tags []string
	// Damaged are the stored bytes that cannot be read, or that a newer program wrote.
	// Empty means that they could be read. A damaged task is deferred and not fired, so
	// that it does not fire by a wrong rule. Its bytes are kept.
	Damaged string
}

// Origin says where a task comes from. The add sets it, and nothing changes it.
type Origin struct {
	// Key is the idempotency_key that the task was added with.
	Key string
	// ReplayOf is the dead run that the task replays. Zero means none.
	ReplayOf RunID
	// BackfillOf is the task whose instants the task makes fire, and Backfill the bulk
	// operation that added it. 0 means none.
	BackfillOf ID
	Backfill   int64
	// TraceParent is the trace context of the add, in the format of W3C.
	TraceParent string
}

// RetryPolicy says what follows a failure. In a request zero fields get their
// defaults, and so does a Jitter of [UnsetJitter].
type RetryPolicy struct {
	MaxAttempts    int32
	InitialBackoff time.Duration
	Multiplier     float64
	MaxBackoff     time.Duration
	Jitter         float64
}

// Cron is a schedule by expression, as in the API.
type Cron struct {
	Dialect    Dialect
	Expression string
	// Zone is the IANA name of a time zone.
	Zone string
}

// Dialect is the language of an expression. The numbers are stored.
type Dialect int16

// The dialects.
const (
	StandardCron Dialect = 1 // five fields, or six with seconds; H
	QuartzCron   Dialect = 2 // six or seven fields; L, W, #, ?
	NamedCron    Dialect = 3 // @hourly, @daily, ...
	RRuleCron    Dialect = 4 // DTSTART:... RRULE:FREQ=...
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
	case RRuleCron:
		return "RRULE"
	}
	return fmt.Sprintf("Dialect(%d)", int16(d))
}

// Misfire is a policy for instants that passed without firing. The numbers are stored
// and are those of the API.
//
// The rules of the policies are in misfire.go. A new policy also needs its name
// ([Misfire.String]), its ranges (checkMisfire in spec.go), the distance of its
// instants (fireGrid in due.go), its value in task.proto and in client/types.go, and
// the flag in cmd/perceptorctl/tasktiming.go. A policy with a parameter also needs
// server/terms.go and server/update.go. The checker of the load test (loadtest/check/runs.go)
// has the rules once more. SQL needs nothing: it leaves every policy other than FireOnce to
// this package ([Terms.Modeled]).
type Misfire int16

// The misfire policies.
const (
	FireOnce Misfire = 1 // the stored instant fires late, then the first one after now
	FireAll  Misfire = 2 // each instant fires, one after the other
	Skip     Misfire = 3 // instants older than the grace do not fire
	// ByOverlap is for [MissedBy] only: the overlap policy has skipped the instants.
	ByOverlap Misfire = -1
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
	case ByOverlap:
		return "OVERLAP"
	}
	return fmt.Sprintf("Misfire(%d)", int16(m))
}

// A Calendar is the set of instants that a cron expression matches in its zone.
// It is safe for concurrent use.
type Calendar interface {
	// Next returns the first instant strictly after one, and false if there is none.
	Next(after Instant) (Instant, bool)
	// Count returns how many instants lie in (after, until].
	Count(after, until Instant) int64
}

// Modeled reports whether only package task can claim the task's runs. SQL knows only
// intervals up to MaxBitGap under FireOnce and OverlapAllow.
func (t *Terms) Modeled() bool {
	return t.Cron != nil || t.Misfire > FireOnce || t.Overlap > OverlapAllow || t.UsesCalendars() || t.Interval > MaxBitGap || t.Damaged != ""
}

// UsesCalendars reports whether the schedule depends on calendars of the tenant.
func (t *Terms) UsesCalendars() bool { return len(t.Exclude)+len(t.Only) > 0 }

// CalendarNames returns the names of the calendars on which the schedule depends.
func (t *Terms) CalendarNames() []string { return slices.Concat(t.Exclude, t.Only) }

// MisfirePolicy returns the policy that applies to a task of the type.
func (t *Terms) MisfirePolicy(typ Type) Misfire {
	if t.Misfire == 0 || (t.Misfire == FireAll && typ != NonBlocking) {
		return FireOnce
	}
	return t.Misfire
}

// sameSchedule reports whether t and o give the same instants.
func (t *Terms) sameSchedule(o *Terms) bool {
	sameCron := t.Cron == o.Cron || (t.Cron != nil && o.Cron != nil && *t.Cron == *o.Cron)
	sameDays := slices.Equal(t.Exclude, o.Exclude) && slices.Equal(t.Only, o.Only)
	return t.Interval == o.Interval && t.Spread == o.Spread && sameCron && sameDays
}

// SpreadOf returns the delay of a task's instants: a part of the window that looks random
// and depends only on the id, in whole milliseconds. The mixer is the finaliser of
// MurmurHash3 (Austin Appleby, public domain).
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

// SortTags returns tags sorted and distinct, as they are stored. It returns nil for an
// empty list.
func SortTags(tags []string) []string {
	if len(tags) == 0 {
		return nil
	}
	out := slices.Clone(tags)
	slices.Sort(out)
	return slices.Compact(out)
}
