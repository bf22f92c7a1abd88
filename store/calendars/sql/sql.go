// Package sql holds the statements of package calendars.
package sql

import (
	"embed"

	"github.com/perceptor/perceptor/store/statement"
)

//go:embed *.sql
var files embed.FS

var set = statement.MustLoad(files, nil)

// The statements.
var (
	CalendarCreate   = set.Get("CalendarCreate")
	CalendarReplace  = set.Get("CalendarReplace")
	CalendarDelete   = set.Get("CalendarDelete")
	CalendarsDrop    = set.Get("CalendarsDrop")
	CalendarGet      = set.Get("CalendarGet")
	CalendarList     = set.Get("CalendarList")
	CalendarVersions = set.Get("CalendarVersions")
)

// All returns all statements. It is for tests.
func All() []*statement.Statement { return set.All() }

// Unused returns the names of statements that no variable has. It is for tests.
func Unused() []string { return set.Unresolved() }
