package assign

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
)

const (
	firstStepRetry = 50 * time.Millisecond
	lastStepRetry  = time.Second
	// How long a member that has released everything waits for the leader to
	// plan without it.
	goodbyeTime = time.Second
)

// A member is the goroutine of [ZooKeeper.Run]. It owns all state; what waits
// for ZooKeeper (a step) or for the worker (a call) happens in goroutines of
// its own, at most one step at a time and one call per group, and comes back
// through a channel. So nothing delays the deadline of an unfenced member.
type member struct {
	*ZooKeeper
	log     *slog.Logger
	counts  Counts
	hold    *holding
	calls   *caller
	planner planner

	sess       *session // nil: none yet, or expired
	tree       *tree
	view       *view          // of the last reading, perhaps of an earlier session
	generation int64          // the highest seen
	closing    sync.WaitGroup // of expired sessions

	node        string // name of the own node; empty: not registered
	nodeVersion int32
	nodeSure    bool  // node, its version and written are known
	written     []int // held, as in the node; nil: unknown
	goodbye     bool  // the goodbye node is there

	stale         bool // the tree must be read
	damaged       bool // a node that must exist is missing
	nextReconcile time.Time
	nextSweep     time.Time

	pulse     pulse
	nextPulse time.Time

	steps       chan func(now time.Time) // outcomes
	stepping    bool
	failures    int    // of steps in a row
	fault       string // of the last step
	nextStep    time.Time
	everOpened  bool
	sessionLost bool // and not registered again yet
	fatal       error
	connected   bool
	leading     bool
	faultLogged int32 // version of the garbled plan that was reported

	strategyLogged int32 // version of the garbled strategy that was reported

	stopping   bool
	giveUp     time.Time // when stopping: the stop time is spent
	quietSince time.Time // when stopping: since when nothing is held
}

func newMember(ctx context.Context, z *ZooKeeper) *member {
	m := &member{
		ZooKeeper: z, log: z.cfg.Log.With("member", z.id, "environment", z.cfg.Environment),
		hold:    newHolding(z.cfg.Items, z.cfg.Fenced, z.cfg.TakeoverAfter),
		planner: planner{self: z.id, items: z.cfg.Items, settle: z.cfg.Settle, limit: z.cfg.MaxItems},
		steps:   make(chan func(time.Time), 1), faultLogged: -1, strategyLogged: -1,
	}
	cfg := z.cfg
	cfg.Log = m.log
	m.calls = newCaller(ctx, m.hold, z.worker, cfg, &m.counts)
	return m
}

func (m *member) run(ctx context.Context) error {
	stepCtx, cancelSteps := context.WithCancel(context.WithoutCancel(ctx))
	stop := ctx.Done()
	for {
		now := time.Now()
		m.calls.lose(m.inbox.take(), now)
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

// follow brings the state up to what has happened to the session.
func (m *member) follow(now time.Time) {
	if m.sess != nil && (m.sess.isExpired() || m.sess.hopeless(now)) {
		m.log.Warn("assign: the session is over; registering again", "expired", m.sess.isExpired())
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
		m.log.Info("assign: contact with ZooKeeper", "connected", connected)
		if f := m.cfg.Events.Connected; f != nil {
			f(connected)
		}
	}
	m.cutOff(!m.cfg.Fenced && !connected, now)
	if m.fatal != nil && !m.stopping {
		m.beginStop(now)
	}
}

// contactEnds is when two thirds of the session have passed since the last
// request that the leading server has answered.
func (m *member) contactEnds() time.Time {
	return m.sess.lastContact().Add(m.sess.timeout() * 2 / 3)
}

// cutOff stops an unfenced member whose session may soon be over, and lets it
// go on when there is contact again.
func (m *member) cutOff(off bool, now time.Time) {
	if off == m.hold.cutOff {
		return
	}
	m.hold.cutOff = off
	m.calls.releaseBy = time.Time{}
	if !off || len(m.hold.held()) == 0 {
		return
	}
	m.counts.CutOff++
	m.log.Warn("assign: no contact with ZooKeeper: releasing everything", "items", formatIDs(m.hold.held()))
	m.calls.cancelAcquires()
	if m.sess != nil {
		m.calls.releaseBy = m.sess.lastContact().Add(m.sess.timeout())
	}
}

// deadline is when follow has to look again although nothing happens.
func (m *member) deadline(now time.Time) (t time.Time) {
	if m.connected {
		t = m.contactEnds()
	} else if m.sess != nil {
		t = m.sess.givenUpAt()
	}
	if m.stopping {
		t = earliest(t, m.giveUp)
		if !m.quietSince.IsZero() {
			t = earliest(t, m.quietSince.Add(goodbyeTime))
		}
	}
	return t
}

func (m *member) dropSession() {
	m.closing.Go(m.sess.abandon) // it has expired: there is nothing to close
	m.sessionLost = m.sessionLost || m.counts.Registrations > 0
	m.sess, m.tree, m.node, m.nodeSure, m.written, m.goodbye = nil, nil, "", false, nil, false
	m.stale, m.damaged, m.failures, m.nextStep = true, false, 0, time.Time{}
}

func (m *member) publish(now time.Time) {
	leading := m.node != "" && m.view.leader() == m.id
	if leading != m.leading {
		m.leading = leading
		m.log.Info("assign: leadership", "leading", leading)
		if f := m.cfg.Events.Leading; f != nil {
			f(leading)
		}
	}
	s := snapshot(m.id, m.info, m.view, m.hold, m.pulse, m.counts)
	s.Connected, s.Registered, s.Fault = m.connected, m.node != "", m.fault
	m.snap.Store(s)
}

// beginStop: take nothing more, release everything, say goodbye.
func (m *member) beginStop(now time.Time) {
	m.stopping, m.hold.stopping = true, true
	m.giveUp = now.Add(m.cfg.StopTimeout)
	m.calls.cancelAcquires()
}

// finished: is there nothing left to do before leaving?
func (m *member) finished(now time.Time) bool {
	if !m.stopping {
		return false
	}
	if m.hold.working() {
		return !now.Before(m.giveUp)
	}
	if m.quietSince.IsZero() {
		m.quietSince = now
	}
	if m.node == "" || !m.connected || m.fatal != nil {
		return true
	}
	alone := m.view != nil && len(m.view.eligible()) == 0
	planned := len(m.view.requested(m.id)) == 0
	return m.goodbye && (alone || planned) || now.Sub(m.quietSince) >= goodbyeTime
}

// leave ends the session. With items that the worker has not released, it
// lets the session expire instead: an unfenced owner may still be at work.
func (m *member) leave() error {
	m.calls.cancel()
	unfinished := m.hold.working()
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
		return errors.Join(m.fatal, unreleased(m.hold, m.cfg.StopTimeout))
	}
	return m.fatal
}

// A step is one exchange with ZooKeeper. It runs outside of the member's
// goroutine; what it returns is applied in it, unless the session has changed.
type step func(ctx context.Context) (apply func(now time.Time), err error)

// step starts the next step, if one is due and none is running, and answers
// when to ask again.
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
				return // of a session that is over
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

// stepFailed prepares for the next try: what is not certain is read again.
func (m *member) stepFailed(err error, now time.Time) {
	m.counts.FailedSteps++
	m.fault = err.Error()
	m.stale, m.nodeSure = true, false
	m.damaged = m.damaged || errors.Is(err, zk.ErrNoNode)
	if errors.Is(err, ErrFormat) {
		m.log.Error("assign: refused", "err", err)
		if !m.everOpened {
			m.fatal = err
		}
	}
	if errors.Is(err, zk.ErrBadVersion) {
		return // somebody was faster: look at once
	}
	m.nextStep = now.Add(min(firstStepRetry<<min(m.failures, 10), lastStepRetry))
	m.failures++
	if m.failures&(m.failures-1) == 0 { // the 1st, 2nd, 4th, …
		m.log.Warn("assign: an exchange with ZooKeeper failed; trying again", "failures", m.failures, "err", err)
	}
}

// choose answers the most urgent step, nil if there is none; wake is when
// there may be one.
func (m *member) choose(now time.Time) (do step, wake time.Time) {
	switch {
	case m.sess == nil && m.stopping:
		return nil, time.Time{}
	case m.sess == nil:
		return m.openStep(), time.Time{}
	case m.tree == nil || m.damaged:
		return m.ensureStep(), time.Time{}
	case !m.nodeSure:
		return m.registerStep(), time.Time{}
	case !now.Before(m.nextBeat()): // before readings, which may be many
		return m.beatStep(), time.Time{}
	case m.mustRead(now):
		return m.readStep(now), time.Time{}
	case m.stopping && !m.goodbye:
		return m.goodbyeStep(), time.Time{}
	}
	if m.leading && m.view.strategyFault != nil && m.view.strategy != nil {
		return m.restoreStrategyStep(), time.Time{}
	}
	prop, due, wake := m.planner.next(m.view, now)
	if due {
		return m.planStep(prop), time.Time{}
	}
	ids, w := m.hold.announceable(m.view, m.id, now)
	wake = earliest(wake, w)
	if held := m.hold.held(); len(ids) > 0 || m.written == nil || !slices.Equal(held, m.written) || !now.Before(m.nextPulse) {
		return m.writeStep(held, ids), time.Time{}
	}
	if m.leading && !now.Before(m.nextSweep) {
		return m.sweepStep(now), time.Time{}
	}
	return nil, earliest(earliest(earliest(wake, m.nextPulse), m.nextBeat()), m.nextReconcile)
}

func (m *member) nextBeat() time.Time { return m.sess.lastContact().Add(m.sess.timeout() / 6) }

func (m *member) mustRead(now time.Time) bool {
	if m.stale || m.view == nil || !now.Before(m.nextReconcile) {
		return true
	}
	return m.hold.missing() && (!m.view.nodesRead || !m.view.at.After(m.hold.readAfter()))
}
