package app

import (
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/perceptor/perceptor/assign"
	"github.com/perceptor/perceptor/assign/postgres"
	"github.com/perceptor/perceptor/internal/config"
	"github.com/perceptor/perceptor/internal/telemetry"
	"github.com/perceptor/perceptor/store"
)

// NewAssignment returns what reads and changes the assignment of the dispatchers. It
// opens no connection. timeout bounds each of its requests to ZooKeeper. If dispatchers agree in
// Postgres, it uses the pool of database 0.
func NewAssignment(c *config.Config, cluster *store.Cluster, timeout time.Duration) (*assign.Admin, error) {
	if c.Coordinator() == config.InPostgres {
		return assign.NewRegistryAdmin(postgres.New(cluster.Pool(homeDatabase)), "")
	}
	return newZooKeeperAdmin(c, timeout)
}

// homeDatabase is the number of the database in which dispatchers agree.
const homeDatabase = 0

func newZooKeeperAdmin(c *config.Config, timeout time.Duration) (*assign.Admin, error) {
	dial, err := zookeeperDial(c.ZooKeeper.TLS, slog.Default())
	if err != nil {
		return nil, err
	}
	a, err := assign.NewAdmin(assign.AdminConfig{
		Servers: c.ZooKeeper.Servers, Root: c.ZooKeeper.Root, Environment: c.ZooKeeper.Environment,
		User: c.ZooKeeper.User, Password: c.ZooKeeper.Password, Timeout: timeout, Dial: dial,
	})
	if err != nil {
		return nil, fmt.Errorf("zookeeper: %w", err)
	}
	return a, nil
}

// newZooKeeperMember returns a member of the dispatchers that agree in ZooKeeper.
func newZooKeeperMember(c *config.Config, conf assign.Config, w assign.Worker) (assign.Assigner, error) {
	dial, err := zookeeperDial(c.ZooKeeper.TLS, conf.Log)
	if err != nil {
		return nil, err
	}
	z := &c.ZooKeeper
	conf.Servers, conf.Root, conf.Environment, conf.User, conf.Password = z.Servers, z.Root, z.Environment, z.User, z.Password
	conf.TakeoverAfter, conf.SessionTimeout, conf.Dial = z.TakeoverAfter, z.SessionTimeout, dial
	return assign.NewZooKeeper(conf, w)
}

// newTableMember returns a member of the dispatchers that agree in Postgres.
func newTableMember(c *config.Config, cluster *store.Cluster, conf assign.Config, w assign.Worker) (assign.Assigner, error) {
	conf.TakeoverAfter, conf.SessionTimeout = c.Leases.TakeoverAfter, c.Leases.SessionTimeout
	return assign.NewMember(conf, postgres.New(cluster.Pool(homeDatabase)), w)
}

// work counts the work of a dispatcher since its start.
type work struct {
	rows, claims, claimMicros  atomic.Int64
	publishFailed, storeFailed atomic.Int64
}

func (w *work) claimed(rows int, took time.Duration) {
	w.rows.Add(int64(rows))
	w.claims.Add(1)
	w.claimMicros.Add(took.Microseconds())
}

// workFigures returns the figures that other members and operators see of this
// dispatcher. claim_us is the mean time of a claim since the start.
func (d *Dispatcher) workFigures() map[string]int64 {
	f, claims := d.dispatch.Figures(), d.work.claims.Load()
	return map[string]int64{
		"shards": int64(f.Shards), "records_held": int64(f.Records), "breakers_open": int64(len(f.Broken)),
		"claims": claims, "rows_claimed": d.work.rows.Load(), "claim_us": d.work.claimMicros.Load() / max(1, claims),
		"published": d.fired.Load(), "publish_failed": d.work.publishFailed.Load(), "store_failed": d.work.storeFailed.Load(),
	}
}

// assignFigures is called at each scrape, also before the dispatcher is complete.
func (d *Dispatcher) assignFigures() telemetry.Assignment {
	if d.assigner == nil {
		return telemetry.Assignment{}
	}
	s := d.assigner.Snapshot()
	a := telemetry.Assignment{
		Members: len(s.Members), Connected: s.Connected, Leading: s.Leading(), Generation: s.Generation, Faults: len(s.Faults),
		Items: map[string]int{}, Without: map[string]int{},
		Counts: map[string]int64{
			"registrations": s.Counts.Registrations, "plans": s.Counts.Plans, "plans_refused": s.Counts.PlansRefused, "moves": s.Counts.Moves,
			"acquired": s.Counts.Acquired, "taken_over": s.Counts.TakenOver, "released": s.Counts.Released, "lost": s.Counts.Lost,
			"failed_calls": s.Counts.FailedCalls, "failed_steps": s.Counts.FailedSteps, "garbled_plans": s.Counts.GarbledPlans, "cut_off": s.Counts.CutOff,
		},
	}
	for _, it := range s.Items {
		a.Items[it.Phase.String()]++
		if it.Without != "" {
			a.Without[string(it.Without)]++
		}
	}
	return a
}
