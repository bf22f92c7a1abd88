package task

import (
	"fmt"
	"time"
)

// Stored returns the numbers that the database stores, by the names that SQL statements
// use: "type.BLOCKING", "state.RUNNING". Statements have no other way to refer to them.
func Stored() map[string]int64 {
	names := map[string]int64{
		"bound.MAX_BLOCK_MS":         MaxBlock.Milliseconds(),
		"layout.SHARDS":              Shards,
		"layout.SHARDS_PER_DATABASE": ShardsPerDatabase,

		"instant.NEVER": int64(Never),

		"ms.MINUTE": time.Minute.Milliseconds(),
		"ms.HOUR":   time.Hour.Milliseconds(),
		"ms.DAY":    24 * time.Hour.Milliseconds(),
		"ms.MONTH":  30 * 24 * time.Hour.Milliseconds(), // thirty days

		"bulk_action.PAUSE":  int64(BulkPause),
		"bulk_action.RESUME": int64(BulkResume),

		"bulk_state.RUNNING": int64(BulkRunning),
		"bulk_state.DONE":    int64(BulkDone),
		"bulk_state.ABORTED": int64(BulkAborted),

		"import_state.OPEN":         int64(ImportOpen),
		"import_state.ROLLING_BACK": int64(ImportRollingBack),

		"wanted.RUN":   int64(WantRun),
		"wanted.PAUSE": int64(WantPause),
		"wanted.ABORT": int64(WantAbort),

		"rate.CLAIMS": int64(RateOfClaims),
		"rate.ADDS":   int64(RateOfAdds),
	}
	nameStored(names, "type", Types)
	nameStored(names, "state", States)
	nameStored(names, "event", Events)
	nameStored(names, "cell", Cells)
	return names
}

func nameStored[T interface {
	~int16
	fmt.Stringer
}](names map[string]int64, group string, all []T) {
	for _, v := range all {
		names[group+"."+v.String()] = int64(v)
	}
}

// Cell is the class in which counters count a task: a state of unfinished tasks, a final
// state while the task is kept, or a final state afterwards. Dead runs and missing tasks
// have cells of their own. The numbers are stored. A state has the same number as its
// cell.
type Cell int16

// The cells that are not states.
const (
	NoCell          Cell = 0
	CompletedPurged Cell = 6
	CancelledPurged Cell = 7
	FailedPurged    Cell = 8
	DeadCell        Cell = 9
)

// Cells lists all cells.
var Cells = []Cell{
	NoCell, Cell(Scheduled), Cell(Running), Cell(Completed), Cell(Cancelled), Cell(Failed),
	CompletedPurged, CancelledPurged, FailedPurged, DeadCell,
}

// CellOf returns the cell of a task in a state. kept matters for final states only.
func CellOf(s State, kept bool) Cell {
	if kept {
		return Cell(s)
	}
	switch s {
	case Completed:
		return CompletedPurged
	case Cancelled:
		return CancelledPurged
	case Failed:
		return FailedPurged
	}
	return Cell(s)
}

// String returns the cell's name in statements.
func (c Cell) String() string {
	switch c {
	case NoCell:
		return "NONE"
	case CompletedPurged:
		return "PURGED_COMPLETED"
	case CancelledPurged:
		return "PURGED_CANCELLED"
	case FailedPurged:
		return "PURGED_FAILED"
	case DeadCell:
		return "DEAD"
	}
	return State(c).String()
}

// BulkWanted is the request of a caller for an open bulk operation. The numbers are stored.
type BulkWanted int16

// The requests of callers.
const (
	WantRun   BulkWanted = 1
	WantPause BulkWanted = 2
	WantAbort BulkWanted = 3
)

// RatePurpose is the purpose for which a tenant's rate is used. The numbers are stored.
type RatePurpose int16

// The purposes.
const (
	RateOfClaims RatePurpose = 1
	RateOfAdds   RatePurpose = 2
)
