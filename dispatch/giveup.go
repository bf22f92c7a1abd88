package dispatch

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/perceptor/perceptor/task"
)

// An unpublishable is a record and the reason why it can never be published.
type unpublishable struct {
	*record
	err error
}

// giveUpAgain is the wait before the next attempt after giving up has failed.
const giveUpAgain = time.Second

// A giveUps makes the runs of one database dead whose records can never be published.
type giveUps struct {
	*env
	number    int
	tracker   *tracker
	ownership *ownership
	planning  *planning
	pipeline  *pipeline

	mu sync.Mutex
	// waiting are the records to give up at the instant at, which is zero if there are none.
	waiting []unpublishable
	at      time.Time
}

// add queues a record that can never be published.
func (g *giveUps) add(u unpublishable) {
	g.put([]unpublishable{u}, time.Now())
	g.planning.wake()
}

func (g *giveUps) put(group []unpublishable, at time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting = append(g.waiting, group...)
	g.at = at
}

// dueAt returns when to give records up, or the zero time if there are none.
func (g *giveUps) dueAt() time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.at
}

// takeAlike removes and returns the records that have the same error as the first one. The
// others are due immediately.
func (g *giveUps) takeAlike() (group []unpublishable) {
	g.mu.Lock()
	defer g.mu.Unlock()
	rest := g.waiting[:0]
	for _, u := range g.waiting {
		if len(group) == 0 || group[0].err.Error() == u.err.Error() {
			group = append(group, u)
		} else {
			rest = append(rest, u)
		}
	}
	clear(g.waiting[len(rest):])
	g.waiting = rest
	if len(rest) == 0 {
		g.at = time.Time{}
	}
	return group
}

// giveUp makes runs dead whose records can never be published. It acknowledges a part if no
// other record of it is pending. The caller is admitted to a transaction.
func (g *giveUps) giveUp(ctx context.Context) {
	group, gone, owned, parts := g.tracker.forGiveUp(g.takeAlike())
	g.pipeline.discard(recordsOf(gone))
	if len(group) == 0 {
		return
	}
	pubs := make([]task.Publication, len(group))
	for i, u := range group {
		pubs[i] = u.pub
	}
	cause := group[0].err
	lost, err := g.store.GiveUp(ctx, g.number, owned, pubs, task.Unpublishable, cause.Error(), outboxParts(parts))
	switch {
	case err != nil:
		g.put(group, time.Now().Add(giveUpAgain))
		g.events.StoreFailed(g.number, "give up", err)
		if errors.Is(err, task.ErrOutcomeUnknown) {
			g.ownership.drop(owned, err)
		}
	case len(lost) > 0:
		g.put(group, time.Now()) // the next step gives up those of the other shards
		g.ownership.dropLost(owned, lost)
	default:
		g.pipeline.discard(recordsOf(group))
		g.tracker.gaveUp(group, parts)
		g.events.GaveUp(g.number, pubs, cause)
	}
}

func recordsOf(group []unpublishable) []*record {
	records := make([]*record, len(group))
	for i, u := range group {
		records[i] = u.record
	}
	return records
}
