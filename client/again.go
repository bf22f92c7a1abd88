package client

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/perceptor/perceptor/task"
)

// Calls that are sent again.
//
// A service answers the entries of a database that hangs with RETRY, and the others in the
// same call with their result. Only the unanswered entries are sent again, with growing
// delays and jitter. Entries that are due at about the same time share calls, also with new
// entries, so retries add few calls. An unanswered entry occupies no worker, no slot of a
// kind, and none of the leases that may be requested ahead: runs of other databases need
// them.

// againEvery is the distance between two groups of entries that have waited for long.
const againEvery = 500 * time.Millisecond

// An again holds the unanswered entries of one sender. The engine's lock guards it.
type again struct {
	to      *batcher[action]
	phase   time.Duration // of the groups: other listeners have others
	waiting []waitingAction
	timer   *time.Timer // fires at first, the first instant of waiting; nil: none is set
	first   time.Time
}

// retries holds one again for each sender of actions.
type retries struct{ starts, checks, reports, handBacks *again }

// waitingAction is sent at the given instant.
type waitingAction struct {
	action
	at time.Time
}

func newAgain(to *batcher[action]) *again {
	return &again{to: to, phase: rand.N(againEvery)}
}

// due returns when to send an action again.
func (w *again) due(now time.Time, tries int) time.Time {
	at := now.Add(retryDelay(tries))
	if at.Sub(now) < againEvery {
		return at
	}
	return at.Add(w.phase).Truncate(againEvery).Add(againEvery - w.phase)
}

// pushAction queues an action. An action that was not answered is queued after a delay. The
// caller holds the lock.
func (g *engine) pushAction(w *again, a action) {
	if a.tries == 0 {
		w.to.push(a)
		return
	}
	if !a.entry.unanswered {
		a.entry.unanswered = true
		g.unansweredEntries++
		if a.verb == doStart {
			g.askedOf(a.rec).n--
		}
	}
	if a.verb == doStart {
		g.freeSlot(a.entry)
	}
	at := w.due(time.Now(), a.tries)
	if at.Before(a.notBefore) {
		at = a.notBefore
	}
	w.waiting = append(w.waiting, waitingAction{a, at})
	if w.timer == nil || at.Before(w.first) {
		g.sendAgainAt(w, at)
	}
}

// answered counts the answer to an action that may have been sent again. The caller holds the lock.
func (g *engine) answered(a action, code task.Code) {
	if !a.entry.unanswered || code == task.Retry {
		return
	}
	a.entry.unanswered = false
	g.unansweredEntries--
	if a.verb == doStart {
		g.askedOf(a.rec).n++
	}
}

// unansweredAgain queues actions whose call had no answer. They are not sent before after has
// passed.
func (g *engine) unansweredAgain(acts []action, after time.Duration) {
	notBefore := time.Now().Add(after)
	g.step(func(_ *table, out []action) []action {
		for _, a := range acts {
			a.entry.tries++
			a.tries, a.notBefore = a.entry.tries, notBefore
			out = append(out, a)
		}
		return out
	})
}

// sendAgainAt sets the timer of w. The caller holds the lock.
func (g *engine) sendAgainAt(w *again, first time.Time) {
	if w.timer != nil {
		w.timer.Stop()
	}
	w.first = first
	w.timer = time.AfterFunc(time.Until(first), func() { g.sendAgain(w) })
}

// sendAgain sends the actions that are due. A start whose kind has no slot now waits for one.
func (g *engine) sendAgain(w *again) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	rest := w.waiting[:0]
	for _, a := range w.waiting {
		switch {
		case a.at.After(now):
			rest = append(rest, a)
		case a.verb == doStart && !g.takeSlot(a.action):
		default:
			w.to.push(a.action)
		}
	}
	clear(w.waiting[len(rest):])
	w.waiting, w.timer = rest, nil
	if len(rest) > 0 {
		g.sendAgainAt(w, slices.MinFunc(rest, func(a, b waitingAction) int { return a.at.Compare(b.at) }).at)
	}
}

// takeSlot takes a slot of the kind's limit for the entry of a start, if it needs one. It returns false if
// there is none; then the limit has the start, and sends it when its turn comes. The caller holds the lock.
func (g *engine) takeSlot(start action) bool {
	e := start.entry
	k := g.l.kinds[e.rec.pub.Kind]
	if k == nil || k.limit == nil || e.slot != nil {
		return true
	}
	if k.limit.busy >= k.limit.max {
		k.limit.again = append(k.limit.again, start)
		return false
	}
	k.limit.take(e)
	return true
}

// againOf returns where a start or a check is sent, and waits if it is not answered.
func (g *engine) againOf(a *arrival) *again {
	if a.pub.Type == task.Blocking {
		return g.again.starts
	}
	return g.again.checks
}
