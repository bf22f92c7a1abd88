package storm

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Planned is a fault of a plan.
type Planned struct {
	// Name is the name of the fault, such as kill-kafka.
	Name string `json:"name"`
	// Part is the part that is disturbed, such as kafka-2.
	Part string `json:"part"`
	// At is the time from the begin of the load, Lasts the length of the fault.
	At    time.Duration `json:"at"`
	Lasts time.Duration `json:"lasts"`
}

// String returns the fault as one line of text.
func (p Planned) String() string { return fmt.Sprintf("%s %s for %v", p.Name, p.Part, p.Lasts) }

// Gaps between two faults.
const (
	shortestGap = 3 * time.Second
	longestGap  = 8 * time.Second
	// recovery is the time that the plan leaves for the recovery after a fault.
	recovery = 5 * time.Second
)

// plan returns the faults of a storm. The result depends only on the arguments. parts has
// the names of the parts of each kind. All allowed kinds of faults have happened once before
// one happens twice.
func plan(seed uint64, lasts time.Duration, allowed []string, parts map[string][]string) []Planned {
	random := rand.New(rand.NewPCG(seed, 0))
	between := func(low, high time.Duration) time.Duration {
		return (low + time.Duration(random.Int64N(int64(high-low)+1))).Round(100 * time.Millisecond)
	}
	kinds := slices.DeleteFunc(slices.Clone(faults), func(k fault) bool { return !k.allowed(allowed) || len(parts[k.part]) == 0 })
	var all []Planned
	var bag []fault
	for at := warmup; len(kinds) > 0; {
		if len(bag) == 0 {
			bag = slices.Clone(kinds)
			random.Shuffle(len(bag), func(i, j int) { bag[i], bag[j] = bag[j], bag[i] })
		}
		k := bag[0]
		bag = bag[1:]
		p := Planned{Name: k.name, At: at, Lasts: between(k.low, k.high), Part: parts[k.part][random.IntN(len(parts[k.part]))]}
		if p.At+p.Lasts+tail > lasts {
			break
		}
		all = append(all, p)
		at += p.Lasts + recovery + between(shortestGap, longestGap)
	}
	return all
}

// allowed reports whether a list of names or first words of names allows the fault. An
// empty list allows all faults.
func (k fault) allowed(names []string) bool {
	return len(names) == 0 || slices.ContainsFunc(names, func(name string) bool {
		return k.name == name || strings.HasPrefix(k.name, name+"-")
	})
}

// named returns the faults that a name allows.
func named(name string) []fault {
	return slices.DeleteFunc(slices.Clone(faults), func(k fault) bool { return !k.allowed([]string{name}) })
}

// kindNamed returns the fault with exactly this name, which must exist.
func kindNamed(name string) fault {
	return faults[slices.IndexFunc(faults, func(k fault) bool { return k.name == name })]
}

func faultNames() []string {
	names := make([]string, len(faults))
	for i, k := range faults {
		names[i] = k.name
	}
	return names
}
