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

// own is the name of this process.
const own = "loadtest"

// The parts that the name "postgres" is split into.
const (
	postgres           = "postgres"
	PostgresBackends   = "postgres-backends"
	PostgresBackground = "postgres-background"
)

// Meter sums up processor time by process. The time of a restarted process begins at zero.
// The meter adds the time of its predecessor up to the last sample, so Sample must be
// called before a process is ended. A source named postgres is a server: its client
// backends count as [PostgresBackends], all its other processes as [PostgresBackground].
// The time of a backend after its last sample counts as background. The methods may be
// called concurrently.
type Meter struct {
	sources map[string]Source

	mu       sync.Mutex
	last     map[string]reading
	total    map[string]time.Duration
	backends map[int]time.Duration // time of each PostgreSQL backend at the last sample
	serving  time.Duration         // time of all backends up to now
}

type reading struct {
	pid  int
	used time.Duration
}

// NewMeter returns a meter of this process (named "loadtest"), the stack's parts and the
// other sources.
func NewMeter(s *stack.Stack, others map[string]Source) *Meter {
	m := newMeter(map[string]Source{own: Rusage(syscall.RUSAGE_SELF)})
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

// Rusage is this process, or the set of its ended children. The value is the who argument
// of getrusage.
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

// Memory returns the memory of all sources whose names begin with prefix, with their children, in
// bytes. What a process and its children share counts once.
func (m *Meter) Memory(prefix string) (sum int64) {
	for name, source := range m.sources {
		if pid := source.PID(); pid != 0 && strings.HasPrefix(name, prefix) {
			sum += memoryOf(pid, name == own)
		}
	}
	return sum
}

// MemoryByName returns the memory of each source that runs, as [Meter.Memory] counts it.
func (m *Meter) MemoryByName() map[string]int64 {
	all := map[string]int64{}
	for name, source := range m.sources {
		if pid := source.PID(); pid != 0 {
			all[name] = memoryOf(pid, name == own)
		}
	}
	return all
}

// memoryOf returns the memory of a process, alone or with its children; 0: it does not run now.
func memoryOf(pid int, alone bool) int64 {
	sum, err := subprocess.TreeMemory(pid)
	if alone || err != nil { // another user's process shows only its own resident memory
		sum, _, err = subprocess.Memory(pid)
	}
	if err != nil {
		return 0
	}
	return sum
}

// MemoryOf returns the memory of one source, as [Meter.Memory] counts it; 0 if it does not run.
func (m *Meter) MemoryOf(name string) int64 {
	source := m.sources[name]
	if source == nil || source.PID() == 0 {
		return 0
	}
	return memoryOf(source.PID(), name == own)
}

// Sample returns the processor time of each part since an arbitrary moment. It takes some
// milliseconds because it reads the process table.
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
			continue // the source does not run now
		}
		before := m.last[name]
		if before.pid != pid {
			before = reading{pid: pid}
		}
		if used > before.used { // a lower value means that a process of the group ended
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

// samplePostgres returns the time of all processes of a server and records the share of the
// backends. It does both at once because it must read the process table.
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
			continue // the process just ended; its time counts for the postmaster in the next sample
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

// title returns the title that a process of PostgreSQL sets for itself.
func title(pid int) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return ""
	}
	return string(bytes.TrimRight(text, "\x00 "))
}

// serves reports whether title is the title of a backend with a client, such as "postgres:
// perceptor postgres 127.0.0.1(34760) idle".
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

// Used returns the time used between two samples, by part.
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

// Stretch is a stretch of work whose processor time and write-ahead log are measured.
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
	// WAL is the number of bytes written to the write-ahead log.
	WAL  int64
	Took time.Duration
}

// BeginStretch begins a measurement on the server of a connection string. The caller must
// call [Stretch.End].
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

// End returns the usage since the begin.
func (s *Stretch) End(ctx context.Context) (Usage, error) {
	defer s.db.Close()
	u := Usage{Took: time.Since(s.from), CPU: Used(s.before, s.meter.Sample())}
	wal, err := s.db.WAL(ctx)
	u.WAL = wal - s.wal
	return u, err
}

// MeasureStretch calls work and returns its usage.
func MeasureStretch(ctx context.Context, m *Meter, dsn string, work func() error) (Usage, error) {
	s, err := BeginStretch(ctx, m, dsn)
	if err != nil {
		return Usage{}, err
	}
	err = work()
	u, ended := s.End(ctx)
	return u, errors.Join(err, ended)
}

// Database reads figures that only the PostgreSQL server knows. It is not safe for concurrent use.
type Database struct{ conn *pgx.Conn }

// Dial connects to the server of a connection string. The user must be a superuser or a
// member of pg_monitor.
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
func (d *Database) Close() { d.conn.Close(context.Background()) } //nolint:errcheck // the connection is not used again

// number returns the result of a query for one number.
func (d *Database) number(ctx context.Context, what, query string) (n int64, err error) {
	if err := d.conn.QueryRow(ctx, query).Scan(&n); err != nil {
		return 0, fmt.Errorf("read %s: %w", what, err)
	}
	return n, nil
}

// WAL returns the bytes of write-ahead log that the server has written for all databases
// since its creation. Callers use the difference of two readings.
func (d *Database) WAL(ctx context.Context) (bytes int64, err error) {
	return d.number(ctx, "the position of the log", "SELECT (pg_current_wal_insert_lsn() - '0/0')::int8")
}

// Bytes returns the size of the server's database.
func (d *Database) Bytes(ctx context.Context) (bytes int64, err error) {
	return d.number(ctx, "the size of the database", "SELECT pg_database_size(current_database())")
}

// Commits returns the number of transactions that the server has committed in all databases.
func (d *Database) Commits(ctx context.Context) (n int64, err error) {
	return d.number(ctx, "the number of commits", "SELECT sum(xact_commit)::int8 FROM pg_stat_database")
}

// Sessions returns the number of the server's sessions, without this one.
func (d *Database) Sessions(ctx context.Context) (n int64, err error) {
	return d.number(ctx, "the number of sessions", "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()")
}

// OldestSnapshot returns the age, in transactions, of the oldest snapshot that keeps vacuum
// from removing dead rows. It ignores this session.
func (d *Database) OldestSnapshot(ctx context.Context) (age int64, err error) {
	return d.number(ctx, "the age of the oldest snapshot", `SELECT coalesce(max(age), 0)::int8 FROM (
	  SELECT age(backend_xmin) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_xmin IS NOT NULL
	  UNION ALL SELECT age(xmin) FROM pg_replication_slots WHERE xmin IS NOT NULL
	  UNION ALL SELECT age(transaction) FROM pg_prepared_xacts) s (age)`)
}

// Size is the disk space of the tables of one kind, in bytes.
type Size struct {
	// Heap is the size of the rows, Indexes of all indexes, Toast of out-of-line values and
	// the free space maps.
	Heap    int64 `json:"heap"`
	Indexes int64 `json:"indexes"`
	Toast   int64 `json:"toast"`
}

// Total returns the sum of all parts.
func (s Size) Total() int64 { return s.Heap + s.Indexes + s.Toast }

// sizesQuery sums up the tables of all databases by kind: the table's name without its number.
const sizesQuery = `SELECT kind, sum(heap)::int8, sum(indexes)::int8, sum(whole - heap)::int8
  FROM (SELECT regexp_replace(c.relname, '_\d+$', '') AS kind, pg_relation_size(c.oid) AS heap,
               pg_indexes_size(c.oid) AS indexes, pg_table_size(c.oid) AS whole
          FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE n.nspname ~ '^perceptor_\d\d$' AND c.relkind = 'r') t
 GROUP BY kind`

// Sizes returns the sizes of the tables by kind; "task" stands for all shard tables. It is
// slow because PostgreSQL asks the file system for every file.
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
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // the connection is not used again
	if _, err := conn.Exec(ctx, statement); err != nil {
		return fmt.Errorf("%s: %w", statement, err)
	}
	return nil
}

// CreateDatabase creates an empty database on a server. drop removes it, even after ctx has ended.
func CreateDatabase(ctx context.Context, server, name string) (dsn string, drop func() error, err error) {
	u, err := url.Parse(server)
	if err != nil || u.Scheme == "" {
		return "", nil, errors.New("the server's connection string is not a URL")
	}
	u.Path = "/" + name
	name = pgx.Identifier{name}.Sanitize()
	return u.String(), func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		return Exec(ctx, server, "DROP DATABASE "+name+" WITH (FORCE)")
	}, Exec(ctx, server, "CREATE DATABASE "+name)
}
