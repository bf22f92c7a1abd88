package harness

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

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

// WAL is how many bytes of write-ahead log the server has written since it was
// made: differences of two readings count, of all its databases together.
func (d *Database) WAL(ctx context.Context) (bytes int64, err error) {
	err = d.conn.QueryRow(ctx, "SELECT (pg_current_wal_insert_lsn() - '0/0')::int8").Scan(&bytes)
	if err != nil {
		return 0, fmt.Errorf("read the position of the log: %w", err)
	}
	return bytes, nil
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

// Bytes is the size of the server's database in bytes.
func (d *Database) Bytes(ctx context.Context) (bytes int64, err error) {
	if err := d.conn.QueryRow(ctx, "SELECT pg_database_size(current_database())").Scan(&bytes); err != nil {
		return 0, fmt.Errorf("read the size of the database: %w", err)
	}
	return bytes, nil
}

// OldestSnapshot is the age, in transactions, of the oldest snapshot that holds
// dead rows back; this session does not count.
func (d *Database) OldestSnapshot(ctx context.Context) (age int64, err error) {
	const query = `SELECT coalesce(max(age), 0)::int8 FROM (
	  SELECT age(backend_xmin) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_xmin IS NOT NULL
	  UNION ALL SELECT age(xmin) FROM pg_replication_slots WHERE xmin IS NOT NULL
	  UNION ALL SELECT age(transaction) FROM pg_prepared_xacts) s (age)`
	if err := d.conn.QueryRow(ctx, query).Scan(&age); err != nil {
		return 0, fmt.Errorf("read the age of the oldest snapshot: %w", err)
	}
	return age, nil
}
