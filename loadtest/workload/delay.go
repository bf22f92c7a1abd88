package workload

import (
	"fmt"
	"strings"
	"time"
)

const longestDelay = 366 * 24 * time.Hour

// Delay is a time between two bounds, evenly spread. It is a flag: "2s" or
// "2s..4s".
type Delay struct{ Min, Max time.Duration }

// Type implements pflag.Value.
func (d *Delay) Type() string { return "duration[..duration]" }

// String returns what Set reads.
func (d Delay) String() string {
	if d.Min == d.Max {
		return d.Min.String()
	}
	return d.Min.String() + ".." + d.Max.String()
}

// Set reads one duration or two with ".." between.
func (d *Delay) Set(text string) error {
	low, high, two := strings.Cut(text, "..")
	if !two {
		high = low
	}
	least, err := time.ParseDuration(low)
	if err == nil {
		d.Max, err = time.ParseDuration(high)
	}
	if err != nil {
		return fmt.Errorf("%q is neither a duration such as 2s nor two such as 1s..10s", text)
	}
	d.Min = least
	return d.Validate()
}

// Validate refuses bounds that are none.
func (d Delay) Validate() error {
	if d.Min < 0 || d.Max < d.Min || d.Max > longestDelay {
		return fmt.Errorf("%v is not between 0s and 8784h, the shorter one first", d)
	}
	return nil
}

// at returns the delay that a random number stands for.
func (d Delay) at(random uint64) time.Duration {
	return d.Min + time.Duration(random%uint64(d.Max-d.Min+1))
}
