package task

import (
	"fmt"
	"strconv"
	"strings"
)

// ListQuery selects tasks of one tenant.
type ListQuery struct {
	Tenant int32
	// After is the Next of the previous page. nil means the start of the listing.
	After *ListCursor
	// Limit is the most tasks in the page, at least 1.
	Limit int
	Filter
	// Complete makes the listing fail if a database does not answer.
	Complete bool
}

// ListPage is one page. It may be short, or empty, although another page follows.
type ListPage struct {
	Tasks []*Snapshot
	// Next is the position of the next page. nil means that this is the last page.
	Next *ListCursor
	// Missing are the databases that did not answer. The listing has passed over the rest
	// of their tasks.
	Missing []int
}

// ListStage is the part of a database that a listing is reading.
type ListStage int

// The stages of a listing, in their order. A task that moves during the listing moves to
// a later stage, or the listing finds it in both stages.
const (
	ListLevel0  ListStage = iota // packs that adds have made
	ListPacks                    // all other packs
	ListRows                     // the near tier, or finished tasks
	ListYounger                  // packs made since ListRows began
	listStages
)

// ListCursor is a position in a listing, between two tasks.
type ListCursor struct {
	Database int
	Stage    ListStage
	// Pack is the last pack that was read: its id, or the first number of a pack of
	// level 0. In ListRows it is the last pack of ListPacks.
	Pack int64
	// Task is the last task that was read, in ListRows or in Pack. 0 means that all of
	// Pack was read.
	Task ID
	// Due is the due instant of Task in a listing of ListRows by due instant. Never means
	// that all of Task's shard was read.
	Due Instant
}

// NextStage returns the beginning of the stage after that of c.
func (c ListCursor) NextStage() ListCursor {
	next := ListCursor{Database: c.Database, Stage: c.Stage + 1}
	switch c.Stage {
	case ListPacks, ListRows:
		next.Pack = c.Pack
	case ListYounger:
		next = ListCursor{Database: c.Database + 1}
	}
	return next
}

// String returns the cursor as text for [ParseListCursor].
func (c ListCursor) String() string {
	return fmt.Sprintf("%d.%d.%d.%d.%d", c.Database, c.Stage, c.Pack, c.Task, c.Due)
}

// ParseListCursor is the inverse of [ListCursor.String]. It accepts any text and
// returns an error if the text is not a valid position.
func ParseListCursor(text string) (*ListCursor, error) {
	parts := strings.Split(text, ".")
	if len(parts) != 5 {
		return nil, fmt.Errorf("cursor %q does not have 5 parts", text)
	}
	var n [5]int64
	for i, p := range parts {
		v, err := strconv.ParseInt(p, 10, 64)
		if err != nil || v < 0 {
			return nil, fmt.Errorf("cursor %q: %q is not a number", text, p)
		}
		n[i] = v
	}
	c := &ListCursor{Database: int(n[0]), Stage: ListStage(n[1]), Pack: n[2], Task: ID(n[3]), Due: Instant(n[4])}
	switch {
	case n[0] >= Databases:
		return nil, fmt.Errorf("cursor %q: there is no database %d", text, n[0])
	case n[1] >= int64(listStages):
		return nil, fmt.Errorf("cursor %q: there is no stage %d", text, n[1])
	case c.Task == 0 && c.Due != 0:
		return nil, fmt.Errorf("cursor %q: an instant without a task", text)
	case c.Task != 0 && (!c.Task.Valid() || c.Task.Shard().Database() != c.Database):
		return nil, fmt.Errorf("cursor %q: task %d is not in database %d", text, c.Task, c.Database)
	}
	return c, nil
}
