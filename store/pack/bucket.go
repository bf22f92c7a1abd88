package pack

import (
	"fmt"
	"math"
	"strings"

	"github.com/perceptor/perceptor/task"
)

// Level is the width of a pack's buckets. The numbers are stored.
type Level int16

// The levels of the timing wheel, from the finest.
const (
	Minute Level = 1
	Hour   Level = 2
	Day    Level = 3
	Month  Level = 4 // thirty days
)

const (
	minuteMillis = 60_000
	hourMillis   = 60 * minuteMillis
	dayMillis    = 24 * hourMillis
)

var widths = [...]task.Instant{Minute: minuteMillis, Hour: hourMillis, Day: dayMillis, Month: 30 * dayMillis}

// Stored returns the numbers that statements about packs name: "level.HOUR".
func Stored() map[string]int64 {
	names := map[string]int64{"locator.PAGE": LocatorPage, "pack.VERSION": version}
	for l := Minute; l.Valid(); l++ {
		names["level."+strings.ToUpper(l.String())] = int64(l)
	}
	return names
}

// LocatorPage is the number of tasks that a page of the locator covers.
const LocatorPage = 256

// Valid reports whether l is one of the four levels.
func (l Level) Valid() bool { return l >= Minute && l <= Month }

// Width returns the width of a bucket of level l in milliseconds. l must be valid.
func (l Level) Width() task.Instant { return widths[l] }

// String returns the level's name.
func (l Level) String() string {
	switch l {
	case Minute:
		return "minute"
	case Hour:
		return "hour"
	case Day:
		return "day"
	case Month:
		return "month"
	}
	return fmt.Sprintf("Level(%d)", int16(l))
}

// Bucket is one slot of the timing wheel: the instants in [At, End()). Buckets
// of a level begin at the multiples of its width, so each lies within one bucket
// of every coarser level.
type Bucket struct {
	Level Level
	At    task.Instant
}

// LastDue is the last instant whose minute fits into the locator, in the year
// 6053. A task that is due later is kept as if it were due then.
const LastDue task.Instant = math.MaxInt32 * minuteMillis

// BucketOf returns the bucket of level l that holds due, at least 0. l must be
// valid.
func BucketOf(due task.Instant, l Level) Bucket {
	due = min(due, LastDue)
	return Bucket{Level: l, At: due - due%widths[l]}
}

// End returns the first instant after the bucket.
func (b Bucket) End() task.Instant { return b.At + widths[b.Level] }

// MinuteOf returns the minute of due since 1970, as the locator stores it. The locator's
// 0 means that a task is not there; no far task has this minute.
func MinuteOf(due task.Instant) int32 { return int32(min(due, LastDue) / minuteMillis) }

// MinuteBegin returns the beginning of a minute of the locator. On every level it lies in
// the same bucket as the instants of that minute.
func MinuteBegin(minute int32) task.Instant { return task.Instant(minute) * minuteMillis }
