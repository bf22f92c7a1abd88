package task

import "strings"

// A Quota is a limit on what the calls of a tenant may use. The numbers are stored.
type Quota int16

// The quotas. The rates are per second, over all processes of the API; MaxCalls and
// MaxConnections hold in each of these processes.
const (
	QuotaAdds        Quota = 2  // tasks added, dead runs replayed, and runs triggered
	QuotaReads       Quota = 3  // tasks, events, dead runs and operations read
	QuotaUpdates     Quota = 4  // changes of tasks, kinds and operations
	QuotaPreviews    Quota = 5  // instants previewed
	QuotaRuns        Quota = 6  // starts, checks, heartbeats, hand-backs and results
	QuotaBytes       Quota = 7  // bytes of requests and answers
	QuotaBacklog     Quota = 8  // unfinished tasks
	QuotaCalls       Quota = 9  // calls in progress
	QuotaConnections Quota = 10 // connections
)

// AllQuotas are all quotas, in the order of the API.
var AllQuotas = []Quota{
	QuotaAdds, QuotaReads, QuotaUpdates, QuotaPreviews, QuotaRuns, QuotaBytes, QuotaBacklog, QuotaCalls, QuotaConnections,
}

// NoLimit is the value of a quota that limits nothing.
const NoLimit = -1

var quotaNames = map[Quota]string{
	QuotaAdds: "add_rate", QuotaReads: "read_rate", QuotaUpdates: "update_rate", QuotaPreviews: "preview_rate", QuotaRuns: "run_rate",
	QuotaBytes: "byte_rate", QuotaBacklog: "max_backlog", QuotaCalls: "max_calls", QuotaConnections: "max_connections",
}

// String returns the name of the field of the API that sets the quota.
func (q Quota) String() string { return quotaNames[q] }

// Reason returns the reason of calls that exceed the quota.
func (q Quota) Reason() ErrorReason { return ErrorReason("QUOTA_" + strings.ToUpper(q.String())) }

// IsRate reports whether the quota is per second.
func (q Quota) IsRate() bool { return q >= QuotaAdds && q <= QuotaBytes }

// Most returns the highest value that may be set.
func (q Quota) Most() int64 {
	switch q {
	case QuotaBacklog:
		return MaxBacklog
	case QuotaBytes:
		return MaxByteRate
	}
	return MaxRate
}

// Quotas are limits by quota. A missing quota, and one that is not positive, limits nothing.
type Quotas map[Quota]int64

// Quota returns the limit that applies to a tenant with these rates, given the defaults of the
// installation, or 0 if nothing limits it.
func (r *Rates) Quota(q Quota, defaults Quotas) int64 {
	own := r.Quotas[q]
	switch q {
	case QuotaAdds:
		own = int64(r.AddRate)
	case QuotaBacklog:
		own = r.MaxBacklog
	}
	if own == 0 {
		own = defaults[q]
	}
	return max(own, 0)
}

// Burst returns the most tokens of a rate that may be granted at once: those of a second, but
// at least those of the largest call.
func (q Quota) Burst(rate int64) int64 {
	if q == QuotaAdds {
		return max(rate, MaxTasksPerAdd)
	}
	return max(rate, 1)
}

// MaxByteRate is the highest [QuotaBytes].
const MaxByteRate = 1_000_000_000_000
