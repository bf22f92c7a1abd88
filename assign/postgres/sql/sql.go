// Package sql holds the statements of package postgres.
package sql

import (
	"embed"

	"github.com/perceptor/perceptor/store/statement"
)

//go:embed *.sql
var files embed.FS

var set = statement.MustLoad(files, nil)

// The statements of assign.sql.
var (
	Touch              = set.Get("Touch")
	RemoveExpired      = set.Get("RemoveExpired")
	Documents          = set.Get("Documents")
	Members            = set.Get("Members")
	Register           = set.Get("Register")
	WriteMember        = set.Get("WriteMember")
	WriteDocument      = set.Get("WriteDocument")
	Leave              = set.Get("Leave")
	RemoveMember       = set.Get("RemoveMember")
	CreateEnvironment  = set.Get("CreateEnvironment")
	CreateDocuments    = set.Get("CreateDocuments")
	Format             = set.Get("Format")
	Environments       = set.Get("Environments")
	IdleEnvironments   = set.Get("IdleEnvironments")
	RemoveEnvironments = set.Get("RemoveEnvironments")
	Authority          = set.Get("Authority")
	MoveAuthority      = set.Get("MoveAuthority")
	Configure          = set.Get("Configure")
	Listen             = set.Get("Listen")
)

// All returns all statements. It is for tests.
func All() []*statement.Statement { return set.All() }

// Unused returns the names of statements that no variable has. It is for tests.
func Unused() []string { return set.Unresolved() }
