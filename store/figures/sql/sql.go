// Package sql holds the statements of package figures.
package sql

import (
	"embed"

	"github.com/perceptor/perceptor/store/statement"
)

//go:embed *.sql
var files embed.FS

var set = statement.MustLoad(files, nil)

// The statements of figures.sql.
var (
	FiguresInsert = set.Get("FiguresInsert")
	FiguresOf     = set.Get("FiguresOf")
	FiguresSince  = set.Get("FiguresSince")
	FiguresActive = set.Get("FiguresActive")
	FiguresPurge  = set.Get("FiguresPurge")
)

// All returns all statements. It is for tests.
func All() []*statement.Statement { return set.All() }

// Unused returns the names of statements that no variable has. It is for tests.
func Unused() []string { return set.Unresolved() }
