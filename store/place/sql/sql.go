// Package sql holds the statements of package place.
package sql

import (
	"embed"

	"github.com/perceptor/perceptor/store/statement"
)

//go:embed *.sql
var files embed.FS

var set = statement.MustLoad(files, nil)

// Of place.sql.
var (
	Read = set.Get("Read")
	Open = set.Get("Open")
	All  = set.Get("All")
	Put  = set.Get("Put")
)

// Every returns all statements. It is for tests.
func Every() []*statement.Statement { return set.All() }

// Unused returns the names of statements that no variable has. It is for tests.
func Unused() []string { return set.Unresolved() }
