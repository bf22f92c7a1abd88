package task

import (
	"encoding/binary"
	"strings"
	"time"
	"unicode"
)

// Timeline says when an attempt passed its stages and who handled it. The claim and the
// publication are instants of the database's clock, which the record carries. A listener
// measures its own part by a monotonic clock, as durations before its call, so its clock
// does not matter.
type Timeline struct {
	// ScheduledAt, ClaimedAt and PublishedAt are 0 if they are not known.
	ScheduledAt, ClaimedAt, PublishedAt Instant
	// ReceivedAgo, BegunAgo and EndedAgo are how long before Arrived the listener received
	// the record, called the handler, and the handler returned. 0: it did not, or that is
	// not known.
	ReceivedAgo, BegunAgo, EndedAgo time.Duration
	// Arrived is when the call of the listener arrived.
	Arrived time.Time
	// Dispatcher is the name of the dispatcher that published the record.
	Dispatcher string
	// Listener is nil if it is not known.
	Listener *Listener
}

// Listener describes a process that handles runs.
type Listener struct{ Name, Host, Version string }

// MaxNameBytes is the most of a name of a dispatcher or a listener that is kept.
const MaxNameBytes = 100

// Slow reports whether the handler was called more than bound after the scheduled instant, or
// took longer than that, when the database's clock shows now. waited is the time since
// Arrived. A run whose handler was not called is judged by the end of the timeline.
func (t *Timeline) Slow(now Instant, waited, bound time.Duration) bool {
	if t.BegunAgo > 0 && t.EndedAgo > 0 && t.BegunAgo-t.EndedAgo > bound {
		return true
	}
	return t.ScheduledAt > 0 && now.Sub(t.ScheduledAt)-waited-t.BegunAgo > bound
}

// Waited returns how long a record has waited from its publication, or from its instant if it was published before
// that, until its handler was called, when the database's clock shows now and ours at. ok is false if that is not known.
func (t *Timeline) Waited(now Instant, at time.Time) (wait time.Duration, ok bool) {
	if t == nil || t.PublishedAt == 0 || t.BegunAgo == 0 {
		return 0, false
	}
	return now.Sub(max(t.PublishedAt, t.ScheduledAt)) - at.Sub(t.Arrived) - t.BegunAgo, true
}

// Stages are the instants of a [Timeline] by the database's clock. Stages that are not known
// are zero.
type Stages struct {
	ClaimedAt, PublishedAt Instant
	Received, Begun, Ended time.Time
	Dispatcher             string
	Listener               Listener
}

// A stored timeline is the number of its format, then numbers as varints and texts with their
// lengths. Instants are stored as distances from the event, in microseconds, 0 for none; so
// are those of the claim and the publication, one more than their distance in milliseconds.
const timelineFormat = 1

// Seal returns the timeline as it is stored with an event at the instant now. waited is the
// time since Arrived. nil, which stores nothing, has no timeline.
func (t *Timeline) Seal(now Instant, waited time.Duration) []byte {
	if t == nil {
		return nil
	}
	b := append(make([]byte, 0, 64), timelineFormat)
	for _, at := range [...]Instant{t.ClaimedAt, t.PublishedAt} {
		var distance int64
		if at > 0 {
			distance = max(int64(now-at), 0) + 1
		}
		b = binary.AppendUvarint(b, uint64(distance))
	}
	for _, ago := range [...]time.Duration{t.ReceivedAgo, t.BegunAgo, t.EndedAgo} {
		if ago > 0 {
			ago = max(ago+waited, time.Microsecond)
		}
		b = binary.AppendUvarint(b, uint64(ago.Microseconds()))
	}
	var l Listener
	if t.Listener != nil {
		l = *t.Listener
	}
	for _, text := range [...]string{t.Dispatcher, l.Name, l.Host, l.Version} {
		b = append(binary.AppendUvarint(b, uint64(len(text))), text...)
	}
	return b
}

// OpenTimeline returns the stages of a stored timeline of an event at an instant. What cannot
// be read, because a newer program has stored it, is not known.
func OpenTimeline(b []byte, at Instant) (s Stages) {
	if len(b) == 0 || b[0] != timelineFormat {
		return Stages{}
	}
	b = b[1:]
	number := func() int64 {
		v, n := binary.Uvarint(b)
		if n <= 0 || int64(v) < 0 {
			b = nil
			return 0
		}
		b = b[n:]
		return int64(v)
	}
	instant := func() Instant {
		if v := number(); v > 0 && v <= int64(at) {
			return at - Instant(v-1)
		}
		return 0
	}
	ago := func() time.Time {
		if v := number(); v > 0 && v <= int64(at)*1000 {
			return at.Time().Add(-time.Duration(v) * time.Microsecond)
		}
		return time.Time{}
	}
	text := func() string {
		n := number()
		if n > int64(len(b)) {
			b = nil
			return ""
		}
		text := string(b[:n])
		b = b[n:]
		return text
	}
	s.ClaimedAt, s.PublishedAt = instant(), instant()
	s.Received, s.Begun, s.Ended = ago(), ago(), ago()
	s.Dispatcher, s.Listener.Name, s.Listener.Host, s.Listener.Version = text(), text(), text(), text()
	return s
}

// CleanName makes a name storable: at most [MaxNameBytes] of whole, printable characters.
func CleanName(name string) string {
	if len(name) > MaxNameBytes {
		name = name[:MaxNameBytes]
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) { // those above 0x7f, too: terminals obey them
			return -1
		}
		return r
	}, strings.ToValidUTF8(name, ""))
}
