package dispatch

import (
	"slices"
	"sync"
	"time"

	"github.com/perceptor/perceptor/internal/ctxtime"
	"github.com/perceptor/perceptor/task"
)

// A hearing knows whether hints arrive at this process. While they do, a database without due
// rows sleeps for up to [longestSleep] between two peeks instead of [Config.MaxSleep]. One that has fired
// recently sleeps for [Config.MaxSleep] instead of [Config.PeekEvery] while hints of its own rows arrive:
// where a claim comes between any two peeks, they cannot notice that a hint did not.
//
// Hints arrive if one, or a greeting, came within the last hearFor. They do not if a peek has
// shown a row of which a hint should have told: some process cannot send hints here, perhaps
// because of a firewall. Then sleeps stay short for deafFor. So a row whose hint is lost can be
// late by longestSleep, but a network that loses hints costs that once in deafFor.
type hearing struct {
	mu        sync.Mutex
	heardAt   time.Time
	deafUntil time.Time
}

const (
	// longestSleep is how often an idle database is peeked at while hints arrive. It is less
	// than hintAhead by more than gatherHints and what a datagram takes.
	longestSleep = 5 * time.Second
	hearFor      = 35 * time.Second
	deafFor      = time.Hour
	// settled is how long all shards of a database must have been owned before its sleeps
	// become long: senders learn of a new owner after knownFor.
	settled = knownFor + 5*time.Second
)

// heard records a hint or a greeting.
func (h *hearing) heard(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.heardAt = now
}

// missed records that a hint did not arrive.
func (h *hearing) missed(now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.deafUntil = now.Add(deafFor)
}

// hears reports whether hints arrive.
func (h *hearing) hears(now time.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.heardAt.IsZero() && now.Sub(h.heardAt) < hearFor && !now.Before(h.deafUntil)
}

// listen is called with each peek, before [planner.peeked]. It reports whether a hint did not
// arrive: the peek before has shown a row that was written since the one before that, and is due
// so soon that a hint should have told of it. The hint had the time from one peek to the next.
func (p *planner) listen(start time.Time, k task.Peek) (missed bool) {
	missed = !p.untoldSince.IsZero() && !p.toldAt.After(p.untoldSince)
	if p.untoldSince = (time.Time{}); !missed && p.shownUntold(k) {
		p.untoldSince = p.peekedAt
	}
	p.peekedAt, p.peekedClock = start, k.Now
	return missed
}

// shownUntold reports whether a peek shows a row that was written since the last peek and is
// due so soon that a hint should tell of it, but no hint has come yet.
func (p *planner) shownUntold(k task.Peek) bool {
	if p.peekedAt.IsZero() || p.toldAt.After(p.peekedAt) || p.claimedAt.After(p.peekedAt) {
		return false
	}
	// Of rows that are due later, a hint need not have been sent.
	until := min(p.known, p.peekedClock.Add(hintAhead-time.Second))
	for _, u := range k.Soon {
		if u.Due >= until {
			return false
		}
		if !slices.Contains(p.soon, u) {
			return true
		}
	}
	return false
}

// isTold reports whether hints tell of all new rows that are due soon.
func (p *planner) isTold(now time.Time) bool { return p.hears && now.Sub(p.acquiredAt) >= settled }

// isToldOf reports whether hints of rows of this database have come lately, too.
func (p *planner) isToldOf(now time.Time) bool { return p.isTold(now) && now.Sub(p.toldAt) < quiet }

// longestSleep returns how long the database may sleep between two peeks while it is idle.
func (p *planner) longestSleep(now time.Time) time.Duration {
	if p.isTold(now) && now.Sub(p.firedAt) >= asleep {
		return ctxtime.Beat(now, max(longestSleep, p.cfg.MaxSleep))
	}
	return p.cfg.MaxSleep
}
