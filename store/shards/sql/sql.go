// Package sql holds the statements of package shards and its parts. Each .sql file
// says what it is about; fragments are shared by all.
package sql

import (
	"embed"

	"github.com/perceptor/perceptor/store/pack"
	"github.com/perceptor/perceptor/store/statement"
	"github.com/perceptor/perceptor/task"
)

//go:embed *.sql
var files embed.FS

var set = statement.MustLoad(files, stateFragments(), task.Stored(), pack.Stored())

// Get returns a statement by its name. It is for tests; programs use the variables.
func Get(name string) *statement.Statement { return set.Get(name) }

// All returns all statements. It is for tests.
func All() []*statement.Statement { return set.All() }

// Unused returns the names of statements that no variable has. It is for tests.
func Unused() []string { return set.Unresolved() }
