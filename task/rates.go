package task

import (
	"maps"
	"slices"
)

// Limits of [Rates].
const (
	MaxRate      = 1_000_000     // turns or adds a second
	MaxBurst     = 10_000_000    // turns at once
	MaxWeight    = 1000          // of a tenant's share
	MaxBacklog   = 1_000_000_000 // living tasks
	MaxKindRules = 100           // paused kinds, and again kinds with a cap
	MaxKindCap   = 100_000       // runs in flight
)

// Rates says how much of the system a tenant may use. The zero value says
// nothing: no limit, and a weight of 1.
type Rates struct {
	// DispatchRate is how many runs are claimed a second, over all dispatchers;
	// 0: no limit. Redeliveries do not count.
	DispatchRate int32 `json:"dispatch_rate,omitempty"`
	// DispatchBurst is how many runs may be claimed at once after a pause; 0: as
	// many as the rate allows in a second.
	DispatchBurst int32 `json:"dispatch_burst,omitempty"`
	// Weight is the tenant's share under overload, against that of others; 0: 1.
	Weight int32 `json:"weight,omitempty"`
	// AddRate is how many tasks may be added a second; 0: no limit.
	AddRate int32 `json:"add_rate,omitempty"`
	// MaxBacklog is how many living tasks there may be; 0: no limit.
	MaxBacklog int64 `json:"max_backlog,omitempty"`
	// Paused: no new run is claimed.
	Paused bool `json:"paused,omitempty"`
	// Deleting: the tenant is being deleted. Its tokens are refused; it is paused, too.
	Deleting bool `json:"deleting,omitempty"`
	// PausedKinds are those of which no new run is claimed, in ascending order.
	PausedKinds []string `json:"paused_kinds,omitempty"`
	// KindCaps bound the runs in flight of kinds.
	KindCaps map[string]int32 `json:"kind_caps,omitempty"`
}

// Share is the weight, with its default.
func (r *Rates) Share() int { return max(int(r.Weight), 1) }

// Burst is how many turns may be taken at once, with its default.
func (r *Rates) Burst() int32 {
	if r.DispatchBurst > 0 {
		return r.DispatchBurst
	}
	return max(r.DispatchRate, 1)
}

// NeedsFlow reports whether the tenant's first claims need looking after: they are
// limited, or some are not to be.
func (r *Rates) NeedsFlow() bool {
	return r.DispatchRate > 0 || r.Paused || len(r.PausedKinds) > 0 || len(r.KindCaps) > 0
}

// Clone returns a copy that shares nothing.
func (r *Rates) Clone() Rates {
	c := *r
	c.PausedKinds, c.KindCaps = slices.Clone(r.PausedKinds), maps.Clone(r.KindCaps)
	return c
}

// RatesChange has the new values of some of the settings; nil: as it was.
type RatesChange struct {
	DispatchRate, DispatchBurst, Weight, AddRate *int32
	MaxBacklog                                   *int64
	Paused, Deleting                             *bool
	PausedKinds                                  *[]string
	KindCaps                                     *map[string]int32
	// PauseKind and ResumeKind, if not empty, change PausedKinds by one.
	PauseKind, ResumeKind string
}

// None reports whether nothing is changed.
func (c *RatesChange) None() bool { return *c == RatesChange{} }

// Apply changes r.
func (c *RatesChange) Apply(r *Rates) {
	set(&r.DispatchRate, c.DispatchRate)
	set(&r.DispatchBurst, c.DispatchBurst)
	set(&r.Weight, c.Weight)
	set(&r.AddRate, c.AddRate)
	set(&r.MaxBacklog, c.MaxBacklog)
	set(&r.Paused, c.Paused)
	set(&r.Deleting, c.Deleting)
	if r.Deleting {
		r.Paused = true // and stays so
	}
	set(&r.PausedKinds, c.PausedKinds)
	set(&r.KindCaps, c.KindCaps)
	if c.PauseKind != "" {
		r.PausedKinds = append(slices.Clone(r.PausedKinds), c.PauseKind)
	}
	r.PausedKinds = slices.DeleteFunc(slices.Clone(r.PausedKinds), func(k string) bool { return k == c.ResumeKind })
	slices.Sort(r.PausedKinds)
	r.PausedKinds = slices.Compact(r.PausedKinds)
}

func set[T any](field, value *T) {
	if value != nil {
		*field = *value
	}
}

// Settings are what a database knows of the tenants whose claims are not plain.
type Settings struct {
	// Version is raised by every change of a tenant.
	Version int64
	// Rates are those of tenants that say something about claims.
	Rates map[int32]Rates
}

// Tokens are what a tenant may claim.
type Tokens struct {
	// Granted is how many were given.
	Granted int
	// Wait is how long it takes until there is another one.
	Wait int64 // ms
}
