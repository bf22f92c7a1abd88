package task

import (
	"fmt"
	"math"
	"time"
	"unicode"
	"unicode/utf8"
)

// Spec is what a caller asks for with AddTask. Fill it, then call [Spec.Validate]
// once; after that every field has its effective value.
type Spec struct {
	Kind string
	Type Type
	// Begin is Never until the store sets it to now, when the caller gave none.
	Begin Instant
	// End is Never when the task goes on for ever.
	End Instant
	// Interval is 0 for ONE_SHOT, and where Extra.Cron says when.
	Interval time.Duration
	// MaxCount is 0 when there is no limit; 1 for ONE_SHOT.
	MaxCount int64
	// Params are for validation; ParamsWire is what is stored.
	Params map[string]string
	// ParamsWire are the wire bytes of perceptor.v1.Params.
	ParamsWire    []byte
	Retry         RetryPolicy
	AckTimeout    time.Duration
	GiveUpAfter   time.Duration
	StopOnFailure bool
	// Retention is how long the finished task is kept; below 0: the tenant's default.
	Retention time.Duration
	// Extra is what few tasks have; nil: nothing of it.
	Extra *Extra
	// Calendar are the instants of Extra.Cron.
	Calendar Calendar
}

// RetryPolicy says what happens when a handler fails. Zero fields take their
// defaults; a Jitter below 0 does.
type RetryPolicy struct {
	MaxAttempts    int32
	InitialBackoff time.Duration
	Multiplier     float64
	MaxBackoff     time.Duration
	Jitter         float64
}

// Validate sets defaults and returns every broken rule, with field paths
// relative to the task. Whether end_time has passed is judged by [Spec.Settle].
func (s *Spec) Validate(l Limits) []Fault {
	v := &faults{}
	v.kind(s.Kind)
	s.setDefaults()
	s.checkSchedule(v, l)
	s.checkBounds(v)
	s.checkDelivery(v, l)
	v.params(s.Params, l.ParamsBytes)
	v.extra(s.Extra, s.Interval)
	return v.list
}

// Settle fills Begin with now where the caller gave none, and returns the fault
// of a task whose end has passed or that could never fire.
func (s *Spec) Settle(now Instant) []Fault {
	v := &faults{}
	if s.Begin == Never {
		s.Begin = now
	}
	switch {
	case s.End <= now:
		v.add("end_time", "%s has passed (now is %s)", s.End, now)
	case s.End <= s.Begin:
		v.add("end_time", "%s is not after begin_time %s: the task would never fire", s.End, s.Begin)
	}
	return v.list
}

// first returns when the first run of the task is scheduled; Never: no instant
// of its calendar is left.
func (s *Spec) first(id ID) Instant {
	if s.Extra == nil {
		return s.Begin
	}
	later := Instant(SpreadOf(id, s.Extra.Spread).Milliseconds())
	if s.Extra.Cron == nil {
		return s.Begin + later
	}
	if s.Calendar != nil {
		if at, ok := s.Calendar.Next(s.Begin + later - 1); ok {
			return at
		}
	}
	return Never
}

// NeverFires returns the fault of a settled spec that could never fire: none of
// its instants lies between its bounds, wherever the spread puts it, or all are
// too old for its misfire policy. Calendar is that of the id.
func (s *Spec) NeverFires(id ID, now Instant) []Fault {
	if s.Extra == nil {
		return nil
	}
	v := &faults{}
	at := s.first(id)
	begin := at
	if at != Never {
		begin -= Instant(SpreadOf(id, s.Extra.Spread).Milliseconds())
	}
	switch latest := begin.Add(max(s.Extra.Spread-time.Millisecond, 0)); {
	case begin == Never || begin >= s.End:
		v.add("cron.expression", "%q has no instant from %s until %s: the task would never fire", s.Extra.Cron.Expression, s.Begin, s.End)
	case latest >= s.End:
		v.add("spread", "%s may move the first instant, %s, to the end_time or behind it: the task might never fire", s.Extra.Spread, begin)
	default:
		r := NewRow(0, id, s, now)
		if r.misfire() == Skip && r.passOver(now) > 0 && r.exhausted(r.ScheduledAt) {
			v.add("begin_time", "the instants from %s on are late by more than misfire_grace %s: the task would never fire", at, s.Extra.Grace)
		}
	}
	return v.list
}

func (s *Spec) setDefaults() {
	if s.Type == OneShot && s.MaxCount == 0 {
		s.MaxCount = 1
	}
	setZero(&s.AckTimeout, DefaultAckTimeout)
	setZero(&s.GiveUpAfter, max(DefaultGiveUpAfter, s.AckTimeout))
	r := &s.Retry
	setZero(&r.MaxAttempts, DefaultMaxAttempts)
	setZero(&r.Multiplier, DefaultMultiplier)
	if r.InitialBackoff == 0 {
		r.InitialBackoff = DefaultInitialBackoff
		if r.MaxBackoff > 0 {
			r.InitialBackoff = min(r.InitialBackoff, r.MaxBackoff)
		}
	}
	setZero(&r.MaxBackoff, max(DefaultMaxBackoff, r.InitialBackoff))
	if r.Jitter < 0 {
		r.Jitter = DefaultJitter
	}
}

func setZero[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func (s *Spec) checkSchedule(v *faults, l Limits) {
	switch s.Type {
	case OneShot:
		if s.Interval != 0 {
			v.add("interval", "%s: a ONE_SHOT task has no interval", s.Interval)
		}
		if s.MaxCount != 1 {
			v.add("max_count", "%d: a ONE_SHOT task has one run", s.MaxCount)
		}
	case NonBlocking, Blocking:
		switch {
		case s.Extra == nil || s.Extra.Cron == nil:
			v.between("interval", s.Interval, l.MinInterval, MaxInterval)
		case s.Interval != 0:
			v.add("interval", "%s: a task has an interval or a cron expression, not both", s.Interval)
		}
		if s.MaxCount < 0 || s.MaxCount > MaxCountLimit {
			v.add("max_count", "%d is not between 0 and %d", s.MaxCount, MaxCountLimit)
		}
	default:
		v.add("type", "%d is not one of ONE_SHOT, NON_BLOCKING, BLOCKING", int16(s.Type))
	}
}

func (s *Spec) checkBounds(v *faults) {
	if s.Begin != Never {
		v.instant("begin_time", s.Begin)
	}
	if s.End == Never {
		return
	}
	v.instant("end_time", s.End)
	if s.Begin != Never && s.End <= s.Begin {
		v.add("end_time", "%s is not after begin_time %s", s.End, s.Begin)
	}
}

func (s *Spec) checkDelivery(v *faults, l Limits) {
	v.between("ack_timeout", s.AckTimeout, l.MinAckTimeout, MaxAckTimeout)
	v.between("give_up_after", s.GiveUpAfter, s.AckTimeout, MaxGiveUpAfter)
	if s.Retention >= 0 {
		v.between("retention", s.Retention, 0, MaxRetention)
	}
	r := s.Retry
	if r.MaxAttempts < 1 || r.MaxAttempts > MaxAttempts {
		v.add("retry_policy.max_attempts", "%d is not between 1 and %d", r.MaxAttempts, MaxAttempts)
	}
	v.between("retry_policy.initial_backoff", r.InitialBackoff, 0, MaxBackoff)
	v.between("retry_policy.max_backoff", r.MaxBackoff, r.InitialBackoff, MaxBackoff)
	v.number("retry_policy.multiplier", r.Multiplier, 1, 10)
	v.number("retry_policy.jitter", r.Jitter, 0, 1)
}

// faults collects broken rules.
type faults struct{ list []Fault }

func (v *faults) add(field, format string, args ...any) {
	v.list = append(v.list, Fault{Field: field, Message: fmt.Sprintf(format, args...)})
}

func (v *faults) between(field string, d, low, high time.Duration) {
	if d < low || d > high {
		v.add(field, "%s is not between %s and %s", d, low, high)
	}
}

func (v *faults) number(field string, x, low, high float64) {
	if math.IsNaN(x) || x < low || x > high {
		v.add(field, "%v is not between %v and %v", x, low, high)
	}
}

func (v *faults) instant(field string, i Instant) {
	if i < 0 || i >= LastInstant {
		v.add(field, "%s is not between 1970-01-01T00:00:00Z and 9000-01-01T00:00:00Z", i)
	}
}

func (v *faults) kind(kind string) {
	if msg := NameFault(kind, MaxKindBytes); msg != "" {
		v.add("kind", "%s", msg)
	}
}

// NameFault says what is wrong with a name of at most limit bytes that people
// and logs will read; "" when nothing is.
func NameFault(name string, limit int) string {
	switch {
	case name == "":
		return "is missing"
	case len(name) > limit:
		return fmt.Sprintf("has %d bytes; at most %d are allowed", len(name), limit)
	case !utf8.ValidString(name):
		return "is not valid UTF-8"
	}
	for _, r := range name {
		if unicode.IsControl(r) {
			return fmt.Sprintf("%q contains the control character %U", name, r)
		}
	}
	return ""
}

func (v *faults) params(params map[string]string, limit int) {
	if len(params) > MaxParams {
		v.add("params", "has %d entries; at most %d are allowed", len(params), MaxParams)
	}
	if f, ok := ParamsFault(params, limit); ok {
		v.list = append(v.list, f)
	}
}

// ParamsFault returns the first fault of params, if there is one: limit is the
// number of bytes that all keys and values together may have.
func ParamsFault(params map[string]string, limit int) (Fault, bool) {
	total := 0
	for k, val := range params {
		total += len(k) + len(val)
		if k == "" || len(k) > MaxParamKeyBytes {
			return Fault{"params", fmt.Sprintf("the key %.40q has %d bytes; 1 to %d are allowed", k, len(k), MaxParamKeyBytes)}, true
		}
		if msg := textFault(k); msg != "" {
			return Fault{"params", fmt.Sprintf("the key %.40q %s", k, msg)}, true
		}
		if msg := textFault(val); msg != "" {
			return Fault{fmt.Sprintf("params[%q]", k), "the value " + msg}, true
		}
	}
	if total > limit {
		return Fault{"params", fmt.Sprintf("keys and values together have %d bytes; the tenant's limit is %d", total, limit)}, true
	}
	return Fault{}, false
}

func textFault(s string) string {
	if !utf8.ValidString(s) {
		return "is not valid UTF-8"
	}
	for i := range len(s) {
		if s[i] == 0 {
			return fmt.Sprintf("contains a NUL byte at position %d", i)
		}
	}
	return ""
}
