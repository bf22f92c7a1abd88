package sql

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/perceptor/perceptor/task"
)

// # State columns
//
// stateColumns is the one list of the columns that the state machine of package task
// changes. All that reads or writes them is derived from it: the fragments below, and in
// Go the scan targets, the arguments and the fields of COPY. So a new column of state is
// an entry here, a column of the schema with a default, and a field of [task.Row].
//
// The fragments are, for columns a and b of which b may be NULL:
//
//	state_columns      t.a, t.b                   of a row t
//	state_finished     d.a, NULL::int8            the same for a finished task d
//	state_none         0::int8, NULL::int8        the same for no row
//	state_parameters   a int8, b int8             parameters of a statement for one row
//	state_values       a = @a, b = @b             an assignment of these parameters
//	state_lists        a_list int8[], b_list int8[]
//	state_arrays       @a_list, @b_list
//	state_names        a, b
//	state_listed       a = u.a, b = u.b           an assignment from a list u
//
// The fragments run_parameters, run_names and run_values (@a, @b) are of the columns that
// a new run row has, waiting_parameters, waiting_names and waiting_values of those that
// the row of a waiting task has. The other columns have their defaults there.
var stateColumns = []Column{
	field("due_at", "int8", func(r *task.Row) *task.Instant { return &r.DueAt }).null(int64(task.Never)).ofRun().ofWaiting(),
	field("scheduled_at", "int8", func(r *task.Row) *task.Instant { return &r.ScheduledAt }).finished("d.begin_at").ofRun().ofWaiting(),
	field("anchor", "int8", func(r *task.Row) *task.Instant { return &r.Anchor }).finished("d.begin_at").ofWaiting(),
	field("seq", "int8", func(r *task.Row) *int64 { return &r.Seq }).finished("d.seq").ofWaiting(),
	field("missed", "int8", func(r *task.Row) *int64 { return &r.Missed }).finished("d.missed").ofWaiting(),
	field("version", "int4", func(r *task.Row) *int32 { return &r.Version }).finished("d.version").ofRun().ofWaiting(),
	field("state", "int2", func(r *task.Row) *task.State { return &r.State }).finished("d.state").ofWaiting(),
	flag("paused", func(r *task.Row) *bool { return &r.Paused }).ofWaiting(),
	field("open_runs", "int8", func(r *task.Row) *uint64 { return &r.OpenRuns }),
	field("open_rows", "int4", func(r *task.Row) *int32 { return &r.OpenRows }),
	field("attempt", "int4", func(r *task.Row) *int32 { return &r.Attempt }).ofRun(),
	failures.ofRun(),
	field("first_claim_at", "int8", func(r *task.Row) *task.Instant { return &r.FirstClaimAt }).null(0).ofRun(),
	field("heard_at", "int8", func(r *task.Row) *task.Instant { return &r.HeardAt }).null(0).ofRun(),
	field("heard_attempt", "int4", func(r *task.Row) *int32 { return &r.HeardAttempt }).null(0).ofRun(),
	field("holder", "int8", func(r *task.Row) *task.Holder { return &r.Holder }).null(0),
	flag("out", func(r *task.Row) *bool { return &r.Out }).ofRun(),
}

// failures holds the number of a run's failures, in its low bits, and the number of its
// snoozes: see answered() in the schema.
var failures = Column{
	Name: "failures", Type: "int4",
	get: func(r *task.Row) int64 { return int64(r.Snoozes)<<failureBits | int64(r.Failures) },
	set: func(r *task.Row, v int64) { r.Failures, r.Snoozes = int32(v)&maxFailures, int32(v)>>failureBits },
}

const (
	failureBits = 10
	maxFailures = 1<<failureBits - 1
)

// Column is a column of state: an integer or a flag.
type Column struct {
	Name string
	Type string // of PostgreSQL
	get  func(*task.Row) int64
	set  func(*task.Row, int64)
	// nullable columns store NULL for the value none.
	nullable bool
	none     int64
	// done is the value for a finished task d; "" means that it has none.
	done         string
	run, waiting bool
}

// field returns a column that stores a field of a row.
func field[T ~int16 | ~int32 | ~int64 | ~uint64](name, typ string, of func(*task.Row) *T) Column {
	return Column{
		Name: name, Type: typ,
		get: func(r *task.Row) int64 { return int64(*of(r)) },
		set: func(r *task.Row, v int64) { *of(r) = T(v) },
	}
}

// flag returns a column that stores a field that is true or false.
func flag(name string, of func(*task.Row) *bool) Column {
	return Column{
		Name: name, Type: "bool",
		get: func(r *task.Row) int64 {
			if *of(r) {
				return 1
			}
			return 0
		},
		set: func(r *task.Row, v int64) { *of(r) = v != 0 },
	}
}

func (c Column) null(none int64) Column            { c.nullable, c.none = true, none; return c }
func (c Column) finished(expression string) Column { c.done = expression; return c }
func (c Column) ofRun() Column                     { c.run = true; return c }
func (c Column) ofWaiting() Column                 { c.waiting = true; return c }

// Value returns the value of a row, and false for NULL.
func (c *Column) Value(r *task.Row) (int64, bool) {
	v := c.get(r)
	return v, !c.nullable || v != c.none
}

// Cell receives the value of one column from pgx.
type Cell struct {
	Value int64
	Valid bool
}

// ScanInt64 implements [pgtype.Int64Scanner].
func (c *Cell) ScanInt64(v pgtype.Int8) error {
	c.Value, c.Valid = v.Int64, v.Valid
	return nil
}

// ScanBool implements [pgtype.BoolScanner].
func (c *Cell) ScanBool(v pgtype.Bool) error {
	c.Value, c.Valid = 0, v.Valid
	if v.Bool {
		c.Value = 1
	}
	return nil
}

// State holds the value of each state column.
type State []Cell

// NewState returns room for the values of one row.
func NewState() State { return make(State, len(stateColumns)) }

// Targets appends the scan targets of the fragment state_columns.
func (s State) Targets(to []any) []any {
	for i := range s {
		to = append(to, &s[i])
	}
	return to
}

// Fill sets the fields of a row.
func (s State) Fill(r *task.Row) {
	for i := range s {
		c, v := &stateColumns[i], s[i].Value
		if !s[i].Valid {
			v = c.none
		}
		c.set(r, v)
	}
}

// StateArgs appends the arguments of state_parameters.
func StateArgs(to []any, r *task.Row) []any { return args(to, r, stateColumns) }

// RunArgs appends the arguments of run_parameters.
func RunArgs(to []any, r *task.Row) []any { return args(to, r, runColumns) }

// WaitingArgs appends the arguments of waiting_parameters.
func WaitingArgs(to []any, r *task.Row) []any { return args(to, r, WaitingColumns) }

func args(to []any, r *task.Row, columns []Column) []any {
	for i := range columns {
		c := &columns[i]
		v, ok := c.Value(r)
		switch {
		case !ok:
			to = append(to, nil)
		case c.Type == "bool":
			to = append(to, v != 0)
		default:
			to = append(to, v)
		}
	}
	return to
}

// StateLists appends the arguments of state_lists.
func StateLists(to []any, rows []*task.Row) []any {
	for i := range stateColumns {
		c := &stateColumns[i]
		switch {
		case c.Type == "bool":
			to = append(to, list(rows, func(r *task.Row) bool { return c.get(r) != 0 }))
		case c.nullable:
			to = append(to, list(rows, func(r *task.Row) *int64 {
				if v, ok := c.Value(r); ok {
					return &v
				}
				return nil
			}))
		default:
			to = append(to, list(rows, c.get))
		}
	}
	return to
}

func list[T any](rows []*task.Row, of func(*task.Row) T) []T {
	out := make([]T, len(rows))
	for i, r := range rows {
		out[i] = of(r)
	}
	return out
}

// WaitingColumns are the columns for which the row of a waiting task has values.
var WaitingColumns = only(func(c *Column) bool { return c.waiting })

var runColumns = only(func(c *Column) bool { return c.run })

func only(wanted func(*Column) bool) []Column {
	var out []Column
	for i := range stateColumns {
		if wanted(&stateColumns[i]) {
			out = append(out, stateColumns[i])
		}
	}
	return out
}

// Names returns the names of columns for a statement.
func Names(columns []Column) string { return join(columns, func(c *Column) string { return c.Name }) }

// stateFragments returns the fragments that stateColumns describes.
func stateFragments() map[string]string {
	all := map[string]string{
		"state_columns":  join(stateColumns, func(c *Column) string { return "t." + c.Name }),
		"state_finished": join(stateColumns, func(c *Column) string { return cmp.Or(c.done, c.zero()) }),
		"state_none":     join(stateColumns, (*Column).zero),
		"state_values":   join(stateColumns, func(c *Column) string { return c.Name + " = @" + c.Name }),
		"state_lists":    join(stateColumns, func(c *Column) string { return fmt.Sprintf("%s_list %s[]", c.Name, c.Type) }),
		"state_arrays":   join(stateColumns, func(c *Column) string { return fmt.Sprintf("@%s_list", c.Name) }),
		"state_listed":   join(stateColumns, func(c *Column) string { return c.Name + " = u." + c.Name }),
	}
	for prefix, columns := range map[string][]Column{"state": stateColumns, "run": runColumns, "waiting": WaitingColumns} {
		all[prefix+"_parameters"] = join(columns, func(c *Column) string { return c.Name + " " + c.Type })
		all[prefix+"_names"] = Names(columns)
	}
	for prefix, columns := range map[string][]Column{"run": runColumns, "waiting": WaitingColumns} {
		all[prefix+"_values"] = join(columns, func(c *Column) string { return "@" + c.Name })
	}
	return all
}

// zero returns the value of a column without a row.
func (c *Column) zero() string {
	switch {
	case c.nullable:
		return "NULL::" + c.Type
	case c.Type == "bool":
		return "false"
	}
	return "0::" + c.Type
}

func join(columns []Column, of func(*Column) string) string {
	parts := make([]string, len(columns))
	for i := range columns {
		parts[i] = of(&columns[i])
	}
	return strings.Join(parts, ", ")
}
