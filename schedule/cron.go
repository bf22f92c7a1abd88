package schedule

import (
	"fmt"
	"math/bits"
	"strings"
	"time"
)

// MaxExpressionBytes bounds an expression, and with it its lists.
const MaxExpressionBytes = 256

// Dialect is the language of an expression. The numbers may be stored.
type Dialect int16

// The dialects; the package comment has their grammar.
const (
	Standard Dialect = iota + 1
	Quartz
	Named
)

// dialectNames are what users write.
var dialectNames = [...]string{Standard: "standard", Quartz: "quartz", Named: "named"}

// String returns the name of the dialect.
func (d Dialect) String() string {
	if d < Standard || d > Named {
		return fmt.Sprintf("Dialect(%d)", int16(d))
	}
	return dialectNames[d]
}

// ParseDialect returns the dialect of a name: standard, quartz or named.
func ParseDialect(name string) (Dialect, error) {
	for d := Standard; d <= Named; d++ {
		if name == dialectNames[d] {
			return d, nil
		}
	}
	return 0, &Error{Field: "dialect", Value: name, Rule: "is not one of " + strings.Join(dialectNames[Standard:], ", ")}
}

// Options are what an expression may need beside its text. The zero value is
// for expressions that need nothing.
type Options struct {
	// HashKey seeds H: the same key means the same values, in all versions. An
	// expression with H and no key is refused.
	HashKey string
}

// Cron is an expression in a time zone. It is immutable, and safe for concurrent
// use. All methods need one made by [Parse].
type Cron struct {
	zone *zone
	// elapsed: by elapsed time, else by the clock.
	elapsed bool
	// hashed: the expression has an H.
	hashed bool
	// The fields are bits: second, minute, hour and month n is bit n, year n
	// is bit n - FirstYear.
	seconds, minutes uint64
	hours            uint32
	months           uint16
	days             dayRule
	years            bitset
	// first is the first matching second of a matching day.
	first   int
	dialect Dialect
	text    string
}

// Parse reads an expression in the time zone of an IANA name; an empty one is UTC.
// The error is an [*Error]. A [Standard] expression that never fires is refused; for
// [Quartz] see [Cron.Never].
func Parse(d Dialect, expr, zone string, o Options) (*Cron, error) {
	z, err := findZone(zone)
	if err != nil {
		return nil, err
	}
	c := &Cron{zone: z, dialect: d}
	switch d {
	case Standard:
		err = c.parseStandard(expr, o.HashKey)
	case Quartz:
		err = c.parseQuartz(expr)
	case Named:
		err = c.parseNamed(expr)
	default:
		err = &Error{Field: "dialect", Value: d.String(), Rule: "is unknown"}
	}
	if err != nil {
		return nil, err
	}
	c.first = bits.TrailingZeros32(c.hours)*3600 + bits.TrailingZeros64(c.minutes)*60 + bits.TrailingZeros64(c.seconds)
	if d == Standard && c.Never() {
		return nil, &Error{Field: "expression", Value: c.text, Rule: "never fires: none of its days exists"}
	}
	return c, nil
}

// Never reports whether c does not fire at all, from [FirstYear] on. Expressions
// whose instants have all passed do not count: ask Next.
func (c *Cron) Never() bool {
	_, ok := c.Next(time.Unix(c.zone.starts[0], 0))
	return !ok
}

// String returns the expression, with single blanks between the fields and with
// each H replaced by its value.
func (c *Cron) String() string { return c.text }

// Dialect returns the dialect that c was read in.
func (c *Cron) Dialect() Dialect { return c.dialect }

// Location returns the time zone, from the embedded zone data.
func (c *Cron) Location() *time.Location { return c.zone.location }

// Elapsed reports whether c goes by elapsed time, and not by the clock; see the
// package comment.
func (c *Cron) Elapsed() bool { return c.elapsed }
