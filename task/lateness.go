package task

import "time"

// Lateness says how late dispatchers publish what is due.
type Lateness struct {
	// Foreground is the pace of the tenants without a backlog, Backlogs that of the others.
	Foreground, Backlogs Pace
	// Backlogged are the tenants with a backlog, or some of them, in ascending order.
	Backlogged []int32
}

// Pace is how late first attempts are published, in the mean, and how many records are
// published per second. The zero value says that nothing is late.
type Pace struct {
	Late      time.Duration
	PerSecond float64
}

// Join returns the pace of two dispatchers together: the greater lateness, and all records.
func (p Pace) Join(q Pace) Pace {
	return Pace{Late: max(p.Late, q.Late), PerSecond: p.PerSecond + q.PerSecond}
}

// Ramp returns the factor by which a rate yields to a wait: most up to from, least from until on, and between them what lies on
// the line from one to the other.
func Ramp(wait, from, until time.Duration, most, least float64) float64 {
	part := min(max(float64(wait-from)/float64(until-from), 0), 1)
	return most + part*(least-most)
}

// Lag says that a tenant lags: its runs wait between their publication and their handlers although listeners are idle.
// Even the one that waited least has waited for Wait. PerSecond is how many results per second its listeners have lately
// brought at most.
type Lag struct {
	Tenant    int32
	Wait      time.Duration
	PerSecond float64
}
