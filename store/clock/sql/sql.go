// Package sql holds the statements of package clock. Each .sql file
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

var set = statement.MustLoad(files, nil, task.Stored(), pack.Stored())

// All returns all statements. It is for tests.
func All() []*statement.Statement { return set.All() }

// Unused returns the names of statements that no variable has. It is for tests.
func Unused() []string { return set.Unresolved() }
