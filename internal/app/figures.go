package app

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/perceptor/perceptor/delivery"
	"github.com/perceptor/perceptor/figures"
	"github.com/perceptor/perceptor/internal/ctxtime"
	"github.com/perceptor/perceptor/store"
	figurestore "github.com/perceptor/perceptor/store/figures"
	"github.com/perceptor/perceptor/store/shards"
	"github.com/perceptor/perceptor/task"
)

// newRecorder returns what collects and stores the figures of a process.
func newRecorder(o *Options, cluster *store.Cluster, describe func() figures.Self, measure func(context.Context, func(int32, figures.Place, int64))) *figures.Recorder {
	var number [8]byte
	_, _ = rand.Read(number[:]) // never fails
	host, _ := os.Hostname()    // for people only
	started := task.At(time.Now())
	return figures.New(figures.Config{
		Store: figurestore.New(cluster), Number: int64(binary.LittleEndian.Uint64(number[:]) >> 1), Log: o.Log, Measure: measure,
		Describe: func() []byte {
			self := describe()
			self.Host, self.Started = host, started
			return self.Encode()
		},
	})
}

// newFigures creates what collects the figures of the dispatcher.
func (d *Dispatcher) newFigures(kafka delivery.Config) error {
	asked, err := delivery.NewGroups(kafka)
	if err != nil {
		return err
	}
	d.groups = &groups{
		kafka: asked, names: d.names, active: figurestore.New(d.cluster).Active, known: map[int32]groupState{},
		owned: func() []int { return d.chores.Owned() },
	}
	d.recorder = newRecorder(&d.o.Options, d.cluster, d.self, d.measure)
	d.groups.tell = d.recorder.Listeners
	return nil
}

// recordMissed counts missed instants for metrics and figures.
func (d *Dispatcher) recordMissed(counts task.MissedCounts) {
	d.meter.missed(counts, d.metrics.Missed)
	countMissed(d.recorder, counts)
}

func countMissed(r *figures.Recorder, counts task.MissedCounts) {
	for by, n := range counts {
		r.Count(by.Tenant, figures.Missed, n)
	}
}

// self describes the dispatcher.
func (d *Dispatcher) self() figures.Self {
	f := d.dispatch.Figures()
	return figures.Self{
		Kind: figures.Dispatcher, Name: d.name, Version: d.o.Version, Shards: f.Shards, Chores: d.chores.Owned(), Records: f.Records,
		Stopped: f.Stopped, Broken: f.Broken[:min(len(f.Broken), figures.MaxBroken)],
	}
}

// measureWithin bounds what is measured at the end of an interval.
const measureWithin = 2 * time.Second

// measure counts the backlog of the databases whose chores this dispatcher owns, and asks Kafka
// for the listeners of the tenants whose home these are: each database and each tenant is
// measured by one process.
func (d *Dispatcher) measure(ctx context.Context, set func(tenant int32, p figures.Place, n int64)) {
	ctx, cancel := context.WithTimeout(ctx, measureWithin)
	defer cancel()
	owned := d.chores.Owned()
	d.measureBacklog(ctx, owned, set)
	for tenant, g := range d.groups.states() {
		set(tenant, figures.Asked, int64(g.at))
		set(tenant, figures.Members, int64(g.Members))
		set(tenant, figures.Lag, max(0, g.Lag))
	}
}

func (d *Dispatcher) measureBacklog(ctx context.Context, owned []int, set func(tenant int32, p figures.Place, n int64)) {
	var mu sync.Mutex
	var due []shards.Backlog
	sum := map[int32]*figures.Figures{}
	var asking sync.WaitGroup
	for _, db := range owned {
		if d.rests(&d.states.backlog, db) {
			continue
		}
		asking.Go(func() {
			list, more, err := d.shards.Backlogs(ctx, db)
			if err != nil {
				return // /readyz reports the database
			}
			mu.Lock()
			defer mu.Unlock()
			due = append(due, list...)
			for _, b := range list {
				one := &figures.Figures{}
				one.Set(figures.Due, b.Tasks)
				one.Set(figures.DueSince, b.Oldest.Milliseconds())
				if more {
					one.Set(figures.DueMore, 1)
				}
				if sum[b.Tenant] == nil {
					sum[b.Tenant] = &figures.Figures{}
				}
				sum[b.Tenant].Join(one)
			}
		})
	}
	asking.Wait()
	d.states.due.Store(&due)
	for tenant, f := range sum {
		for _, p := range []figures.Place{figures.Due, figures.DueMore, figures.DueSince} {
			set(tenant, p, f.Of(p))
		}
	}
}

const (
	// groupsEvery is how often Kafka is asked for the listeners of tenants, and groupsWithin
	// bounds one round. A tenant without a listener is known within 10 s.
	groupsEvery  = 4 * time.Second
	groupsWithin = 3 * time.Second
	// maxGroups is the most tenants that one round asks for, and maxLags the most whose lag it
	// reads, which takes three more requests. If there are more, rounds take turns.
	maxGroups = 800
	maxLags   = 200
	// activeFor is how long after its last figures a tenant is asked for.
	activeFor = 20 * time.Minute
	// maxActive bounds the tenants that are asked for.
	maxActive = 10_000
	// lookEvery is how often all databases are asked which tenants are active. In between only those are asked that
	// have the figures of the last newsFor.
	lookEvery = time.Minute
	newsFor   = 2 * figures.Every
)

// groups keeps the state of the listeners of active tenants.
type groups struct {
	kafka  *delivery.Groups
	names  *names
	active func(ctx context.Context, from task.Instant, limit int) (map[int32]bool, error)
	// actives are the active tenants that were found since all databases were asked at lookedAt. They are used by
	// round only.
	actives  map[int32]bool
	lookedAt task.Instant
	// owned returns the databases whose tenants are asked for.
	owned func() []int
	// tell is called for a tenant that has no listener any more, has one again, or was not known.
	tell func(tenant int32, asked task.Instant, members int, lag int64)

	mu    sync.Mutex
	known map[int32]groupState
}

// groupState is the state of the listeners of a tenant at an instant.
type groupState struct {
	delivery.Group
	at task.Instant
	// lagAt is when the lag was asked for.
	lagAt task.Instant
}

// run asks until ctx ends.
func (g *groups) run(ctx context.Context) error { return ctxtime.Every(ctx, groupsEvery, g.round) }

// round asks for those tenants that were asked longest ago.
func (g *groups) round(ctx context.Context) {
	if len(g.owned()) == 0 { // most of many dispatchers: to ask all databases would be of no use
		g.due(nil)
		return
	}
	ctx, cancel := context.WithTimeout(ctx, groupsWithin)
	defer cancel()
	now := task.At(time.Now())
	if err := g.look(ctx, now); err != nil {
		return // /readyz reports the databases
	}
	topics, tenants := []string{}, map[string]int32{}
	asked := g.due(g.actives)
	for _, tenant := range asked {
		if t, err := g.names.Tenant(ctx, tenant); err == nil {
			topics = append(topics, t.Topic)
			tenants[t.Topic] = tenant
		}
	}
	if len(topics) == 0 {
		return
	}
	lags := g.dueLags(asked)
	for topic, state := range g.kafka.Read(ctx, topics, func(topic string) bool { return lags[tenants[topic]] }) {
		g.learn(tenants[topic], state, now, lags[tenants[topic]])
	}
}

// look finds out which tenants are active. It returns an error if it has never found out.
func (g *groups) look(ctx context.Context, now task.Instant) error {
	if g.actives != nil && now.Sub(g.lookedAt) < lookEvery {
		if news, err := g.active(ctx, now.Add(-newsFor), maxActive); err == nil {
			maps.Copy(g.actives, news)
		}
		return nil
	}
	found, err := g.active(ctx, now.Add(-activeFor), maxActive)
	if err == nil {
		g.actives, g.lookedAt = found, now
	}
	if g.actives == nil {
		return err
	}
	return nil
}

// due forgets tenants that are not active or belong to others, and returns those to ask for.
func (g *groups) due(active map[int32]bool) []int32 {
	homes := map[int32]bool{}
	for _, db := range g.owned() {
		homes[int32(db)] = true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	var mine []int32
	for tenant := range active {
		if homes[tenant%task.Databases] {
			mine = append(mine, tenant)
		} else {
			delete(g.known, tenant)
		}
	}
	for tenant := range g.known {
		if !active[tenant] {
			delete(g.known, tenant)
		}
	}
	return oldest(mine, func(tenant int32) task.Instant { return g.known[tenant].at }, maxGroups)
}

// dueLags returns those of the tenants whose lag is read in this round.
func (g *groups) dueLags(asked []int32) map[int32]bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	due := map[int32]bool{}
	for _, tenant := range oldest(asked, func(tenant int32) task.Instant { return g.known[tenant].lagAt }, maxLags) {
		due[tenant] = true
	}
	return due
}

// learn keeps the state of a tenant's listeners, with the last known lag if it was not read.
// withLag says that it was asked for.
func (g *groups) learn(tenant int32, state delivery.Group, now task.Instant, withLag bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	before, known := g.known[tenant]
	next := groupState{Group: state, at: now, lagAt: before.lagAt}
	if withLag {
		next.lagAt = now
	}
	if state.Lag < 0 && known {
		next.Lag = before.Lag
	}
	if !known || (before.Members == 0) != (state.Members == 0) {
		g.tell(tenant, now, next.Members, next.Lag)
	}
	g.known[tenant] = next
}

// oldest returns up to limit tenants, those with the earliest instants.
func oldest(tenants []int32, at func(int32) task.Instant, limit int) []int32 {
	slices.SortFunc(tenants, func(a, b int32) int { return cmp.Compare(at(a), at(b)) })
	return tenants[:min(len(tenants), limit)]
}

// states returns the known state of each tenant.
func (g *groups) states() map[int32]groupState {
	g.mu.Lock()
	defer g.mu.Unlock()
	return maps.Clone(g.known)
}
