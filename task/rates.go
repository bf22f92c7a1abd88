package task

import (
	"maps"
	"slices"
)

// Limits of [Rates].
const (
	MaxRate      = 1_000_000     // tokens or adds per second
	MaxBurst     = 10_000_000    // tokens at once
	MaxWeight    = 1000          // of a tenant
	MaxBacklog   = 1_000_000_000 // living tasks
	MaxKindRules = 100           // paused kinds, and again kinds with a cap
	MaxKindCap   = 100_000       // open runs
)

// Rates are the limits and the weight of a tenant. The zero value has no limit and a
// weight of 1.
type Rates struct {
	// DispatchRate is the most runs per second that are claimed, over all dispatchers;
	// 0: no limit. Redeliveries do not count.
	DispatchRate int32 `json:"dispatch_rate,omitempty"`
	// DispatchBurst is the most runs that may be claimed at once after a pause; 0:
	// those of one second.
	DispatchBurst int32 `json:"dispatch_burst,omitempty"`
	// Weight is the share of the tenant relative to other backlogged tenants; 0: 1.
	Weight int32 `json:"weight,omitempty"`
	// AddRate is the most tasks that may be added per second; 0: no limit.
	AddRate int32 `json:"add_rate,omitempty"`
	// MaxBacklog is the most living tasks; 0: no limit.
	MaxBacklog int64 `json:"max_backlog,omitempty"`
	// Paused: no new run is claimed.
	Paused bool `json:"paused,omitempty"`
	// Deleting: the tenant is being deleted. Its tokens are refused; it is paused, too.
	Deleting bool `json:"deleting,omitempty"`
	// PausedKinds are the kinds of which no new run is claimed, in ascending order.
	PausedKinds []string `json:"paused_kinds,omitempty"`
	// KindCaps are the most runs of a kind that may be open at once.
	KindCaps map[string]int32 `json:"kind_caps,omitempty"`
}

// Share returns the weight, or its default.
func (r *Rates) Share() int { return max(int(r.Weight), 1) }

// Burst returns the most tokens that may be granted at once, or the default.
func (r *Rates) Burst() int32 {
	if r.DispatchBurst > 0 {
		return r.DispatchBurst
	}
	return max(r.DispatchRate, 1)
}

// NeedsFlow reports whether the first runs of the tenant are claimed by flows: they
// are limited, or some must not be claimed.
func (r *Rates) NeedsFlow() bool {
	return r.DispatchRate > 0 || r.Paused || len(r.PausedKinds) > 0 || len(r.KindCaps) > 0
}

// Clone returns a copy that shares nothing.
func (r *Rates) Clone() Rates {
	c := *r
	c.PausedKinds, c.KindCaps = slices.Clone(r.PausedKinds), maps.Clone(r.KindCaps)
	return c
}

// RatesChange has new values for some settings; nil leaves a setting as it is.
type RatesChange struct {
	DispatchRate, DispatchBurst, Weight, AddRate *int32
	MaxBacklog                                   *int64
	Paused, Deleting                             *bool
	PausedKinds                                  *[]string
	KindCaps                                     *map[string]int32
	// PauseKind and ResumeKind, if not empty, add a kind to PausedKinds and remove
	// one.
	PauseKind, ResumeKind string
}

// None reports whether the change is empty.
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

// Settings are the settings of the tenants that limit their claims, as one database
// has them.
type Settings struct {
	// Version grows with every change of a tenant.
	Version int64
	// Rates has the tenants whose rates affect claims.
	Rates map[int32]Rates
}

// Tokens are the tokens that a tenant was granted.
type Tokens struct {
	// Granted is the number of tokens.
	Granted int
	// Wait is the time until the next token.
	Wait int64 // ms
}
