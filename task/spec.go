package task

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Spec is the task that a caller asks for with AddTask. Fill it, then call
// [Spec.Validate] once. After that every field has its effective value.
type Spec struct {
	// Terms are those of the request. A zero field gets its default. [ZeroDuration] and
	// [UnsetJitter] stand for the values that zero cannot express.
	Terms
	Type Type
	// Params and Payload are for validation. The store keeps ParamsWire. A nil Payload means
	// none.
	Params  map[string]string
	Payload *Payload
	// ParamsWire are the wire bytes of perceptor.v1.Params, which has the payload too.
	ParamsWire []byte
	Origin
	// Calendar are the instants of Cron.
	Calendar Calendar
	// Windows are those of Exclude and Only. nil means always.
	Windows *Windows
}

// Values that distinguish fields that a request sets from fields that it omits. A
// request cannot contain them: its durations are whole milliseconds, and its jitter has
// two decimals.
const (
	// ZeroDuration is a duration that a request sets to 0, where 0 means the default.
	ZeroDuration time.Duration = -1
	// UnsetRetention means the tenant's retention, because 0 means none.
	UnsetRetention time.Duration = -1
	// UnsetJitter means [DefaultJitter], because 0 means none.
	UnsetJitter = -math.SmallestNonzeroFloat64
)

// Validate sets defaults and returns every broken rule, with field paths relative to
// the task. [Spec.ResolveBegin] checks whether end_time has passed.
func (s *Spec) Validate(l Limits) []Fault {
	v := &faults{}
	v.kind(s.Kind)
	s.setDefaults()
	s.checkSchedule(v, l)
	s.checkBounds(v)
	s.checkDelivery(v, l)
	v.params(s.Params, s.Payload, l.ParamsBytes)
	s.checkMisfire(v)
	s.checkOverlap(v)
	s.checkSpread(v)
	s.checkCalendars(v)
	s.checkTags(v)
	s.sortLists()
	if n := len(Seal(&s.Terms, &s.Origin)); n > MaxSealedBytes && len(s.Tags) <= MaxTags {
		v.add("tags", "all terms together have %d bytes; at most %d are allowed", n, MaxSealedBytes)
	}
	return v.list
}

// ResolveBegin sets Begin to now if the caller gave none. It returns a fault if the end
// has passed or if the task could never fire.
func (s *Spec) ResolveBegin(now Instant) []Fault {
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

// firstInstant returns the scheduled instant of the first run. It returns Never if the
// schedule has no instant left, and a closed one if it has no open one.
func (s *Spec) firstInstant(id ID) Instant {
	at := s.Begin + Instant(SpreadOf(id, s.Spread).Milliseconds())
	if s.Cron != nil {
		at = s.firstMatch(at)
	}
	r := Row{Type: s.Type, Terms: s.Terms, Calendar: s.Calendar, Windows: s.Windows}
	return r.firstOpen(at)
}

// firstMatch returns the first match of the expression that is not before an instant.
func (s *Spec) firstMatch(from Instant) Instant {
	if s.Calendar != nil {
		if at, ok := s.Calendar.Next(from - 1); ok {
			return at
		}
	}
	return Never
}

// NeverFires returns a fault if the spec could never fire: no instant lies between its
// bounds for some spread, or all instants are too old for the misfire policy. Begin must
// be resolved, and Calendar must be that of the id.
func (s *Spec) NeverFires(id ID, now Instant) []Fault {
	if s.Cron == nil && s.Spread == 0 && s.Misfire != Skip && s.Windows == nil {
		return nil
	}
	v := &faults{}
	at := s.firstInstant(id)
	begin := at
	if at != Never {
		begin -= Instant(SpreadOf(id, s.Spread).Milliseconds())
	}
	switch latest := begin.Add(max(s.Spread-time.Millisecond, 0)); {
	case s.Cron != nil && (begin == Never || begin >= s.End):
		v.add("cron.expression", "%q has no instant from %s until %s: the task would never fire", s.Cron.Expression, s.Begin, s.End)
	case s.Windows != nil && (!s.Windows.Open(at) || at >= s.End):
		v.add(s.calendarField(), "%s: the calendars close all instants from %s until %s: the task would never fire", quoted(s.Exclude, s.Only), s.Begin, s.End)
	case latest >= s.End:
		v.add("spread", "%s may move the first instant, %s, to the end_time or behind it: the task might never fire", s.Spread, begin)
	default:
		r := NewRow(0, id, s, now)
		if r.misfire() == Skip && r.skipMissed(now) > 0 && r.exhausted(r.ScheduledAt) {
			v.add("begin_time", "the instants from %s on are late by more than misfire_grace %s: the task would never fire", at, s.Grace)
		}
	}
	return v.list
}

func (s *Spec) setDefaults() {
	if s.Type == OneShot && s.MaxCount == 0 {
		s.MaxCount = 1
	}
	setZero(&s.AckTimeout, DefaultAckTimeout)
	setZero(&s.GiveUpAfter, max(DefaultGiveUpAfter, min(s.AckTimeout, MaxAckTimeout)))
	r := &s.Retry
	setZero(&r.MaxAttempts, DefaultMaxAttempts)
	setZero(&r.Multiplier, DefaultMultiplier)
	if r.InitialBackoff == 0 {
		r.InitialBackoff = DefaultInitialBackoff
		if r.MaxBackoff > 0 {
			r.InitialBackoff = min(r.InitialBackoff, r.MaxBackoff)
		}
	}
	setZero(&r.MaxBackoff, max(DefaultMaxBackoff, min(r.InitialBackoff, MaxBackoff)))
	if r.Jitter == UnsetJitter {
		r.Jitter = DefaultJitter
	}
	if s.Misfire == FireOnce {
		s.Misfire = 0
	}
	if s.Overlap == OverlapAllow {
		s.Overlap = 0
	}
	if s.Misfire == FireAll {
		setZero(&s.CatchUp, DefaultCatchUp)
	}
}

// sortLists gives the lists their stored form. Faults have the indices of the request, so they
// are found before.
func (s *Spec) sortLists() {
	s.Tags = SortTags(s.Tags)
	s.Exclude, s.Only = SortTags(s.Exclude), SortTags(s.Only)
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
			v.add("interval", "%s: a ONE_SHOT task has no interval", shownDuration(s.Interval))
		}
		if s.MaxCount != 1 {
			v.add("max_count", "%d: a ONE_SHOT task has one run", s.MaxCount)
		}
	case NonBlocking, Blocking:
		switch {
		case s.Cron == nil:
			v.between("interval", s.Interval, l.MinInterval, MaxInterval)
		case s.Interval != 0:
			v.add("interval", "%s: a task has an interval or a cron expression, not both", s.Interval)
		}
		if s.MaxCount < 0 || s.MaxCount > MaxCountLimit {
			v.add("max_count", "%d is not between 0 and %d", s.MaxCount, MaxCountLimit)
		}
	case 0:
		v.add("type", "is missing: one of ONE_SHOT, NON_BLOCKING, BLOCKING")
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

// checkDelivery checks a field that depends on another one as if the other were within
// its own range, so that one mistake is one fault.
func (s *Spec) checkDelivery(v *faults, l Limits) {
	v.between("ack_timeout", s.AckTimeout, l.MinAckTimeout, MaxAckTimeout)
	if l.RecordRetention > 0 && s.AckTimeout >= l.RecordRetention && s.AckTimeout <= MaxAckTimeout {
		v.add("ack_timeout", "%s is not below kafka.retention %s: Kafka might delete the record of a run before it is published again", s.AckTimeout, l.RecordRetention)
	}
	v.between("give_up_after", s.GiveUpAfter, min(max(s.AckTimeout, l.MinAckTimeout), MaxAckTimeout), MaxGiveUpAfter)
	v.between("retention", s.Retention, 0, MaxRetention)
	r := s.Retry
	if r.MaxAttempts < 1 || r.MaxAttempts > MaxAttempts {
		v.add("retry_policy.max_attempts", "%d is not between 1 and %d", r.MaxAttempts, MaxAttempts)
	}
	v.between("retry_policy.initial_backoff", r.InitialBackoff, 0, MaxBackoff)
	v.between("retry_policy.max_backoff", r.MaxBackoff, min(max(r.InitialBackoff, 0), MaxBackoff), MaxBackoff)
	v.number("retry_policy.multiplier", r.Multiplier, 1, 10)
	v.number("retry_policy.jitter", r.Jitter, 0, 1)
}

func (s *Spec) checkMisfire(v *faults) {
	if s.Misfire < 0 || s.Misfire > Skip {
		v.add("misfire_policy", "%d is not one of FIRE_ONCE, FIRE_ALL, SKIP", int16(s.Misfire))
		return
	}
	switch {
	case s.Misfire == Skip:
		v.between("misfire_grace", s.Grace, 0, MaxGrace)
	case s.Grace != 0:
		v.add("misfire_grace", "%s: only SKIP has a grace, not %s", s.Grace, s.Misfire)
	}
	switch {
	case s.Misfire == FireAll && (s.CatchUp < 1 || s.CatchUp > MaxCatchUp):
		v.add("misfire_limit", "%d is not between 1 and %d", s.CatchUp, MaxCatchUp)
	case s.Misfire != FireAll && s.CatchUp != 0:
		v.add("misfire_limit", "%d: only FIRE_ALL has a limit, not %s", s.CatchUp, s.Misfire)
	}
}

func (s *Spec) checkOverlap(v *faults) {
	switch {
	case s.Overlap < 0 || s.Overlap > OverlapBufferOne:
		v.add("overlap", "%d is not one of ALLOW, SKIP, BUFFER_ONE", int16(s.Overlap))
	case s.Overlap != 0 && s.Type != NonBlocking:
		v.add("overlap", "%s: only runs of a NON_BLOCKING task overlap, not those of %s", s.Overlap, s.Type)
	case s.Overlap != 0 && s.Misfire == FireAll:
		v.add("overlap", "%s: the misfire_policy FIRE_ALL fires all missed instants, also while runs are open; use FIRE_ONCE or SKIP with it", s.Overlap)
	}
}

func (s *Spec) checkSpread(v *faults) {
	switch {
	case s.Spread < 0 || s.Spread > MaxSpread:
		v.between("spread", s.Spread, 0, MaxSpread)
	case s.Spread > 0 && s.Interval > 0 && s.Spread >= s.Interval:
		v.add("spread", "%s is not less than the interval %s", s.Spread, s.Interval)
	}
}

func (s *Spec) checkCalendars(v *faults) {
	for field, given := range map[string][]string{"exclude_calendars": s.Exclude, "only_calendars": s.Only} {
		names := SortTags(given)
		switch {
		case len(names) == 0:
		case s.Type == OneShot:
			v.add(field, "%s: a ONE_SHOT task has no calendars", quoted(names))
		case len(names) > MaxTaskCalendars:
			v.add(field, "has %d entries; at most %d are allowed", len(names), MaxTaskCalendars)
		}
		v.names(field, given, names[:min(len(names), MaxTaskCalendars)], MaxCalendarNameBytes)
	}
}

// CalendarFault is the fault of a task that names a calendar which is not known.
func CalendarFault(t *Terms, name string) Fault {
	field, list := "exclude_calendars", t.Exclude
	if !slices.Contains(list, name) {
		field, list = "only_calendars", t.Only
	}
	return Fault{Field: fmt.Sprintf("%s[%d]", field, slices.Index(list, name)), Message: fmt.Sprintf("%q: the tenant has no such calendar", name)}
}

// calendarField is the field that names calendars.
func (s *Spec) calendarField() string {
	if len(s.Only) > 0 {
		return "only_calendars"
	}
	return "exclude_calendars"
}

// quoted lists names for people.
func quoted(lists ...[]string) string {
	var all []string
	for _, name := range slices.Concat(lists...) {
		all = append(all, fmt.Sprintf("%q", name))
	}
	return strings.Join(all, ", ")
}

func (s *Spec) checkTags(v *faults) {
	tags := SortTags(s.Tags)
	if len(tags) > MaxTags {
		v.add("tags", "has %d entries; at most %d are allowed", len(tags), MaxTags)
		return // one fault for each of them would help nobody
	}
	v.names("tags", s.Tags, tags, MaxTagBytes)
}

// names checks each of the distinct names of a list. A fault has the index of the name in the
// list as the caller gave it.
func (v *faults) names(field string, given, distinct []string, most int) {
	for _, name := range distinct {
		if msg := NameFault(name, most); msg != "" {
			v.add(fmt.Sprintf("%s[%d]", field, slices.Index(given, name)), "%s", msg)
		}
	}
}

// faults collects broken rules.
type faults struct{ list []Fault }

func (v *faults) add(field, format string, args ...any) {
	v.list = append(v.list, Fault{Field: field, Message: fmt.Sprintf(format, args...)})
}

func (v *faults) between(field string, d, low, high time.Duration) {
	if d < low || d > high {
		v.add(field, "%s is not between %s and %s", shownDuration(d), low, high)
	}
}

// shownDuration returns d as it was in the request.
func shownDuration(d time.Duration) time.Duration {
	if d == ZeroDuration {
		return 0
	}
	return d
}

func (v *faults) number(field string, x, low, high float64) {
	if math.IsNaN(x) || x < low || x > high {
		v.add(field, "%v is not between %v and %v", x, low, high)
	}
}

func (v *faults) instant(field string, i Instant) {
	if message := InstantFault(i); message != "" {
		v.add(field, "%s", message)
	}
}

// InstantFault says why an instant of a request is invalid, or returns "".
func InstantFault(i Instant) string {
	if i < 0 || i >= LastInstant {
		return i.String() + " is not between 1970-01-01T00:00:00Z and 9000-01-01T00:00:00Z"
	}
	return ""
}

func (v *faults) kind(kind string) {
	if msg := NameFault(kind, MaxKindBytes); msg != "" {
		v.add("kind", "%s", msg)
	}
}

// NameFault says why a name that people and logs read is invalid, or returns "". limit
// is the most bytes that it may have.
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

func (v *faults) params(params map[string]string, payload *Payload, limit int) {
	if len(params) > MaxParams {
		v.add("params", "has %d entries; at most %d are allowed", len(params), MaxParams)
	}
	if payload != nil {
		if f, ok := payload.Fault(); ok {
			v.list = append(v.list, f.under("payload"))
		}
	}
	if f, ok := ParamsFault(params, payload.Size(), limit); ok {
		v.list = append(v.list, f)
	}
}

// ParamsFault returns the first fault of params, and false if there is none. limit is the
// most bytes that all keys and values and a payload of the given size together may have.
func ParamsFault(params map[string]string, payload, limit int) (Fault, bool) {
	total := payload
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
	switch {
	case total <= limit:
	case payload == 0:
		return Fault{"params", fmt.Sprintf("keys and values together have %d bytes; the tenant's limit is %d", total, limit)}, true
	default:
		return Fault{"payload", fmt.Sprintf("payload, keys and values of params together have %d bytes; the tenant's limit is %d", total, limit)}, true
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
