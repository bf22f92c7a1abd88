// Package duration reads the durations that people write, in the configuration and on the
// command line: those of [time.ParseDuration], and days.
package duration

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

const day = 24 * time.Hour

// maxDays keeps the sum below the largest duration.
const maxDays = 100_000

// errForm is the error of [Parse]. It does not repeat the text.
var errForm = errors.New("not a duration such as 250ms, 90s, 36h, 3d or 1d12h")

// errLong is the error of [Parse] for what has the form of a duration.
var errLong = fmt.Errorf("longer than %dd, the longest duration", maxDays)

// form matches what [time.ParseDuration] takes, whatever its size.
var form = regexp.MustCompile(`^[+-]?(([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+$`)

// fault returns why a text without days is no duration.
func fault(text string) error {
	if form.MatchString(text) {
		return errLong
	}
	return errForm
}

// Parse parses a duration as [time.ParseDuration] does. It may begin with whole days, such as
// 3d or 1d12h, of 24 hours each. A sign belongs to the sum.
func Parse(text string) (time.Duration, error) {
	rest, negative := strings.CutPrefix(text, "-")
	before, after, hasDays := strings.Cut(rest, "d")
	if !hasDays {
		d, err := time.ParseDuration(text)
		if err != nil {
			return 0, fault(text)
		}
		return d, nil
	}
	days, err := strconv.ParseUint(before, 10, 32)
	switch {
	case errors.Is(err, strconv.ErrRange), err == nil && days > maxDays:
		return 0, errLong
	case err != nil:
		return 0, errForm
	}
	sum := time.Duration(days) * day
	if after != "" {
		more, err := time.ParseDuration(after)
		switch {
		case strings.HasPrefix(after, "+") || strings.HasPrefix(after, "-"):
			return 0, errForm
		case err != nil:
			return 0, fault(after)
		case more > time.Duration(maxDays)*day-sum:
			return 0, errLong
		}
		sum += more
	}
	if negative {
		sum = -sum
	}
	return sum, nil
}

// Var adds a flag for a duration to f.
func Var(f *pflag.FlagSet, p *time.Duration, name string, value time.Duration, usage string) {
	*p = value
	f.Var((*flag)(p), name, usage)
}

type flag time.Duration

// String implements [pflag.Value]. Help shows no default that is "0".
func (d *flag) String() string {
	if *d == 0 {
		return "0"
	}
	return time.Duration(*d).String()
}

// Type implements [pflag.Value].
func (d *flag) Type() string { return "duration" }

// Set implements [pflag.Value].
func (d *flag) Set(text string) error {
	v, err := Parse(text)
	if err == nil {
		*d = flag(v)
	}
	return err
}
