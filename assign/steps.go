package assign

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"
)

// openStep opens a session. (It does no I/O itself, so it may set m.sess.)
func (m *member) openStep() step {
	sess, err := m.open(m.inbox.signal)
	if err == nil {
		m.sess = sess
	}
	return func(context.Context) (func(time.Time), error) { return func(time.Time) {}, err }
}

// ensureStep creates what is missing of the environment and checks its format.
func (m *member) ensureStep() step {
	e := m.env
	if e == nil {
		e = m.sess.of(m.everOpened)
	}
	return func(ctx context.Context) (func(time.Time), error) {
		if err := e.prepare(ctx); err != nil {
			return nil, err
		}
		return func(time.Time) { m.env, m.damaged, m.everOpened = e, false, true }, nil
	}
}

// registerStep creates this member's node with its items, or finds the existing
// one.
func (m *member) registerStep() step {
	e, held := m.env, m.items.current()
	data := encodeMember(m.info, held, m.currentHeartbeat(time.Now()))
	return func(ctx context.Context) (func(time.Time), error) {
		node, version, err := e.register(ctx, m.id, data)
		if err != nil {
			return nil, err
		}
		return func(time.Time) {
			before := m.node
			m.node, m.nodeVersion, m.nodeSure, m.written = node, version, true, nil
			if node != before {
				m.registered(held)
			}
		}, nil
	}
}

func (m *member) registered(held []int) {
	_, seq, _ := parseMemberName(m.node)
	m.stale = true
	if m.sessionLost {
		m.planner.waitUntil, m.sessionLost = time.Now().Add(m.sess.timeout()), false
	}
	m.counts.Registrations++
	m.log.Info("assign: registered", "sequence", seq, "held", formatIDs(held))
	if f := m.cfg.Events.Registered; f != nil {
		f(seq)
	}
}

// readStep reads the environment, completely if it is time to reconcile.
func (m *member) readStep(now time.Time) step {
	all := !now.Before(m.nextReconcile)
	r := reading{self: m.id, current: m.items.current(), all: all, last: m.view}
	m.stale = false
	e, leading := m.env, m.leading
	return func(ctx context.Context) (func(time.Time), error) {
		v, err := e.read(ctx, r)
		if err != nil {
			return nil, err
		}
		var restricted []string
		if all && leading {
			if restricted, err = e.maintain(ctx, v); err != nil {
				return nil, err
			}
		}
		return func(now time.Time) {
			if len(restricted) > 0 {
				m.log.Info("assign: nodes that were open to everybody are restricted to the user now", "entries", len(restricted))
			}
			m.see(v, all, now)
		}, nil
	}
}

// see handles the result of a reading.
func (m *member) see(v *view, all bool, now time.Time) {
	m.view = v
	if all {
		// jitter, so that members do not read at the same time
		every := m.cfg.Reconcile
		if limit := m.sess.readEvery(); limit > 0 {
			every = min(every, limit)
		}
		m.nextReconcile = now.Add(every*3/4 + rand.N(every/2))
	}
	own := v.registration(m.id)
	if own == nil || own.node != m.node {
		m.log.Warn("assign: this member's node is missing; registering again")
		m.node, m.nodeSure = "", false
	} else if all && (!own.read || !slices.Equal(own.current, m.written)) {
		m.nodeSure = false // another program has changed it
	}
	if v.planFault != nil && m.faultLogged != v.planVersion {
		m.faultLogged = v.planVersion
		m.counts.GarbledPlans++
		m.log.Error("assign: the plan cannot be read; keeping the current items until the leader replaces it", "err", v.planFault)
	}
	m.seeStrategy(v)
	m.planner.observe(v, now)
	if v.plan != nil { // without a plan all members keep their items
		m.generation = max(m.generation, v.plan.Generation)
		m.items.setRequested(v.requested(m.id), now)
	}
}

func (m *member) seeStrategy(v *view) {
	if v.strategyFault == nil || m.strategyLogged == v.strategyVersion {
		return
	}
	m.strategyLogged = v.strategyVersion
	if v.strategy == nil {
		m.log.Error("assign: the strategy cannot be read and no earlier one is known; nothing is planned until it is replaced", "err", v.strategyFault)
		return
	}
	m.log.Error("assign: the strategy cannot be read; using the last one until the leader replaces it", "err", v.strategyFault)
}

// restoreStrategyStep writes the last strategy that could be read.
func (m *member) restoreStrategyStep() step {
	e, v := m.env, m.view
	return func(ctx context.Context) (func(time.Time), error) {
		err := e.writeStrategy(ctx, v.strategy, v.strategyVersion)
		if err != nil && !changed(err) {
			return nil, err
		}
		return func(time.Time) { m.stale = true }, nil
	}
}

// planStep writes a plan, if the plan that it replaces is unchanged.
func (m *member) planStep(prop proposal) step {
	e, v := m.env, m.view
	p := plan{Generation: m.generation + 1, Writer: m.id, WrittenAt: time.Now().UTC(), proposal: prop}
	made := Rebalancing{
		Generation: p.Generation, Writer: p.Writer, At: p.WrittenAt,
		Members: len(byOwner(prop.Owners)), Moved: moved(v, prop.Owners), Without: len(prop.Without),
	}
	if v.plan != nil {
		p.recent = v.plan.recent
	}
	p.recent = append(slices.Clone(p.recent[max(0, len(p.recent)-maxRecent+1):]), made)
	return func(ctx context.Context) (func(time.Time), error) {
		err := e.writePlan(ctx, p, v.planVersion)
		if err != nil && !changed(err) {
			return nil, err
		}
		return func(time.Time) {
			m.stale = true
			if err != nil {
				m.counts.PlansRefused++
				m.log.Info("assign: plan refused because another one was written first", "generation", p.Generation)
				if f := m.cfg.Events.PlanRefused; f != nil {
					f()
				}
				return
			}
			m.planned(p, made)
		}, nil
	}
}

func (m *member) planned(p plan, made Rebalancing) {
	m.generation, m.planner.pending = p.Generation, time.Time{}
	m.counts.Plans++
	m.counts.Moves += int64(made.Moved)
	m.log.Info("assign: plan written", "generation", p.Generation, "members", made.Members, "moved", made.Moved)
	for reason, ids := range byOwner(p.Without) {
		m.log.Warn("assign: items have no owner", "reason", string(reason), "items", formatIDs(ids))
	}
	if f := m.cfg.Events.Planned; f != nil {
		f(p.Generation, made.Moved)
	}
}

// writeStep updates this member's node. It announces new items only if the plan
// is unchanged.
func (m *member) writeStep(held, announce []int) step {
	target := slices.Sorted(slices.Values(slices.Concat(held, announce)))
	w := memberWrite{version: m.nodeVersion, plan: anyVersion, withdraws: m.withdraws(target)}
	by := map[int][]string{}
	if len(announce) > 0 {
		w.plan = m.view.planVersion
		by, _ = m.view.currentOwners(m.id)
	}
	e, node := m.env, m.node
	w.data = encodeMember(m.info, target, m.currentHeartbeat(time.Now()))
	return func(ctx context.Context) (func(time.Time), error) {
		version, err := e.writeMember(ctx, node, w)
		if err != nil {
			return nil, err
		}
		return func(time.Time) {
			m.nodeVersion, m.written = version, target
			m.items.announced(announce, func(id int) bool { return len(by[id]) > 0 })
		}, nil
	}
}

// withdraws reports whether target lacks an item that this member has published.
func (m *member) withdraws(target []int) bool {
	return m.written == nil || slices.ContainsFunc(m.written, func(id int) bool { return !contains(target, id) })
}

// contains looks in ascending ids.
func contains(ids []int, id int) bool {
	_, found := slices.BinarySearch(ids, id)
	return found
}

// currentHeartbeat returns the last heartbeat, or a new one when it is due.
func (m *member) currentHeartbeat(now time.Time) heartbeat {
	if now.Before(m.nextHeartbeat) {
		return m.heartbeat
	}
	m.heartbeat, m.nextHeartbeat = heartbeat{at: now}, now.Add(m.cfg.HeartbeatEvery)
	if f := m.cfg.Figures; f != nil {
		m.heartbeat.figures = limitFigures(f())
	}
	return m.heartbeat
}

// sweepStep looks for environments that have been without members for long.
func (m *member) sweepStep(now time.Time) step {
	e := m.env
	m.nextSweep = now.Add(max(m.cfg.StaleAfter/24, time.Second/10))
	return func(ctx context.Context) (func(time.Time), error) {
		cleared, err := e.sweep(ctx, m.cfg.StaleAfter, m.log)
		if err != nil {
			m.log.Warn("assign: sweep for stale environments failed", "err", err)
		}
		return func(time.Time) {
			for _, name := range cleared {
				m.log.Info("assign: stale environment removed", "environment", name, "age_ms", m.cfg.StaleAfter.Milliseconds())
			}
		}, nil
	}
}

// leaveStep announces that this member leaves, so that the leader plans without
// it.
func (m *member) leaveStep() step {
	e := m.env
	return func(ctx context.Context) (func(time.Time), error) {
		if err := e.announceLeaving(ctx, m.id); err != nil {
			return nil, err
		}
		return func(time.Time) { m.leaving, m.stale = true, true }, nil
	}
}

// pingStep proves that the session is alive.
func (m *member) pingStep() step {
	e := m.env
	return func(ctx context.Context) (func(time.Time), error) {
		return func(time.Time) {}, e.prove(ctx)
	}
}
