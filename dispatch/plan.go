package dispatch

import (
	"slices"
	"time"

	"github.com/perceptor/perceptor/task"
)

// A planner decides the next step of one database. It is pure: instants and events are
// arguments, and it never waits.
type planner struct {
	cfg Config

	// low is the lower bound of the next claim. clock is the database's clock at the last
	// claim. It showed read at readAt, as far as that is known.
	low, clock, read task.Instant
	readAt           time.Time

	// soon are the rows that the last peek found and no claim has passed since. Except for
	// rows written since, which hints report, they include all rows that are due until
	// known, by the database's clock.
	soon  []task.Upcoming
	known task.Instant
	// edge is how far claims have gone, by the database's clock. Except for rows written
	// since, all rows due until then were claimed or are in soon.
	edge task.Instant
	// hintAt is the due time of the earliest hint that is not served, or zero. The last hint
	// came at hintedAt.
	hintAt, hintedAt time.Time
	// sweepAt is when to claim without a bound. again is set if the last claim was full.
	// peekAt is when to peek next.
	sweepAt, peekAt time.Time
	again           bool
	// fulls is the number of full claims in a row.
	fulls int
	// Until rangeUntil, by the database's clock, at most rangeRows rows are due: the rows
	// that peeks have counted and no claim has taken. Rows written since are not included.
	// At recountAt all rows are counted again.
	rangeUntil task.Instant
	rangeRows  int
	recountAt  time.Time

	// hears is set while hints arrive. The last one of this database came at toldAt.
	// The last peek began at peekedAt, when the database's clock was peekedClock. untoldSince is
	// the start of the peek before one that has shown a row without a hint, or zero. acquiredAt
	// is when shards were acquired last.
	hears                         bool
	toldAt, peekedAt, untoldSince time.Time
	peekedClock                   task.Instant
	acquiredAt                    time.Time
	// acquisitions counts how often shards were acquired.
	acquisitions int

	// excluding is set if claims exclude tenants.
	excluding bool

	// cappedUntil is set when a range claim has met a locked row. Until then claims take the
	// capped form.
	cappedUntil time.Time

	// claimedAt is when the last claim began, and firedAt when the last claim that moved
	// rows ended. took, recordBytes, sized and perSecond are moving averages of a claim's duration,
	// of the size of a record, of the records of a claim, and of the rows claimed per second.
	// emptiedAt is when the last claim of all shards began that has left no due row, or zero. left says that due rows may have
	// waited for longer than usual since: a claim has left some, or there was none when there should have been one.
	// decidedAt is when the last step was decided, and wakeBy when the next one should be at the latest.
	claimedAt, firedAt time.Time
	emptiedAt          time.Time
	left               bool
	decidedAt, wakeBy  time.Time
	took               time.Duration
	recordBytes, sized int
	perSecond          float64

	// After failures errors in a row the next step waits until retryAt.
	failures int
	retryAt  time.Time
}

// An action is the kind of a step.
type action uint8

const (
	sleep action = iota
	claim
	peek
	acknowledge
	giveUp
	readOutbox
)

var actionNames = [...]string{"sleep", "claim", "peek", "acknowledge outbox", "give up", "read outbox"}

func (a action) String() string { return actionNames[a] }

// A step is the next thing to do for a database.
type step struct {
	do action
	// until is the end of a sleep, or zero if only a wake ends it.
	until time.Time
	// The other fields are for claims. shards are the shards with due rows, or nil for all.
	form   task.ClaimForm
	low    task.Instant
	ahead  time.Duration
	rows   int
	shards []task.Shard
}

// A situation is what the planner needs to know of the other parts.
type situation struct {
	// shards is set if there are shards to claim from.
	shards bool
	// records and bytes are the capacity. There is no claim if one of them is 0.
	records, bytes int
	// gone is set if Kafka seems to be down. Then claims only probe.
	gone bool
	// publishedAt is when the oldest part to acknowledge became complete, or zero.
	publishedAt time.Time
	// giveUpAt is when to give up records that can never be published, or zero.
	giveUpAt time.Time
	// unread is set if the outbox of acquired shards is not read to its end.
	unread bool
	// busy is the number of databases that claim at the moment, including this one.
	busy int
}

// overslept is how much later than it should the next step is decided by a process that was frozen, or has no
// processor time.
const overslept = 250 * time.Millisecond

// next returns the step to take at now.
func (p *planner) next(now time.Time, s situation) step {
	if !p.wakeBy.IsZero() && now.Sub(p.wakeBy) >= overslept || s.records <= 0 || s.bytes <= 0 || s.gone {
		p.left = true
	}
	st := p.decide(now, s)
	p.decidedAt, p.wakeBy = now, st.until
	return st
}

func (p *planner) decide(now time.Time, s situation) step {
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
	if s.unread && s.records > 0 && s.bytes > 0 {
		return step{do: readOutbox}
	}
	if !s.shards {
		return step{until: wakes.at}
	}
	if s.records > 0 && s.bytes > 0 {
		if p.again && !s.gone && !now.Before(p.peekAt) {
			return step{do: peek} // to learn which shards have the oldest rows now
		}
		at := p.claimAt(now, s)
		if !now.Before(at) && p.sweepsUncounted(now) {
			return step{do: peek}
		}
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

// sweepsUncounted reports whether a claim now would be the sweep of an idle database whose last
// peek is too old to have counted its rows. A peek first costs less: the sweep of counted rows
// is one statement, that of others is one for each shard. A peek that takes longer than its count is valid is not
// repeated.
func (p *planner) sweepsUncounted(now time.Time) bool {
	return p.hears && !now.Before(p.sweepAt) && p.peekedAt.Before(p.sweepAt) && p.hintAt.IsZero() && len(p.soon) == 0 && now.Sub(p.peekedAt) > peekValid
}

// claimAt returns when the next claim is to begin. It may be in the past.
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
		// The claim also takes rows that are due a little later.
		due.add(p.localTime(p.soon[0].Due).Add(p.gather(s.busy)))
	case p.dbTime(now) > p.known:
		due.add(soonest) // more rows may be due by now than the last peek listed
	}
	if due.at.Before(soonest) {
		return soonest
	}
	return due.at
}

// aheadOf adds the times at which claims ahead are to begin for the known rows. Rows at or
// before the edge wait for a result or a retry, which is not claimed ahead, or they are new
// and had no hint that mattered.
func (p *planner) aheadOf(due *earliest) {
	slack := p.slack()
	for _, u := range p.soon {
		if u.Due > p.edge {
			due.add(p.localTime(u.Due).Add(-slack))
			return
		}
		due.add(p.localTime(u.Due))
	}
	if p.known != task.Never { // no peek has listed the rows beyond
		due.add(p.localTime(max(p.edge, p.known)).Add(-slack))
	}
}

// slackClaims is how much longer than usual a claim ahead may take, without a late run.
const slackClaims = 24

// slack returns how long before the first row is due a claim ahead begins. The shorter it is,
// the more rows a claim takes; but the longer claims take, the more their times differ.
func (p *planner) slack() time.Duration {
	w := p.cfg.ClaimAhead
	return min(max(w/4, slackClaims*p.took), w/2)
}

// lead returns how long before its due time a row is claimed because of a hint. It is less
// than slack where claims are fast, so that the next regular claim may come first and take the row.
func (p *planner) lead() time.Duration {
	w := p.cfg.ClaimAhead
	return min(max(w/8, 2*p.took), w/2)
}

// claimTime returns the local time at which a claim of rows that are due at the instant is
// to begin.
func (p *planner) claimTime(due task.Instant) time.Time { return p.localTime(due).Add(-p.lead()) }

// gather returns how long a claim waits for more rows after the first one is due.
func (p *planner) gather(busy int) time.Duration { return p.tick(busy) / 2 }

// tick returns the interval between two claims: the claims of all busy databases together
// take no more than ClaimShare of the time. With claims ahead, an interval of half of
// ClaimAhead is enough, whatever claims take, while they can keep up.
func (p *planner) tick(busy int) time.Duration {
	all := p.took * time.Duration(max(busy, 1))
	d := time.Duration(float64(all) / p.cfg.ClaimShare)
	if half := p.cfg.ClaimAhead / 2; half > 0 && all <= half*time.Duration(p.cfg.ClaimConcurrency) {
		d = min(d, half)
	}
	return min(max(d, p.cfg.MinTick), p.cfg.MaxTick)
}

// claim returns a claim: its form, its bound and its shards. It takes the range form if
// peeks have counted few enough rows, and the capped form for uncounted rows.
func (p *planner) claim(now time.Time, s situation) step {
	rows := min(p.cfg.MaxRows, s.records)
	rows = min(rows, max(firstRows, growthOfRows*p.sized))
	if p.recordBytes > 0 {
		rows = min(rows, min(s.bytes, p.cfg.MaxBytes/bytesPart)/p.recordBytes)
	}
	if s.gone {
		rows = min(rows, probeRows)
	}
	if missing := p.growth() - p.fulls; !s.gone && missing > 0 && !p.counted(now, rows) {
		// The number of due rows and their tenants are unknown; the first claims of several
		// tell.
		rows = min(rows, max(p.cfg.MaxRows>>(2*missing), 1))
	}
	st := step{do: claim, form: task.CappedForm, low: p.low, ahead: p.cfg.ClaimAhead, rows: max(rows, 1)}
	if s.gone || p.again && len(p.soon) > 0 && p.soon[0].Due <= p.dbTime(now) {
		st.ahead = 0 // overdue rows come first
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
		// The shards share the cap, so all of it goes to those with the oldest rows.
		st.shards = p.dueShards(until)
	case st.low > 0 && until.Add(dueAhead) <= p.known && (p.hintAt.IsZero() || now.Add(st.ahead).Before(p.hintAt)):
		st.shards = p.dueShards(until)
	}
	return st
}

// growth is the number of full claims in a row that are limited further while peeks have not
// counted the rows. Each takes four times as many rows as the one before. While a tenant is
// excluded, the rows are probably of others, and each claim has to pass by those of that tenant.
func (p *planner) growth() int {
	if p.excluding {
		return 1
	}
	return 3
}

// counted reports whether peeks have counted all rows that a claim would find, and they are
// no more than rows.
func (p *planner) counted(now time.Time, rows int) bool {
	return p.dbTime(now).Add(p.cfg.ClaimAhead) <= p.rangeUntil && p.rangeRows <= rows
}

// dueShards returns the shards of the known rows that are due until then, or nil if there
// are none.
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

// dueAhead allows for rows that become due while a claim is on its way to the database.
const dueAhead = 5 * time.Millisecond

// What is due now may be much larger than what was due before, and the size of records is known only when they are in
// memory. So a claim takes at most growthOfRows times as many rows as those before have told the size of, and firstRows after a pause.
const firstRows, growthOfRows = 200, 16

// sizeMemory is after how many records their size counts more than all that was known before. A few small
// records between large ones change little.
const sizeMemory = 200

// While Kafka seems to be down, one claim each second defers rows of failing tenants and
// finds rows of others, whose topics may have recovered.
const (
	probeEvery = time.Second
	probeRows  = 500
)

// dbTime returns what the database's clock probably shows now. Our own clock may be set at any time, so it counts only how
// much time has passed.
func (p *planner) dbTime(now time.Time) task.Instant {
	if p.readAt.IsZero() {
		return task.At(now)
	}
	return p.read.Add(now.Sub(p.readAt))
}

// localTime returns when the database's clock probably shows i.
func (p *planner) localTime(i task.Instant) time.Time {
	if p.readAt.IsZero() {
		return i.Time()
	}
	return p.readAt.Add(i.Sub(p.read))
}

// An earliest keeps the earliest of several instants. Zero instants do not count.
type earliest struct{ at time.Time }

func (e *earliest) add(t time.Time) {
	if !t.IsZero() && (e.at.IsZero() || t.Before(e.at)) {
		e.at = t
	}
}
