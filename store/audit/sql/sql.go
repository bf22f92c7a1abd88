// Package sql holds the statements of package audit.
package sql

import (
	"embed"

	"github.com/perceptor/perceptor/store/statement"
)

//go:embed *.sql
var files embed.FS

var set = statement.MustLoad(files, nil)

// The statements of audit.sql.
var (
	AuditInsert   = set.Get("AuditInsert")
	AuditOfTenant = set.Get("AuditOfTenant")
	AuditOfAll    = set.Get("AuditOfAll")
	AuditPurge    = set.Get("AuditPurge")
	AuditTrim     = set.Get("AuditTrim")
)

// All returns all statements. It is for tests.
func All() []*statement.Statement { return set.All() }

// Unused returns the names of statements that no variable has. It is for tests.
func Unused() []string { return set.Unresolved() }
