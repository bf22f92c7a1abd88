// Package store connects to the logical databases: 16 schemas on 1 to 16
// PostgreSQL servers, one pool for each. Its subpackages are the only ones that
// know SQL: store/shards holds tasks, store/control holds tenants and tokens.
//
// Each database has a pool of its own, because a session's search_path, its
// prepared statements and their plans belong to one schema. A server that is
// unreachable stalls only its own databases. One that hangs, which connections alone do
// not show, is noticed within half a second: until it answers, calls for its databases fail
// at once with [ErrStalled], so nobody waits for it (see the type watch). With one server
// there is nobody to protect from it, and calls wait for their deadline.
//
// # Sessions
//
// Every session sets its own limits: statement_timeout, lock_timeout, and
// idle_in_transaction_session_timeout, so that a process that stops in the
// middle of a transaction does not block others for long. An answered call is on disk: a
// synchronous_commit that is off is turned on. Plans are generic.
// Sequential and bitmap scans, hash and merge joins, materialize and memoize
// nodes are off, because statements here touch few rows by key. With them, wrong
// estimates of the planner for arrays made statements up to ten times as
// expensive in measurements. Isolation and encoding are always the same, whatever a role, a
// database or a server has for other programs.
//
// # Logins
//
// User, password and TLS may change while the process runs: new connections follow the connection
// string and the files that it names (password file, certificates, CA) once one has been opened so, and then the
// older connections are replaced; see [Server].Read and package renewal. Connections that were taken out of a
// pool for good are not. Another host, port or database in a connection string needs a restart.
//
// # Connections
//
// A process opens no more connections to a server than its budget, over the databases of the
// server (see the type budget). By default that is its share of what the server admits, which
// follows from the server's settings and the processes that have sessions there ([Cluster.Fit]).
// Whoever needs a connection waits for one, up to a limit.
//
// # Fail-over and restore
//
// Package identity checks each new connection. A database that is not the one that this
// process knew is adopted first, so nothing here relies on what a lost commit has said.
package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/perceptor/perceptor/migrations"
	"github.com/perceptor/perceptor/store/identity"
	"github.com/perceptor/perceptor/store/place"
	"github.com/perceptor/perceptor/task"
)

// Config locates the databases and sets the limits of their sessions.
type Config struct {
	// Servers are the 1 to 16 servers that hold the databases.
	Servers []Server
	// Application is the application_name of the sessions, followed by a dot and a name of the
	// process. Defaults to perceptor.
	Application string
	// MaxConns bounds the connections to one database. Defaults to 4.
	MaxConns int
	// ServerConns bounds the connections to one server, over its databases. The default is no
	// other bound than MaxConns for each of them.
	ServerConns int
	// FitServers makes [Cluster.Fit] set that bound by what the server admits. Until its first
	// call it is [FirstConns].
	FitServers bool
	// StatementTimeout is the longest time a statement may run. Defaults to 5 s.
	StatementTimeout time.Duration
	// LockTimeout is the longest time a statement may wait for a lock. Defaults
	// to 200 ms.
	LockTimeout time.Duration
	// IdleInTransaction is the longest time a session may be idle within a
	// transaction before the server ends it. Defaults to 2 s.
	IdleInTransaction time.Duration
	// ReadOnly is for programs that only read, also from standbys: sessions cannot write, and
	// no database is adopted.
	ReadOnly bool
}

// Server is one PostgreSQL server.
type Server struct {
	// DSN is a connection string or URL. It may contain a password and is never
	// printed.
	DSN string
	// Read, if set, returns the connection string anew, so that its user and password, and the
	// files that it names, may change; see the section on logins. It may be called concurrently.
	Read func() (string, error)
	// Databases are the numbers of the databases on this server. If it is empty
	// for all servers, the 16 databases are distributed evenly in order.
	Databases []int
	// Storage is the size of the server's disk in bytes. 0: it is not known.
	Storage int64
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
	guards  [task.Databases]*identity.Guard
	placed  [task.Databases]*placed
	timeout time.Duration
	// follower hears of databases that move.
	follower    *follower
	application string
	// place is the server in the configuration of each database.
	place   [task.Databases]int
	watches watches
	watched [task.Databases]atomic.Pointer[watch]
	full    [task.Databases]fullness
	logins  []*login // by server in the configuration
	// storage has the configured sizes of disks, by server (host:port). Open sets it.
	storage map[string]int64
	// budgets are by server. fit makes Fit change them.
	budgets *budgets
	fit     bool
	onStall func(address string, stalled bool)

	mu         sync.Mutex
	onAdoption []func(identity.Adoption)
	onLogin    func(address string, err error)
}

// SchemaName returns the name of the schema of database d, 0 to 15.
func SchemaName(d int) string { return fmt.Sprintf("perceptor_%02d", d) }

// Open returns a cluster with one pool for each database. It does not connect to
// the servers; [Cluster.Check] does.
func Open(ctx context.Context, cfg Config) (*Cluster, error) {
	setDefaults(&cfg)
	servers, err := placement(cfg.Servers)
	if err != nil {
		return nil, err
	}
	c := &Cluster{
		timeout: cfg.StatementTimeout, place: servers, application: cfg.Application,
		budgets: newBudgets(cfg.ServerConns), fit: cfg.FitServers, storage: map[string]int64{},
	}
	c.follower = newFollower(c)
	if err := c.newLogins(cfg); err != nil {
		return nil, err
	}
	for i, l := range c.logins {
		server := l.configured.Server()
		c.storage[server] = max(c.storage[server], cfg.Servers[i].Storage)
	}
	for d := range servers {
		if err := c.openDatabase(ctx, d, cfg); err != nil {
			c.Close()
			return nil, err
		}
	}
	c.runLogins()
	return c, nil
}

// openDatabase makes the pool of database d.
func (c *Cluster) openDatabase(ctx context.Context, d int, cfg Config) error {
	pc, err := pgxpool.ParseConfig(cfg.Servers[c.place[d]].DSN)
	if err != nil {
		return fmt.Errorf("postgres.servers[%d].dsn is not a connection string: %w", c.place[d], scrub(err))
	}
	p := newPlaced(d, c.logins[c.place[d]], c.logins, cfg.ReadOnly)
	part := &pooled{mu: &c.budgets.mu, most: cfg.MaxConns, used: time.Now()}
	p.moved = func() {
		c.pools[d].Reset()
		c.watchServer(d)
		c.budgets.move(part, c.ServerAddress(d))
	}
	c.placed[d] = p
	configure(pc, cfg)
	pc.BeforeConnect = func(ctx context.Context, conn *pgx.ConnConfig) error {
		if !cfg.ReadOnly {
			c.follower.start()
		}
		return p.connect(ctx, conn)
	}
	pc.PrepareConn = p.admit
	failed := pc.ConnConfig.OnPgError
	pc.ConnConfig.OnPgError = func(conn *pgconn.PgConn, e *pgconn.PgError) bool {
		if place.Gone(e) {
			c.follower.trail(d)
		}
		c.full[d].note(e, time.Now())
		return failed(conn, e)
	}
	c.guard(pc, d, cfg)
	c.watchServer(d)
	pc.ConnConfig.Tracer, pc.BeforeClose = gate{part}, part.closes
	if len(cfg.Servers) > 1 { // with one server there is nobody to protect from it: calls wait
		pc.ConnConfig.Tracer = watchedGate{tracer{c, d}, gate{part}}
		pc.BeforeClose = func(conn *pgx.Conn) { watchOf(conn, c.watch(d)).end(conn); part.closes(conn) }
	}
	if c.pools[d], err = pgxpool.NewWithConfig(ctx, pc); err != nil {
		return fmt.Errorf("open database %d: %w", d, err)
	}
	part.pool = c.pools[d]
	c.budgets.move(part, c.ServerAddress(d))
	return nil
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
	cfg.Application = processName(cfg.Application)
	if cfg.FitServers {
		cfg.ServerConns = FirstConns
	}
	if cfg.ServerConns <= 0 {
		cfg.ServerConns = task.Databases * cfg.MaxConns
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

// scrub replaces the error of a connection string that cannot be parsed. The driver's error
// quotes the string, and masks passwords only where it recognises them. A file that cannot
// be read is named.
func scrub(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path
	}
	return errors.New("it has neither the form keyword=value nor that of a URL, or a value in it is not valid")
}

// preferPrimary makes connections by a connection string with several hosts look for the one that can be
// written, as target_session_attrs=read-write does, unless they are to read only.
func preferPrimary(c *pgx.ConnConfig, readOnly bool) {
	several := slices.ContainsFunc(c.Fallbacks, func(f *pgconn.FallbackConfig) bool { return f.Host != c.Host || f.Port != c.Port })
	if several && !readOnly && c.ValidateConnect == nil {
		c.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
}

// pingAfter is the idle time after which a connection is pinged before it is
// used. It is longer than the interval between two peeks of an idle dispatcher (5 s, and
// some of what it differs by). Otherwise each peek would cost two round trips.
const pingAfter = 8 * time.Second

// healthCheckEvery is the interval at which a pool closes connections that were idle for too long. It is longer
// than that idle time: after each check the pool hands out all its connections in turn, so with a shorter one
// none was ever idle for long, and an idle installation kept the sessions, with their plans, of its busiest moment.
const healthCheckEvery = 6 * time.Minute

func configure(pc *pgxpool.Config, cfg Config) {
	pc.ConnConfig.RuntimeParams["application_name"] = cfg.Application
	pc.ShouldPing = func(_ context.Context, p pgxpool.ShouldPingParams) bool { return p.IdleDuration > pingAfter }
	pc.MaxConns = int32(cfg.MaxConns)
	pc.MinConns = 0
	pc.MaxConnIdleTime = 5 * time.Minute
	pc.HealthCheckPeriod = healthCheckEvery
	limitConnect(pc.ConnConfig)
}

// otherHosts returns how long the opening of a connection may take beyond what it takes with the first address of a
// server: all but the last one may be silent.
func otherHosts(c *pgx.ConnConfig) time.Duration {
	return time.Duration(len(c.Fallbacks)) * c.ConnectTimeout
}

// OtherHosts returns how long the first connection to any database may take beyond what it takes if the first host of
// each connection string answers.
func (c *Cluster) OtherHosts() (longest time.Duration) {
	for _, p := range c.placed {
		longest = max(longest, otherHosts(p.copyConfig()))
	}
	return longest
}

// limitConnect bounds the opening of a connection to each address of a server, unless the connection string does.
func limitConnect(c *pgx.ConnConfig) {
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = 5 * time.Second
	}
}

// settings returns the names and values of the parameters of sessions with database d.
func settings(cfg *Config, d int) (names, values []string) {
	set := func(name, value string) { names, values = append(names, name), append(values, value) }
	ms := func(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
	set("search_path", SchemaName(d))
	set("statement_timeout", ms(cfg.StatementTimeout))
	set("lock_timeout", ms(cfg.LockTimeout))
	set("idle_in_transaction_session_timeout", ms(cfg.IdleInTransaction))
	set("plan_cache_mode", "force_generic_plan")
	for _, plan := range []string{"seqscan", "bitmapscan", "hashjoin", "mergejoin", "material", "memoize"} {
		set("enable_"+plan, "off")
	}
	// The constraints of the shard tables exclude nothing that partitions do not, and to read
	// them is a fifth of the planning of a claim.
	set("constraint_exclusion", "off")
	// A plan that cannot do without what is off here seems so expensive that PostgreSQL would
	// start processes to share it, for tables of a few rows.
	set("max_parallel_workers_per_gather", "0")
	set("jit", "off")
	set("timezone", "UTC")
	// What a server, a database or a role may have otherwise, for other programs. Statements here have
	// backslashes that stand for themselves, and a session is idle until its pool closes it.
	set("standard_conforming_strings", "on")
	set("idle_session_timeout", "0")
	// A step reads again after its locks, and must see what was committed before it got them: with one
	// snapshot for a whole transaction, a task that was cancelled meanwhile would fire.
	set("default_transaction_isolation", "read committed")
	set("client_encoding", "UTF8")
	if cfg.ReadOnly {
		set("default_transaction_read_only", "on")
	}
	return names, values
}

// guard makes the pool of database d set the parameters of its new connections and check them,
// unless they only read. When a database was adopted, the pool replaces its older connections,
// which may lead to a former primary.
func (c *Cluster) guard(pc *pgxpool.Config, d int, cfg Config) {
	g := identity.NewGuard(d, func(a identity.Adoption) {
		c.pools[d].Reset()
		c.mu.Lock()
		all := c.onAdoption
		c.mu.Unlock()
		for _, f := range all {
			f(a)
		}
	})
	c.guards[d] = g
	names, values := settings(&cfg, d)
	pc.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		registerArrays(conn.TypeMap())
		conn.PgConn().CustomData()[watchKey] = c.watch(d)
		if err := settle(ctx, conn, names, values); err != nil {
			return err
		}
		here, err := c.placed[d].recognize(ctx, conn)
		if err != nil || !here || cfg.ReadOnly {
			return err // a connection that leads elsewhere is not used, see placed.admit
		}
		return g.Check(ctx, conn)
	}
}

// OnAdoption adds a function that is called when a database is found to be another one than
// this process knew: after a fail-over, a restore or a restart of its server. f must not block.
func (c *Cluster) OnAdoption(f func(identity.Adoption)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.onAdoption = append(slices.Clip(c.onAdoption), f)
}

// Guard returns the guard of database d.
func (c *Cluster) Guard(d int) *identity.Guard { return c.guards[d] }

// Readopt adopts database d, in which the caller has found a sign of lost commits.
func (c *Cluster) Readopt(ctx context.Context, d int, reason string) error {
	conn, err := c.pools[d].Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	return c.guards[d].Readopt(ctx, conn.Conn(), reason)
}

// Incarnation returns the newest incarnation of database d that this process has found, or
// 0 if it has not connected. It changes when the database may have lost commits: what was
// read before must be forgotten.
func (c *Cluster) Incarnation(d int) int64 { return c.guards[d].Incarnation() }

// Pool returns the pool of database d, 0 to 15.
func (c *Cluster) Pool(d int) *pgxpool.Pool { return c.pools[d] }

// Storage returns the configured size, in bytes, of the disk of the server where database d is now; 0: it is
// not configured.
func (c *Cluster) Storage(d int) int64 {
	_, at := c.Place(d)
	return c.StorageAt(at)
}

// StorageAt is [Cluster.Storage] for any address, also of a server of the configuration without databases.
func (c *Cluster) StorageAt(at place.Address) int64 { return c.storage[at.Server()] }

// FirstOfServer returns the lowest database that is on the same server as database d now.
func (c *Cluster) FirstOfServer(d int) int {
	_, at := c.Place(d)
	for first := range d {
		if _, other := c.Place(first); other.Server() == at.Server() {
			return first
		}
	}
	return d
}

// FirstOfServers returns the lowest database of each server.
func (c *Cluster) FirstOfServers() (list []int) {
	for d := range task.Databases {
		if c.FirstOfServer(d) == d {
			list = append(list, d)
		}
	}
	return list
}

// Local reports whether the server of database d is on this machine: at a loopback address or a socket.
func (c *Cluster) Local(d int) bool {
	host := c.placed[d].copyConfig().Host
	ip := net.ParseIP(host)
	return strings.HasPrefix(host, "/") || host == "localhost" || ip != nil && ip.IsLoopback()
}

// StatementTimeout returns the longest time a statement may run.
func (c *Cluster) StatementTimeout() time.Duration { return c.timeout }

// Close closes all pools. It waits for connections in use.
func (c *Cluster) Close() {
	c.closeLogins()
	c.follower.stop()
	c.watches.close()
	for _, p := range c.pools {
		if p != nil {
			p.Close()
		}
	}
}

// Server returns the number of the PostgreSQL server that has database d in the
// configuration. The database may have moved since.
func (c *Cluster) Server(d int) int { return c.place[d] }

// ServerAddress returns host and port of the server that has database d, as far as this process knows.
func (c *Cluster) ServerAddress(d int) string { return c.placed[d].address.Load().Server() }

// Place returns where database d is, as far as this process knows, and the number of that
// place, or 0 if no connection was made yet.
func (c *Cluster) Place(d int) (number int64, address place.Address) { return c.placed[d].current() }

// Configured returns where database d begins by the configuration.
func (c *Cluster) Configured(d int) place.Address { return c.placed[d].bootstrap.configured }

// DSNAt returns the connection string of database d at an address, with the user and the TLS
// settings of this process. An empty address is where the database is. It may have a password.
func (c *Cluster) DSNAt(d int, at place.Address) (string, error) {
	l := c.placed[d].loginOf(at)
	if at == "" {
		l, at, _ = c.placed[d].leads()
	}
	if at == "" {
		return l.Current().dsn, nil
	}
	return at.DSN(l.Current().dsn)
}

// ConfigAt returns the configuration of connections to database d at an address, with the
// user and the TLS settings of this process. An empty address is where the database is.
func (c *Cluster) ConfigAt(d int, at place.Address) (*pgx.ConnConfig, error) {
	if at == "" {
		return c.placed[d].copyConfig(), nil
	}
	config, err := c.placed[d].loginOf(at).at(at)
	if err != nil {
		return nil, err
	}
	return config.Copy(), nil
}

// Locate connects to database d, and follows it if it has moved.
func (c *Cluster) Locate(ctx context.Context, d int) error {
	conn, err := c.pools[d].Acquire(ctx)
	if err == nil {
		conn.Release()
	}
	return err
}

// Address returns host, port, database and schema of database d for messages,
// without credentials.
func (c *Cluster) Address(d int) string {
	cc := c.placed[d].copyConfig()
	return fmt.Sprintf("%s:%d/%s, schema %s", cc.Host, cc.Port, cc.Database, SchemaName(d))
}

// Each calls f for all databases concurrently and joins the errors. It adds the
// database's address to each error.
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

// Errors of [Cluster.Check] about a schema on which this program does not work.
var (
	ErrSchemaOld = errors.New("run perceptorctl migrate up")
	ErrSchemaNew = errors.New("start a newer version of this program")
	// ErrNoRight is not about a version: the role must not use the schema.
	ErrNoRight = migrations.ErrNoRight
)

// Schemas are the versions of the schemas, by database.
type Schemas [task.Databases]int64

// Old reports whether a schema does not have all versions that this program knows.
func (s Schemas) Old() bool { return slices.Min(s[:]) < migrations.Latest() }

// Current reports whether every schema has the version of this program.
func (s Schemas) Current() bool { return !s.Old() && slices.Max(s[:]) == migrations.Latest() }

// String compares the versions with that of this program.
func (s Schemas) String() string {
	return fmt.Sprintf("databases have versions %d to %d, this program has %d", slices.Min(s[:]), slices.Max(s[:]), migrations.Latest())
}

// Check returns an error unless every database can be reached and has a schema on which
// this program works. Then it returns the versions.
func (c *Cluster) Check(ctx context.Context) (versions Schemas, err error) {
	err = c.Each(ctx, func(ctx context.Context, d int) (err error) {
		versions[d], err = c.Version(ctx, d)
		if err != nil || migrations.Works(versions[d]) {
			return err
		}
		cure := ErrSchemaOld
		if versions[d] > migrations.Latest() {
			cure = ErrSchemaNew
		}
		return fmt.Errorf("schema has version %d, this program has %d and works with at most one version of difference: %w", versions[d], migrations.Latest(), cure)
	})
	return versions, err
}

// Version returns the version of the schema of database d; 0 if it has none.
func (c *Cluster) Version(ctx context.Context, d int) (int64, error) {
	return migrations.VersionIn(ctx, c.pools[d], SchemaName(d))
}

// Migrate migrates every database to the schema version of this program. If done
// is not nil, Migrate calls it after each database with the number of versions
// that it applied.
func (c *Cluster) Migrate(ctx context.Context, done func(d int, applied int)) error {
	for d := range c.pools {
		if err := c.migratable(ctx, d); err != nil {
			return fmt.Errorf("database %d at %s: %w", d, c.Address(d), err)
		}
		steps, err := migrations.Up(ctx, c.placed[d].copyConfig(), SchemaName(d))
		if err != nil {
			return fmt.Errorf("database %d at %s: %w", d, c.Address(d), err)
		}
		if done != nil {
			done(d, len(steps))
		}
	}
	return nil
}

// ErrMoving is the error of a change of the schema of a database that is being moved.
var ErrMoving = errors.New("it is being moved to another server: wait for the end, or abort the move with perceptorctl database move --abort")

// migratable follows database d to its place, and returns an error if its schema must stay.
func (c *Cluster) migratable(ctx context.Context, d int) error {
	conn, err := c.pools[d].Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	copied, err := place.Read(ctx, conn)
	if err == nil && copied.Target != "" {
		return ErrMoving
	}
	return err
}
