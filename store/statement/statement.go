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
// other fragments, and the parameters of the statement that uses it.
// {{group.NAME}} stands for a number that package task stores, as [task.Stored]
// names it.
//
// Loading replaces all of this by plain SQL with positional parameters, once: the
// text that is sent never changes, so that the server's prepared statements are
// found again. Values travel as parameters only. A mistake in a file ends the
// program when it starts.
package statement

import (
	"fmt"
	"io/fs"
)

// Set maps the names of statements to their text.
type Set map[string]string

// Load reads all .sql files at the top of dir.
func Load(dir fs.FS) (Set, error) {
	all, err := parseFiles(dir)
	if err != nil {
		return nil, err
	}
	set := Set{}
	for name, s := range all.statements {
		if set[name], err = s.expand(all.fragments); err != nil {
			return nil, fmt.Errorf("statement %s: %w", name, err)
		}
	}
	return set, nil
}

// MustLoad is [Load] for files embedded in the program; it panics on an error.
func MustLoad(dir fs.FS, err error) Set {
	if err != nil {
		panic(err)
	}
	set, err := Load(dir)
	if err != nil {
		panic(err)
	}
	return set
}

// Get returns the text of a statement. It panics for a name that does not
// exist: names are constants of the program.
func (s Set) Get(name string) string {
	text, ok := s[name]
	if !ok {
		panic("no SQL statement is named " + name)
	}
	return text
}
