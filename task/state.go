package task

import "fmt"

// Type says how the runs of a task follow each other. The numbers are stored.
type Type int16

// The types of tasks.
const (
	OneShot     Type = 1 // one run, at begin_time
	NonBlocking Type = 2 // runs on a grid, whatever the handlers do
	Blocking    Type = 3 // the next run one interval after the last result
)

// Types lists all types.
var Types = []Type{OneShot, NonBlocking, Blocking}

// String returns the type's name as it is in the API: "ONE_SHOT" and so on.
func (t Type) String() string {
	switch t {
	case OneShot:
		return "ONE_SHOT"
	case NonBlocking:
		return "NON_BLOCKING"
	case Blocking:
		return "BLOCKING"
	}
	return fmt.Sprintf("Type(%d)", int16(t))
}

// State is where a task is in its life. The numbers are stored.
type State int16

// The states of tasks.
const (
	Scheduled State = 1 // waits for its next run
	Running   State = 2 // a run is open, and no other may be claimed before it is closed
	Completed State = 3 // ended as its bounds or its handler said
	Cancelled State = 4 // ended by Cancel
	Failed    State = 5 // ended because a run was given up
)

// States lists all states.
var States = []State{Scheduled, Running, Completed, Cancelled, Failed}

// String returns the state's name as it is in the API.
func (s State) String() string {
	switch s {
	case Scheduled:
		return "SCHEDULED"
	case Running:
		return "RUNNING"
	case Completed:
		return "COMPLETED"
	case Cancelled:
		return "CANCELLED"
	case Failed:
		return "FAILED"
	}
	return fmt.Sprintf("State(%d)", int16(s))
}

// Final reports whether a task in this state has ended.
func (s State) Final() bool { return s >= Completed }

// edges is the one table of the state machine. docs/task-states.md and the
// CHECK constraints of the schema agree with it; a test says so.
var edges = map[State][]State{
	Scheduled: {Running, Completed, Cancelled, Failed},
	Running:   {Scheduled, Completed, Cancelled, Failed},
}

// CanBecome reports whether a task may go from s to next. Staying in a living
// state is allowed: a NON_BLOCKING task is SCHEDULED again by each claim.
func (s State) CanBecome(next State) bool {
	if s == next {
		return !s.Final()
	}
	for _, e := range edges[s] {
		if e == next {
			return true
		}
	}
	return false
}
