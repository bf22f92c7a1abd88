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
	MaxKindRules = 100           // paused kinds; the same limit applies to kinds with a cap
	MaxKindCap   = 100_000       // open runs
)

// Rates are the limits and the weight of a tenant. The zero value has no limit on runs, the
// default quotas, and a weight of 1.
type Rates struct {
	// DispatchRate is the most runs per second that all dispatchers together claim. 0
	// means no limit. Redeliveries do not count.
	DispatchRate int32 `json:"dispatch_rate,omitempty"`
	// DispatchBurst is the most runs that may be claimed at once after a pause. 0 means
	// the runs of one second.
	DispatchBurst int32 `json:"dispatch_burst,omitempty"`
	// Weight is the share of the tenant relative to other backlogged tenants. 0 means 1.
	Weight int32 `json:"weight,omitempty"`
	// AddRate is [QuotaAdds] and MaxBacklog is [QuotaBacklog]. As in Quotas, 0 means the
	// default of the installation and [NoLimit] no limit.
	AddRate    int32 `json:"add_rate,omitempty"`
	MaxBacklog int64 `json:"max_backlog,omitempty"`
	// Quotas are the other quotas that the tenant has of its own.
	Quotas Quotas `json:"quotas,omitempty"`
	// Paused is true if no new run may be claimed.
	Paused bool `json:"paused,omitempty"`
	// Deleting is true while the tenant is being deleted. Its tokens are refused, and
	// Paused is true too.
	Deleting bool `json:"deleting,omitempty"`
	// HistorySlowMs is HistoryPolicy.SlowAfter in milliseconds, and HistorySample its Sample.
	HistorySlowMs int64 `json:"history_slow_ms,omitempty"`
	HistorySample int32 `json:"history_sample,omitempty"`
	// PayloadRecords is true if the records of tasks with a payload have the payload as their
	// value.
	PayloadRecords bool `json:"payload_records,omitempty"`
	// Ahead says when runs may be published before they are due.
	Ahead Ahead `json:"ahead,omitzero"`
	// PausedKinds are the kinds whose new runs are not claimed, in ascending order.
	PausedKinds []string `json:"paused_kinds,omitempty"`
	// KindCaps are the most runs of a kind that may be open at once.
	KindCaps map[string]int32 `json:"kind_caps,omitempty"`
}

// Share returns the weight, or 1 if it is 0.
func (r *Rates) Share() int { return max(int(r.Weight), 1) }

// Burst returns the most tokens that may be granted at once: DispatchBurst or its
// default.
func (r *Rates) Burst() int32 {
	if r.DispatchBurst > 0 {
		return r.DispatchBurst
	}
	return max(r.DispatchRate, 1)
}

// NeedsFlow reports whether flows claim the first runs of the tenant. They do if its
// runs are limited, or if some must not be claimed.
func (r *Rates) NeedsFlow() bool {
	return r.DispatchRate > 0 || r.Paused || len(r.PausedKinds) > 0 || len(r.KindCaps) > 0
}

// Clone returns a deep copy.
func (r *Rates) Clone() Rates {
	c := *r
	c.PausedKinds, c.KindCaps, c.Quotas = slices.Clone(r.PausedKinds), maps.Clone(r.KindCaps), maps.Clone(r.Quotas)
	return c
}

// RatesChange has new values for some settings. nil leaves a setting unchanged.
type RatesChange struct {
	DispatchRate, DispatchBurst, Weight, AddRate *int32
	MaxBacklog                                   *int64
	// Quotas are new values of the quotas that Rates.Quotas has.
	Quotas           *Quotas
	HistorySlowMs    *int64
	HistorySample    *int32
	Paused, Deleting *bool
	PayloadRecords   *bool
	Ahead            *Ahead
	PausedKinds      *[]string
	KindCaps         *map[string]int32
	// PauseKind, if not empty, is added to PausedKinds. ResumeKind, if not empty, is
	// removed from it.
	PauseKind, ResumeKind string
}

// None reports whether the change is empty.
func (c *RatesChange) None() bool { return *c == RatesChange{} }

// Apply changes r by the values of c.
func (c *RatesChange) Apply(r *Rates) {
	set(&r.DispatchRate, c.DispatchRate)
	set(&r.DispatchBurst, c.DispatchBurst)
	set(&r.Weight, c.Weight)
	set(&r.AddRate, c.AddRate)
	set(&r.MaxBacklog, c.MaxBacklog)
	r.setQuotas(c.Quotas)
	set(&r.HistorySlowMs, c.HistorySlowMs)
	set(&r.HistorySample, c.HistorySample)
	set(&r.PayloadRecords, c.PayloadRecords)
	if c.Ahead != nil {
		r.Ahead = r.Ahead.changed(*c.Ahead)
	}
	set(&r.Paused, c.Paused)
	set(&r.Deleting, c.Deleting)
	if r.Deleting {
		r.Paused = true // and stays true
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

// setQuotas sets the quotas that have a new value. 0 brings the default back.
func (r *Rates) setQuotas(to *Quotas) {
	if to == nil {
		return
	}
	r.Quotas = maps.Clone(r.Quotas)
	if r.Quotas == nil {
		r.Quotas = Quotas{}
	}
	maps.Copy(r.Quotas, *to)
	maps.DeleteFunc(r.Quotas, func(_ Quota, limit int64) bool { return limit == 0 })
}

func set[T any](field, value *T) {
	if value != nil {
		*field = *value
	}
}

// Settings are the settings of tenants that limit claims, as one database stores them.
type Settings struct {
	// Version grows with every change of a tenant.
	Version int64
	// Rates holds the tenants whose rates affect claims, by id.
	Rates map[int32]Rates
}

// HomeOf returns the home database of a tenant, which grants its tokens.
func HomeOf(tenant int32) int { return int(tenant) % Databases }

// A TokenRequest asks for tokens of a tenant.
type TokenRequest struct {
	Tenant int32
	// Want is the most tokens to take. Unused tokens of an earlier grant are returned before.
	Want, Unused int
}

// Tokens is a grant of tokens to a tenant.
type Tokens struct {
	// Granted is the number of tokens.
	Granted int
	// Wait is the time until the next token.
	Wait int64 // ms
}
