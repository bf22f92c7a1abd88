// Package sql holds the statements of package shards and its parts. Each .sql file
// belongs to one part and begins with what it is about; fragments are shared by all.
package sql

import (
	"embed"

	"github.com/perceptor/perceptor/store/statement"
)

//go:embed *.sql
var files embed.FS

var set = statement.MustLoad(files, nil)

// Get returns the text of a statement. It panics for a name that does not exist:
// names are constants of the program.
func Get(name string) string { return set.Get(name) }
