package store

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/internal/ctxtime"
	"github.com/perceptor/perceptor/store/place"
	"github.com/perceptor/perceptor/task"
)

const (
	// placesEvery is how often a process asks one database for the places of all.
	placesEvery = time.Second
	// trailEvery is how often a process asks a database that is being moved.
	trailEvery = 50 * time.Millisecond
	// suspectEvery is the least time between two readings because of errors.
	suspectEvery = 100 * time.Millisecond
	// placesTimeout bounds a reading.
	placesTimeout = 3 * time.Second
)

// HeardAfter is when every process has heard of a move that was announced in
// all databases.
const HeardAfter = 2 * placesEvery

// A follower hears of moves. It begins with the first connection of the cluster and ends with
// the cluster.
type follower struct {
	c       *Cluster
	once    sync.Once
	over    context.Context
	end     context.CancelFunc
	running sync.WaitGroup
	next    int // database that is asked for the places

	mu      sync.Mutex
	trailed [task.Databases]bool // somebody asks the database that is being moved
}

func newFollower(c *Cluster) *follower {
	f := &follower{c: c}
	f.over, f.end = context.WithCancel(context.Background())
	return f
}

// start starts the follower unless it runs.
func (f *follower) start() {
	f.once.Do(func() {
		if f.over.Err() == nil {
			f.running.Go(f.run)
		}
	})
}

func (f *follower) stop() {
	f.end()
	f.once.Do(func() {}) // it does not start any more
	f.running.Wait()
}

// run asks for the places of all databases.
func (f *follower) run() {
	for pace := ctxtime.NewPace(); f.over.Err() == nil; {
		f.readPlaces()
		pace.Sleep(f.over, placesEvery)
	}
}

// readPlaces asks one database after the other until one answers, beginning with that which
// answered last.
func (f *follower) readPlaces() {
	for range task.Databases {
		ctx, cancel := context.WithTimeout(f.over, placesTimeout)
		all, err := place.All(ctx, f.c.Pool(f.next))
		cancel()
		if err == nil {
			f.hear(all)
			return
		}
		if f.over.Err() != nil {
			return
		}
		f.next = (f.next + 1) % task.Databases
	}
}

func (f *follower) hear(all []place.Place) {
	for _, p := range all {
		if p.Database < 0 || p.Database >= task.Databases {
			continue
		}
		_ = f.c.placed[p.Database].learn(p.Number, p.Address) // an address that cannot be used is said by whoever connects
		if p.Moving {
			f.trail(p.Database)
		}
	}
}

// trail asks a database what it says of itself until it is not being moved: because it is
// being moved, or because a statement failed as it does after a move.
func (f *follower) trail(d int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.trailed[d] || f.over.Err() != nil {
		return
	}
	f.trailed[d] = true
	f.running.Go(func() {
		f.ask(d)
		ctxtime.Sleep(f.over, suspectEvery)
		f.mu.Lock()
		f.trailed[d] = false
		f.mu.Unlock()
	})
}

// ask uses a connection of its own, because those of the pool wait while the database is being
// switched. If the database does not answer, the next reading of the places says how it is.
func (f *follower) ask(d int) {
	p := f.c.placed[d]
	config := p.copyConfig()
	ctx, cancel := context.WithTimeout(f.over, placesTimeout+otherHosts(config))
	config.RuntimeParams["application_name"] = f.c.application
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		cancel()
		return
	}
	defer conn.Close(context.WithoutCancel(f.over)) //nolint:errcheck // nothing depends on it
	err = settle(ctx, conn, []string{"search_path"}, []string{SchemaName(d)})
	cancel()
	if err != nil {
		return
	}
	for f.over.Err() == nil {
		ctx, cancel := context.WithTimeout(f.over, placesTimeout)
		c, err := place.Read(ctx, conn)
		cancel()
		if err != nil {
			return
		}
		if c.State != place.Open {
			_ = p.follow(c)
			return
		}
		if c.Target == "" {
			p.open()
			return
		}
		if c.Pause > 0 {
			p.close(c.Pause)
		} else {
			p.open()
		}
		ctxtime.Sleep(f.over, trailEvery)
	}
}
