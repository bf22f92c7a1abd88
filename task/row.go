package task

import "time"

// Row is the state of an unfinished task, or of one run of a NON_BLOCKING task that has
// a row of its own. Rows are not safe for concurrent use.
type Row struct {
	Tenant int32
	ID     ID
	// Run is 0 for the row of the task, or the seq of the run for a run row.
	Run    int64
	Type   Type
	State  State
	Paused bool
	// Out is true while a delivered attempt awaits its result, and false while a retry
	// waits for the end of its backoff.
	Out bool
	// DueAt is the instant at which the row needs attention next: its next run, the end
	// of an ack_timeout, or a retry. Never means that it waits for a call.
	DueAt Instant
	// ScheduledAt is the scheduled instant of the open run (BLOCKING and ONE_SHOT while
	// RUNNING, and run rows), or otherwise of the next run.
	ScheduledAt Instant
	// Anchor is the scheduled instant of run Seq, and so a point of the grid. Before the
	// first run it is the first instant. While a triggered run of a BLOCKING task is open,
	// it holds the planned instant: see triggered.
	Anchor Instant
	// Seq is the number of runs claimed so far.
	Seq int64
	// OpenRuns has bit i set if run Seq - i awaits its result. NON_BLOCKING only.
	OpenRuns uint64
	// OpenRows is the number of run rows of this task. NON_BLOCKING only.
	OpenRows int32
	// Attempt is the number of deliveries of the open run. 0 means that none is open.
	Attempt int32
	// Failures is the number of accepted FAILs of the open run. Snoozes is the number of
	// its snoozes, at most [MaxSnoozes].
	Failures int32
	Snoozes  int32
	// FirstClaimAt is the instant at which the open run was claimed first, or triggered. In
	// the row of a NON_BLOCKING task it is 0, unless runs of OpenRuns were claimed late: see
	// [Row.claimedAt].
	FirstClaimAt Instant
	// HeardAt is the instant of the last word about the open run since its first claim: a
	// FAIL or a heartbeat. HeardAttempt is the attempt that it was about. 0 means no word.
	HeardAt      Instant
	HeardAttempt int32
	// Holder is the holder of the lease of the open run. 0 means no holder.
	Holder Holder
	// Missed counts scheduled instants that passed without firing.
	Missed  int64
	Version int32

	Terms
	Params    []byte
	CreatedAt Instant
	Origin
	// Calendar are the instants of Cron. nil means that the task has no Cron, or that
	// they have not been computed yet.
	Calendar Calendar

	// Windows are the times at which the task's instants are open. nil means always, or that
	// a calendar of the task is not known: it is Unknown then, and no run is claimed.
	Windows *Windows
	Unknown MissingCalendar

	// Change is the effect of steps on the row. The store writes it.
	Change Change
}

// Change says how a row differs from the stored row.
type Change int

// The effects of steps on a row: none, changed, created, removed.
const (
	Kept Change = iota
	Changed
	Added
	Removed
)

func (r *Row) markChanged() {
	if r.Change == Kept {
		r.Change = Changed
	}
}

// NewRow returns the row of a task that has just been added. s must have passed
// Validate, ResolveBegin and NeverFires.
func NewRow(tenant int32, id ID, s *Spec, now Instant) *Row {
	first := s.firstInstant(id)
	return &Row{
		Tenant: tenant, ID: id, Type: s.Type, State: Scheduled,
		DueAt: max(first, now), ScheduledAt: first, Anchor: first, Version: 1,
		Terms: s.Terms, Params: s.ParamsWire, CreatedAt: now, Origin: s.Origin, Calendar: s.Calendar,
		Windows: s.Windows, Change: Added,
	}
}

// OpenCount returns the number of runs of the task that await their results.
func (r *Row) OpenCount() int32 {
	if r.Type == NonBlocking {
		n := r.OpenRows
		for b := r.OpenRuns; b != 0; b &= b - 1 {
			n++
		}
		return n
	}
	if r.State == Running {
		return 1
	}
	return 0
}

// exhausted reports whether no further run may be scheduled at next.
func (r *Row) exhausted(next Instant) bool {
	return next >= r.End || (r.MaxCount > 0 && r.Seq >= r.MaxCount)
}

// waitUntil makes the row SCHEDULED with its next run at next.
func (r *Row) waitUntil(next, now Instant) {
	r.State = Scheduled
	r.ScheduledAt = next
	r.DueAt = max(next, now)
	if r.Paused {
		r.DueAt = Never
	}
	if r.Type != NonBlocking {
		r.clearRun()
	}
}

func (r *Row) clearRun() {
	r.Attempt, r.Failures, r.Snoozes, r.Out, r.Holder = 0, 0, 0, false, 0
	r.FirstClaimAt, r.HeardAt, r.HeardAttempt = 0, 0, 0
}

// SilenceDelay returns the delay from a delivery to the next one if there is no answer:
// ack_timeout, doubled for each earlier silent delivery, up to MaxSilence.
func (r *Row) SilenceDelay() time.Duration {
	return doubled(r.AckTimeout, r.silent())
}

// heardAt records a word about the attempt that is out.
func (r *Row) heardAt(now Instant) { r.HeardAt, r.HeardAttempt = now, r.Attempt }

// lastWord returns the instant of the last word about the open run, and the attempt that
// it was about. The first word is the first claim.
func (r *Row) lastWord() (Instant, int32) {
	if r.HeardAt != 0 {
		return r.HeardAt, r.HeardAttempt
	}
	return r.FirstClaimAt, 1
}

// unheard reports whether a run whose attempt is silent is given up: give_up_after has
// passed since the last word about it, and so many deliveries were tried since.
func (r *Row) unheard(now Instant) bool {
	heard, attempt := r.lastWord()
	return now.Sub(heard) >= r.GiveUpAfter && r.Attempt-attempt >= TriesAfterWord
}

// silent returns the number of earlier deliveries that had neither FAIL nor SNOOZE.
func (r *Row) silent() int32 { return r.Attempt - 1 - r.Failures - r.Snoozes }

// doubled returns d * 2^n, at most the longer of MaxSilence and d.
func doubled(d time.Duration, n int32) time.Duration {
	limit := max(d, MaxSilence)
	for ; n > 0 && d < limit; n-- {
		d *= 2
	}
	return min(d, limit)
}

// Backoff returns the delay from failure number n (from 1) to the retry. u in [0, 1) is
// a random number for the jitter.
func (p RetryPolicy) Backoff(n int32, u float64) time.Duration {
	d := float64(p.InitialBackoff)
	for i := int32(1); i < n && d < float64(p.MaxBackoff); i++ {
		d *= p.Multiplier
	}
	d = min(d, float64(p.MaxBackoff))
	return time.Duration(d * (1 + p.Jitter*u)).Truncate(time.Millisecond)
}
