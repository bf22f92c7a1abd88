package testenv

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// Template is the initial content of databases. The first process that uses it on a server fills a
// template database. New databases are copies of that one, which is much faster than filling each.
type Template struct {
	// Name identifies the content, so a template with other content must have another name. A server that
	// an environment variable names keeps the template for later runs.
	Name string
	// Base, if not nil, is the template that Fill adds to.
	Base *Template
	// Fill writes the content. It must close its connections before it returns.
	Fill func(ctx context.Context, dsn string) error
}

const (
	fillWait     = 5 * time.Minute
	templateLock = 0x70657263 // key of the advisory lock that serializes the creation of templates
)

// ensure creates a template unless it exists. Concurrent callers wait.
func (s *PostgresServer) ensure(t Template) error {
	ctx, cancel := context.WithTimeout(context.Background(), fillWait)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.dsn)
	if err != nil {
		return fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // the end of the session releases the lock
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock($1)", templateLock); err != nil {
		return fmt.Errorf("wait for the template %s: %w", t.Name, err)
	}
	return s.have(ctx, conn, t)
}

// have is ensure for a caller that has the advisory lock.
func (s *PostgresServer) have(ctx context.Context, conn *pgx.Conn, t Template) error {
	var whole bool
	if err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1 AND datistemplate)", t.Name).Scan(&whole); err != nil {
		return fmt.Errorf("look for the template %s: %w", t.Name, err)
	}
	if whole {
		return nil
	}
	create := "CREATE DATABASE " + pgx.Identifier{t.Name}.Sanitize()
	if t.Base != nil {
		if err := s.have(ctx, conn, *t.Base); err != nil {
			return err
		}
		create += copyOf(t.Base.Name)
	}
	if err := s.makeTemplate(ctx, conn, t, create); err != nil {
		return fmt.Errorf("make the template %s: %w", t.Name, err)
	}
	return nil
}

// copyOf returns the clause of CREATE DATABASE that copies a template. A migrated database has
// thousands of small files. To copy them as files takes half the processor time of the default,
// which writes every page to the log.
func copyOf(name string) string {
	return " TEMPLATE " + pgx.Identifier{name}.Sanitize() + " STRATEGY FILE_COPY"
}

// makeTemplate creates a database, fills it, and marks it as a template when it is complete.
func (s *PostgresServer) makeTemplate(ctx context.Context, conn *pgx.Conn, t Template, create string) error {
	dsn, err := withDatabase(s.dsn, t.Name)
	if err != nil {
		return err
	}
	name := pgx.Identifier{t.Name}.Sanitize()
	for _, statement := range []string{"DROP DATABASE IF EXISTS " + name + " WITH (FORCE)", create} {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return err
		}
	}
	if err := t.Fill(ctx, dsn); err != nil {
		return err
	}
	_, err = conn.Exec(ctx, "ALTER DATABASE "+name+" IS_TEMPLATE true ALLOW_CONNECTIONS false")
	return err
}
