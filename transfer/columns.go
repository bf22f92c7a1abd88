package transfer

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// Mapping says what the columns of a table mean. The zero value maps columns that have the
// names of fields.
type Mapping struct {
	// Map has a field for a column: the path of a field of a task, params.KEY, or "-" to ignore the column.
	Map map[string]string
	// ParamsRest makes params of all columns that have no other meaning.
	ParamsRest bool
	// Defaults is the task of a line without values. Its begin_time, params and idempotency_key count, too.
	Defaults *perceptorv1.Task
	// Clock reads instants.
	Clock Clock
	// Unit is the unit of durations that are mere numbers. 0: such are refused.
	Unit time.Duration
	// Restore takes how far tasks have come from columns such as run_count.
	Restore bool
}

// Columns converts the cells of the rows of one table. It must not be used concurrently.
type Columns struct {
	names  []string
	begin  int // the index of the column, or -1
	key    int
	whole  int // of the column of all params
	finish int // of the column of the state
	terms  []termColumn
	params []paramColumn
	states []stateColumn
	values values
	// defaults is the template of a line without values, and given the default params.
	defaults     *perceptorv1.Task
	defaultBegin task.Instant
	given        []param
	wire, line   []byte
	list         []param
	cells        [][]byte // of the last line
}

type termColumn struct {
	column int
	field  *field
}

// paramColumn is a column of a param, or a default. Its key is encoded.
type paramColumn struct {
	column int // -1: always the value
	name   []byte
	key    []byte
	value  []byte
}

type stateColumn struct {
	column int
	name   string
}

// NewColumns finds the meaning of the columns of a table. The error names all columns that have none.
func NewColumns(names []string, m Mapping) (*Columns, error) {
	c := &Columns{
		names: names, begin: -1, key: -1, whole: -1, finish: -1, values: values{m.Clock, m.Unit}, defaultBegin: NoBegin,
	}
	c.setDefaults(m.Defaults)
	if len(names) > MaxColumns {
		return nil, fmt.Errorf("the table has %d columns; at most %d are allowed", len(names), MaxColumns)
	}
	if err := c.checkMap(m); err != nil {
		return nil, err
	}
	var unknown []string
	taken := map[string]string{}
	for i, name := range names {
		target := c.target(name, m)
		if target == "" {
			unknown = append(unknown, fmt.Sprintf("%q", name))
			continue
		}
		if other, ok := taken[target]; ok && target != "-" {
			return nil, fmt.Errorf("the columns %q and %q both mean %s", other, name, target)
		}
		taken[target] = name
		c.assign(i, target, m.Restore)
	}
	if len(unknown) > 0 {
		return nil, fmt.Errorf("no field has the name of column %s: map each one to a field, to params.KEY or to -, or make params of the rest", strings.Join(unknown, ", "))
	}
	for _, path := range []string{"kind", "type"} {
		if !c.Has(path) {
			return nil, fmt.Errorf("no column is the %s of a task, and there is no default for it", path)
		}
	}
	return c, c.finishParams(taken)
}

// checkMap refuses fields and columns that do not exist.
func (c *Columns) checkMap(m Mapping) error {
	for column, target := range m.Map {
		if !slices.Contains(c.names, column) {
			return fmt.Errorf("column %q is mapped to %s, and the table has no such column; it has %s", column, target, strings.Join(c.names, ", "))
		}
		if target != "-" && !strings.HasPrefix(target, "params.") && fieldName(target) == "" {
			return fmt.Errorf("column %q is mapped to %q, which is not a field of a task", column, target)
		}
	}
	return nil
}

// target returns what a column means: a field, params.KEY, "-", or "" for nothing.
func (c *Columns) target(name string, m Mapping) string {
	if to, ok := m.Map[name]; ok {
		if to == "-" || strings.HasPrefix(to, "params.") {
			return to
		}
		return fieldName(to)
	}
	if strings.HasPrefix(name, "params.") && len(name) > len("params.") {
		return name
	}
	if to := fieldName(name); to != "" {
		return to
	}
	if m.ParamsRest {
		return "params." + name
	}
	return ""
}

// assign makes a column mean something.
func (c *Columns) assign(i int, target string, restore bool) {
	switch {
	case target == "begin_time":
		c.begin = i
	case target == "idempotency_key":
		c.key = i
	case target == "params":
		c.whole = i
	case target == "state" && restore:
		c.finish = i
	case strings.HasPrefix(target, "params."):
		key := []byte(strings.TrimPrefix(target, "params."))
		c.params = append(c.params, paramColumn{column: i, name: key, key: keyField(nil, key)})
	case slices.Contains(stateFields, target):
		if restore {
			c.states = append(c.states, stateColumn{i, target})
		}
	case termFields[target] != nil:
		c.terms = append(c.terms, termColumn{i, termFields[target]})
	}
}

func (c *Columns) setDefaults(t *perceptorv1.Task) {
	c.defaults, c.defaultBegin, c.given = split(t)
}

// split returns the parts of a task that lines have on their own, and the rest.
func split(t *perceptorv1.Task) (rest *perceptorv1.Task, begin task.Instant, params []param) {
	rest, begin = &perceptorv1.Task{}, NoBegin
	if t != nil {
		rest = proto.CloneOf(t)
	}
	if rest.BeginTime != nil {
		begin = task.At(rest.BeginTime.AsTime())
	}
	for k, v := range rest.Params {
		params = append(params, param{[]byte(k), []byte(v)})
	}
	rest.BeginTime, rest.Params, rest.IdempotencyKey = nil, nil, ""
	return rest, begin, params
}

// finishParams sorts the params by key, so that those of a line are in canonical form as they are
// appended.
func (c *Columns) finishParams(taken map[string]string) error {
	if c.whole >= 0 && len(c.params) > 0 {
		return fmt.Errorf("the column %q has all params, so no other column may have one: %q", c.names[c.whole], taken["params."+string(c.params[0].name)])
	}
	for _, p := range c.given {
		if taken["params."+string(p.key)] == "" {
			c.params = append(c.params, paramColumn{column: -1, name: p.key, key: keyField(nil, p.key), value: p.value})
		}
	}
	slices.SortFunc(c.params, func(a, b paramColumn) int { return bytes.Compare(a.name, b.name) })
	for i, p := range c.params {
		for _, d := range c.given {
			if p.column >= 0 && bytes.Equal(d.key, p.name) {
				c.params[i].value = d.value
			}
		}
	}
	return nil
}

// Has reports whether some column or default sets a field.
func (c *Columns) Has(path string) bool {
	switch path {
	case "begin_time":
		return c.begin >= 0 || c.defaultBegin != NoBegin
	case "idempotency_key":
		return c.key >= 0
	}
	return slices.ContainsFunc(c.terms, func(t termColumn) bool { return t.field.path == path }) || valueAt(c.defaults.ProtoReflect(), path) != ""
}

// Column returns the name of the column of a field, or "".
func (c *Columns) Column(path string) string {
	name := func(i int) string {
		if i < 0 {
			return ""
		}
		return c.names[i]
	}
	switch {
	case path == "begin_time":
		return name(c.begin)
	case path == "idempotency_key":
		return name(c.key)
	case strings.HasPrefix(path, "params"):
		for _, p := range c.params {
			if p.column >= 0 && path == fmt.Sprintf("params[%q]", p.name) {
				return c.names[p.column]
			}
		}
		return name(c.whole)
	}
	for _, t := range c.terms {
		if t.field.path == path {
			return c.names[t.column]
		}
	}
	return ""
}

// Fill converts the cells of a row. nil is a cell without a value. The line refers to the cells. The
// error is a [*Fault].
func (c *Columns) Fill(l *Line, cells [][]byte) error {
	l.Begin = c.defaultBegin
	if c.begin >= 0 && cells[c.begin] != nil {
		at, rule := c.values.clock.parse(cells[c.begin])
		if rule != "" {
			return faultOf(c.names[c.begin], "begin_time", cells[c.begin], "%s", rule)
		}
		l.Begin = at
	}
	return c.fillRest(l, cells)
}

// fillRest is Fill without begin_time.
func (c *Columns) fillRest(l *Line, cells [][]byte) error {
	l.Key = nil
	if c.key >= 0 {
		l.Key = cells[c.key]
	}
	c.cells = cells
	c.fillTerms(l, cells)
	if err := c.fillParams(l, cells); err != nil {
		return err
	}
	return c.fillState(l, cells)
}

// fillTerms makes the identity of the terms: their cells with their lengths.
func (c *Columns) fillTerms(l *Line, cells [][]byte) {
	w := c.line[:0]
	for _, t := range c.terms {
		cell := cells[t.column]
		if cell == nil {
			w = append(w, 0)
			continue
		}
		w = append(binary.AppendUvarint(w, uint64(len(cell))+1), cell...)
	}
	c.line, l.Terms = w, w
}

func (c *Columns) fillParams(l *Line, cells [][]byte) error {
	w := c.wire[:0]
	if c.whole >= 0 && cells[c.whole] != nil {
		return c.fillWhole(l, cells[c.whole])
	}
	for i := range c.params {
		p := &c.params[i]
		value := p.value
		if p.column >= 0 && cells[p.column] != nil {
			value = cells[p.column]
		}
		if value != nil {
			w = appendParam(w, p.key, value)
		}
	}
	c.wire, l.Params = w, w
	return nil
}

// fillWhole reads all params of a line from an object in JSON. Values that are not texts become their JSON.
func (c *Columns) fillWhole(l *Line, cell []byte) error {
	var object map[string]json.RawMessage
	if err := json.Unmarshal(cell, &object); err != nil {
		return faultOf(c.names[c.whole], "params", cell, "is not an object in JSON")
	}
	c.list = c.list[:0]
	for k, raw := range object {
		value := []byte(raw)
		switch {
		case string(raw) == "null":
			continue
		case raw[0] == '"':
			var s string
			if err := json.Unmarshal(raw, &s); err != nil {
				return faultOf(c.names[c.whole], "params", cell, "is not an object in JSON")
			}
			value = []byte(s)
		}
		c.list = append(c.list, param{[]byte(k), value})
	}
	return c.fillList(l)
}

// fillList makes params of a list and the defaults that it has not.
func (c *Columns) fillList(l *Line) error {
	own := c.list
	for _, d := range c.given {
		if !slices.ContainsFunc(own, func(p param) bool { return bytes.Equal(p.key, d.key) }) {
			c.list = append(c.list, d)
		}
	}
	var distinct bool
	if c.wire, distinct = appendParams(c.wire[:0], c.list); !distinct {
		return faultOf(c.names[c.whole], "params", nil, "has a key twice")
	}
	l.Params = c.wire
	return nil
}

// uses reports whether a column has a meaning.
func (c *Columns) uses(i int) bool {
	return i == c.begin || i == c.key || i == c.whole || i == c.finish ||
		slices.ContainsFunc(c.terms, func(t termColumn) bool { return t.column == i }) ||
		slices.ContainsFunc(c.params, func(p paramColumn) bool { return p.column == i }) ||
		slices.ContainsFunc(c.states, func(s stateColumn) bool { return s.column == i })
}

func (c *Columns) fillState(l *Line, cells [][]byte) error {
	l.State = State{}
	for _, s := range c.states {
		cell := cells[s.column]
		if cell == nil {
			continue
		}
		if rule := l.State.set(s.name, cell, &c.values.clock); rule != "" {
			return faultOf(c.names[s.column], s.name, cell, "%s", rule)
		}
	}
	if c.finish >= 0 && cells[c.finish] != nil {
		if rule := finishedRule(cells[c.finish]); rule != "" {
			return faultOf(c.names[c.finish], "state", cells[c.finish], "%s", rule)
		}
	}
	return nil
}

// finishedRule refuses the state of a task that has ended.
func finishedRule(state []byte) string {
	switch string(state) {
	case "COMPLETED", "CANCELLED", "FAILED":
		return "the task has ended; only unfinished ones are imported"
	}
	return ""
}

// Template implements [Source] for the line of the last call of Fill.
func (c *Columns) Template(*Line) (*perceptorv1.Task, error) {
	t := proto.CloneOf(c.defaults)
	scheduled := ""
	for _, x := range c.terms {
		cell := c.cells[x.column]
		if cell == nil {
			continue
		}
		if path := x.field.path; path == "interval" || path == "cron.expression" {
			if scheduled != "" {
				return nil, faultOf(c.names[x.column], path, cell, "a task has an interval or a cron expression, not both")
			}
			scheduled = path
		}
	}
	if scheduled != "" {
		t.Schedule = nil
	}
	for _, x := range c.sortedTerms() {
		cell := c.cells[x.column]
		if cell == nil || strings.HasPrefix(x.field.path, "cron.") && scheduled != "cron.expression" && t.GetCron() == nil {
			continue // a column of time zones beside intervals
		}
		if x.field.path != payloadData && !utf8.Valid(cell) {
			return nil, faultOf(c.names[x.column], x.field.path, cell, "is not valid UTF-8")
		}
		if rule := c.values.set(t, x.field, cell); rule != "" {
			return nil, faultOf(c.names[x.column], x.field.path, cell, "%s", rule)
		}
	}
	return t, nil
}

// sortedTerms returns the columns of terms, the expression before its zone.
func (c *Columns) sortedTerms() []termColumn {
	first := func(t termColumn) int {
		if t.field.path == "cron.expression" {
			return 0
		}
		return 1
	}
	sorted := slices.Clone(c.terms)
	slices.SortStableFunc(sorted, func(a, b termColumn) int { return first(a) - first(b) })
	return sorted
}
