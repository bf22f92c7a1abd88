package stack

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/store"
	"github.com/perceptor/perceptor/task"
)

// watchEvery is the distance of two looks at the owners. A takeover is dated by
// the database, so it does not blur the result.
const watchEvery = 50 * time.Millisecond

// Owners reads the owner tables of a server that holds all databases.
type Owners struct {
	dsn   string
	query string
}

func newOwners(dsn string) *Owners {
	parts := make([]string, task.Databases)
	for d := range parts {
		parts[d] = fmt.Sprintf("SELECT item, epoch, name, acquired_at FROM %s.owner WHERE item < %d",
			pgx.Identifier{store.SchemaName(d)}.Sanitize(), task.Shards)
	}
	return &Owners{dsn: dsn, query: strings.Join(parts, " UNION ALL ")}
}

// Owner is who owns a shard.
type Owner struct {
	Shard      task.Shard
	Epoch      int64
	Name       string // empty: nobody
	AcquiredAt task.Instant
}

// List returns the owners of all shards.
func (o *Owners) List(ctx context.Context) ([]Owner, error) {
	conn, err := pgx.Connect(ctx, o.dsn)
	if err != nil {
		return nil, fmt.Errorf("list owners: %w", err)
	}
	defer conn.Close(ctx) //nolint:errcheck // nothing depends on it
	return o.list(ctx, conn)
}

func (o *Owners) list(ctx context.Context, conn *pgx.Conn) ([]Owner, error) {
	rows, err := conn.Query(ctx, o.query)
	if err != nil {
		return nil, fmt.Errorf("list owners: %w", err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Owner])
	if err != nil {
		return nil, fmt.Errorf("list owners: %w", err)
	}
	return all, nil
}

// AwaitAll returns when every shard has an owner and each of the names owns some.
func (o *Owners) AwaitAll(ctx context.Context, names []string) error {
	var state string
	err := o.poll(ctx, func(all []Owner) bool {
		owned, seen := 0, map[string]bool{}
		for _, owner := range all {
			if owner.Name != "" {
				owned++
			}
			seen[owner.Name] = true
		}
		missing := 0
		for _, name := range names {
			if !seen[name] {
				missing++
			}
		}
		state = fmt.Sprintf("%d of %d shards have an owner, %d of %d dispatchers have none", owned, len(all), missing, len(names))
		return owned == task.Shards && missing == 0
	})
	if err != nil && state != "" {
		return fmt.Errorf("%s: %w", state, err)
	}
	return err
}

// AwaitTakeover returns when the last of the given ownerships has passed to
// somebody else, as the database dated it.
func (o *Owners) AwaitTakeover(ctx context.Context, before []Owner) (task.Instant, error) {
	var last task.Instant
	left := map[task.Shard]Owner{}
	for _, b := range before {
		left[b.Shard] = b
	}
	err := o.poll(ctx, func(all []Owner) bool {
		for _, now := range all {
			if b, ok := left[now.Shard]; ok && now.Epoch > b.Epoch && now.Name != "" && now.Name != b.Name {
				delete(left, now.Shard)
				last = max(last, now.AcquiredAt)
			}
		}
		return len(left) == 0
	})
	if err != nil {
		return 0, fmt.Errorf("%d of %d shards have not been taken over: %w", len(left), len(before), err)
	}
	return last, nil
}

// poll looks at the owners until done or ctx ends. A database that is away is
// asked again.
func (o *Owners) poll(ctx context.Context, done func([]Owner) bool) error {
	var (
		conn *pgx.Conn
		err  error
	)
	defer func() {
		if conn != nil {
			conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing depends on it
		}
	}()
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		if conn == nil || conn.IsClosed() {
			conn, err = pgx.Connect(ctx, o.dsn)
		}
		if err == nil {
			var all []Owner
			if all, err = o.list(ctx, conn); err == nil && done(all) {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("watch owners: %w", ctx.Err())
		case <-tick.C:
		}
		err = nil
	}
}
