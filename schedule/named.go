package schedule

import (
	"strings"
	"time"
)

// named has the expressions of the dialect [Named].
var named = []struct{ name, expr string }{
	{"@yearly", "0 0 1 1 *"},
	{"@annually", "0 0 1 1 *"},
	{"@monthly", "0 0 1 * *"},
	{"@weekly", "0 0 * * 0"},
	{"@daily", "0 0 * * *"},
	{"@midnight", "0 0 * * *"},
	{"@hourly", "0 * * * *"},
}

// parseNamed parses a name, which stands for a standard expression.
func (c *Cron) parseNamed(expr string) error {
	name := strings.ToLower(strings.Trim(expr, " \t"))
	for _, n := range named {
		if n.name == name {
			err := c.parseStandard(n.expr, "")
			c.text = name
			return err
		}
	}
	rule := "is not one of @yearly, @annually, @monthly, @weekly, @daily, @midnight, @hourly"
	if IsEvery(expr) {
		rule = "is an interval, not a cron schedule"
	}
	return &Error{Field: "expression", Value: expr, Rule: rule}
}

// IsEvery reports whether an expression begins with @every and must be parsed
// by [ParseEvery].
func IsEvery(expr string) bool {
	const name = "@every"
	expr = strings.TrimLeft(expr, " \t")
	return len(expr) >= len(name) && strings.EqualFold(expr[:len(name)], name)
}

// IsNamed reports whether an expression begins with @: it belongs to the
// dialect [Named], or is an interval (see [IsEvery]).
func IsNamed(expr string) bool { return strings.HasPrefix(strings.TrimLeft(expr, " \t"), "@") }

// ParseEvery parses "@every 90m": an interval in the format of
// [time.ParseDuration], positive and in whole milliseconds. A day is 24 hours.
func ParseEvery(expr string) (time.Duration, error) {
	refuse := func(rule string) (time.Duration, error) {
		return 0, &Error{Field: "expression", Value: expr, Rule: rule}
	}
	if len(expr) > MaxExpressionBytes {
		return refuse("is too long")
	}
	words := strings.FieldsFunc(expr, func(r rune) bool { return r == ' ' || r == '\t' })
	if len(words) != 2 || !strings.EqualFold(words[0], "@every") {
		return refuse("is not of the form @every DURATION, such as @every 1h30m")
	}
	d, err := time.ParseDuration(words[1])
	if err != nil || words[1][0] == '+' {
		return refuse(words[1] + " is not a duration, such as 90s, 15m or 1h30m")
	}
	if d <= 0 || d%time.Millisecond != 0 {
		return refuse("the interval must be more than 0 and in whole milliseconds")
	}
	return d, nil
}
