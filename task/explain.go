package task

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Why is a reason for which a task does not fire. The numbers are those of the API.
type Why int16

// The reasons.
const (
	WhyUnknown          Why = 1  // there is no such task
	WhyFinished         Why = 2  // it has ended
	WhyPaused           Why = 3  // it is paused
	WhyTenantPaused     Why = 4  // its tenant is paused
	WhyKindPaused       Why = 5  // its kind is paused
	WhyNotDue           Why = 6  // its next run is not due yet
	WhyFar              Why = 7  // it waits in a pack
	WhyWaitingForResult Why = 8  // a claimed run awaits its result
	WhyRetrying         Why = 9  // a run has failed and will be delivered again
	WhySilent           Why = 10 // a run was delivered again and has no result
	WhyOverRate         Why = 11 // its tenant is over its dispatch rate
	WhyNoOwner          Why = 12 // no dispatcher owns its shard
	WhyOverdue          Why = 13 // it is due and was not claimed
	WhyTopicBroken      Why = 14 // Kafka does not accept the tenant's records
	WhyLastRunsOpen     Why = 15 // all runs were claimed, and some are open
	WhyKindFull         Why = 16 // its kind has reached its concurrency cap
	WhyNoListener       Why = 17 // its tenant has no listener
	WhyNoHandler        Why = 18 // listeners have no handler for its kind
	WhyCalendarUnknown  Why = 19 // a calendar that it names is not known
)

// Reason is one cause for which a task does not fire.
type Reason struct {
	Why Why
	// Text describes it to people.
	Text string
	// At is the instant at which the cause ends by itself. Since is the instant at which
	// it began. 0 means not known.
	At, Since Instant
	// Seq, Attempt and Failures describe the run that the reason is about. 0 means none.
	Seq               int64
	Attempt, Failures int32
	// LastError is the error of the run's last failure. Empty means not known.
	LastError string
	// GiveUpAt is the instant at which the run is given up if it gets no result. 0 means
	// not known.
	GiveUpAt Instant
}

// Circumstances are the facts outside its own rows on which a task depends.
type Circumstances struct {
	Now Instant
	// Far is true if the task waits in a pack.
	Far bool
	// Owner is the name of the shard's owner, since OwnedSince, with ownership number
	// Epoch. Empty means that the shard has no owner.
	Owner      string
	Epoch      int64
	OwnedSince Instant
	// OldestDue is the oldest due instant of the shard. [Never] means that no row waits.
	OldestDue Instant
	// Rates are those of the task's tenant.
	Rates Rates
	// Broken is the instant since which rows of the tenant are deferred because its
	// topic accepts no records. 0 means that they are not deferred.
	Broken Instant
	// Unpublished are the instants, in ascending order, at which runs of the shard were claimed whose records no
	// dispatcher has confirmed to be in Kafka.
	Unpublished []Instant
	// RateUsed is true if the tenant claims as many runs as its dispatch rate allows.
	RateUsed bool
	// KindOpen is the number of open runs of the task's kind, if the kind has a cap.
	KindOpen int
	// Errors holds the errors of the last failures by run number. HandedBack holds the
	// last attempts that listeners could not handle.
	Errors     map[int64]string
	HandedBack map[int64]int32
}

// tolerated is the lateness of a claim up to which nothing is wrong.
const tolerated = time.Second

// Explain returns the reasons for which an unfinished task does not fire, the most
// decisive first. There is at least one.
func (m *Machine) Explain(c *Circumstances) []Reason {
	var out []Reason
	t := m.Task
	if t.Paused {
		out = append(out, Reason{Why: WhyPaused, Text: "the task is paused; resume it"})
	}
	if c.Rates.Paused {
		out = append(out, Reason{Why: WhyTenantPaused, Text: "the tenant is paused: no new run of any of its tasks is claimed"})
	}
	for _, kind := range c.Rates.PausedKinds {
		if kind == t.Kind {
			out = append(out, Reason{Why: WhyKindPaused, Text: fmt.Sprintf("the kind %q is paused: no new run of it is claimed", kind)})
		}
	}
	held := len(out) > 0
	switch {
	case t.State == Scheduled && !held:
		out = append(out, t.waiting(c)...)
	case t.State == Scheduled && !t.Paused && t.ScheduledAt > c.Now:
		out = append(out, t.notDue(c))
	case t.State == Running && t.Type != NonBlocking:
		out = append(out, t.openRun(c)...)
	case t.State == Running:
		out = append(out, Reason{Why: WhyLastRunsOpen, Text: fmt.Sprintf("all runs have been claimed, and %d of them await their results", t.OpenCount())})
	}
	return append(out, m.openRuns(c)...)
}

func (r *Row) notDue(c *Circumstances) Reason {
	text := fmt.Sprintf("run %d is scheduled at %s", r.Seq+1, r.ScheduledAt)
	if r.Overlap == OverlapSkip && r.Overlapped() {
		text += "; it does not fire if a run is open then, because overlap is SKIP"
	}
	return Reason{Why: WhyNotDue, At: r.ScheduledAt, Seq: r.Seq + 1, Text: text}
}

// waiting explains a SCHEDULED row that is not paused.
func (r *Row) waiting(c *Circumstances) []Reason {
	seq := r.Seq + 1
	switch {
	case r.unreadable() && r.DueAt > c.Now:
		return []Reason{{Why: WhyOverdue, At: r.DueAt, Seq: seq,
			Text: fmt.Sprintf("this program cannot read the task's schedule, and tries again at %s: is it older than the one that stored it?", r.DueAt)}}
	case r.Unknown.Name != "":
		return []Reason{{Why: WhyCalendarUnknown, At: r.DueAt, Seq: seq,
			Text: fmt.Sprintf("the calendar %q, which the task names, does not exist or cannot be read: no run is claimed until it is known", r.Unknown.Name)}}
	case !r.Windows.Open(r.ScheduledAt):
		return []Reason{{Why: WhyNotDue, At: r.ScheduledAt, Seq: seq,
			Text: fmt.Sprintf("the calendars of the task close the instant %s: at that time the next open one is looked for", r.ScheduledAt)}}
	case r.ScheduledAt > c.Now && c.Far:
		return []Reason{r.notDue(c), {Why: WhyFar, At: r.ScheduledAt, Text: "it is due beyond the horizon, waits in a pack, and becomes a row before it is due"}}
	case r.ScheduledAt > c.Now:
		return []Reason{r.notDue(c)}
	case r.DueAt > c.Now && r.Overlapped():
		return []Reason{{Why: WhyWaitingForResult, Since: r.ScheduledAt, Seq: seq,
			Text: fmt.Sprintf("run %d of %s fires when no run is open, because overlap is %s", seq, r.ScheduledAt, r.Overlap)}}
	case r.DueAt > c.Now && c.Broken != 0:
		return []Reason{{Why: WhyTopicBroken, At: r.DueAt, Since: c.Broken, Seq: seq,
			Text: fmt.Sprintf("Kafka does not accept records of the tenant's topic; run %d is tried again at %s", seq, r.DueAt)}}
	case r.DueAt > c.Now:
		return []Reason{{Why: WhyNotDue, At: r.DueAt, Since: r.ScheduledAt, Seq: seq,
			Text: fmt.Sprintf("run %d of %s was missed and fires at %s: missed instants fire one after the other", seq, r.ScheduledAt, r.DueAt)}}
	}
	return r.due(c, seq)
}

// due explains a row that is due and was not claimed.
func (r *Row) due(c *Circumstances, seq int64) []Reason {
	var out []Reason
	if c.Owner == "" {
		out = append(out, Reason{Why: WhyNoOwner, Since: c.OwnedSince, Text: fmt.Sprintf("no dispatcher owns shard %d (epoch %d): is a dispatcher running?", r.ID.Shard(), c.Epoch)})
	}
	if c.Broken != 0 {
		out = append(out, Reason{Why: WhyTopicBroken, Since: c.Broken, Text: "Kafka does not accept records of the tenant's topic"})
	}
	if n := c.Rates.KindCaps[r.Kind]; n > 0 && r.State == Scheduled && c.KindOpen >= int(n) {
		out = append(out, Reason{Why: WhyKindFull, Since: r.DueAt, Seq: seq,
			Text: fmt.Sprintf("%d runs of kind %q are open, and at most %d may be at the same time", c.KindOpen, r.Kind, n)})
	}
	if n := c.Rates.DispatchRate; n > 0 && r.State == Scheduled && c.RateUsed {
		out = append(out, Reason{Why: WhyOverRate, Since: r.DueAt, Seq: seq,
			Text: fmt.Sprintf("the tenant uses all of its dispatch rate of %d runs per second, and other runs of it were due earlier", n)})
	}
	return append(out, r.overdue(c, seq, len(out) == 0))
}

// overdue says how late a row is. If blame is set, it also names the likely cause: the
// shard's owner or the tenant's share.
func (r *Row) overdue(c *Circumstances, seq int64, blame bool) Reason {
	late := c.Now.Sub(r.DueAt)
	text := fmt.Sprintf("run %d was due %s ago and has not been claimed", seq, late)
	switch {
	case !blame:
	case late <= tolerated:
		text = fmt.Sprintf("run %d was due %s ago, and is about to be claimed by %s", seq, late, c.Owner)
	default:
		text += fmt.Sprintf("; %s, the owner of shard %d, is behind or gone, or the tenant has more due than its share", c.Owner, r.ID.Shard())
		if c.OldestDue != Never && c.OldestDue < r.DueAt {
			text += fmt.Sprintf("; the oldest due row of the shard was due %s ago", c.Now.Sub(c.OldestDue))
		}
	}
	return Reason{Why: WhyOverdue, Since: r.DueAt, Seq: seq, Text: text}
}

// openRuns explains the open runs of a NON_BLOCKING task, the oldest first. They delay
// the next runs only if no claim is left.
func (m *Machine) openRuns(c *Circumstances) []Reason {
	var out []Reason
	for _, seq := range slices.Sorted(maps.Keys(m.Runs)) {
		out = append(out, m.Runs[seq].openRun(c)...)
	}
	bits := m.Task.OpenCount() - m.Task.OpenRows
	if m.Task.Type == NonBlocking && bits > 0 {
		out = append(out, Reason{Why: WhyWaitingForResult, Text: fmt.Sprintf("%d runs were claimed once and await their results; those that are silent for the ack_timeout %s are delivered again with the next claim", bits, m.Task.AckTimeout)})
	}
	return out
}

// openRun explains the open run that r holds.
func (r *Row) openRun(c *Circumstances) []Reason {
	seq := r.Run
	if seq == 0 {
		seq = r.Seq
	}
	handedBack := c.HandedBack[seq]
	w := Reason{At: r.DueAt, Seq: seq, Attempt: r.Attempt, Failures: r.Failures, LastError: c.Errors[seq]}
	switch {
	case r.DueAt <= c.Now:
		return r.due(c, seq)
	case !r.Out:
		w.Why, w.Text = WhyRetrying, fmt.Sprintf("run %d %s and is delivered again at %s", seq, r.answers(), r.DueAt)
		return []Reason{w}
	case handedBack > 0 && handedBack == r.Attempt:
		w.Why, w.Text = WhyRetrying, fmt.Sprintf("run %d was handed back by a listener that has no handler of kind %q, and is delivered again at %s", seq, r.Kind, r.DueAt)
		return []Reason{w}
	}
	heard, _ := r.lastWord()
	w.GiveUpAt, w.Since = heard.Add(r.GiveUpAfter), r.silentSince()
	w.Why, w.Text = WhyWaitingForResult, fmt.Sprintf("run %d was delivered and awaits its result until %s", seq, r.DueAt)
	unpublished := r.Holder == 0 && r.unpublished(c)
	if unpublished {
		w.Text = fmt.Sprintf("run %d was claimed, and its record is not known to be in Kafka yet; it awaits its result until %s", seq, r.DueAt)
	}
	switch {
	case r.Holder != 0:
		w.Text += "; a listener has its lease"
	case r.silent() > 0:
		w.Why, w.Text = WhySilent, fmt.Sprintf("run %d has no result since %s, though it was delivered %d times; next at %s, given up after %s",
			seq, w.Since, r.Attempt, r.DueAt, w.GiveUpAt)
		if unpublished {
			w.Text = fmt.Sprintf("run %d has no result since %s, and was claimed %d times, of which the last is not known to be in Kafka yet; next at %s, given up after %s",
				seq, w.Since, r.Attempt, r.DueAt, w.GiveUpAt)
		}
		if handedBack > 0 {
			w.Text += fmt.Sprintf("; attempt %d was handed back by a listener that has no handler of kind %q", handedBack, r.Kind)
		}
	}
	return []Reason{w}
}

// claimedAhead is how long before the instant of a run it may be claimed, with a margin.
const claimedAhead = 2 * time.Second

// unpublished reports whether the record of the last attempt may not be in Kafka: the shard has records that are not known to
// be there since its claim, whose instant only DueAt tells.
func (r *Row) unpublished(c *Circumstances) bool {
	claimed := r.DueAt.Add(-doubled(r.AckTimeout, r.silent()))
	return slices.ContainsFunc(c.Unpublished, func(at Instant) bool { return at <= claimed && at > claimed.Add(-claimedAhead) })
}

// answers describes the failures, snoozes and hand-backs of the open run.
func (r *Row) answers() string {
	var parts []string
	if r.Failures > 0 {
		parts = append(parts, fmt.Sprintf("has failed %d times", r.Failures))
	}
	if r.Snoozes > 0 {
		parts = append(parts, fmt.Sprintf("was snoozed %d times", r.Snoozes))
	}
	if len(parts) == 0 {
		return "waits"
	}
	return strings.Join(parts, ", ")
}

// silentSince returns the instant of the last answer about the run that is out. It assumes
// that all deliveries since then followed the delays of silence.
func (r *Row) silentSince() Instant {
	since := r.DueAt
	for n := r.silent(); n >= 0; n-- {
		if since = since.Add(-doubled(r.AckTimeout, n)); since <= r.FirstClaimAt {
			return r.FirstClaimAt
		}
	}
	return since
}

// NextInstants returns up to n instants at which the next runs of an unfinished task
// will be scheduled if nothing changes. For BLOCKING it assumes that runs take no time.
// An instant that has passed comes first if it will still fire.
func (r *Row) NextInstants(now Instant, n int) []Instant {
	next := *r
	switch {
	case n <= 0 || (r.State == Running && r.Type != Blocking):
		return nil
	case r.triggered():
		next.ScheduledAt = r.planned()
	case r.State == Running:
		next.ScheduledAt = next.instantAfter(now, now)
	case r.ScheduledAt <= now:
		return next.late(now, n)
	}
	if next.exhausted(next.ScheduledAt) {
		return nil
	}
	return next.Upcoming(next.ScheduledAt-1, n)
}

// late returns the next instants of a row whose instant has come, according to its
// misfire policy. It changes the row.
func (r *Row) late(now Instant, n int) (out []Instant) {
	r.ScheduledAt = r.firstOpen(r.ScheduledAt)
	for r.skipMissed(now); len(out) < n && !r.exhausted(r.ScheduledAt) && r.Windows.Open(r.ScheduledAt); {
		at := r.ScheduledAt
		out = append(out, at)
		r.Seq++
		switch {
		case r.Type == NonBlocking:
			r.ScheduledAt, _ = r.nextRun(at, now)
		case r.BackfillOf != 0:
			r.ScheduledAt = r.instantAfter(at, at)
		case r.Interval > 0:
			at = max(at, now)
			r.ScheduledAt = r.instantAfter(at, at)
		default:
			r.ScheduledAt = r.instantAfter(at, now)
		}
	}
	return out
}

// Explanation is the answer to the question why a task does not fire.
type Explanation struct {
	// Task is nil if the task does not exist.
	Task    *Snapshot
	Reasons []Reason
	// Next are the scheduled instants of the next runs.
	Next []Instant
	// Now is the database's clock.
	Now Instant
}
