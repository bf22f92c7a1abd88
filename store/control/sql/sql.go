// Package sql holds the statements of package control. Each .sql file
// says what it is about; fragments are shared by all.
package sql

import (
	"embed"

	"github.com/perceptor/perceptor/store/statement"
)

//go:embed *.sql
var files embed.FS

var set = statement.MustLoad(files, nil)

// All returns all statements. It is for tests.
func All() []*statement.Statement { return set.All() }

// Unused returns the names of statements that no variable has. It is for tests.
func Unused() []string { return set.Unresolved() }
