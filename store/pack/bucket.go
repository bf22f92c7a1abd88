package pack

import (
	"fmt"

	"github.com/perceptor/perceptor/task"
)

// Level is how wide the buckets of a pack are. The numbers are stored.
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
// of one level begin at multiples of its width, so each lies within one bucket
// of the next coarser level, but for days and months: a month has thirty days.
type Bucket struct {
	Level Level
	At    task.Instant
}

// BucketOf returns the bucket of level l that holds due, which lies in
// [0, task.LastInstant). l must be valid.
func BucketOf(due task.Instant, l Level) Bucket {
	return Bucket{Level: l, At: due - due%widths[l]}
}

// End returns the first instant behind the bucket.
func (b Bucket) End() task.Instant { return b.At + widths[b.Level] }

// MinuteOf returns the minute of due as the locator keeps it: minutes since
// 1970, and one, because 0 says that a task is not there. due lies in
// [0, task.LastInstant).
func MinuteOf(due task.Instant) int32 { return int32(due/minuteMillis) + 1 }

// MinuteBegin is the inverse of [MinuteOf]: the instant at which the minute
// begins. minute is positive.
func MinuteBegin(minute int32) task.Instant { return task.Instant(minute-1) * minuteMillis }
