package task

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"time"
)

// Extra holds the terms that few tasks have, so that the others pay nothing for
// them: it is stored as one blob, NULL for most. It belongs to one version of a
// task and is never changed, so rows share it. Make one with [Extra.Seal].
type Extra struct {
	// Cron says when runs are scheduled; nil: an interval does, or ONE_SHOT.
	Cron *Cron
	// Misfire is the policy for instants that passed without firing; 0: FireOnce.
	Misfire Misfire
	// Grace is how late an instant may fire under Skip.
	Grace time.Duration
	// CatchUp is how many missed instants FireAll fires at most.
	CatchUp int32
	// Spread is the window over which the instants of like tasks are spread: each
	// of this task's is later by the same part of it, which follows from its id.
	Spread time.Duration
	// Tags find the task: sorted, each once.
	Tags []string
	// Key is the idempotency_key that the task was added with.
	Key string
	// ReplayOf is the dead run that the task replays; zero: none.
	ReplayOf RunID
	// TraceParent is the trace context of the add, as W3C writes it.
	TraceParent string
	// Damaged: the stored bytes cannot be read, or were written by a newer program.
	// Nothing else is set. Such a task is put off and not fired by a rule that is
	// not its own; its bytes are kept.
	Damaged bool

	wire []byte
}

// Cron is a schedule by expression, in the words of the API.
type Cron struct {
	Dialect    Dialect
	Expression string
	// Zone is the IANA name of a time zone.
	Zone string
}

// Dialect is the language of a cron expression. The numbers are stored.
type Dialect int16

// The dialects.
const (
	StandardCron Dialect = 1 // five fields, or six with seconds; H
	QuartzCron   Dialect = 2 // six or seven fields; L, W, #, ?
	NamedCron    Dialect = 3 // @hourly, @daily, ...
)

// String returns the dialect's name as it is in the API.
func (d Dialect) String() string {
	switch d {
	case StandardCron:
		return "STANDARD"
	case QuartzCron:
		return "QUARTZ"
	case NamedCron:
		return "NAMED"
	}
	return fmt.Sprintf("Dialect(%d)", int16(d))
}

// Misfire says what happens to instants that passed without firing. The numbers
// are stored, and those of the API.
type Misfire int16

// The misfire policies.
const (
	FireOnce Misfire = 1 // the stored instant fires, late; then the first one after now
	FireAll  Misfire = 2 // each instant fires, one after the other
	Skip     Misfire = 3 // what is older than a grace does not fire
)

// String returns the policy's name as it is in the API.
func (m Misfire) String() string {
	switch m {
	case 0, FireOnce:
		return "FIRE_ONCE"
	case FireAll:
		return "FIRE_ALL"
	case Skip:
		return "SKIP"
	}
	return fmt.Sprintf("Misfire(%d)", int16(m))
}

// A Calendar is the set of instants that a cron expression matches in its zone.
// It is safe for concurrent use.
type Calendar interface {
	// Next returns the first instant strictly after one; false: there is none.
	Next(after Instant) (Instant, bool)
	// Count returns how many instants lie in (after, until].
	Count(after, until Instant) int64
}

// Modeled reports whether package task alone can compute the task's instants: SQL
// knows intervals that fire once.
func (e *Extra) Modeled() bool {
	return e != nil && (e.Cron != nil || e.Misfire > FireOnce || e.Damaged)
}

// Wire returns the bytes that are stored; nil for none.
func (e *Extra) Wire() []byte {
	if e == nil {
		return nil
	}
	return e.wire
}

// Equal reports whether both say the same.
func (e *Extra) Equal(other *Extra) bool { return bytes.Equal(e.Wire(), other.Wire()) }

// The wire form is the number of the format, then fields: a number (one byte),
// the length of the value (uvarint), the value. A field that a program does not
// know makes the whole unreadable, because it may change what the rest means.
const extraFormat = 1

const (
	extraDialect = iota + 1
	extraExpression
	extraZone
	extraMisfire
	extraGrace // ms
	extraCatchUp
	extraSpread // ms
	extraTag    // once for each
	extraKey
	extraReplayTask
	extraReplaySeq
	extraTraceParent
)

// Seal returns e ready to be stored, or nil when there is nothing in it. e must
// not be changed any more.
func (e Extra) Seal() *Extra {
	w := []byte{extraFormat}
	text := func(field byte, s string) {
		if s != "" {
			w = append(binary.AppendUvarint(append(w, field), uint64(len(s))), s...)
		}
	}
	number := func(field byte, v int64) {
		if v != 0 {
			b := binary.AppendUvarint(nil, uint64(v))
			w = append(append(w, field, byte(len(b))), b...)
		}
	}
	if c := e.Cron; c != nil {
		number(extraDialect, int64(c.Dialect))
		text(extraExpression, c.Expression)
		text(extraZone, c.Zone)
	}
	if e.Misfire != FireOnce {
		number(extraMisfire, int64(e.Misfire))
	}
	number(extraGrace, e.Grace.Milliseconds())
	number(extraCatchUp, int64(e.CatchUp))
	number(extraSpread, e.Spread.Milliseconds())
	for _, t := range e.Tags {
		text(extraTag, t)
	}
	text(extraKey, e.Key)
	number(extraReplayTask, int64(e.ReplayOf.Task))
	number(extraReplaySeq, e.ReplayOf.Seq)
	text(extraTraceParent, e.TraceParent)
	if len(w) == 1 {
		return nil
	}
	e.wire = w
	return &e
}

// DecodeExtra is the inverse of [Extra.Wire]; it keeps wire. It takes any bytes:
// what it cannot read is Damaged.
func DecodeExtra(wire []byte) *Extra {
	if len(wire) == 0 {
		return nil
	}
	e := &Extra{wire: wire}
	if wire[0] != extraFormat || len(wire) > MaxExtraBytes {
		return &Extra{Damaged: true, wire: wire}
	}
	for rest := wire[1:]; len(rest) > 0; {
		size, n := binary.Uvarint(rest[1:])
		if n <= 0 || size > uint64(len(rest)-1-n) || !e.set(rest[0], rest[1+n:1+n+int(size)]) {
			return &Extra{Damaged: true, wire: wire}
		}
		rest = rest[1+n+int(size):]
	}
	return e
}

// set takes a field over; false: it cannot be.
func (e *Extra) set(field byte, value []byte) bool {
	var number int64
	switch field {
	case extraDialect, extraMisfire, extraGrace, extraCatchUp, extraSpread, extraReplayTask, extraReplaySeq:
		v, n := binary.Uvarint(value)
		if n != len(value) || n == 0 || int64(v) < 0 {
			return false
		}
		number = int64(v)
	}
	cron := func() *Cron {
		if e.Cron == nil {
			e.Cron = &Cron{}
		}
		return e.Cron
	}
	switch field {
	case extraDialect:
		cron().Dialect = Dialect(number)
	case extraExpression:
		cron().Expression = string(value)
	case extraZone:
		cron().Zone = string(value)
	case extraMisfire:
		e.Misfire = Misfire(number)
	case extraGrace:
		e.Grace = millis(number)
	case extraCatchUp:
		e.CatchUp = int32(min(number, MaxCatchUp))
	case extraSpread:
		e.Spread = millis(number)
	case extraTag:
		e.Tags = append(e.Tags, string(value))
	case extraKey:
		e.Key = string(value)
	case extraReplayTask:
		e.ReplayOf.Task = ID(number)
	case extraReplaySeq:
		e.ReplayOf.Seq = number
	case extraTraceParent:
		e.TraceParent = string(value)
	default:
		return false
	}
	return true
}

// millis returns no more than a duration can hold.
func millis(ms int64) time.Duration {
	return time.Duration(min(ms, int64(1<<63-1)/int64(time.Millisecond))) * time.Millisecond
}

// SpreadOf returns by how much the instants of a task are later: a part of the
// window that looks random and follows from the id, in whole milliseconds. The
// mixer is the finaliser of MurmurHash3 (Austin Appleby, public domain).
func SpreadOf(id ID, window time.Duration) time.Duration {
	if window <= 0 {
		return 0
	}
	h := uint64(id)
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	h ^= h >> 33
	return time.Duration(h%uint64(max(1, window.Milliseconds()))) * time.Millisecond
}

// extra adds the faults of what few tasks have.
func (v *faults) extra(e *Extra, interval time.Duration) {
	if e == nil {
		return
	}
	v.misfire(e)
	switch {
	case e.Spread < 0 || e.Spread > MaxSpread:
		v.between("spread", e.Spread, 0, MaxSpread)
	case e.Spread > 0 && interval > 0 && e.Spread >= interval:
		v.add("spread", "%s is not less than the interval %s", e.Spread, interval)
	}
	if len(e.Tags) > MaxTags {
		v.add("tags", "has %d entries; at most %d are allowed", len(e.Tags), MaxTags)
	}
	for i, t := range e.Tags {
		if msg := NameFault(t, MaxTagBytes); msg != "" {
			v.add(fmt.Sprintf("tags[%d]", i), "%s", msg)
		}
	}
	if len(e.wire) > MaxExtraBytes {
		v.add("tags", "all terms together have %d bytes; at most %d are allowed", len(e.wire), MaxExtraBytes)
	}
}

// misfire adds the faults of the misfire policy.
func (v *faults) misfire(e *Extra) {
	if e.Misfire < 0 || e.Misfire > Skip {
		v.add("misfire_policy", "%d is not one of FIRE_ONCE, FIRE_ALL, SKIP", int16(e.Misfire))
		return
	}
	switch {
	case e.Misfire == Skip:
		v.between("misfire_grace", e.Grace, 0, MaxGrace)
	case e.Grace != 0:
		v.add("misfire_grace", "%s: only SKIP has a grace, not %s", e.Grace, e.Misfire)
	}
	switch {
	case e.Misfire == FireAll && (e.CatchUp < 1 || e.CatchUp > MaxCatchUp):
		v.add("misfire_limit", "%d is not between 1 and %d", e.CatchUp, MaxCatchUp)
	case e.Misfire != FireAll && e.CatchUp != 0:
		v.add("misfire_limit", "%d: only FIRE_ALL has a limit, not %s", e.CatchUp, e.Misfire)
	}
}

// SortTags returns tags in the order in which they are stored, each once.
func SortTags(tags []string) []string {
	out := slices.Clone(tags)
	slices.Sort(out)
	return slices.Compact(out)
}
