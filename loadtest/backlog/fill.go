package backlog

import (
	"context"
	"io"
	"time"

	"github.com/perceptor/perceptor/task"
)

// Store are the databases of a stack, as a bulk load sees them. Other subcommands
// fill them by it, and look at what is in them.
type Store struct{ t *target }

// Open connects to the databases of a server.
func Open(ctx context.Context, dsn string, horizon time.Duration, conns int) (*Store, error) {
	t, err := open(ctx, dsn, horizon, conns)
	if err != nil {
		return nil, err
	}
	return &Store{t}, nil
}

// Close ends the connections.
func (s *Store) Close() { s.t.close() }

// Tenant returns the number of a tenant.
func (s *Store) Tenant(ctx context.Context, name string) (int32, error) { return s.t.tenant(ctx, name) }

// Settle makes the server write everything and look at its tables, so that what
// comes next begins alike.
func (s *Store) Settle(ctx context.Context) error {
	for d := range task.Databases {
		if _, err := s.t.cluster.Pool(d).Exec(ctx, "ANALYZE task, far_pack, far_arrival, far_override"); err != nil {
			return err
		}
	}
	return s.t.checkpoint(ctx)
}

// Filled is what [Store.Fill] has stored.
type Filled struct {
	// Near and Packed count tasks by where they are, Packs the packs.
	Near, Packed, Packs int64
	Took                time.Duration
}

// Fill makes l.Tasks tasks and stores them by the bulk path. note is told of the
// tasks with their ids, a chunk at a time; it is called concurrently.
func (s *Store) Fill(ctx context.Context, l Load, maker func() (Maker, error), note func([]task.Row), progress io.Writer) (Filled, error) {
	if err := l.validate(); err != nil {
		return Filled{}, err
	}
	ld := &loader{t: s.t, l: l, maker: maker, note: note}
	out, err := ld.run(ctx, progress)
	return Filled{Near: out.near, Packed: l.Tasks - out.near, Packs: out.packs, Took: out.took}, err
}

// Read gives every living task of all databases, as of one instant in each, to
// visit, which is called concurrently by that many readers.
func (s *Store) Read(ctx context.Context, readers int, expected int64, visit func([]*task.Row), progress io.Writer) error {
	return s.t.read(ctx, task.Databases, readers, newBar(progress, "read back", expected), visit)
}

// Finished counts the finished tasks of a tenant and kind in a state that are
// still kept.
func (s *Store) Finished(ctx context.Context, tenant int32, kind string, state task.State) (n int64, err error) {
	for d := range task.Databases {
		var in int64
		const query = "SELECT count(*) FROM task_done WHERE tenant_id = $1 AND kind = $2 AND state = $3"
		if err := s.t.cluster.Pool(d).QueryRow(ctx, query, tenant, kind, int16(state)).Scan(&in); err != nil {
			return 0, err
		}
		n += in
	}
	return n, nil
}
