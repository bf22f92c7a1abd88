package backlog

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/store/shards"
	"github.com/perceptor/perceptor/task"
)

// checkpointLimit is the longest time that writing gigabytes may take on a slow disk.
const checkpointLimit = 15 * time.Minute

// Store is the databases of a server as a bulk load sees them. Other experiments fill
// them through it and read what they hold.
type Store struct {
	cluster *store.Cluster
	shards  *shards.Store
	dsn     string
}

// Open connects to the databases with the timeouts of a bulk load.
func Open(ctx context.Context, dsn string, horizon time.Duration, conns int) (*Store, error) {
	cluster, err := store.Open(ctx, store.Config{
		Servers: []store.Server{{DSN: dsn}}, Application: "loadtest", MaxConns: conns,
		StatementTimeout: 5 * time.Minute, IdleInTransaction: 5 * time.Minute,
	})
	if err != nil {
		return nil, err
	}
	return &Store{cluster, shards.New(cluster, shards.Config{Horizon: horizon}), dsn}, nil
}

// Close ends the connections.
func (s *Store) Close() { s.cluster.Close() }

// Tenant returns the number of a tenant.
func (s *Store) Tenant(ctx context.Context, name string) (id int32, err error) {
	if err := s.cluster.Pool(0).QueryRow(ctx, "SELECT id FROM tenant WHERE name = $1", name).Scan(&id); err != nil {
		return 0, fmt.Errorf("look up tenant %s: %w", name, err)
	}
	return id, nil
}

// checkpoint makes the server write everything, so that different steps begin alike.
func (s *Store) checkpoint(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, checkpointLimit)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.dsn)
	if err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	defer conn.Close(ctx) //nolint:errcheck // nothing depends on it
	if _, err := conn.Exec(ctx, "CHECKPOINT"); err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	return nil
}

// Analyze makes the server look at its tables and write everything, so that different
// steps begin alike.
func (s *Store) Analyze(ctx context.Context) error {
	for d := range task.Databases {
		if _, err := s.cluster.Pool(d).Exec(ctx, "ANALYZE task, far_pack, far_arrival, far_override"); err != nil {
			return err
		}
	}
	return s.checkpoint(ctx)
}

// Filled is what [Store.Fill] has stored.
type Filled struct {
	// Near and Packed count tasks by tier, Packs the packs.
	Near, Packed, Packs int64
	Took                time.Duration
}

// Fill generates l.Tasks tasks and stores them by the bulk path. stored receives the
// tasks with their ids, a chunk at a time; it is called concurrently.
func (s *Store) Fill(ctx context.Context, l Load, maker func() (Maker, error), stored func([]task.Row), progress io.Writer) (Filled, error) {
	ld := &loader{store: s, l: l, maker: maker, stored: stored}
	out, err := ld.run(ctx, progress)
	return Filled{Near: out.near, Packed: l.Tasks - out.near, Packs: out.packs, Took: out.took}, err
}

// Read calls visit, concurrently, with every living task of all databases, as of one
// instant in each.
func (s *Store) Read(ctx context.Context, readers int, expected int64, visit func([]*task.Row), progress io.Writer) error {
	return s.read(ctx, task.Databases, readers, newBar(progress, "read back", expected), visit)
}

// Finished counts the retained finished tasks of a tenant and kind in a state.
func (s *Store) Finished(ctx context.Context, tenant int32, kind string, state task.State) (n int64, err error) {
	for d := range task.Databases {
		var in int64
		const query = "SELECT count(*) FROM task_done WHERE tenant_id = $1 AND kind = $2 AND state = $3"
		if err := s.cluster.Pool(d).QueryRow(ctx, query, tenant, kind, int16(state)).Scan(&in); err != nil {
			return 0, err
		}
		n += in
	}
	return n, nil
}
