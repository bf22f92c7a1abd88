// Package store connects to the logical databases: 16 schemas on 1 to 16
// PostgreSQL servers, one pool for each. Its subpackages are the only ones that
// know SQL: store/shards holds tasks, store/control tenants and tokens.
//
// Each database has a pool of its own, because a session's search_path, its
// prepared statements and their plans belong to one schema. A server that is
// away stalls its databases and no other.
//
// # Sessions
//
// Every session sets its own limits: statement_timeout, lock_timeout, and
// idle_in_transaction_session_timeout, so that a process that stops in the
// middle of a transaction holds nobody up for long. Plans are generic, and
// sequential, bitmap, hash and merge plans are off, and so is what keeps inner
// sides of joins in memory: statements here touch few
// rows by key, and the planner's guesses about arrays were measured to cost up
// to ten times as much when they go wrong.
package store

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/perceptor/perceptor/migrations"
	"github.com/perceptor/perceptor/task"
)

// Config says where the databases are and how to talk to them.
type Config struct {
	// Servers hold the databases; 1 to 16.
	Servers []Server
	// Application is the application_name of the sessions.
	Application string
	// MaxConns bounds the connections to one database. Defaults to 4.
	MaxConns int
	// StatementTimeout ends a statement. Defaults to 5 s.
	StatementTimeout time.Duration
	// LockTimeout ends a wait for a row. Defaults to 200 ms.
	LockTimeout time.Duration
	// IdleInTransaction ends a session that stops in the middle of a
	// transaction. Defaults to 2 s.
	IdleInTransaction time.Duration
}

// Server is one PostgreSQL server.
type Server struct {
	// DSN is a connection string or URL. It may hold a password, and is never
	// printed.
	DSN string
	// Databases are the numbers of the databases there. When all servers leave
	// it empty, the 16 are spread evenly in order.
	Databases []int
}

// Defaults of [Config].
const (
	DefaultMaxConns          = 4
	DefaultStatementTimeout  = 5 * time.Second
	DefaultLockTimeout       = 200 * time.Millisecond
	DefaultIdleInTransaction = 2 * time.Second
)

// Cluster is the set of logical databases. It is safe for concurrent use.
type Cluster struct {
	pools   [task.Databases]*pgxpool.Pool
	configs [task.Databases]*pgx.ConnConfig
	timeout time.Duration
}

// SchemaName returns the name of the schema of database d, 0 to 15.
func SchemaName(d int) string { return fmt.Sprintf("perceptor_%02d", d) }

// Open prepares the pools. It connects to nothing yet; see [Cluster.Check].
func Open(ctx context.Context, cfg Config) (*Cluster, error) {
	setDefaults(&cfg)
	place, err := placement(cfg.Servers)
	if err != nil {
		return nil, err
	}
	c := &Cluster{timeout: cfg.StatementTimeout}
	for d, server := range place {
		pc, err := pgxpool.ParseConfig(cfg.Servers[server].DSN)
		if err != nil {
			c.Close()
			return nil, fmt.Errorf("postgres.servers[%d].dsn is not a connection string: %w", server, scrub(err))
		}
		c.configs[d] = pc.ConnConfig.Copy()
		configure(pc, cfg, d)
		if c.pools[d], err = pgxpool.NewWithConfig(ctx, pc); err != nil {
			c.Close()
			return nil, fmt.Errorf("open database %d: %w", d, err)
		}
	}
	return c, nil
}

func setDefaults(cfg *Config) {
	if cfg.MaxConns <= 0 {
		cfg.MaxConns = DefaultMaxConns
	}
	if cfg.StatementTimeout <= 0 {
		cfg.StatementTimeout = DefaultStatementTimeout
	}
	if cfg.LockTimeout <= 0 {
		cfg.LockTimeout = DefaultLockTimeout
	}
	if cfg.IdleInTransaction <= 0 {
		cfg.IdleInTransaction = DefaultIdleInTransaction
	}
	if cfg.Application == "" {
		cfg.Application = "perceptor"
	}
}

// placement returns the index of the server of each database.
func placement(servers []Server) ([task.Databases]int, error) {
	var place [task.Databases]int
	if len(servers) < 1 || len(servers) > task.Databases {
		return place, fmt.Errorf("postgres.servers has %d entries: want 1 to %d", len(servers), task.Databases)
	}
	named := false
	for _, s := range servers {
		named = named || len(s.Databases) > 0
	}
	if !named {
		for d := range place {
			place[d] = d * len(servers) / task.Databases
		}
		return place, nil
	}
	return namedPlacement(servers)
}

func namedPlacement(servers []Server) ([task.Databases]int, error) {
	var place [task.Databases]int
	seen := map[int]int{}
	for i, s := range servers {
		for _, d := range s.Databases {
			if d < 0 || d >= task.Databases {
				return place, fmt.Errorf("postgres.servers[%d].databases: %d is not between 0 and %d", i, d, task.Databases-1)
			}
			if other, dup := seen[d]; dup {
				return place, fmt.Errorf("postgres.servers[%d].databases: %d is also at servers[%d]", i, d, other)
			}
			seen[d], place[d] = i, i
		}
	}
	if len(seen) != task.Databases {
		return place, fmt.Errorf("postgres.servers: %d of %d databases have a server", len(seen), task.Databases)
	}
	return place, nil
}

// scrub keeps a parse error that could quote a password out of messages.
func scrub(err error) error {
	var parse *pgconn.ParseConfigError
	if errors.As(err, &parse) {
		return parse
	}
	return errors.New("it cannot be parsed")
}

// pingAfter is how long a connection has been idle that is tried before it is
// used: longer than the distance of two looks of an idle dispatcher, or each look
// would be two round trips.
const pingAfter = 3 * time.Second

func configure(pc *pgxpool.Config, cfg Config, d int) {
	ms := func(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
	p := pc.ConnConfig.RuntimeParams
	p["search_path"] = SchemaName(d)
	p["application_name"] = cfg.Application
	p["statement_timeout"] = ms(cfg.StatementTimeout)
	p["lock_timeout"] = ms(cfg.LockTimeout)
	p["idle_in_transaction_session_timeout"] = ms(cfg.IdleInTransaction)
	p["plan_cache_mode"] = "force_generic_plan"
	for _, plan := range []string{"seqscan", "bitmapscan", "hashjoin", "mergejoin", "material", "memoize"} {
		p["enable_"+plan] = "off"
	}
	p["jit"] = "off"
	p["timezone"] = "UTC"
	pc.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
		registerArrays(conn.TypeMap())
		return nil
	}
	pc.ShouldPing = func(_ context.Context, p pgxpool.ShouldPingParams) bool { return p.IdleDuration > pingAfter }
	pc.MaxConns = int32(cfg.MaxConns)
	pc.MinConns = 0
	pc.MaxConnIdleTime = 5 * time.Minute
	pc.HealthCheckPeriod = 30 * time.Second
	if pc.ConnConfig.ConnectTimeout == 0 {
		pc.ConnConfig.ConnectTimeout = 5 * time.Second
	}
}

// Pool returns the pool of database d, 0 to 15.
func (c *Cluster) Pool(d int) *pgxpool.Pool { return c.pools[d] }

// StatementTimeout returns the longest time a statement may take.
func (c *Cluster) StatementTimeout() time.Duration { return c.timeout }

// Close closes all pools. It waits for connections in use.
func (c *Cluster) Close() {
	for _, p := range c.pools {
		if p != nil {
			p.Close()
		}
	}
}

// Address returns where database d is, for messages: no credentials.
func (c *Cluster) Address(d int) string {
	cc := c.configs[d]
	return fmt.Sprintf("%s:%d/%s, schema %s", cc.Host, cc.Port, cc.Database, SchemaName(d))
}

// Each runs f for every database at once and joins the errors, each with the
// database's address.
func (c *Cluster) Each(ctx context.Context, f func(ctx context.Context, d int) error) error {
	var wg sync.WaitGroup
	errs := make([]error, task.Databases)
	for d := range c.pools {
		wg.Go(func() {
			if err := f(ctx, d); err != nil {
				errs[d] = fmt.Errorf("database %d at %s: %w", d, c.Address(d), err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Check says whether every database can be reached and has the schema version
// of this program.
func (c *Cluster) Check(ctx context.Context) error {
	return c.Each(ctx, func(ctx context.Context, d int) error {
		version, err := migrations.Version(ctx, c.configs[d], SchemaName(d))
		if err != nil {
			return err
		}
		if want := migrations.Latest(); version != want {
			return fmt.Errorf("the schema has version %d, this program needs %d: run perceptorctl migrate up", version, want)
		}
		return nil
	})
}

// Migrate brings every database up to date; done, when not nil, is called after
// each with the number of versions applied now.
func (c *Cluster) Migrate(ctx context.Context, done func(d int, applied int)) error {
	for d := range c.pools {
		steps, err := migrations.Up(ctx, c.configs[d], SchemaName(d))
		if err != nil {
			return fmt.Errorf("database %d at %s: %w", d, c.Address(d), err)
		}
		if done != nil {
			done(d, len(steps))
		}
	}
	return nil
}
