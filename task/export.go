package task

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// ExportQuery selects the tasks of one tenant for an export.
type ExportQuery struct {
	Tenant int32
	// After is the position at which the export begins. The zero value is the beginning.
	After ExportCursor
	Filter
}

// ExportPage is a part of an export that was read in one short snapshot. It may be empty.
type ExportPage struct {
	// Rows are tasks in the order of the export. They share memory.
	Rows []*Row
	// Finished are the instants at which the tasks ended. nil: the tasks are unfinished.
	Finished []Instant
	// ReadAt is the time of the database's clock just before the page was read.
	ReadAt Instant
	// At is the position of the page, and Packed says whether it is one pack. Next is the
	// position after the page.
	At, Next ExportCursor
	Packed   bool
	// DamagedPacks and DamagedTasks count packs and tasks that were passed over because
	// their stored data cannot be read.
	DamagedPacks, DamagedTasks int
}

// After returns the position after row i of the page.
func (p *ExportPage) After(i int) ExportCursor {
	if i == len(p.Rows)-1 {
		return p.Next
	}
	at := p.At
	if p.Packed {
		at.In = p.Rows[i].ID
	} else {
		at.Task = p.Rows[i].ID
	}
	return at
}

// ExportStage is the part of a database that an export is reading.
type ExportStage int

// The stages of an export, in their order.
const (
	ExportLevel0 ExportStage = iota // packs that adds have made
	ExportPacks                     // all other packs
	ExportRows                      // the near tier and the packs made meanwhile, or finished tasks
	exportStages
)

// ExportCursor is a position in an export, between two tasks. Its database is [Databases] at
// the end of the export.
type ExportCursor struct {
	Database int
	Stage    ExportStage
	// Pack is the last pack that was read: its id, or the first number of a pack of level 0.
	Pack int64
	// In is the last task of Pack that was read. 0 means that all of Pack was read.
	In ID
	// Task is the last task of the near tier, or the last finished one, that was read.
	Task ID
}

// NextStage returns the beginning of the stage after that of c, or of the next database.
func (c ExportCursor) NextStage() ExportCursor {
	switch c.Stage {
	case ExportLevel0:
		return ExportCursor{Database: c.Database, Stage: ExportPacks}
	case ExportPacks:
		return ExportCursor{Database: c.Database, Stage: ExportRows, Pack: c.Pack}
	}
	return ExportCursor{Database: c.Database + 1}
}

// String returns the cursor as text for [ParseExportCursor].
func (c ExportCursor) String() string {
	return fmt.Sprintf("%d.%d.%d.%d.%d", c.Database, c.Stage, c.Pack, c.In, c.Task)
}

// ParseExportCursor is the inverse of [ExportCursor.String]. It accepts any text and
// returns an error if the text is not a valid position.
func ParseExportCursor(text string) (ExportCursor, error) {
	n, err := numbers(text, 5)
	if err != nil {
		return ExportCursor{}, err
	}
	c := ExportCursor{Database: int(min(n[0], Databases)), Stage: ExportStage(min(n[1], int64(exportStages))), Pack: n[2], In: ID(n[3]), Task: ID(n[4])}
	switch {
	case n[0] >= Databases:
		return ExportCursor{}, fmt.Errorf("position %q: there is no database %d", text, n[0])
	case c.Stage == exportStages:
		return ExportCursor{}, fmt.Errorf("position %q: there is no stage %d", text, n[1])
	case c.In != 0 && c.Pack == 0:
		return ExportCursor{}, fmt.Errorf("position %q: a task of no pack", text)
	}
	for _, id := range []ID{c.In, c.Task} {
		if id != 0 && (!id.Valid() || id.Shard().Database() != c.Database) {
			return ExportCursor{}, fmt.Errorf("position %q: task %d is not in database %d", text, id, c.Database)
		}
	}
	return c, nil
}

// RunCursor is a position in an export of dead runs, or of the events of runs, between two of
// them. The zero value is the beginning.
type RunCursor struct {
	Database int
	RunID
	// At, Attempt and Event are those of an event; 0 in an export of dead runs.
	At      Instant
	Attempt int32
	Event   Event
}

// String returns the cursor as text for [ParseRunCursor].
func (c RunCursor) String() string {
	return fmt.Sprintf("%d.%d.%d.%d.%d.%d", c.Database, c.Task, c.At, c.Seq, c.Attempt, c.Event)
}

// ParseRunCursor is the inverse of [RunCursor.String]. It accepts any text and returns an
// error if the text is not a valid position.
func ParseRunCursor(text string) (RunCursor, error) {
	n, err := numbers(text, 6)
	if err != nil {
		return RunCursor{}, err
	}
	c := RunCursor{Database: int(min(n[0], Databases)), RunID: RunID{ID(n[1]), n[3]}, At: Instant(n[2]), Attempt: int32(min(n[4], math.MaxInt32)), Event: Event(min(n[5], math.MaxInt16))}
	if c.Database == Databases {
		return RunCursor{}, fmt.Errorf("position %q: there is no database %d", text, n[0])
	}
	return c, nil
}

// numbers reads n numbers that are not negative, with periods between them.
func numbers(text string, n int) ([]int64, error) {
	parts := strings.Split(text, ".")
	if len(parts) != n {
		return nil, fmt.Errorf("position %q does not have %d parts", text, n)
	}
	list := make([]int64, n)
	for i, p := range parts {
		v, err := strconv.ParseInt(p, 10, 64)
		if err != nil || v < 0 {
			return nil, fmt.Errorf("position %q: %q is not a number", text, p)
		}
		list[i] = v
	}
	return list, nil
}
