package app

import (
	"time"

	"github.com/perceptor/perceptor/dispatch"
	"github.com/perceptor/perceptor/internal/config"
	"github.com/perceptor/perceptor/internal/virtualclock"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/shards"
)

// VirtualClock is the virtual clock of an installation.
type VirtualClock struct{ *virtualclock.Clock }

// NewVirtualClock returns what moves the clock over the databases of a cluster. parts are all
// dispatchers; they run in this process.
func NewVirtualClock(cluster *store.Cluster, c *config.Config, parts ...virtualclock.Part) *VirtualClock {
	return &VirtualClock{virtualclock.New(virtualclock.Config{Databases: virtualclock.Over(cluster), Horizon: c.Far.Within(), Parts: parts})}
}

// With a virtual clock nothing is claimed ahead, since the clock may stand still.
// Whoever moves it waits for each step, so steps are short. Rates are kept by the virtual
// clock, so a dispatcher waits long for the database that grants tokens before it goes by its own clock.
const (
	clockTick        = time.Millisecond
	clockAcknowledge = 50 * time.Millisecond
	clockTokens      = 10 * time.Second
)

// byClock adapts the configuration of a dispatcher to its clock.
func (o *Options) byClock(c dispatch.Config) dispatch.Config {
	if o.VirtualClock {
		c.ClaimAhead, c.PublishAhead, c.MinTick, c.AcknowledgeAfter, c.TokenTimeout = 0, 0, clockTick, clockAcknowledge, clockTokens
	}
	return c
}

// shardsConfig returns the configuration of the process's store. With a virtual
// clock, group commits follow each other without a delay.
func (o *Options) shardsConfig() shards.Config {
	c := shards.Config{
		Quotas: o.quotas(), Horizon: o.Config.Far.Within(), CatchUpInterval: o.Config.Tasks.CatchUpInterval, DeadRetention: o.Config.Tasks.DeadRetention,
		Log: o.Log,
	}
	if o.VirtualClock {
		c.AddSpacing, c.StartSpacing, c.ReportSpacing = clockTick, clockTick, clockTick
	}
	return c
}
