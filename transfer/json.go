package transfer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// jsonSource is a file with a task in JSON in each line.
type jsonSource struct {
	splitter
	b    *lineBuffer
	name string
	done io.Closer
	// restore takes how far tasks have come.
	restore bool
	// raw is the current line.
	raw  []byte
	scan scanner
	// fields are the terms of the line of fast.
	fields fieldTexts
	// running says that the line of fast is a task with an open run, which is restored.
	running bool
}

// OpenJSON returns the lines of a file with a task in the JSON of the HTTP API in each line, such as those of an
// export. A line replaces the defaults field by field, and params by key. Fields that the service sets are ignored; with
// restore, those that say how far a task has come count. Closing the source closes r.
func OpenJSON(name string, r io.ReadCloser, m Mapping) (Source, error) {
	s := &jsonSource{b: newLineBuffer(r), name: name, done: r, restore: m.Restore}
	s.splitter.setDefaults(m.Defaults)
	if err := s.b.start(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return s, nil
}

// Next implements [Source]. Empty lines are passed over.
func (s *jsonSource) Next(_ context.Context, l *Line) error {
	for {
		raw, err := s.b.next()
		l.Position = Position{s.name, s.b.line}
		switch {
		case errors.Is(err, io.EOF):
			return err
		case err != nil:
			return inFile(s.name, s.b.line, err)
		case len(bytes.TrimSpace(raw)) == 0:
			continue
		}
		l.Sum, l.Size = sumOfText(raw), len(raw)+1
		s.raw = raw
		if s.fast(l, raw) {
			return nil
		}
		return located(s.slow(l, raw), l.Position)
	}
}

// Template implements [Source].
func (s *jsonSource) Template(l *Line) (*perceptorv1.Task, error) {
	if len(l.Terms) > 0 && l.Terms[0] == encodedTerms {
		return s.splitter.Template(l)
	}
	t, err := s.fields.task()
	if err != nil {
		// The position in the whole line is what people can find.
		if err := s.slow(&Line{}, s.raw); err != nil {
			return nil, err
		}
		return nil, jsonFault(s.raw, err)
	}
	return s.merged(t), nil
}

// Close implements [Source].
func (s *jsonSource) Close() error { return s.done.Close() }

// slow reads a line by protojson. It is the definition of what a line means.
func (s *jsonSource) slow(l *Line, raw []byte) error {
	t := &perceptorv1.Task{}
	known, extra, err := withoutOwn(raw)
	if err == nil {
		err = protojson.Unmarshal(known, t)
	}
	if err != nil {
		return jsonFault(raw, err)
	}
	var state State
	if s.restore {
		if state, err = stateOf(t, extra); err != nil {
			return err
		}
	}
	return s.split(l, t, state)
}

// ownNames are fields of lines that tasks of the API do not have, each in both forms.
var ownNames = slices.Concat(anchorNames, plannedNames, []string{"readTime", "read_time"})

var (
	anchorNames  = []string{"anchorTime", "anchor_time"}
	plannedNames = []string{"plannedTime", "planned_time"}
)

// withoutOwn returns a line without the fields that tasks of the API do not have, and those. Most lines have
// none and are returned as they are.
func withoutOwn(raw []byte) (known []byte, extra map[string]json.RawMessage, err error) {
	if !slices.ContainsFunc([]string{"anchor", "planned", "read"}, func(part string) bool { return bytes.Contains(raw, []byte(part)) }) {
		return raw, nil, nil
	}
	var all map[string]json.RawMessage
	if json.Unmarshal(raw, &all) != nil || !utf8.Valid(raw) {
		return raw, nil, nil // protojson tells what is wrong
	}
	extra = map[string]json.RawMessage{}
	for _, name := range ownNames {
		if v, ok := all[name]; ok {
			extra[name] = v
			delete(all, name)
		}
	}
	if len(extra) == 0 {
		return raw, nil, nil
	}
	known, err = json.Marshal(all)
	return known, extra, err
}

// stateOf returns how far a task of an export has come. The open run of a RUNNING one counts as one that did
// not begin, so that it fires again. A triggered run does not fire again: it is not one of the schedule, and
// would move the instant that was planned before it.
func stateOf(t *perceptorv1.Task, extra map[string]json.RawMessage) (s State, err error) {
	if rule := finishedRule([]byte(t.State.String())); rule != "" {
		return State{}, faultOf("state", "state", []byte(t.State.String()), "%s", rule)
	}
	s = State{Runs: t.RunCount, Missed: t.MissedCount, Paused: t.Paused}
	if t.ScheduledTime != nil {
		s.Scheduled = task.At(t.ScheduledTime.AsTime())
	}
	if s.Anchor, err = extraInstant(extra, anchorNames); err != nil {
		return s, err
	}
	planned, err := extraInstant(extra, plannedNames)
	switch {
	case err != nil || t.State != perceptorv1.Task_RUNNING:
	case planned > 0:
		s.Scheduled = planned
	case s.Runs > 0:
		s.Runs--
	}
	return s, err
}

// extraInstant returns the instant of a field that tasks of the API do not have; 0: the line has none.
func extraInstant(extra map[string]json.RawMessage, names []string) (at task.Instant, err error) {
	for _, name := range names {
		v, ok := extra[name]
		if !ok {
			continue
		}
		text, err := strconv.Unquote(string(v))
		ms, _, good := parseDateTime([]byte(text), true)
		if err != nil || !good {
			return 0, faultOf(name, names[1], v, "%s", timeRule)
		}
		at = task.Instant(ms)
	}
	return at, nil
}

// encodedTerms begins terms that are an encoded task. Other terms are text.
const encodedTerms = 0

// splitter makes lines of whole tasks.
type splitter struct {
	defaults     *perceptorv1.Task
	defaultBegin task.Instant
	given        []param
	list         []param
	wire, terms  []byte
	key          []byte
}

func (s *splitter) setDefaults(t *perceptorv1.Task) {
	s.defaults, s.defaultBegin, s.given = split(t)
}

// split fills in a line with a task, which it changes.
func (s *splitter) split(l *Line, t *perceptorv1.Task, state State) error {
	l.Begin, l.State = s.defaultBegin, state
	if t.BeginTime != nil {
		at, rule := checked(task.At(t.BeginTime.AsTime()))
		if rule != "" {
			return faultOf("beginTime", "begin_time", []byte(t.BeginTime.AsTime().Format("2006-01-02T15:04:05.999Z")), "%s", rule)
		}
		l.Begin = at
	}
	s.list = s.list[:0]
	for k, v := range t.Params {
		s.list = append(s.list, param{[]byte(k), []byte(v)})
	}
	s.addGiven()
	s.wire, _ = appendParams(s.wire[:0], s.list) // keys of a map are distinct
	s.key = append(s.key[:0], t.IdempotencyKey...)
	l.Params, l.Key = s.wire, s.key
	clearOwn(t)
	wire, err := proto.MarshalOptions{Deterministic: true}.MarshalAppend(append(s.terms[:0], encodedTerms), t)
	if err != nil {
		return &Fault{Rule: "has a text that is not valid UTF-8"}
	}
	s.terms, l.Terms = wire, wire
	return nil
}

// addGiven adds the default params that the list has not.
func (s *splitter) addGiven() {
	own := s.list
	for _, d := range s.given {
		found := false
		for _, p := range own {
			found = found || bytes.Equal(p.key, d.key)
		}
		if !found {
			s.list = append(s.list, d)
		}
	}
}

// clearOwn leaves only the terms of a task.
func clearOwn(t *perceptorv1.Task) {
	t.BeginTime, t.Params, t.IdempotencyKey = nil, nil, ""
	m := t.ProtoReflect()
	for _, name := range outputFields {
		m.Clear(m.Descriptor().Fields().ByTextName(name))
	}
}

// Template implements [Source] for a line of split.
func (s *splitter) Template(l *Line) (*perceptorv1.Task, error) {
	t := &perceptorv1.Task{}
	if err := proto.Unmarshal(l.Terms[1:], t); err != nil {
		return nil, fmt.Errorf("decode the terms of a line: %w", err)
	}
	return s.merged(t), nil
}

// merged returns the defaults with what terms set.
func (s *splitter) merged(t *perceptorv1.Task) *perceptorv1.Task {
	if proto.Size(s.defaults) == 0 {
		return t
	}
	m := proto.CloneOf(s.defaults)
	t.ProtoReflect().Range(func(f protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		if f.IsList() {
			m.ProtoReflect().Clear(f) // a list is replaced, not appended to
		}
		return true
	})
	if c := m.GetCron(); c != nil && t.GetCron().GetExpression() != "" {
		m.Schedule = nil // another expression has another dialect and zone
	}
	proto.Merge(m, t)
	return m
}

var jsonPosition = regexp.MustCompile(`^(?:syntax error )?\(line (\d+):(\d+)\): (.*)$`)

// jsonFault makes a fault of an error of protojson.
func jsonFault(raw []byte, err error) *Fault {
	text := strings.TrimLeft(strings.TrimPrefix(err.Error(), "proto:"), "\u00a0 ")
	f := &Fault{Rule: "is not a task in JSON: " + text}
	m := jsonPosition.FindStringSubmatch(text)
	if !utf8.Valid(raw) {
		f.Rule = "is not valid UTF-8"
		return f
	}
	if m == nil {
		if text == "unexpected EOF" {
			f.Rule = "is not a task in JSON: the line ends too early"
		}
		return f
	}
	column, _ := strconv.Atoi(m[2])
	f.Rule = plainRule(m[3])
	f.Column = keyAt(raw, int64(column))
	if name, ok := strings.CutPrefix(m[3], "unknown field "); ok {
		f.Column, _ = strconv.Unquote(name)
		f.Rule = "no field has this name"
		return f
	}
	f.Field = fieldName(f.Column)
	f.Value = valueOf(raw, f.Column)
	return f
}

// plainRule returns what is wrong in words for people who do not know the library.
func plainRule(text string) string {
	switch {
	case strings.Contains(text, "google.protobuf.Timestamp"):
		return timeRule
	case strings.Contains(text, "google.protobuf.Duration"):
		return "is not a duration in seconds such as 3600s"
	case strings.Contains(text, "oneof"):
		return "the task has another schedule already: it has an interval or an expression"
	}
	if m := wrongValue.FindStringSubmatch(text); m != nil && kindRules[m[1]] != "" {
		return kindRules[m[1]]
	}
	for _, prefix := range []string{"unexpected token ", "invalid value "} {
		if found, ok := strings.CutPrefix(text, prefix); ok {
			return found + " is not valid JSON here, or not of this field's type"
		}
	}
	return text
}

var wrongValue = regexp.MustCompile(`^invalid value for (\w+) field`)

// kindRules say what the values of a type of a field are, by its name in protobuf.
var kindRules = map[string]string{
	"string": "is not a text in quotes", "bool": "is neither true nor false", "enum": "is not a value of this field",
	"int32": "is not a whole number that fits", "int64": "is not a whole number that fits", "uint32": "is not a whole number that fits",
	"float": "is not a number", "double": "is not a number", "bytes": "is not base64 in quotes",
}

// keyAt returns the path of the key at or before a position of an object, such as retryPolicy.maxAttempts.
func keyAt(raw []byte, column int64) string {
	d := json.NewDecoder(bytes.NewReader(raw))
	var path []string
	var inList []bool
	value := false
	for {
		token, err := d.Token()
		if err != nil {
			return strings.Join(path, ".")
		}
		switch x := token.(type) {
		case json.Delim:
			if x == '{' || x == '[' {
				inList, path = append(inList, x == '['), append(path, "")
			} else {
				inList, path = inList[:len(inList)-1], path[:len(path)-1]
			}
			value = false
		case string:
			if !value && len(path) > 0 && !inList[len(inList)-1] {
				path[len(path)-1], value = x, true
			} else {
				value = false
			}
		default:
			value = false
		}
		if d.InputOffset() >= column {
			return strings.Trim(strings.Join(path, "."), ".")
		}
	}
}

// valueOf returns the value of a key of an object, as text.
func valueOf(raw []byte, path string) string {
	for name := range strings.SplitSeq(path, ".") {
		var object map[string]json.RawMessage
		if json.Unmarshal(raw, &object) != nil {
			return ""
		}
		raw = object[name]
	}
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return shown([]byte(text))
	}
	return shown(raw)
}
