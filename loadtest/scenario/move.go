package scenario

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/perceptor/perceptor/loadtest/harness"
	"github.com/perceptor/perceptor/loadtest/stack"
	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/move"
	"github.com/perceptor/perceptor/task"
)

const (
	// moveLimit bounds a move, and moveAgain is the time until one that failed is resumed.
	moveLimit = 4 * time.Minute
	moveAgain = 500 * time.Millisecond
)

// Moves reports whether a disturbance moves a database.
func (o *Options) Moves() bool {
	return slices.ContainsFunc(o.Disturbances, func(d Disturbance) bool { return d.Action == Move })
}

// allowMoves makes a stack of two servers between which databases can be moved.
func (o *Options) allowMoves() {
	o.Real.PostgresServers = max(2, o.Real.PostgresServers)
	o.Real.Postgres = maps.Clone(o.Real.Postgres)
	if o.Real.Postgres == nil {
		o.Real.Postgres = map[string]string{}
	}
	for name, value := range map[string]string{"wal_level": "logical", "max_worker_processes": "16", "max_logical_replication_workers": "8"} {
		o.Real.Postgres[name] = value
	}
}

// move moves the database to the last server, or to the first one if it is there, through
// whatever else is disturbed.
func (d *disturbed) move(ctx context.Context, s *stack.Stack) {
	ctx, cancel := context.WithTimeout(ctx, moveLimit)
	defer cancel()
	d.part, d.at = "database-"+d.Part, time.Now()
	dsns := s.PostgresServers()
	database, err := strconv.Atoi(d.Part)
	if err == nil && len(dsns) < 2 {
		err = errors.New("a move needs two PostgreSQL servers")
	}
	if err == nil {
		err = d.moveTo(ctx, dsns, database)
	}
	if d.took = time.Since(d.at); err != nil {
		d.err = fmt.Errorf("%s: %w", d.Disturbance, err)
	}
}

func (d *disturbed) moveTo(ctx context.Context, dsns []string, database int) error {
	servers := make([]store.Server, len(dsns))
	for i, dsn := range dsns {
		servers[i].DSN = dsn
	}
	cluster, err := store.Open(ctx, store.Config{Servers: servers, Application: "loadtest"})
	if err != nil {
		return err
	}
	defer cluster.Close()
	to := dsns[len(dsns)-1]
	if database*len(dsns)/task.Databases == len(dsns)-1 {
		to = dsns[0]
	}
	for {
		m, err := move.New(move.Config{Cluster: cluster, Database: database, Target: to})
		if err != nil {
			return err
		}
		result, err := m.Run(ctx)
		d.pause = max(d.pause, result.Pause)
		var refused *move.Refused
		if err == nil || errors.Is(err, move.ErrThere) || errors.As(err, &refused) || ctx.Err() != nil {
			return err
		}
		if err := harness.Sleep(ctx, moveAgain); err != nil {
			return err
		}
	}
}
