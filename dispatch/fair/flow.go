package fair

import (
	"time"

	"github.com/perceptor/perceptor/task"
)

// A Flow is the due rows of one excluded tenant, or of one of its capped kinds, in one
// database, claimed separately from the foreground.
type Flow struct {
	key task.TenantKind
	// low is an exclusive lower bound of due_at: the flow has no due row at or below it.
	low task.Instant
	// backlog is set if there are, or may be, more due rows than the last claim took.
	backlog bool
	// caughtUp is the database's clock at the last claim that left no row due. Rows that
	// became due since then wait for the tenant's tokens.
	caughtUp task.Instant
	// expected is how many rows the flow asks for in a common claim. It follows what such claims
	// found, so that no claim keeps many tokens of the tenant from those of other databases.
	expected int
	// nextAt is when to claim from the flow next. triedAt is when it was last claimed from,
	// and foundAt when a claim last found rows. At sweepAt the next claim ignores low.
	nextAt, triedAt, foundAt, sweepAt time.Time
	// claiming is set while a claim for the flow is in progress. No other claim selects it.
	claiming bool
	// acquisitions counts how often shards were acquired.
	acquisitions int
}

// A Grant limits what one claim may take of a flow.
type Grant struct {
	Flow *Flow
	// Key is the flow's tenant and, for a capped kind, its kind.
	Key task.TenantKind
	// Rows is the most rows that the claim may take. Tokens is the number of tokens taken
	// for them, or 0 if the tenant has no dispatch rate.
	Rows, Tokens int
	// Lags is set if the tenant lags. Then Later is when the flow may be claimed, if not now.
	Lags  bool
	Later time.Time
	// Modest is set if the flow may have had more than Rows, so that a claim which takes as many
	// shows no backlog: it asked for no more, or other claims have the tenant's tokens for the moment.
	Modest bool
	// Lease is the epoch of the cap lease under which a capped kind is claimed, otherwise 0.
	Lease int64
	// Limit is the most runs of a capped kind that may be open in the database; 0: any. It
	// assumes that the database has the part Part of the cap.
	Limit, Part int
	// Open is how many runs of a capped kind are open in the database after the claim, or 0 if
	// that is not known. Short is set if the Limit may have kept due runs from being claimed.
	Open  int
	Short bool
	// acquisitions is how often shards had been acquired before.
	acquisitions int
}

// Grant returns an empty grant for the flow.
func (f *Flow) Grant() *Grant { return &Grant{Flow: f, Key: f.key, acquisitions: f.acquisitions} }

// capped reports whether the flow is of a kind with a concurrency cap.
func (f *Flow) capped() bool { return f.key.Kind != "" }

const (
	// flowGrace is how far the lower bound of a flow stays behind the clock.
	flowGrace = time.Second
	// flowTick is the shortest time between two claims of the same flow after one that left
	// no row due.
	flowTick = 20 * time.Millisecond
	// sweepsBeside is the interval between two sweeps of a flow, in foreground sweeps.
	sweepsBeside = 3
	// activeFlow is how long a flow that had rows counts as active.
	activeFlow = 10 * time.Second
	// leastExpected is the least number of rows that a flow asks for in a common claim.
	leastExpected = 4
	// mostShared is how long a flow may be without a claim because others have its tenant's tokens.
	mostShared = 2 * time.Second
)

// hint records that a row, maybe of this flow, is due at the instant due. at is the local
// time at which a claim would find it. It reports whether the flow's next claim is earlier
// now.
func (f *Flow) hint(at time.Time, due task.Instant) (sooner bool) {
	f.low = max(min(f.low, due-1), 0)
	if soonest := f.triedAt.Add(flowTick); at.Before(soonest) {
		at = soonest
	}
	if (!f.backlog || f.capped()) && at.Before(f.nextAt) {
		f.nextAt = at
		return true
	}
	return false
}

// claimed records that a claim by the grant has taken rows of the flow. clock is the
// database's clock.
func (f *Flow) claimed(now time.Time, clock task.Instant, g *Grant, rows int, cfg *Config) {
	f.triedAt = now
	if rows > 0 {
		f.foundAt = now
	}
	f.expected = max(2*rows, leastExpected)
	if g.acquisitions != f.acquisitions {
		f.nextAt = now // it was under way when shards were acquired, and has left their rows
		return
	}
	if rows >= g.Rows {
		f.backlog, f.nextAt = !g.Modest, now
		return
	}
	f.backlog, f.caughtUp = false, clock
	f.low = max(f.low, clock.Add(-flowGrace))
	f.nextAt = now.Add(f.wait(now, cfg))
}

// MayWait reports whether the flow, which keeps up, may wait for tokens that other claims have:
// not for longer than mostShared since it was last claimed from.
func (f *Flow) MayWait(now time.Time) bool { return !f.backlog && now.Sub(f.triedAt) < mostShared }

// cutShort records that a common claim has taken rows of the flow, and may have left some because
// it reached its own limit.
func (f *Flow) cutShort(now time.Time, rows int) {
	f.triedAt, f.nextAt = now, now
	if rows > 0 {
		f.foundAt = now
	}
}

// wait returns how long a flow without due rows waits for its next claim, unless a hint
// comes.
func (f *Flow) wait(now time.Time, cfg *Config) time.Duration {
	if now.Sub(f.foundAt) >= activeFlow {
		return cfg.MaxSleep
	}
	if half := cfg.ClaimAhead / 2; half > 0 {
		return half
	}
	return cfg.MaxTick
}

// request returns the flow's part of a claim.
func (f *Flow) request(now time.Time, rows int, cfg *Config) task.Flow {
	part := task.Flow{TenantKind: f.key, Rows: rows, Low: f.low, WaitingSince: task.Never}
	if f.backlog {
		part.WaitingSince = f.caughtUp
	}
	if !now.Before(f.sweepAt) {
		part.Low, f.sweepAt = 0, now.Add(sweepsBeside*cfg.SweepEvery)
	}
	return part
}
