// Package statement makes the SQL statements of a program out of .sql files, when
// the program starts. A file holds named statements and fragments:
//
//	-- name: ClaimRange(shards int2[], low int8, ahead_ms int8)
//	UPDATE task t SET {{claim_set}}
//	 WHERE t.shard = ANY (@shards) AND t.due_at > @low AND t.state = {{state.SCHEDULED}};
//
//	-- fragment: claim_set
//	due_at = t.due_at + @ahead_ms
//
// A header lists the parameters of its statement, with their types, in the order in
// which calls pass their values. The body refers to a parameter as @name.
//
// {{name}} stands for a fragment: text that statements share. A fragment may use
// other fragments, and the parameters of the statement that uses it. The program may
// define fragments, too; {{name}} in a list of parameters stands for one of those.
// {{group.NAME}} stands for a number that the program defines: a state, a type.
//
// Loading replaces all of this by plain SQL with positional parameters, once: the
// text that is sent never changes, so that the server's prepared statements are
// found again. Values travel as parameters only. A mistake in a file ends the
// program when it starts, and so does a name that no file has, because programs
// resolve the statements that they use at that moment:
//
//	var ClaimRange = set.Get("ClaimRange")
//
// A statement is called with the pool, transaction or batch that is to execute it.
package statement

import (
	"context"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Statement is one statement, ready to be sent. It never changes.
type Statement struct {
	name       string
	text       string
	parameters []Parameter
}

// Parameter is a parameter of a statement.
type Parameter struct {
	Name string
	Type string // of PostgreSQL
}

// Name returns the name that the file gives the statement.
func (s *Statement) Name() string { return s.name }

// Text returns what is sent to the server.
func (s *Statement) Text() string { return s.text }

// Parameters returns the parameters in the order of the arguments.
func (s *Statement) Parameters() []Parameter { return slices.Clone(s.parameters) }

// Queue adds the statement to a batch. Like the other calls it panics for a wrong
// number of arguments: a mistake of the program, which would else be found by the
// server at the end of the batch.
func (s *Statement) Queue(b *pgx.Batch, args ...any) *pgx.QueuedQuery {
	s.check(args)
	return b.Queue(s.text, args...)
}

// Exec executes the statement.
func (s *Statement) Exec(ctx context.Context, by interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}, args ...any) (pgconn.CommandTag, error) {
	s.check(args)
	return by.Exec(ctx, s.text, args...)
}

// Query executes the statement and returns its rows.
func (s *Statement) Query(ctx context.Context, by interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}, args ...any) (pgx.Rows, error) {
	s.check(args)
	return by.Query(ctx, s.text, args...)
}

// QueryRow executes the statement and returns its first row.
func (s *Statement) QueryRow(ctx context.Context, by interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}, args ...any) pgx.Row {
	s.check(args)
	return by.QueryRow(ctx, s.text, args...)
}

func (s *Statement) check(args []any) {
	if len(args) != len(s.parameters) {
		panic(fmt.Sprintf("statement %s has %d parameters and is called with %d arguments", s.name, len(s.parameters), len(args)))
	}
}

// Set holds the statements of some files.
type Set struct {
	statements map[string]*Statement
	resolved   map[string]bool
}

// Load reads all .sql files at the top of dir. The given fragments are added to those of
// the files; lists of parameters may use them, too. The tables hold the numbers that
// statements may name; no name is in two of them.
func Load(dir fs.FS, fragments map[string]string, tables ...map[string]int64) (*Set, error) {
	all, err := parseFiles(dir, fragments)
	if err != nil {
		return nil, err
	}
	known := &names{fragments: all.fragments, numbers: map[string]int64{}}
	for _, t := range tables {
		maps.Copy(known.numbers, t)
	}
	set := &Set{statements: map[string]*Statement{}, resolved: map[string]bool{}}
	for name, s := range all.statements {
		text, err := s.expand(known)
		if err != nil {
			return nil, fmt.Errorf("statement %s: %w", name, err)
		}
		set.statements[name] = &Statement{name: name, text: text, parameters: s.parameters}
	}
	return set, nil
}

// MustLoad is [Load] for files embedded in the program; it panics on an error.
func MustLoad(dir fs.FS, fragments map[string]string, tables ...map[string]int64) *Set {
	set, err := Load(dir, fragments, tables...)
	if err != nil {
		panic(err)
	}
	return set
}

// Get returns a statement. It panics for a name that no file has. It is for
// package-level variables, and so for the start of the program.
func (s *Set) Get(name string) *Statement {
	found := s.statements[name]
	if found == nil {
		panic("no SQL statement is named " + name)
	}
	s.resolved[name] = true
	return found
}

// All returns the statements in the order of their names.
func (s *Set) All() []*Statement {
	var all []*Statement
	for _, name := range slices.Sorted(maps.Keys(s.statements)) {
		all = append(all, s.statements[name])
	}
	return all
}

// Unresolved returns the names of statements that nobody has asked for.
func (s *Set) Unresolved() []string {
	var names []string
	for _, one := range s.All() {
		if !s.resolved[one.name] {
			names = append(names, one.name)
		}
	}
	return names
}
