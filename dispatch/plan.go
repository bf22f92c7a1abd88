package dispatch

import (
	"slices"
	"time"

	"github.com/perceptor/perceptor/task"
)

// A planner decides the next step of one database. It is pure: the instant and
// all that happened are arguments, and it waits for nothing.
type planner struct {
	cfg Config

	// low is the lower bound of the next claim; clock is the database's clock at
	// the last one, and ahead how far it is ahead of ours.
	low, clock task.Instant
	ahead      time.Duration

	// soon are rows that the last peek has found and no claim has passed since.
	// All that is due until known, by the database's clock, was among them, but
	// for what has been written since: of that hints tell.
	soon  []task.Upcoming
	known task.Instant
	// edge is how far claims have gone, by the database's clock: all that is due
	// until then was taken or is in soon, but for what has been written since.
	edge task.Instant
	// hintAt is what the earliest hint tells of that is not served; zero: none.
	// The last one came at hintedAt.
	hintAt, hintedAt time.Time
	// sweepAt is when to claim without a bound. If again is set the last claim was
	// full. peekAt is when to peek next.
	sweepAt, peekAt time.Time
	again           bool
	// fulls is how many claims in a row were full.
	fulls int
	// Until rangeUntil, by the database's clock, no more than rangeRows are due, but
	// for what has been written since: the rows that peeks have counted and no claim
	// has taken. At recountAt they are all counted again.
	rangeUntil task.Instant
	rangeRows  int
	recountAt  time.Time

	// excluding: there are tenants that claims exclude.
	excluding bool

	// A range claim met a lock; until cappedUntil claims take the other form.
	cappedUntil time.Time

	// The last claim began at claimedAt; they take about took, bring records of
	// about recordBytes, and about perSecond of them. The last one that moved rows
	// was at firedAt.
	claimedAt, firedAt time.Time
	took               time.Duration
	recordBytes        int
	perSecond          float64

	// After errors the next step waits until retryAt.
	failures int
	retryAt  time.Time
}

// action is what a step does.
type action uint8

const (
	sleep action = iota
	claim
	peek
	acknowledge
	giveUp
)

var actionNames = [...]string{"sleep", "claim", "peek", "acknowledge outbox", "give up"}

func (a action) String() string { return actionNames[a] }

// A step is what a database does next.
type step struct {
	do action
	// until is the end of a sleep; zero: until something happens.
	until time.Time
	// Of a claim. shards are those in which something is due; nil: all.
	form   task.ClaimForm
	low    task.Instant
	ahead  time.Duration
	rows   int
	shards []task.Shard
}

// A situation is what the planner needs to know of the others.
type situation struct {
	// shards: there are shards to claim from.
	shards bool
	// records and bytes are what memory has room for; no claim if one is 0.
	records, bytes int
	// gone: Kafka seems to be away; only probes are claimed.
	gone bool
	// publishedAt is when the oldest part to acknowledge was complete; zero: none.
	publishedAt time.Time
	// giveUpAt is when to give up records that can never be published; zero:
	// there are none.
	giveUpAt time.Time
	// busy is how many databases claim at the moment, with this one.
	busy int
}

// next returns the step to take at now.
func (p *planner) next(now time.Time, s situation) step {
	if now.Before(p.retryAt) {
		return step{until: p.retryAt}
	}
	var wakes earliest
	if !s.giveUpAt.IsZero() {
		if !now.Before(s.giveUpAt) {
			return step{do: giveUp}
		}
		wakes.add(s.giveUpAt)
	}
	if !s.shards {
		return step{until: wakes.at}
	}
	if s.records > 0 && s.bytes > 0 {
		if p.again && !s.gone && !now.Before(p.peekAt) {
			return step{do: peek} // where are the oldest now?
		}
		at := p.claimAt(now, s)
		if !now.Before(at) {
			return p.claim(now, s)
		}
		wakes.add(at)
		if !now.Before(p.peekAt) {
			return step{do: peek}
		}
		wakes.add(p.peekAt)
	}
	if !s.publishedAt.IsZero() {
		at := s.publishedAt.Add(p.cfg.AcknowledgeAfter)
		if !now.Before(at) {
			return step{do: acknowledge}
		}
		wakes.add(at)
	}
	return step{until: wakes.at}
}

// claimAt returns when the next claim is to begin; it may have passed.
func (p *planner) claimAt(now time.Time, s situation) time.Time {
	if s.gone {
		return p.claimedAt.Add(probeEvery)
	}
	if p.again {
		return now
	}
	soonest := p.claimedAt.Add(p.tick(s.busy))
	var due earliest
	due.add(p.sweepAt)
	if !p.hintAt.IsZero() {
		due.add(p.hintAt.Add(-p.lead()))
	}
	switch {
	case p.cfg.ClaimAhead > 0:
		p.aheadOf(&due)
	case len(p.soon) > 0:
		// What is due a little later comes along.
		due.add(p.localTime(p.soon[0].Due).Add(p.gather(s.busy)))
	case p.dbTime(now) > p.known:
		due.add(soonest) // more may be due by now, and nobody has looked
	}
	if due.at.Before(soonest) {
		return soonest
	}
	return due.at
}

// aheadOf adds when a claim ahead is to begin, for what is known. Rows that a
// peek has found this side of the edge wait for a result or a retry, which is
// not claimed ahead; or they are new, and their hint was lost.
func (p *planner) aheadOf(due *earliest) {
	half := p.cfg.ClaimAhead / 2
	for _, u := range p.soon {
		if u.Due > p.edge {
			due.add(p.localTime(u.Due).Add(-half))
			return
		}
		due.add(p.localTime(u.Due))
	}
	if p.known != task.Never { // nobody has looked what is due beyond the edge
		due.add(p.localTime(p.edge).Add(-half))
	}
}

// lead returns how long before it is due a row is claimed of which a hint tells.
// It is less than half of ClaimAhead, so that the next claim in turn may come by
// first and take it along.
func (p *planner) lead() time.Duration {
	w := p.cfg.ClaimAhead
	return min(max(w/4, 2*p.took), w/2)
}

// gather returns how long a claim waits for more, after the first row is due.
func (p *planner) gather(busy int) time.Duration { return p.tick(busy) / 2 }

// tick returns the distance of two claims: such that the claims of all busy
// databases together take no more than ClaimShare of the time. When claims go
// ahead the half of that is enough whatever they take, while they can keep up.
func (p *planner) tick(busy int) time.Duration {
	all := p.took * time.Duration(max(busy, 1))
	d := time.Duration(float64(all) / p.cfg.ClaimShare)
	if half := p.cfg.ClaimAhead / 2; half > 0 && all <= half*time.Duration(p.cfg.ClaimConcurrency) {
		d = min(d, half)
	}
	return min(max(d, p.cfg.MinTick), p.cfg.MaxTick)
}

// claim returns a claim: its form, and from which bound. The range form is for
// when a peek has counted few enough rows; whatever was not counted is capped.
func (p *planner) claim(now time.Time, s situation) step {
	rows := min(p.cfg.MaxRows, s.records)
	if p.recordBytes > 0 {
		rows = min(rows, s.bytes/p.recordBytes)
	} else {
		rows = min(rows, firstRows)
	}
	if s.gone {
		rows = min(rows, probeRows)
	}
	if !s.gone && p.fulls < growth && !p.counted(now, rows) {
		// Nobody knows how much is due, and whose: the first of several claims tell.
		rows = min(rows, max(p.cfg.MaxRows>>(2*(growth-p.fulls)), 1))
	}
	st := step{do: claim, form: task.CappedForm, low: p.low, ahead: p.cfg.ClaimAhead, rows: max(rows, 1)}
	if s.gone || p.again && len(p.soon) > 0 && p.soon[0].Due <= p.dbTime(now) {
		st.ahead = 0 // what is overdue comes first
	}
	until := p.dbTime(now).Add(st.ahead)
	if !s.gone && until <= p.rangeUntil && p.rangeRows <= st.rows && !now.Before(p.cappedUntil) {
		st.form = task.RangeForm
	}
	if !now.Before(p.sweepAt) {
		st.low = 0
	}
	switch {
	case s.gone:
	case st.form == task.CappedForm:
		// The cap is shared by the shards, so the oldest rows' get all of it.
		st.shards = p.dueShards(until)
	case st.low > 0 && until.Add(dueAhead) <= p.known && (p.hintAt.IsZero() || now.Add(st.ahead).Before(p.hintAt)):
		st.shards = p.dueShards(until)
	}
	return st
}

// growth is how many full claims of a row, of what peeks have not counted, are
// smaller than they may be: each takes four times what the one before did.
const growth = 3

// counted reports whether peeks have counted what a claim of that many rows is for.
func (p *planner) counted(now time.Time, rows int) bool {
	return p.dbTime(now).Add(p.cfg.ClaimAhead) <= p.rangeUntil && p.rangeRows <= rows
}

// dueShards returns the shards of the known rows that are due until then, nil if
// there are none.
func (p *planner) dueShards(until task.Instant) []task.Shard {
	until = until.Add(dueAhead)
	var shards []task.Shard
	for _, u := range p.soon {
		if u.Due > until {
			break
		}
		if !slices.Contains(shards, u.Shard) {
			shards = append(shards, u.Shard)
		}
	}
	return shards
}

// dueAhead is for what becomes due on the way to the database.
const dueAhead = 5 * time.Millisecond

// firstRows bounds a claim before the size of records is known.
const firstRows = 200

// While Kafka seems to be away, a claim each second puts off some rows of the
// tenants that fail and finds others, whose topics may be well.
const (
	probeEvery = time.Second
	probeRows  = 500
)

func (p *planner) dbTime(now time.Time) task.Instant { return task.At(now.Add(p.ahead)) }

func (p *planner) localTime(i task.Instant) time.Time { return i.Time().Add(-p.ahead) }

// earliest keeps the earliest of some instants.
type earliest struct{ at time.Time }

func (e *earliest) add(t time.Time) {
	if !t.IsZero() && (e.at.IsZero() || t.Before(e.at)) {
		e.at = t
	}
}
