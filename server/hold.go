package server

import (
	"maps"
	"sync"
	"time"

	"github.com/perceptor/perceptor/task"
)

// Runs may be published before they are due only to listeners that hold them. See [task.Ahead] and docs/adr/0056-published-ahead.md.

// mayNotHold returns an error if listeners of the tenant must hold runs.
func mayNotHold(t *Tenant, now task.Instant) error {
	if t.Rates.Ahead.On() {
		return task.Errorf(task.ReasonHoldNeeded,
			"runs of tenant %s are published before they are due, and this listener does not hold them until then: it needs a newer SDK, or without one to ask with holdsRuns=true and hold them (docs/record-format.md), or the tenant needs publish_when_due (perceptorctl tenant update %s --publish-when-due)",
			t.Name, t.Name)
	}
	if left := t.Rates.Ahead.Ending(now); left > 0 {
		return task.Errorf(task.ReasonHoldEnding,
			"runs of tenant %s may still come before they are due for %s, and this listener does not hold them until then; try again", t.Name, left.Round(time.Second))
	}
	return nil
}

// An unheld knows which tenants have listeners that do not hold runs. The methods may be called concurrently.
type unheld struct {
	mu sync.Mutex
	at map[string]time.Time // by the tenant's name
}

// unheldFor is how long a listener that has asked may still read.
const unheldFor = time.Minute

// note records that such a listener has asked.
func (u *unheld) note(tenant string, now time.Time) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.at == nil {
		u.at = map[string]time.Time{}
	}
	if len(u.at) >= maxUnheld {
		maps.DeleteFunc(u.at, func(_ string, at time.Time) bool { return now.Sub(at) >= unheldFor })
	}
	if len(u.at) < maxUnheld {
		u.at[tenant] = now
	}
}

// maxUnheld bounds the tenants that are remembered.
const maxUnheld = 10_000

// has reports whether a tenant has such a listener.
func (u *unheld) has(tenant string, now time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	at, ok := u.at[tenant]
	return ok && now.Sub(at) < unheldFor
}
