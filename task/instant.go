package task

import (
	"math"
	"time"
)

// Instant is a point in time: milliseconds since 1970-01-01T00:00:00Z.
type Instant int64

// Never is later than every other instant. It means "no end" or "nothing to wait for".
const Never Instant = math.MaxInt64

// LastInstant is the exclusive upper bound of instants in requests:
// 9000-01-01T00:00:00Z.
const LastInstant Instant = 221845392000000

// At returns the instant of t, truncated to the millisecond.
func At(t time.Time) Instant { return Instant(t.UnixMilli()) }

// Time returns the instant as a UTC time. It returns the zero time for Never.
func (i Instant) Time() time.Time {
	if i == Never {
		return time.Time{}
	}
	return time.UnixMilli(int64(i)).UTC()
}

// Add returns the instant d later. It returns Never for Never.
func (i Instant) Add(d time.Duration) Instant {
	if i == Never {
		return Never
	}
	return i + Instant(d.Milliseconds())
}

// longestDistance bounds distances: a [time.Duration] ends at 292 years, and sums of a distance and a time
// that people wait for must not exceed it.
const longestDistance = Instant(200 * 365 * 24 * time.Hour / time.Millisecond)

// Sub returns i - o, or some 200 years if they are farther apart. Both must not be Never.
func (i Instant) Sub(o Instant) time.Duration {
	return time.Duration(min(max(i-o, -longestDistance), longestDistance)) * time.Millisecond
}

// String returns RFC 3339 with milliseconds, or "never".
func (i Instant) String() string { return string(i.AppendTo(nil)) }

// AppendTo appends the text of String.
func (i Instant) AppendTo(b []byte) []byte {
	if i == Never {
		return append(b, "never"...)
	}
	return i.Time().AppendFormat(b, "2006-01-02T15:04:05.000Z")
}
