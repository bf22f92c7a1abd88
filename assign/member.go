package assign

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"
)

const (
	firstStepRetry = 50 * time.Millisecond
	lastStepRetry  = time.Second
	// How long a member that has released everything waits for the leader to
	// plan without it.
	leaveTimeout = time.Second
)

// A member is the goroutine of [Member.Run]. It owns all state. Exchanges with the
// other members (steps) and calls of the worker run in goroutines of their
// own, at most one step at a time and one call per group, and return their
// results through a channel. So nothing delays the deadline of an unfenced
// member.
type member struct {
	*Member
	log     *slog.Logger
	counts  Counts
	items   *lifecycle
	calls   *caller
	planner planner

	sess       link           // nil: not opened yet, or expired
	env        environment    // nil: not prepared yet
	view       *view          // of the last reading, possibly of an earlier session
	generation int64          // highest plan number seen
	closing    sync.WaitGroup // of expired sessions

	node        string // name of this member's node; empty: not registered
	nodeVersion int64
	nodeSure    bool  // node, nodeVersion and written are known
	written     []int // items as written in the node; nil: unknown
	leaving     bool  // the node that announces the leave exists

	stale         bool // the tree must be read
	damaged       bool // a required node is missing
	nextReconcile time.Time
	nextSweep     time.Time

	heartbeat     heartbeat
	nextHeartbeat time.Time

	steps       chan func(now time.Time) // outcomes of steps
	stepping    bool
	failures    int    // consecutive failures of steps
	fault       string // error of the last step
	nextStep    time.Time
	everOpened  bool
	sessionLost bool // and not registered again yet
	fatal       error
	connected   bool
	leading     bool
	faultLogged int64 // version of the garbled plan that was logged

	strategyLogged int64 // version of the garbled strategy that was logged

	stopping      bool
	giveUp        time.Time // when stopping: end of the stop timeout
	releasedSince time.Time // when stopping: since when no item is left
}

func newMember(ctx context.Context, z *Member) *member {
	m := &member{
		Member: z, log: z.cfg.Log.With("member", z.id, "environment", z.cfg.Environment),
		items:   newLifecycle(z.cfg.Items, z.cfg.Fenced, z.cfg.TakeoverAfter),
		planner: planner{self: z.id, items: z.cfg.Items, delay: z.cfg.RebalanceDelay, limit: z.cfg.MaxItems},
		steps:   make(chan func(time.Time), 1), faultLogged: -1, strategyLogged: -1,
	}
	cfg := z.cfg
	cfg.Log = m.log
	m.calls = newCaller(ctx, m.items, z.worker, cfg, &m.counts)
	return m
}

func (m *member) run(ctx context.Context) error {
	stepCtx, cancelSteps := context.WithCancel(context.WithoutCancel(ctx))
	stop := ctx.Done()
	for {
		now := time.Now()
		m.calls.dropLost(m.inbox.drain(), now)
		m.follow(now)
		wake := m.calls.start(now)
		wake = earliest(wake, m.step(stepCtx, now))
		m.publish(now)
		if m.finished(now) {
			break
		}
		select {
		case <-stop:
			stop = nil
			m.beginStop(time.Now())
		case o := <-m.calls.outcomes:
			m.calls.finish(o, time.Now())
		case apply := <-m.steps:
			m.stepping = false
			apply(time.Now())
		case <-m.inbox.wake:
		case <-until(earliest(wake, m.deadline(now)), now):
		}
	}
	cancelSteps()
	return m.leave()
}

// follow updates the state for changes of the session.
func (m *member) follow(now time.Time) {
	if m.sess != nil && (m.sess.isExpired() || m.isUnusable(now)) {
		m.log.Warn("assign: session has ended; registering again", "expired", m.sess.isExpired())
		m.dropSession()
		if f := m.cfg.Events.Expired; f != nil {
			f()
		}
	}
	if m.sess != nil && m.sess.takeStale() {
		m.stale = true
	}
	connected := m.sess != nil && m.node != "" && now.Before(m.contactEnds())
	if connected != m.connected {
		m.connected = connected
		m.log.Info("assign: contact with the other members changed", "connected", connected)
		if f := m.cfg.Events.Connected; f != nil {
			f(connected)
		}
	}
	m.cutOff(!m.cfg.Fenced && !connected, now)
	if m.fatal != nil && !m.stopping {
		m.beginStop(now)
	}
}

// isUnusable reports whether the session has had no contact for too long.
func (m *member) isUnusable(now time.Time) bool {
	at := m.sess.unusableAt()
	return !at.IsZero() && !now.Before(at)
}

// contactEnds returns when two thirds of the session have passed since the last
// request whose answer proved that the session was alive.
func (m *member) contactEnds() time.Time {
	return m.sess.lastContact().Add(m.sess.timeout() * 2 / 3)
}

// cutOff suspends an unfenced member whose session may soon be over, and
// resumes it when contact returns.
func (m *member) cutOff(off bool, now time.Time) {
	if off == m.items.cutOff {
		return
	}
	m.items.cutOff = off
	m.calls.releaseBy = time.Time{}
	if !off || len(m.items.current()) == 0 {
		return
	}
	m.counts.CutOff++
	m.log.Warn("assign: no contact with the other members; releasing all items", "items", formatIDs(m.items.current()))
	m.calls.cancelAcquires()
	if m.sess != nil {
		m.calls.releaseBy = m.sess.lastContact().Add(m.sess.timeout())
	}
}

// deadline returns when follow must run again even if nothing happens.
func (m *member) deadline(now time.Time) (t time.Time) {
	if m.connected {
		t = m.contactEnds()
	} else if m.sess != nil {
		t = m.sess.unusableAt()
	}
	if m.stopping {
		t = earliest(t, m.giveUp)
		if !m.releasedSince.IsZero() {
			t = earliest(t, m.releasedSince.Add(leaveTimeout))
		}
	}
	return t
}

func (m *member) dropSession() {
	m.closing.Go(m.sess.abandon) // the session has expired, so it needs no close
	m.sessionLost = m.sessionLost || m.counts.Registrations > 0
	m.sess, m.env, m.node, m.nodeSure, m.written, m.leaving = nil, nil, "", false, nil, false
	m.stale, m.damaged, m.failures, m.nextStep = true, false, 0, time.Time{}
}

func (m *member) publish(now time.Time) {
	leading := m.node != "" && m.view.leader() == m.id
	if leading != m.leading {
		m.leading = leading
		m.log.Info("assign: leadership changed", "leading", leading)
		if f := m.cfg.Events.Leading; f != nil {
			f(leading)
		}
	}
	s := snapshot(m.id, m.info, m.view, m.items, m.heartbeat, m.counts)
	s.Connected, s.Registered, s.Fault = m.connected, m.node != "", m.fault
	m.snap.Store(s)
}

// beginStop begins the stop: acquire nothing more, release everything, announce
// that this member leaves.
func (m *member) beginStop(now time.Time) {
	m.stopping, m.items.stopping = true, true
	m.giveUp = now.Add(m.cfg.StopTimeout)
	m.calls.cancelAcquires()
}

// finished reports whether nothing is left to do before leaving.
func (m *member) finished(now time.Time) bool {
	if !m.stopping {
		return false
	}
	if m.items.working() {
		return !now.Before(m.giveUp)
	}
	if m.releasedSince.IsZero() {
		m.releasedSince = now
	}
	if m.node == "" || !m.connected || m.fatal != nil {
		return true
	}
	alone := m.view != nil && len(m.view.eligible()) == 0
	planned := len(m.view.requested(m.id)) == 0
	return m.leaving && (alone || planned) || now.Sub(m.releasedSince) >= leaveTimeout
}

// leave ends the session. If the worker has not released all items, it lets the
// session expire instead, because an unfenced owner may still be working.
func (m *member) leave() error {
	m.calls.cancel()
	unfinished := m.items.working()
	if m.stepping {
		defer func() { (<-m.steps)(time.Now()) }() // sees m.sess gone
	}
	sess := m.sess
	m.sess = nil
	switch {
	case sess == nil:
	case unfinished:
		sess.abandon()
	default:
		sess.close()
	}
	m.closing.Wait()
	m.view, m.node, m.connected = nil, "", false
	m.publish(time.Now())
	if unfinished {
		return errors.Join(m.fatal, unreleased(m.items, m.cfg.StopTimeout))
	}
	return m.fatal
}

// A step is one exchange with the other members, through ZooKeeper or a registry. It runs outside of the member's
// goroutine. The member's goroutine calls the function that it returns, unless
// the session has changed.
type step func(ctx context.Context) (apply func(now time.Time), err error)

// step starts the next step if one is due and none is running. It returns when
// to ask again.
func (m *member) step(ctx context.Context, now time.Time) (wake time.Time) {
	if m.stepping {
		return time.Time{}
	}
	if now.Before(m.nextStep) {
		return m.nextStep
	}
	do, wake := m.choose(now)
	if do == nil {
		return wake
	}
	m.stepping = true
	sess := m.sess
	go func() {
		apply, err := do(ctx)
		m.steps <- func(now time.Time) {
			if m.sess != sess {
				return // the session has ended
			}
			if err != nil {
				m.stepFailed(err, now)
				return
			}
			m.failures, m.nextStep, m.fault = 0, time.Time{}, ""
			apply(now)
		}
	}()
	return wake
}

// stepFailed prepares the next try: all uncertain data is read again.
func (m *member) stepFailed(err error, now time.Time) {
	m.counts.FailedSteps++
	m.fault = err.Error()
	m.stale, m.nodeSure = true, false
	m.damaged = m.damaged || missing(err)
	if errors.Is(err, ErrFormat) {
		m.log.Error("assign: root refused", "err", err)
		if !m.everOpened {
			m.fatal = err
		}
	}
	if changed(err) {
		return // another writer was first: read again at once
	}
	m.nextStep = now.Add(min(firstStepRetry<<min(m.failures, 10), lastStepRetry))
	m.failures++
	if m.failures&(m.failures-1) == 0 { // the 1st, 2nd, 4th, …
		m.log.Warn("assign: exchange with the other members failed; retrying", "failures", m.failures, "err", err)
	}
}

// choose returns the most urgent step, or nil. wake is when there may be one.
func (m *member) choose(now time.Time) (do step, wake time.Time) {
	switch {
	case m.sess == nil && m.stopping:
		return nil, time.Time{}
	case m.sess == nil:
		return m.openStep(), time.Time{}
	case m.env == nil || m.damaged:
		return m.ensureStep(), time.Time{}
	case !m.nodeSure:
		return m.registerStep(), time.Time{}
	case !now.Before(m.nextPing()): // before readings, which may take long
		return m.pingStep(), time.Time{}
	case m.mustRead(now):
		return m.readStep(now), time.Time{}
	case m.stopping && !m.leaving:
		return m.leaveStep(), time.Time{}
	}
	if m.leading && m.view.strategyFault != nil && m.view.strategy != nil {
		return m.restoreStrategyStep(), time.Time{}
	}
	prop, due, wake := m.planner.next(m.view, now)
	if due {
		return m.planStep(prop), time.Time{}
	}
	ids, w := m.items.announceable(m.view, m.id, now)
	wake = earliest(wake, w)
	if held := m.items.current(); len(ids) > 0 || m.written == nil || !slices.Equal(held, m.written) || !now.Before(m.nextHeartbeat) {
		return m.writeStep(held, ids), time.Time{}
	}
	if m.leading && !now.Before(m.nextSweep) {
		return m.sweepStep(now), time.Time{}
	}
	return nil, earliest(earliest(earliest(earliest(wake, m.nextHeartbeat), m.nextPing()), m.nextReconcile), m.view.next)
}

// nextPing returns when an exchange is due that only proves the contact. If readings are due
// periodically, they come first.
func (m *member) nextPing() time.Time {
	return m.sess.lastContact().Add(max(m.sess.timeout()/6, m.sess.readEvery()*5/4))
}

func (m *member) mustRead(now time.Time) bool {
	if m.stale || m.view == nil || !now.Before(m.nextReconcile) || m.view.isOld(now) {
		return true
	}
	return m.items.missing() && (!m.view.nodesRead || !m.view.at.After(m.items.readAfter()))
}
