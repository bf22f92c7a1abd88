package schedule

import (
	"fmt"
	"math/bits"
	"strings"
	"time"
)

// MaxExpressionBytes is the maximum length of an expression, and so bounds its
// lists.
const MaxExpressionBytes = 256

// Dialect is the dialect of an expression. The numbers may be stored.
type Dialect int16

// The dialects; the package comment has their grammar.
const (
	Standard Dialect = iota + 1
	Quartz
	Named
	RRule
)

// dialectNames are the names that users write.
var dialectNames = [...]string{Standard: "standard", Quartz: "quartz", Named: "named", RRule: "rrule"}

// String returns the name of the dialect.
func (d Dialect) String() string {
	if d < Standard || d > RRule {
		return fmt.Sprintf("Dialect(%d)", int16(d))
	}
	return dialectNames[d]
}

// ParseDialect returns the dialect of a name: standard, quartz, named or rrule.
func ParseDialect(name string) (Dialect, error) {
	for d := Standard; d <= RRule; d++ {
		if name == dialectNames[d] {
			return d, nil
		}
	}
	return 0, &Error{Field: "dialect", Value: name, Rule: "is not one of " + strings.Join(dialectNames[Standard:], ", ")}
}

// Options are inputs of an expression besides its text. The zero value suits
// most expressions.
type Options struct {
	// HashKey is the seed of H. The same key gives the same values in all
	// versions. An expression with H and without a key is refused.
	HashKey string
}

// Cron is an expression in a time zone. It is immutable and safe for concurrent
// use. Create it with [Parse].
type Cron struct {
	zone *zone
	// elapsed: it follows elapsed time; otherwise it follows the clock.
	elapsed bool
	// hashed: the expression has an H.
	hashed bool
	// Each field is a bit set: bit n is the second, minute, hour or month n.
	// For years bit n is the year FirstYear + n.
	seconds, minutes uint64
	hours            uint32
	months           uint16
	days             dayRule
	years            bitset
	// first is the first matching second of a matching day.
	first int
	// rule is nil unless the dialect is RRule.
	rule    *rule
	dialect Dialect
	text    string
}

// Parse parses an expression in the time zone with the given IANA name; an
// empty name is UTC. The error is an [*Error]. Parse refuses a [Standard] or
// [RRule] expression that never fires; for [Quartz] see [Cron.Never].
func Parse(d Dialect, expr, zone string, o Options) (*Cron, error) {
	z, err := findZone(zone)
	if err != nil {
		return nil, err
	}
	c := &Cron{zone: z, dialect: d}
	var rule *ruleParser
	switch d {
	case Standard:
		err = c.parseStandard(expr, o.HashKey)
	case Quartz:
		err = c.parseQuartz(expr)
	case Named:
		err = c.parseNamed(expr)
	case RRule:
		rule, err = c.parseRule(expr)
	default:
		err = &Error{Field: "dialect", Value: d.String(), Rule: "is unknown"}
	}
	if err != nil {
		return nil, err
	}
	c.first = bits.TrailingZeros32(c.hours)*3600 + bits.TrailingZeros64(c.minutes)*60 + bits.TrailingZeros64(c.seconds)
	if rule != nil {
		if err = c.setBounds(rule); err != nil {
			return nil, err
		}
	}
	if d == Standard && c.Never() {
		return nil, &Error{Field: "expression", Value: c.text, Rule: "never fires: none of its days exists"}
	}
	return c, nil
}

// Never reports whether c has no instant from [FirstYear] on. It does not
// consider the present: to find out whether all instants have passed, call
// Next.
func (c *Cron) Never() bool {
	_, ok := c.Next(time.Unix(c.zone.starts[0], 0))
	return !ok
}

// String returns the expression, with single blanks between the fields and with
// each H replaced by its value.
func (c *Cron) String() string { return c.text }

// Dialect returns the dialect in which c was parsed.
func (c *Cron) Dialect() Dialect { return c.dialect }

// Location returns the time zone, from the embedded zone data.
func (c *Cron) Location() *time.Location { return c.zone.location }

// Elapsed reports whether c follows elapsed time instead of the clock; see the
// package comment.
func (c *Cron) Elapsed() bool { return c.elapsed }
