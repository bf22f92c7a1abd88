package task

import (
	"fmt"
	"time"
)

// HistoryLevel says which events of the runs of a tenant are recorded. The numbers are
// stored.
type HistoryLevel int16

// The levels of history.
const (
	HistoryFailures HistoryLevel = 1 // events that were not planned
	HistoryAll      HistoryLevel = 2
	HistoryNone     HistoryLevel = 3
	HistorySlow     HistoryLevel = 4 // HistoryFailures, and the success of slow runs; the default
	HistorySampled  HistoryLevel = 5 // HistorySlow, and the success of one in so many runs
)

// HistoryLevels lists all levels.
var HistoryLevels = []HistoryLevel{HistoryFailures, HistoryAll, HistoryNone, HistorySlow, HistorySampled}

// String returns the level's name as it is in the API, without its prefix.
func (l HistoryLevel) String() string {
	names := [...]string{HistoryFailures: "FAILURES", HistoryAll: "ALL", HistoryNone: "NONE", HistorySlow: "SLOW", HistorySampled: "SAMPLED"}
	if l >= 1 && int(l) < len(names) {
		return names[l]
	}
	return fmt.Sprintf("HistoryLevel(%d)", int16(l))
}

// Keeps reports whether every event of a kind is recorded at this level.
func (l HistoryLevel) Keeps(e Event) bool {
	switch l {
	case HistoryAll:
		return true
	case HistoryNone:
		return false
	}
	return e != EventClaimed && e != EventSucceeded
}

// Defaults and limits of [HistoryPolicy].
const (
	DefaultSlowAfter     = 5 * time.Second
	MaxSlowAfter         = 24 * time.Hour
	DefaultHistorySample = 100
	MaxHistorySample     = 1_000_000
)

// HistoryPolicy says which events of the runs of a tenant are recorded. The zero value is the
// default.
type HistoryPolicy struct {
	Level HistoryLevel // 0: HistorySlow
	// SlowAfter is how late or how long a slow run is; 0: DefaultSlowAfter.
	SlowAfter time.Duration
	// Sample: HistorySampled records one in so many runs; 0: DefaultHistorySample.
	Sample int32
}

// Resolved returns the policy with its defaults in place.
func (p HistoryPolicy) Resolved() HistoryPolicy {
	if p.Level == 0 {
		p.Level = HistorySlow
	}
	if p.SlowAfter == 0 {
		p.SlowAfter = DefaultSlowAfter
	}
	if p.Sample == 0 {
		p.Sample = DefaultHistorySample
	}
	return p
}

// Samples reports whether a run is one of those that HistorySampled records. Every process
// chooses the same.
func (p *HistoryPolicy) Samples(r RunID) bool {
	if p.Level != HistorySampled {
		return false
	}
	// The finalizer of splitmix64.
	x := uint64(r.Task) ^ uint64(r.Seq)*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return (x^x>>31)%uint64(p.Sample) == 0
}

// Event is something that happened to a run. The numbers are stored.
type Event int16

// The events of runs.
const (
	EventClaimed    Event = 1 // its first delivery was claimed
	EventRedelivery Event = 2 // a further delivery was claimed: a retry, or after silence
	EventSucceeded  Event = 3 // its SUCCESS or stop was accepted
	EventFailed     Event = 4 // the FAIL of an attempt was accepted
	EventDead       Event = 5 // it was given up
	EventSkipped    Event = 6 // instants had passed before its claim and do not fire
	EventHandedBack Event = 7 // a listener could not handle it
	EventSnoozed    Event = 8 // its handler or a busy listener snoozed it
)

// Events lists all events.
var Events = []Event{EventClaimed, EventRedelivery, EventSucceeded, EventFailed, EventDead, EventSkipped, EventHandedBack, EventSnoozed}

// String returns the event's name as it is in the API, without its prefix.
func (e Event) String() string {
	names := [...]string{1: "CLAIMED", 2: "REDELIVERY", 3: "SUCCEEDED", 4: "FAILED", 5: "DEAD", 6: "SKIPPED", 7: "HANDED_BACK", 8: "SNOOZED"}
	if e >= 1 && int(e) < len(names) {
		return names[e]
	}
	return fmt.Sprintf("Event(%d)", int16(e))
}

// RunEvent is one event of a task's history.
type RunEvent struct {
	Tenant int32
	RunID
	Attempt int32
	// At is the instant of the event, by the database's clock.
	At          Instant
	ScheduledAt Instant
	Event       Event
	// Detail is the error of FAILED, the reason and error of DEAD, the number of SKIPPED
	// instants, or the delay that SNOOZED asked for.
	Detail string
	// Stages are those of the attempt, as far as they are known.
	Stages
}

// HistoryCursor is the position of an event in the history of its task.
type HistoryCursor struct {
	At      Instant
	Seq     int64
	Attempt int32
	Event   Event
}

// NewestEvent is the cursor before the newest event of any task.
var NewestEvent = HistoryCursor{At: Never}

// Cursor returns the position of the event.
func (e *RunEvent) Cursor() HistoryCursor {
	return HistoryCursor{At: e.At, Seq: e.Seq, Attempt: e.Attempt, Event: e.Event}
}
