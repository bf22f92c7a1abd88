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

	// soon are rows that the last look has found and no claim has passed since.
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
	// full. lookAt is when to peek next.
	sweepAt, lookAt time.Time
	again           bool
	// fulls is how many claims in a row were full.
	fulls int
	// Until rangeUntil, by the database's clock, no more than rangeRows are due, but
	// for what has been written since: the rows that looks have counted and no claim
	// has taken. At recountAt they are all counted again.
	rangeUntil task.Instant
	rangeRows  int
	recountAt  time.Time

	// apart: there are tenants that claims leave out.
	apart bool

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
	takeOff
	giveUp
)

var actionNames = [...]string{"sleep", "claim", "peek", "take off", "give up"}

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
	// publishedAt is when the oldest part to take off was complete; zero: none.
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
		if p.again && !s.gone && !now.Before(p.lookAt) {
			return step{do: peek} // where are the oldest now?
		}
		at := p.claimAt(now, s)
		if !now.Before(at) {
			return p.claim(now, s)
		}
		wakes.add(at)
		if !now.Before(p.lookAt) {
			return step{do: peek}
		}
		wakes.add(p.lookAt)
	}
	if !s.publishedAt.IsZero() {
		at := s.publishedAt.Add(p.cfg.TakeOffAfter)
		if !now.Before(at) {
			return step{do: takeOff}
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
// look has found this side of the edge wait for a result or a retry, which is
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
// when a look has counted few enough rows; whatever was not counted is capped.
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

// growth is how many full claims of a row, of what looks have not counted, are
// smaller than they may be: each takes four times what the one before did.
const growth = 3

// counted reports whether looks have counted what a claim of that many rows is for.
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

// acquired: there are new shards, so nothing below any bound is known.
func (p *planner) acquired(now time.Time) {
	p.low = 0
	p.sweepAt, p.lookAt = now, now
	p.soon, p.known, p.edge = nil, 0, 0
	p.rangeUntil, p.rangeRows = 0, uncounted
	p.again = false
	p.retryAt, p.failures = time.Time{}, 0
}

// hint: something is due at the instant i, or a little later. If a look comes
// before, it will find that by itself.
func (p *planner) hint(now time.Time, i task.Instant) {
	at := now
	if p.clock != 0 {
		at = p.localTime(i)
	}
	if p.apart {
		p.low = max(min(p.low, i-1), 0) // the bound is close behind the clock
	}
	if now.Before(p.lookAt) && p.lookAt.Before(at.Add(-p.lead())) {
		return
	}
	p.hintedAt = now
	if p.hintAt.IsZero() || at.Before(p.hintAt) {
		p.hintAt = at
	}
}

// claimed: the claim st, begun at start, has committed. bytes is the size of
// its records in memory.
func (p *planner) claimed(start, now time.Time, st step, c *task.Claim, bytes int) {
	p.ok()
	if p.again = c.More; c.More {
		p.fulls++
	} else {
		p.fulls = 0
	}
	if st.form == task.RangeForm && c.Form == task.CappedForm {
		p.cappedUntil = now.Add(p.cfg.SweepEvery)
	}
	if p.clock == 0 || c.Now < p.clock || c.Now < p.dbTime(start).Add(-clockBehind) {
		p.setClock(start, now, c.Now)
	}
	p.low = p.bound(st, c)
	if p.rangeRows != uncounted {
		p.rangeRows = max(p.rangeRows-c.Rows, 0)
	}
	p.measure(start, now, c, bytes)
	p.swept(now, st.low == 0 && !c.More && st.shards == nil)
	if c.More {
		p.lookBy(now)
		return
	}
	until := c.Now.Add(st.ahead)
	if n := p.passed(st.shards, until); st.ahead > 0 && c.Rows < n {
		p.lookBy(now) // some are not claimed ahead: which?
	}
	if !p.hintAt.IsZero() && st.shards == nil && p.hintedAt.Before(start) && !p.localTime(until).Before(p.hintAt) {
		// A hint tells of one row: others may be due soon after it.
		p.hintAt = time.Time{}
		p.lookBy(now.Add(p.cfg.MinTick))
	}
	if c.Rows < fewRows && until > p.known {
		p.lookBy(now)
	}
	p.wentTo(st.shards, until)
	if c.Next != 0 && c.Next != task.Never {
		p.hint(now, c.Next)
	}
}

// measure learns from a claim.
func (p *planner) measure(start, now time.Time, c *task.Claim, bytes int) {
	if took := now.Sub(start); p.took == 0 {
		p.took = took
	} else {
		p.took = (3*p.took + took) / 4
	}
	if n := len(c.Publications); n > 0 {
		p.recordBytes = max(bytes/n, (3*p.recordBytes+bytes/n)/4)
	}
	if since := start.Sub(p.claimedAt).Seconds(); !p.claimedAt.IsZero() && since > 0 {
		part := min(since/peekValid.Seconds(), 1)
		p.perSecond += part * (float64(c.Rows)/since - p.perSecond)
	}
	p.claimedAt = start
	if c.Rows > 0 {
		p.firedAt = now
	}
}

// bound returns the next lower bound. It moves only when all that was due has
// been taken, and starts anew when the clock has gone back.
func (p *planner) bound(st step, c *task.Claim) task.Instant {
	switch {
	case c.Now < p.clock:
		p.clock = c.Now
		p.sweepAt = time.Time{}
		return 0
	case c.More || st.shards != nil:
		return min(p.low, st.low)
	}
	p.clock = c.Now
	return max(p.low, c.Now.Add(-p.grace()), 0)
}

// apartGrace is how far the bound stays behind the clock while tenants are held
// apart, of whom there may be many rows, which are to be passed over soon. What is
// written below it is found by its hint, or by a sweep.
const apartGrace = 100 * time.Millisecond

func (p *planner) grace() time.Duration {
	if p.apart {
		return min(p.cfg.Grace, apartGrace)
	}
	return p.cfg.Grace
}

// setApart: claims leave tenants out, or none. If fewer than before, rows of the
// others may be anywhere below the bound.
func (p *planner) setApart(now time.Time, some, fewer bool) {
	p.apart = some
	p.rangeUntil, p.rangeRows = 0, uncounted
	p.again = false
	p.lookAt = now
	if fewer {
		p.low, p.sweepAt = 0, now
		p.soon, p.known, p.edge = nil, 0, 0
	}
}

// setClock learns how far the database's clock is ahead: from looks, because
// they are short.
func (p *planner) setClock(start, now time.Time, db task.Instant) {
	p.ahead = db.Time().Sub(start.Add(now.Sub(start) / 2))
}

// clockBehind is how far a claim must find the database's clock behind what was
// thought to believe it and not the last look. A clock that stands still gets
// there, and would be asked in vain at every tick for what comes next.
const clockBehind = 50 * time.Millisecond

// asleep is how long a database must have neither fired nor heard a hint for its
// sweeps to become rare, by a factor of idleSweeps.
//
// A sweep finds what was written below the bound later than the grace allows, and
// a former owner learns by it that its shards are somebody else's. Neither is new
// in a database where nothing happens: whatever is written is found by hints and
// looks, a former owner does no harm until it claims, and a claim asserts. A clock
// that was put back shows in the next look.
const (
	asleep     = time.Minute
	idleSweeps = 6
	// apartSweeps is the factor while tenants are held apart.
	apartSweeps = 3
)

// swept sets when the next sweep is due after a claim, which may have been one.
func (p *planner) swept(now time.Time, sweep bool) {
	every := p.cfg.SweepEvery
	if now.Sub(p.firedAt) >= asleep && now.Sub(p.hintedAt) >= asleep {
		every *= idleSweeps
	}
	if p.apart {
		every *= apartSweeps // each goes over all rows of those that are held apart
	}
	if next := now.Add(every); sweep || next.Before(p.sweepAt) {
		p.sweepAt = next
	}
}

// lost: a claim took nothing because shards were lost; it may go on with the
// others at once.
func (p *planner) lost() { p.ok() }

// failed: a step has failed. The next one waits, and takes the form that no
// locked row can stop.
func (p *planner) failed(now time.Time) {
	p.rangeUntil = 0
	wait := max(p.cfg.MinTick, firstWait) << min(p.failures, 8)
	p.failures++
	p.retryAt = now.Add(min(wait, maxBackoff))
}

// The first wait after a failed step, and the longest between any two tries.
const (
	firstWait  = 20 * time.Millisecond
	maxBackoff = 5 * time.Second
)

func (p *planner) ok() { p.failures, p.retryAt = 0, time.Time{} }

// earliest keeps the earliest of some instants.
type earliest struct{ at time.Time }

func (e *earliest) add(t time.Time) {
	if !t.IsZero() && (e.at.IsZero() || t.Before(e.at)) {
		e.at = t
	}
}
