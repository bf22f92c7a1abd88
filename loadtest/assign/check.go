package assign

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	core "github.com/perceptor/perceptor/assign"
)

// A checker watches a world from outside. Its figures and violations may be read
// when Run has returned.
type checker struct {
	w        *world
	maxIdle  time.Duration // that is allowed
	mu       sync.Mutex
	broken   []string
	reported map[string]bool

	conn       *zk.Conn
	plan       int64 // transaction that wrote the last plan seen
	generation int64
	epochs     map[int]int64
	idlest     time.Duration
	looks      int
}

func newChecker(w *world, maxIdle time.Duration) *checker {
	return &checker{w: w, maxIdle: maxIdle, reported: map[string]bool{}, epochs: map[int]int64{}}
}

// violate notes a violation, once for each kind and thing.
func (c *checker) violate(key, format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reported[key] {
		return
	}
	c.reported[key] = true
	what := fmt.Sprintf(format, args...)
	c.broken = append(c.broken, what)
	c.w.o.Progress("VIOLATION: %s", what)
}

func (c *checker) violations() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.broken)
}

// run looks until ctx ends.
func (c *checker) run(ctx context.Context) error {
	conn, events, err := zk.Connect(c.w.ensemble.Addrs(), 10*time.Second, zk.WithLogInfo(false), zk.WithLogger(silent{}))
	if err != nil {
		return err
	}
	c.conn = conn
	defer conn.Close()
	go func() {
		for range events { // until it is closed
		}
	}()
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			c.lookAtPlan()
			sleep(ctx, 25*time.Millisecond)
		}
	})
	for ctx.Err() == nil {
		err = c.lookAtWork(ctx)
		if err != nil && ctx.Err() == nil {
			break
		}
		sleep(ctx, 100*time.Millisecond)
	}
	wg.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// lookAtPlan demands that each new plan has a higher generation.
func (c *checker) lookAtPlan() {
	data, stat, err := c.conn.Get(root + "/env/BASE/plan")
	if err != nil || stat.Mzxid <= c.plan {
		return // away, or from a server that lags
	}
	var p struct {
		Generation int64  `json:"generation"`
		Writer     string `json:"writer"`
	}
	if json.Unmarshal(data, &p) != nil || p.Generation == 0 {
		return // none yet, or garbled by the storm
	}
	if c.plan = stat.Mzxid; p.Generation <= c.generation {
		c.violate(fmt.Sprint("plan", p.Generation), "plan %d of %s was written over plan %d", p.Generation, p.Writer, c.generation)
	}
	c.generation = max(c.generation, p.Generation)
}

// lookAtWork reads what was done for each item.
func (c *checker) lookAtWork(ctx context.Context) error {
	rows, err := c.w.db.Query(ctx, `SELECT w.item, o.epoch, w.epoch, w.overtaken, w.name,
		extract(epoch FROM clock_timestamp() - w.worked_at)::float8 FROM item_work w JOIN item_owner o USING (item)`)
	if err != nil {
		return fmt.Errorf("read what was done: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var item int
		var epoch, worked, overtaken int64
		var name string
		var seconds float64
		if err := rows.Scan(&item, &epoch, &worked, &overtaken, &name, &seconds); err != nil {
			return err
		}
		idle := time.Duration(seconds * float64(time.Second))
		c.idlest = max(c.idlest, idle)
		if overtaken > 0 {
			c.violate(fmt.Sprint("overtaken", item), "item %d: work was done by an epoch that had been overtaken (the last work is that of %s with epoch %d, the owner's is %d)", item, name, worked, epoch)
		}
		if epoch < c.epochs[item] {
			c.violate(fmt.Sprint("epoch", item), "item %d: epoch %d after %d", item, epoch, c.epochs[item])
		}
		if worked > epoch {
			c.violate(fmt.Sprint("worked", item), "item %d: work of epoch %d, which nobody has: %d", item, worked, epoch)
		}
		if idle > c.maxIdle {
			c.violate(fmt.Sprint("idle", item), "item %d: idle for %v, allowed are %v", item, idle.Round(time.Millisecond), c.maxIdle)
		}
		c.epochs[item] = epoch
	}
	c.looks++
	return rows.Err()
}

// settled is nil when every item has one owner, a living member, by both
// accounts, and loads differ by at most one.
func (w *world) settled(ctx context.Context) error {
	o, err := w.overview(ctx)
	if err != nil {
		return err
	}
	if len(o.Members) != len(w.members) {
		return fmt.Errorf("%d members are listed, %d are alive", len(o.Members), len(w.members))
	}
	names, loads := map[string]string{}, map[string]int{}
	for _, m := range o.Members {
		names[m.ID], loads[m.Info.Name] = m.Info.Name, 0
	}
	owners, err := w.owners(ctx)
	if err != nil {
		return err
	}
	if len(o.Items) != w.o.Items {
		return fmt.Errorf("%d of %d items are planned", len(o.Items), w.o.Items)
	}
	for _, it := range o.Items {
		name := names[it.Requested]
		switch {
		case name == "":
			return fmt.Errorf("item %d is planned for %q, who is not there", it.ID, it.Requested)
		case len(it.Current) != 1 || it.Current[0] != it.Requested:
			return fmt.Errorf("item %d is planned for %s and held by %v", it.ID, name, it.Current)
		case owners[it.ID] != name:
			return fmt.Errorf("item %d is planned for %s and worked for by %q", it.ID, name, owners[it.ID])
		}
		loads[name]++
	}
	least, most := w.o.Items, 0
	for _, n := range loads {
		least, most = min(least, n), max(most, n)
	}
	if most-least > 1 {
		return fmt.Errorf("loads %v", loads)
	}
	return nil
}

func (w *world) overview(ctx context.Context) (core.Overview, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return w.admin.Overview(ctx)
}

// owners are who has worked for each item with its current epoch.
func (w *world) owners(ctx context.Context) (map[int]string, error) {
	rows, err := w.db.Query(ctx, "SELECT w.item, w.name FROM item_work w JOIN item_owner o USING (item) WHERE w.epoch = o.epoch AND w.name = o.name")
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	owners := map[int]string{}
	for rows.Next() {
		var item int
		var name string
		if err := rows.Scan(&item, &name); err != nil {
			return nil, err
		}
		owners[item] = name
	}
	return owners, errors.Join(rows.Err())
}
