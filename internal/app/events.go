package app

import (
	"time"

	"github.com/perceptor/perceptor/dispatch"
	"github.com/perceptor/perceptor/figures"
	"github.com/perceptor/perceptor/internal/telemetry"
	"github.com/perceptor/perceptor/task"
)

// figures is called at each scrape, also before the dispatcher is complete.
func (d *Dispatcher) figures() telemetry.Figures {
	if d.dispatch == nil {
		return telemetry.Figures{}
	}
	f := d.dispatch.Figures()
	return telemetry.Figures{
		Shards: f.Shards, Records: f.Records, Bytes: f.Bytes, Delayed: f.Delayed, Parts: f.Parts,
		Breakers: len(f.Broken), Stopped: f.Stopped, Backlogged: len(f.Backlogged), Lagging: f.Lagging, BackgroundRate: int(f.BackgroundRate),
	}
}

// events returns the events that feed metrics and the log.
func (d *Dispatcher) events() dispatch.Events {
	m, log := d.metrics, d.o.Log
	steps := newStepLog(log)
	return dispatch.Events{
		Claimed: func(_ int, form task.ClaimForm, c *task.Claim, took time.Duration) {
			m.Claimed(form.String(), c.Rows, took)
			d.work.claimed(c.Rows, took)
			for _, dead := range c.Dead {
				d.meter.do(dead.Tenant, func(name string) { m.Died(name, dead.Type, dead.Reason) })
				d.recorder.Count(dead.Tenant, figures.Dead, 1)
			}
		},
		StoreFailed: func(db int, step string, err error) {
			m.StoreFailed(step)
			d.work.storeFailed.Add(1)
			steps.failed(db, step, err)
		},
		ClockSet: func(db int, ahead time.Duration) {
			if !d.o.VirtualClock {
				log.Warn("the clock of a database was set forward; leases keep their length", "database", db, "ahead_ms", ahead.Milliseconds())
			}
		},
		Acquired: func(db int, shards []task.Shard, republished int) {
			m.ShardsChanged("acquired", len(shards))
			m.Republished(republished)
			log.Debug("shards acquired", "database", db, "shards", len(shards), "republished", republished)
		},
		OutboxRead: func(db, republished int) {
			m.Republished(republished)
			log.Debug("further part of the outbox read", "database", db, "republished", republished)
		},
		Released: func(db int, shards []task.Shard, left int) {
			m.ShardsChanged("released", len(shards))
			log.Debug("shards released", "database", db, "shards", len(shards), "unacknowledged", left)
		},
		Lost: func(db int, shards []task.Shard, err error) {
			m.ShardsChanged("lost", len(shards))
			log.Warn("shards lost", "database", db, "shards", len(shards), "err", err)
		},
		Published: func(p *task.Publication, late time.Duration) {
			d.fired.Add(1)
			d.recorder.Published(p.Tenant, p.Type, p.Attempt == 1, late)
			m.Published(d.names.known(p.Tenant), p.Type, p.Attempt == 1, late)
		},
		PublishedBackground: func(p *task.Publication, late time.Duration) {
			m.PublishedBackground(d.names.known(p.Tenant), p.Type.String(), p.Attempt == 1, late)
		},
		Backlogged: func(tenant int32, begins bool) {
			if begins {
				log.Info("tenant is backlogged; its tasks are claimed by weighted fair sharing", "tenant", d.names.label(tenant))
			} else {
				log.Info("tenant is no longer backlogged", "tenant", d.names.label(tenant))
			}
		},
		TokensTaken: func(tenant int32, tokens int) { m.TokensTaken(d.names.known(tenant), tokens) },
		PublishFailed: func(tenant int32, records int, err error) {
			m.PublishFailed(d.names.known(tenant), records)
			d.work.publishFailed.Add(int64(records))
			log.Debug("records were not acknowledged; sending them again", "tenant", d.names.label(tenant), "records", records, "err", err)
		},
		Dropped: func(tenant int32, records int) {
			m.Dropped(d.names.known(tenant), records)
			log.Info("records of a deleted tenant are dropped", "tenant", d.names.label(tenant), "records", records)
		},
		BreakerOpened: func(tenant int32, err error) {
			log.Warn("topic fails; its runs are deferred", "tenant", d.names.label(tenant), "err", err)
		},
		BreakerClosed: func(tenant int32) { log.Info("topic recovered", "tenant", d.names.label(tenant)) },
		GaveUp: func(_ int, pubs []task.Publication, err error) {
			for i := range pubs {
				m.Died(d.names.known(pubs[i].Tenant), pubs[i].Type, task.Unpublishable)
				d.recorder.Count(pubs[i].Tenant, figures.Dead, 1)
				log.Error("run is unpublishable and becomes dead", "tenant", d.names.label(pubs[i].Tenant), "run_id", pubs[i].RunID(), "err", err)
			}
		},
	}
}
