package schedule

import (
	"fmt"
	"strconv"
	"strings"
)

// Error is a rule that an expression or a zone breaks.
type Error struct {
	// Field is the field of the expression, such as "day of month"; or "expression",
	// "time zone", "dialect".
	Field string
	// Value is the part of it that is refused.
	Value string
	// Position is where Value begins in the expression, counted in bytes from 1;
	// below 1 when that has no meaning.
	Position int
	// Rule is what Value breaks.
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

// shortened keeps errors readable when values are not.
func shortened(value string) string {
	const limit = 80
	if len(value) <= limit {
		return value
	}
	return strings.ToValidUTF8(value[:limit], "") + "..."
}
