package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/perceptor/perceptor/internal/subprocess"
	"github.com/perceptor/perceptor/loadtest/stack"
)

// Source is a process, or a group of them, that uses processor time.
type Source interface {
	PID() int
	CPUTime() (time.Duration, error)
}

// The parts that the name "postgres" is split into.
const (
	postgres           = "postgres"
	PostgresBackends   = "postgres-backends"
	PostgresBackground = "postgres-background"
)

// Meter adds up processor time by process. A process that starts again begins
// at zero; what it used before counts up to the last sample, so there must be one
// before it is ended. A source named postgres is a server: its client backends
// count as [PostgresBackends], all its other processes as [PostgresBackground]. A
// backend that ends counts as background from its last sample on. The methods
// may be called concurrently.
type Meter struct {
	sources map[string]Source

	mu       sync.Mutex
	last     map[string]reading
	total    map[string]time.Duration
	backends map[int]time.Duration // of PostgreSQL, at the last sample
	serving  time.Duration         // by all of them, up to now
}

type reading struct {
	pid  int
	used time.Duration
}

// NewMeter returns a meter of this process ("loadtest"), of the stack's parts by
// their names, and of others.
func NewMeter(s *stack.Stack, others map[string]Source) *Meter {
	m := newMeter(map[string]Source{"loadtest": Rusage(syscall.RUSAGE_SELF)})
	if s != nil {
		for _, p := range s.Parts {
			m.sources[p.Name] = p.Server
		}
	}
	maps.Copy(m.sources, others)
	return m
}

func newMeter(sources map[string]Source) *Meter {
	return &Meter{
		sources: sources, last: map[string]reading{}, total: map[string]time.Duration{},
		backends: map[int]time.Duration{},
	}
}

// Rusage is this process, or its ended children, as getrusage names them.
type Rusage int

// PID implements [Source].
func (Rusage) PID() int { return os.Getpid() }

// CPUTime implements [Source].
func (who Rusage) CPUTime() (time.Duration, error) {
	var u syscall.Rusage
	if err := syscall.Getrusage(int(who), &u); err != nil {
		return 0, err
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}

// Sample returns what each part has used up to now, since some moment. It costs
// some milliseconds: it reads the process table.
func (m *Meter) Sample() map[string]time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, source := range m.sources {
		pid := source.PID()
		read := source.CPUTime
		if name == postgres && pid != 0 {
			read = func() (time.Duration, error) { return m.samplePostgres(pid) }
		}
		used, err := read()
		if err != nil {
			continue // it is not there now
		}
		before := m.last[name]
		if before.pid != pid {
			before = reading{pid: pid}
		}
		if used > before.used { // else a process of the group has just ended
			m.total[name] += used - before.used
			before.used = used
		}
		m.last[name] = before
	}
	out := maps.Clone(m.total)
	if all, ok := out[postgres]; ok && m.serving > 0 {
		delete(out, postgres)
		out[PostgresBackends], out[PostgresBackground] = min(m.serving, all), max(0, all-m.serving)
	}
	return out
}

// samplePostgres returns what all processes of a server have used, and notes the
// share of the backends: the process table is read once for both.
func (m *Meter) samplePostgres(postmaster int) (total time.Duration, err error) {
	if total, err = subprocess.CPUTime(postmaster); err != nil {
		return 0, err
	}
	children, err := subprocess.Children(postmaster)
	if err != nil {
		return 0, err
	}
	now := make(map[int]time.Duration, len(children))
	for _, pid := range children {
		used, err := subprocess.CPUTime(pid)
		if err != nil {
			continue // it has just ended and counts with the postmaster next time
		}
		total += used
		if serves(title(pid)) {
			m.serving += max(0, used-m.backends[pid])
			now[pid] = used
		}
	}
	m.backends = now
	return total, nil
}

// title is what a process of PostgreSQL calls itself.
func title(pid int) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return ""
	}
	return string(bytes.TrimRight(text, "\x00 "))
}

// serves reports whether a title is that of a backend with a client, such as
// "postgres: perceptor postgres 127.0.0.1(34760) idle".
func serves(title string) bool {
	if !strings.HasPrefix(title, "postgres: ") {
		return false
	}
	for _, other := range []string{
		"checkpointer", "background writer", "walwriter", "autovacuum", "logical replication", "logger",
		"archiver", "stats collector", "startup", "io worker", "parallel worker", "walsummarizer", "slotsync",
	} {
		if strings.Contains(title, other) {
			return other == "parallel worker"
		}
	}
	return true
}

// Used returns what was used between two samples, by part.
func Used(before, after map[string]time.Duration) map[string]time.Duration {
	used := maps.Clone(after)
	for name := range used {
		used[name] = max(0, used[name]-before[name])
	}
	return used
}

// TimeOf returns the processor time of all parts whose names begin with kind.
func TimeOf(used map[string]time.Duration, kind string) (sum time.Duration) {
	for name, u := range used {
		if strings.HasPrefix(name, kind) {
			sum += u
		}
	}
	return sum
}

// Stretch is a stretch of work whose use of processors and of the write-ahead log is
// measured.
type Stretch struct {
	meter  *Meter
	db     *Database
	from   time.Time
	before map[string]time.Duration
	wal    int64
}

// Usage is what a stretch of work used.
type Usage struct {
	// CPU is the processor time by part.
	CPU map[string]time.Duration
	// WAL is in bytes.
	WAL  int64
	Took time.Duration
}

// BeginStretch begins to measure on the server of a connection string. [Stretch.End]
// must be called.
func BeginStretch(ctx context.Context, m *Meter, dsn string) (*Stretch, error) {
	db, err := Dial(ctx, dsn)
	if err != nil {
		return nil, err
	}
	s := &Stretch{meter: m, db: db}
	if s.wal, err = db.WAL(ctx); err != nil {
		db.Close()
		return nil, err
	}
	s.before, s.from = m.Sample(), time.Now()
	return s, nil
}

// End returns what was used since the begin.
func (s *Stretch) End(ctx context.Context) (Usage, error) {
	defer s.db.Close()
	u := Usage{Took: time.Since(s.from), CPU: Used(s.before, s.meter.Sample())}
	wal, err := s.db.WAL(ctx)
	u.WAL = wal - s.wal
	return u, err
}

// MeasureStretch does some work and returns what it used.
func MeasureStretch(ctx context.Context, m *Meter, dsn string, work func() error) (Usage, error) {
	s, err := BeginStretch(ctx, m, dsn)
	if err != nil {
		return Usage{}, err
	}
	err = work()
	u, ended := s.End(ctx)
	return u, errors.Join(err, ended)
}

// Database reads the figures of a PostgreSQL server that only it knows. It is
// not safe for concurrent use.
type Database struct{ conn *pgx.Conn }

// Dial connects to the server of a connection string, which needs the rights of
// a superuser or of pg_monitor.
func Dial(ctx context.Context, dsn string) (*Database, error) {
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	cfg.RuntimeParams["application_name"] = "loadtest"
	cfg.RuntimeParams["jit"] = "off"
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	return &Database{conn}, nil
}

// Close ends the connection.
func (d *Database) Close() { d.conn.Close(context.Background()) } //nolint:errcheck // nothing depends on it

// number asks for one number.
func (d *Database) number(ctx context.Context, what, query string) (n int64, err error) {
	if err := d.conn.QueryRow(ctx, query).Scan(&n); err != nil {
		return 0, fmt.Errorf("read %s: %w", what, err)
	}
	return n, nil
}

// WAL returns the bytes of write-ahead log that the server has written since it was
// made, for all its databases: differences of two readings count.
func (d *Database) WAL(ctx context.Context) (bytes int64, err error) {
	return d.number(ctx, "the position of the log", "SELECT (pg_current_wal_insert_lsn() - '0/0')::int8")
}

// Bytes returns the size of the server's database.
func (d *Database) Bytes(ctx context.Context) (bytes int64, err error) {
	return d.number(ctx, "the size of the database", "SELECT pg_database_size(current_database())")
}

// OldestSnapshot returns the age, in transactions, of the oldest snapshot that holds
// dead rows back; this session does not count.
func (d *Database) OldestSnapshot(ctx context.Context) (age int64, err error) {
	return d.number(ctx, "the age of the oldest snapshot", `SELECT coalesce(max(age), 0)::int8 FROM (
	  SELECT age(backend_xmin) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_xmin IS NOT NULL
	  UNION ALL SELECT age(xmin) FROM pg_replication_slots WHERE xmin IS NOT NULL
	  UNION ALL SELECT age(transaction) FROM pg_prepared_xacts) s (age)`)
}

// Size is what the tables of one kind take on disk, in bytes.
type Size struct {
	// Heap are the rows, Indexes all indexes, Toast what is stored out of line,
	// with the maps of free space.
	Heap    int64 `json:"heap"`
	Indexes int64 `json:"indexes"`
	Toast   int64 `json:"toast"`
}

// Total is the sum.
func (s Size) Total() int64 { return s.Heap + s.Indexes + s.Toast }

// sizesQuery adds up the tables of all logical databases by kind: a name without
// its number.
const sizesQuery = `SELECT kind, sum(heap)::int8, sum(indexes)::int8, sum(whole - heap)::int8
  FROM (SELECT regexp_replace(c.relname, '_\d+$', '') AS kind, pg_relation_size(c.oid) AS heap,
               pg_indexes_size(c.oid) AS indexes, pg_table_size(c.oid) AS whole
          FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE n.nspname ~ '^perceptor_\d\d$' AND c.relkind = 'r') t
 GROUP BY kind`

// Sizes returns what each kind of table takes: "task" stands for all shard
// tables. It asks the file system for every file.
func (d *Database) Sizes(ctx context.Context) (map[string]Size, error) {
	rows, err := d.conn.Query(ctx, sizesQuery)
	if err != nil {
		return nil, fmt.Errorf("read the sizes of tables: %w", err)
	}
	sizes := map[string]Size{}
	var kind string
	var s Size
	_, err = pgx.ForEachRow(rows, []any{&kind, &s.Heap, &s.Indexes, &s.Toast}, func() error {
		sizes[kind] = s
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the sizes of tables: %w", err)
	}
	return sizes, nil
}

// Exec executes one statement on a server.
func Exec(ctx context.Context, dsn, statement string) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // nothing depends on it
	if _, err := conn.Exec(ctx, statement); err != nil {
		return fmt.Errorf("%s: %w", statement, err)
	}
	return nil
}

// CreateDatabase creates an empty database on a server. drop removes it, also when ctx
// has ended.
func CreateDatabase(ctx context.Context, server, name string) (dsn string, drop func() error, err error) {
	u, err := url.Parse(server)
	if err != nil || u.Scheme == "" {
		return "", nil, errors.New("the server's connection string is no URL")
	}
	u.Path = "/" + name
	name = pgx.Identifier{name}.Sanitize()
	return u.String(), func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		return Exec(ctx, server, "DROP DATABASE "+name+" WITH (FORCE)")
	}, Exec(ctx, server, "CREATE DATABASE "+name)
}
