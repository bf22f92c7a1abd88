package schedule

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Error describes a fault in an expression or a time zone.
type Error struct {
	// Field is the field of the expression, such as "day of month", or
	// "expression", "time zone", "dialect".
	Field string
	// Value is the part that is refused.
	Value string
	// Position is the start of Value in the expression, counted in bytes from
	// 1; below 1: not applicable.
	Position int
	// Rule is the rule that Value breaks.
	Rule string
}

// Error names field, value, position and rule.
func (e *Error) Error() string {
	at := ""
	if e.Position >= 1 {
		at = " (at " + strconv.Itoa(e.Position) + ")"
	}
	return fmt.Sprintf("%s %q%s: %s", e.Field, shortened(e.Value), at, e.Rule)
}

// notPrintable is the error about the character at byte i of an expression, whole even if it has
// several bytes.
func notPrintable(expr string, i int) error {
	_, size := utf8.DecodeRuneInString(expr[i:])
	return &Error{Field: "expression", Value: expr[i : i+size], Position: i + 1, Rule: "is not a printable ASCII character"}
}

// shortened shortens long values.
func shortened(value string) string {
	const limit = 80
	if len(value) <= limit {
		return value
	}
	return strings.ToValidUTF8(value[:limit], "") + "..."
}
