package sizing

import (
	"fmt"
	"math"
	"time"
)

// A Demand is a load. The zero value of an optional field stands for its default.
type Demand struct {
	// Rate is the number of runs per second, on average over the busiest minutes.
	Rate float64 `json:"rate"`
	// Backlog is the number of tasks that wait at a time, whenever they are due.
	Backlog int64 `json:"backlog"`
	// Retention is how long finished tasks are kept.
	Retention time.Duration `json:"-"`
	// Recurring is the share of runs that belong to recurring tasks, 0 to 1: these runs have no
	// add, and their tasks do not finish.
	Recurring float64 `json:"recurring"`
	// Keyed is the share of added tasks that have an idempotency key, 0 to 1.
	Keyed float64 `json:"keyed"`
	// PayloadBytes is the size of the params and the payload of a task.
	PayloadBytes int `json:"payloadBytes"`
	// PackedShare is what compression leaves of the payload, above 0 to 1. Optional.
	PackedShare float64 `json:"packedShare"`
	// Tenants is the number of tenants that have runs.
	Tenants int `json:"tenants"`
	// Horizon is far.horizon. Optional: ten minutes.
	Horizon time.Duration `json:"-"`
	// KafkaRetention is kafka.retention. Optional: three days.
	KafkaRetention time.Duration `json:"-"`
	// KafkaReplicas is the number of copies of a partition. Optional: 3.
	KafkaReplicas int `json:"kafkaReplicas"`
	// Servers is the number of PostgreSQL servers. Optional: as many as the load needs.
	Servers int `json:"servers"`
	// Listeners is the number of listener processes of all services. Optional: one for each
	// tenant. Their handlers are not counted.
	Listeners int `json:"listeners"`
}

// The defaults of optional fields.
const (
	DefaultHorizon        = 10 * time.Minute
	DefaultKafkaRetention = 72 * time.Hour
	DefaultKafkaReplicas  = 3
	DefaultPackedShare    = packedPayloadShare
)

// A Fault is a field with a value that makes no sense.
type Fault struct {
	// Field is the name of the field as flags have it, such as kafka-replicas.
	Field   string
	Message string
}

// Faults returns all faults of a demand.
func (d Demand) Faults() []Fault {
	var faults []Fault
	number := func(field string, value, low, high float64) {
		if !(value >= low && value <= high) { // NaN, too
			faults = append(faults, Fault{field, fmt.Sprintf("%s is not %s to %s", plain(value), plain(low), plain(high))})
		}
	}
	span := func(field string, value, low, high time.Duration) {
		if value < low || value > high {
			faults = append(faults, Fault{field, fmt.Sprintf("%v is not %v to %v", value, low, high)})
		}
	}
	number("rate", d.Rate, 0, 10e6)
	number("backlog", float64(d.Backlog), 0, 1e12)
	span("retention", d.Retention, 0, 10*365*24*time.Hour)
	number("recurring", d.Recurring, 0, 1)
	number("keyed", d.Keyed, 0, 1)
	number("payload", float64(d.PayloadBytes), 0, 1<<20)
	number("packed-share", d.PackedShare, 0, 1)
	number("tenants", float64(d.Tenants), 1, 1e6)
	span("horizon", d.Horizon, 0, 24*time.Hour)
	span("kafka-retention", d.KafkaRetention, 0, 365*24*time.Hour)
	number("kafka-replicas", float64(d.KafkaReplicas), 0, 10)
	number("servers", float64(d.Servers), 0, databases)
	number("listeners", float64(d.Listeners), 0, 1e6)
	if len(faults) == 0 && d.Rate == 0 && d.Backlog == 0 {
		faults = append(faults, Fault{"rate", "0, and --backlog is 0, too: there is nothing to plan for"})
	}
	return faults
}

// plain writes a number without an exponent.
func plain(x float64) string {
	if x == math.Trunc(x) && math.Abs(x) < 1e15 {
		return fmt.Sprintf("%.0f", x)
	}
	return fmt.Sprint(x)
}

// complete returns the demand with its defaults.
func (d Demand) complete() Demand {
	if d.PackedShare == 0 {
		d.PackedShare = DefaultPackedShare
	}
	if d.Horizon == 0 {
		d.Horizon = DefaultHorizon
	}
	if d.KafkaRetention == 0 {
		d.KafkaRetention = DefaultKafkaRetention
	}
	if d.KafkaReplicas == 0 {
		d.KafkaReplicas = DefaultKafkaReplicas
	}
	if d.Listeners == 0 {
		d.Listeners = d.Tenants
	}
	return d
}

// adds returns how many tasks are added, and so finish, in a second.
func (d Demand) adds() float64 { return d.Rate * (1 - d.Recurring) }

// far reports whether tasks wait longer than the horizon on average, and so in packs. By Little's
// law they wait Backlog / Rate.
func (d Demand) far() bool { return float64(d.Backlog) > d.Rate*d.Horizon.Seconds() }

// near returns the number of rows: the tasks that are due within the horizon.
func (d Demand) near() float64 { return min(float64(d.Backlog), d.Rate*d.Horizon.Seconds()) }
