// Package migrations holds the versioned schema of one logical database and
// brings databases up to date. Every version is a file in sql/, embedded in the
// program. Running it twice, or from several processes at once, is safe: a
// session lock lets one of them work while the others wait, and each version is
// a transaction.
//
// A schema that was created before these versions is refused: see [ErrOutdated].
//
// # Rolling upgrades
//
// While an installation is upgraded, programs of two releases work on one schema. So a
// program works on the schemas of the release before it and of the release after it: see
// [Works]. docs/adr/0023-rolling-upgrades.md has the rules that new versions obey for that.
//
// Supports PostgreSQL 15 to 18.
package migrations

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/perceptor/perceptor/store/statement"
)

//go:embed sql/*.sql schema.sql
var files embed.FS

var (
	statements    = statement.MustLoad(files, nil)
	serverVersion = statements.Get("ServerVersion")
	schemaForm    = statements.Get("SchemaForm")
	schemaVersion = statements.Get("SchemaVersion")
	setSession    = statements.Get("SetSession")
)

// versionTable lists the versions that a schema has.
const versionTable = "schema_version"

// ErrOutdated says that a schema was created by a version of Perceptor from before
// the first release, from which there is no way up.
var ErrOutdated = errors.New("it was created by an earlier version of Perceptor, which this one cannot upgrade")

// ErrNoRight says that the schema is there and the role must not use it. Without it, the
// schema would look as if it had no tables.
var ErrNoRight = errors.New("the role has no right to use the schema")

// Servers older or newer than these are refused.
const (
	minServerVersion = 150000
	maxServerVersion = 190000
)

// Step is one version that was applied.
type Step struct {
	Version int64
	Name    string
}

// Up creates the schema when it is missing and applies all versions that it has
// not seen. config must not set a search_path of its own. It returns the steps
// that were applied now. If there are none, it needs no right but to use the schema.
func Up(ctx context.Context, config *pgx.ConnConfig, schema string) ([]Step, error) {
	db := open(config, schema)
	defer db.Close()
	if err := checkServer(ctx, db); err != nil {
		return nil, err
	}
	ask := func(query string, into ...any) error { return db.QueryRowContext(ctx, query).Scan(into...) }
	v, err := version(schema, ask)
	if err != nil || v == Latest() {
		return nil, err // nothing is left to do, so a role that may create nothing can say so, too
	}
	if err := createSchema(ctx, db, schema); err != nil {
		return nil, err
	}
	p, err := provider(db)
	if err != nil {
		return nil, err
	}
	results, err := upPatiently(ctx, p.Up)
	if err != nil {
		return nil, fmt.Errorf("migrate %s: %w", schema, err)
	}
	steps := make([]Step, len(results))
	for i, r := range results {
		steps[i] = Step{Version: r.Source.Version, Name: r.Source.Path}
	}
	return steps, nil
}

// Latest returns the newest version that this program knows.
func Latest() int64 {
	entries, err := fs.ReadDir(files, "sql")
	if err != nil {
		return 0
	}
	return int64(len(entries))
}

// FirstRelease is the version of the first release. Earlier versions are parts of its
// schema, on which no program works.
const FirstRelease = 10

// Works reports whether this program works on a schema of version v: its own version, the
// one before, whose migration has not run yet, and the one after, whose programs are being
// started.
func Works(v int64) bool { return works(v, Latest()) }

func works(v, latest int64) bool {
	return v >= max(latest-1, FirstRelease) && v <= latest+1
}

// Fingerprint is the same for the same texts of all versions: 16 characters of 0-9
// and a-f.
func Fingerprint() string { return fingerprint(files) }

func fingerprint(files fs.FS) string {
	digest := sha256.New()
	digest.Write([]byte(versionTable))
	names, _ := fs.Glob(files, "sql/*.sql") // its only error is a bad pattern
	for _, name := range names {
		text, _ := fs.ReadFile(files, name) // embedded: it is there
		digest.Write(text)
	}
	return hex.EncodeToString(digest.Sum(nil)[:8])
}

// A Querier asks one question.
type Querier interface {
	QueryRow(ctx context.Context, query string, args ...any) pgx.Row
}

// VersionIn returns the version that the schema has; 0 when it has none. The search_path of the
// querier must be the schema. A schema that matches [ErrOutdated] is an error.
func VersionIn(ctx context.Context, q Querier, schema string) (int64, error) {
	return version(schema, func(query string, into ...any) error { return q.QueryRow(ctx, query).Scan(into...) })
}

// Version is [VersionIn] with a connection of its own.
func Version(ctx context.Context, config *pgx.ConnConfig, schema string) (int64, error) {
	db := open(config, schema)
	defer db.Close()
	return version(schema, func(query string, into ...any) error { return db.QueryRowContext(ctx, query).Scan(into...) })
}

func version(schema string, ask func(query string, into ...any) error) (v int64, err error) {
	var versioned, used, hidden bool
	if err := ask(schemaForm.Text(), &versioned, &used, &hidden); err != nil {
		return 0, fmt.Errorf("read form of %s: %w", schema, err)
	}
	switch {
	case hidden:
		return 0, fmt.Errorf("read form of %s: %w", schema, ErrNoRight)
	case !used:
		return 0, nil
	case !versioned:
		return 0, fmt.Errorf("schema %s: %w: use an empty database, or drop this schema if its tasks are not needed, and then run perceptorctl migrate up",
			schema, ErrOutdated)
	}
	if err := ask(schemaVersion.Text(), &v); err != nil {
		return 0, fmt.Errorf("read version of %s: %w", schema, err)
	}
	return v, nil
}

func open(config *pgx.ConnConfig, schema string) *sql.DB {
	// A pooler may refuse these parameters at the start of a connection.
	db := stdlib.OpenDB(*config, stdlib.OptionAfterConnect(func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, setSession.Text(), schema)
		return err
	}))
	db.SetMaxOpenConns(2)
	return db
}

func checkServer(ctx context.Context, db *sql.DB) error {
	var version int
	var encoding string
	if err := db.QueryRowContext(ctx, serverVersion.Text()).Scan(&version, &encoding); err != nil {
		return fmt.Errorf("read server version: %w", err)
	}
	if version < minServerVersion || version >= maxServerVersion {
		return fmt.Errorf("PostgreSQL %d is not supported: want 15 to 18", version/10000)
	}
	if encoding != "UTF8" {
		return fmt.Errorf("the database has the encoding %s, which cannot store every text: create it with ENCODING 'UTF8' TEMPLATE template0", encoding)
	}
	return nil
}

// createSchema tolerates another process that creates it at the same moment.
func createSchema(ctx context.Context, db *sql.DB, schema string) error {
	_, err := db.ExecContext(ctx, `CREATE SCHEMA IF NOT EXISTS `+pgx.Identifier{schema}.Sanitize())
	var state interface{ SQLState() string }
	if errors.As(err, &state) && (state.SQLState() == "23505" || state.SQLState() == "42P06") {
		return nil
	}
	if err != nil {
		return fmt.Errorf("create schema %s: %w", schema, err)
	}
	return nil
}

func provider(db *sql.DB) (*goose.Provider, error) {
	sub, err := fs.Sub(files, "sql")
	if err != nil {
		return nil, err
	}
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 300))
	if err != nil {
		return nil, err
	}
	p, err := goose.NewProvider(goose.DialectPostgres, db, sub, goose.WithSessionLocker(locker), goose.WithTableName(versionTable))
	if err != nil {
		return nil, fmt.Errorf("read migrations: %w", err)
	}
	return p, nil
}
