package task

import "fmt"

// Type says how the runs of a task follow each other. The numbers are stored.
type Type int16

// The types of tasks.
const (
	OneShot     Type = 1 // one run, at begin_time
	NonBlocking Type = 2 // runs on a grid, independent of the handlers
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

// State is the stage of a task's life. The numbers are stored.
type State int16

// The states of tasks.
const (
	Scheduled State = 1 // waits for its next run
	Running   State = 2 // a run is open and must be closed before another one is claimed
	Completed State = 3 // ended by its bounds or its handler
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

// edges is the table of the state machine. A test compares it with docs/task-states.md
// and the CHECK constraints of the schema.
var edges = map[State][]State{
	Scheduled: {Running, Completed, Cancelled, Failed},
	Running:   {Scheduled, Completed, Cancelled, Failed},
}

// CanBecome reports whether a task may change from s to next. An unfinished task may
// stay in its state: each claim makes a NON_BLOCKING task SCHEDULED again.
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
