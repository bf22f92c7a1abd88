package transfer

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/perceptor/perceptor/internal/duration"
	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// field is a field of a task that a column may set.
type field struct {
	// path has the names of its descriptors, such as retry_policy.max_attempts.
	path string
	way  []protoreflect.FieldDescriptor
}

// ownFields are the fields that lines have in columns of their own.
var ownFields = []string{"begin_time", "idempotency_key", "params"}

// stateFields say how far a task has come.
var stateFields = []string{"scheduled_time", "run_count", "missed_count", "paused", "anchor_time"}

// outputFields are set by the service. Their columns are ignored, as AddTask ignores the fields.
var outputFields = []string{
	"id", "replay_of", "backfill_of", "backfill_id", "state", "due_time", "attempt", "open_run_count", "version", "create_time", "finish_time",
	"scheduled_time", "run_count", "missed_count", "paused",
}

// otherNames are further names of fields.
var otherNames = map[string]string{
	"cron": "cron.expression", "expression": "cron.expression", "time_zone": "cron.time_zone", "dialect": "cron.dialect",
	"payload": payloadData, "key": "idempotency_key", "begin": "begin_time", "end": "end_time",
	"max_attempts": "retry_policy.max_attempts", "initial_backoff": "retry_policy.initial_backoff",
	"multiplier": "retry_policy.multiplier", "max_backoff": "retry_policy.max_backoff", "jitter": "retry_policy.jitter",
}

// payloadData is the field whose value need not be a text.
const payloadData = "payload.data"

// termFields are the fields that are terms, by path.
var termFields = findTerms()

func findTerms() map[string]*field {
	all := map[string]*field{}
	var walk func(prefix string, way []protoreflect.FieldDescriptor, d protoreflect.MessageDescriptor)
	walk = func(prefix string, way []protoreflect.FieldDescriptor, d protoreflect.MessageDescriptor) {
		for i := range d.Fields().Len() {
			f := d.Fields().Get(i)
			name, steps := prefix+string(f.Name()), append(slices.Clone(way), f)
			switch {
			case prefix == "" && (slices.Contains(ownFields, name) || slices.Contains(outputFields, name)):
			case f.Message() != nil && !f.IsMap() && f.Message().ParentFile().Package() == "perceptor.v1":
				walk(name+".", steps, f.Message())
			default:
				all[name] = &field{name, steps}
			}
		}
	}
	walk("", nil, (&perceptorv1.Task{}).ProtoReflect().Descriptor())
	return all
}

// fieldName returns the path of the field that a name stands for: in the words of the proto
// files, in those of its JSON, or one of the other names. It returns "" for an unknown one.
func fieldName(name string) string {
	name = snake(name)
	if path := otherNames[name]; path != "" {
		return path
	}
	if termFields[name] != nil || slices.Contains(ownFields, name) || slices.Contains(stateFields, name) || slices.Contains(outputFields, name) {
		return name
	}
	return ""
}

// snake returns a name of JSON, such as retryPolicy.maxAttempts, as the proto files have it.
func snake(name string) string {
	var b strings.Builder
	for i, r := range name {
		if r >= 'A' && r <= 'Z' {
			if i > 0 && name[i-1] >= 'a' && name[i-1] <= 'z' {
				b.WriteByte('_')
			}
			r += 'a' - 'A'
		}
		b.WriteRune(r)
	}
	return b.String()
}

// values converts texts to values of fields.
type values struct {
	clock Clock
	// unit is that of durations without one. 0: they are refused.
	unit time.Duration
}

// set sets a field of a task to the value of a text. It returns the rule that the text breaks, or "".
func (v *values) set(t *perceptorv1.Task, f *field, text []byte) (rule string) {
	m := t.ProtoReflect()
	for _, step := range f.way[:len(f.way)-1] {
		m = m.Mutable(step).Message()
	}
	last := f.way[len(f.way)-1]
	if last.IsList() {
		list, rule := texts(text)
		if rule != "" {
			return rule
		}
		m.Clear(last)
		for to := m.Mutable(last).List(); len(list) > 0; list = list[1:] {
			to.Append(protoreflect.ValueOfString(list[0]))
		}
		return ""
	}
	value, rule := v.convert(last, text)
	if rule == "" {
		m.Set(last, value)
	}
	return rule
}

func (v *values) convert(d protoreflect.FieldDescriptor, text []byte) (value protoreflect.Value, rule string) {
	s := string(text)
	switch d.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(s), ""
	case protoreflect.Int64Kind:
		n, err := strconv.ParseInt(s, 10, 64)
		return protoreflect.ValueOfInt64(n), unless(err == nil, "is not a whole number")
	case protoreflect.Int32Kind:
		n, err := strconv.ParseInt(s, 10, 32)
		return protoreflect.ValueOfInt32(int32(n)), unless(err == nil, "is not a whole number below 2147483648") //nolint:gosec // it was parsed as such
	case protoreflect.DoubleKind:
		x, err := strconv.ParseFloat(s, 64)
		return protoreflect.ValueOfFloat64(x), unless(err == nil && !math.IsNaN(x) && !math.IsInf(x, 0), "is not a number")
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes(bytes.Clone(text)), ""
	case protoreflect.BoolKind:
		b, ok := parseBool(text)
		return protoreflect.ValueOfBool(b), unless(ok, "is neither true nor false")
	case protoreflect.EnumKind:
		x := d.Enum().Values().ByName(protoreflect.Name(strings.ToUpper(strings.ReplaceAll(s, "-", "_"))))
		if x == nil || x.Number() == 0 {
			return value, "is not one of " + enumNames(d.Enum())
		}
		return protoreflect.ValueOfEnum(x.Number()), ""
	}
	m, rule := v.message(d.Message(), text)
	if rule != "" {
		return value, rule
	}
	return protoreflect.ValueOfMessage(m.ProtoReflect()), ""
}

func (v *values) message(d protoreflect.MessageDescriptor, text []byte) (m proto.Message, rule string) {
	if d.FullName() == "google.protobuf.Timestamp" {
		at, rule := v.clock.parse(text)
		return timestamppb.New(at.Time()), rule
	}
	if d.FullName() == "google.protobuf.Value" {
		x := &structpb.Value{}
		return x, unless(protojson.Unmarshal(text, x) == nil, "is not JSON")
	}
	length, rule := v.duration(text)
	return durationpb.New(length), rule
}

const durationRule = "is not a duration such as 90s, 36h or 1d12h"

func (v *values) duration(text []byte) (time.Duration, string) {
	if digits(text) && len(text) > 0 {
		n, err := strconv.ParseInt(string(text), 10, 64)
		switch {
		case v.unit == 0 && n != 0:
			return 0, durationRule + ": it has no unit, and no unit of numbers was chosen"
		case err != nil || v.unit > 0 && n > math.MaxInt64/int64(v.unit):
			return 0, durationRule
		}
		return time.Duration(n) * v.unit, ""
	}
	if len(text) > 0 && text[0] == 'P' {
		return parsePeriod(string(text))
	}
	d, err := duration.Parse(string(text))
	return d, unless(err == nil, durationRule)
}

// parsePeriod reads a duration of ISO 8601 without years and months, whose lengths differ.
func parsePeriod(text string) (sum time.Duration, rule string) {
	days, clock, timed := strings.Cut(text[1:], "T")
	if days == "" && clock == "" || timed && clock == "" {
		return 0, durationRule
	}
	for _, half := range []struct {
		text  string
		units map[byte]time.Duration
	}{
		{days, map[byte]time.Duration{'W': 7 * 24 * time.Hour, 'D': 24 * time.Hour}},
		{clock, map[byte]time.Duration{'H': time.Hour, 'M': time.Minute, 'S': time.Second}},
	} {
		for rest := half.text; rest != ""; {
			i := strings.IndexFunc(rest, func(r rune) bool { return r >= 'A' && r <= 'Z' })
			if i < 1 || half.units[rest[i]] == 0 {
				return 0, durationRule + "; years and months are not allowed"
			}
			x, err := strconv.ParseFloat(rest[:i], 64)
			if err != nil || math.Abs(x) > 1e9 {
				return 0, durationRule
			}
			sum += time.Duration(math.Round(x * float64(half.units[rest[i]])))
			rest = rest[i+1:]
		}
	}
	return sum, ""
}

// texts reads a list: of JSON, of PostgreSQL ({a,b}), or separated by commas.
func texts(text []byte) (list []string, rule string) {
	s := strings.TrimSpace(string(text))
	switch {
	case s == "":
		return nil, ""
	case s[0] == '[':
		if json.Unmarshal([]byte(s), &list) != nil {
			return nil, "is not a list of texts"
		}
		return list, ""
	case s[0] == '{' && s[len(s)-1] == '}':
		s = strings.ReplaceAll(s[1:len(s)-1], `"`, "")
	}
	for part := range strings.SplitSeq(s, ",") {
		list = append(list, strings.TrimSpace(part))
	}
	return list, ""
}

func parseBool(text []byte) (value, ok bool) {
	switch strings.ToLower(string(text)) {
	case "true", "t", "yes", "1":
		return true, true
	case "false", "f", "no", "0":
		return false, true
	}
	return false, false
}

func enumNames(d protoreflect.EnumDescriptor) string {
	var names []string
	for i := 1; i < d.Values().Len(); i++ { // the first one is not allowed in requests
		names = append(names, string(d.Values().Get(i).Name()))
	}
	return strings.Join(names, ", ")
}

func unless(ok bool, rule string) string {
	if ok {
		return ""
	}
	return rule
}

// set sets a field of a state. It returns the rule that the text breaks, or "".
func (s *State) set(name string, text []byte, c *Clock) (rule string) {
	var ok bool
	switch name {
	case "scheduled_time":
		s.Scheduled, rule = c.parse(text)
		return rule
	case "anchor_time":
		s.Anchor, rule = c.parse(text)
		return rule
	case "run_count":
		s.Runs, rule = count(text)
		return rule
	case "missed_count":
		s.Missed, rule = count(text)
		return rule
	}
	s.Paused, ok = parseBool(text)
	return unless(ok, "is neither true nor false")
}

func count(text []byte) (int64, string) {
	n, err := strconv.ParseInt(string(text), 10, 64)
	return n, unless(err == nil && n >= 0 && n <= task.MaxCountLimit, "is not a number of runs")
}
