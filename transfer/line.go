package transfer

import (
	"context"
	"fmt"

	perceptorv1 "github.com/perceptor/perceptor/proto/perceptor/v1"
	"github.com/perceptor/perceptor/task"
)

// Limits of the input.
const (
	// MaxLine is the largest size of a line in bytes. A longer one is a fault.
	MaxLine = 1 << 20
	// MaxColumns is the largest number of columns of a table.
	MaxColumns = 1000
)

// NoBegin is the begin of a line without begin_time: the instant at which the server stores it.
const NoBegin task.Instant = -1

// Position is where a line was read.
type Position struct {
	// File is the name of the file, or another name of the input.
	File string
	// Line is the number of the first line of text, or of the row, from 1.
	Line int64
}

// String returns FILE:LINE.
func (p Position) String() string { return fmt.Sprintf("%s:%d", p.File, p.Line) }

// Line is one task. The slices belong to the source and are valid until its next call.
type Line struct {
	Position
	// Begin is the begin_time, or [NoBegin].
	Begin task.Instant
	// Key is the idempotency_key. Empty: none.
	Key []byte
	// Params is a message of the type Params with sorted keys without duplicates.
	Params []byte
	// Terms identifies all other fields: lines with equal terms have equal ones.
	Terms []byte
	// State is how far the task has come elsewhere.
	State State
	// Size is the number of bytes of its text, with the end of the line. 0: it has no text.
	Size int
	// Sum is a hash of the line as it was read. 0: there is none, and the [Builder] makes one.
	Sum uint64
}

// State is how far a task has come elsewhere. The zero value is that of a new task.
type State struct {
	// Scheduled is the instant of the next run, Anchor the origin of the grid of an interval. 0: none.
	Scheduled, Anchor task.Instant
	// Runs and Missed are run_count and missed_count.
	Runs, Missed int64
	Paused       bool
}

// Source yields lines in a fixed order. It must not be used concurrently.
type Source interface {
	// Next fills in l. It returns io.EOF after the last line, and a [*Fault] for a line that cannot
	// be read, after which the next call continues. Any other error is final.
	Next(ctx context.Context, l *Line) error
	// Template returns what the terms of the line of the last call of Next stand for: a task
	// without begin_time, params and idempotency_key, which the caller must not change. An error is a [*Fault].
	Template(l *Line) (*perceptorv1.Task, error)
	// Close releases what the source holds.
	Close() error
}

// Fault is a rule that a line breaks.
type Fault struct {
	Position
	// Column is the column, or the key of an object, of the input. It may be empty.
	Column string
	// Field is the field of the task, such as retry_policy.max_attempts. It may be empty.
	Field string
	// Value is the value, shortened. It may be empty.
	Value string
	// Rule says what is wrong.
	Rule string
}

// Error returns the position, the column, the value and the rule.
func (f *Fault) Error() string {
	text := f.Position.String()
	if f.Column != "" {
		text += ": " + f.Column
	}
	if f.Value != "" {
		text += fmt.Sprintf(": %q", f.Value)
	}
	return text + ": " + f.Rule
}

// maxShown bounds the values in faults, in bytes.
const maxShown = 200

// shown returns a value for a fault.
func shown(value []byte) string {
	if len(value) > maxShown {
		return string(value[:maxShown]) + "..."
	}
	return string(value)
}

// faultOf returns a fault of a value.
func faultOf(column, field string, value []byte, format string, args ...any) *Fault {
	return &Fault{Column: column, Field: field, Value: shown(value), Rule: fmt.Sprintf(format, args...)}
}
