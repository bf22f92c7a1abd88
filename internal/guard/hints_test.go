package guard

import (
	"go/ast"
	"regexp"
	"strings"
	"testing"
)

// ofSource matches what only those have who have the source: its files and pages.
var ofSource = regexp.MustCompile(`\b(docs|proto|cmd|internal|server|store)/[a-z]|\.(go|md|proto)\b`)

// hints returns the expressions that become hints for people: fields, assignments and constants
// whose name ends in Hint.
func hints(n ast.Node) []ast.Expr {
	isHint := func(e ast.Expr) bool { return strings.HasSuffix(strings.ToLower(nameOf(e)), "hint") }
	switch n := n.(type) {
	case *ast.KeyValueExpr:
		if isHint(n.Key) {
			return []ast.Expr{n.Value}
		}
	case *ast.AssignStmt:
		for _, left := range n.Lhs {
			if isHint(left) {
				return n.Rhs
			}
		}
	case *ast.ValueSpec:
		for _, name := range n.Names {
			if isHint(name) {
				return n.Values
			}
		}
	}
	return nil
}

// A program that was installed has no source beside it.
func TestHintsNameNoFilesOfTheSource(t *testing.T) {
	found := 0
	for _, f := range goFiles(t) {
		if f.test || !strings.HasPrefix(f.pkg, "cmd/") && f.pkg != "internal/cli" {
			continue
		}
		ast.Inspect(f.tree, func(n ast.Node) bool {
			for _, hint := range hints(n) {
				ast.Inspect(hint, func(n ast.Node) bool {
					e, ok := n.(ast.Expr)
					if !ok {
						return true
					}
					if text, isText := literal(e); isText {
						found++
						if ofSource.MatchString(text) {
							t.Errorf("%s: the hint %q names a file that only the source has", f.at(n), text)
						}
					}
					return true
				})
			}
			return true
		})
	}
	if found < 20 {
		t.Errorf("found %d hints, which is too few to be all of them", found)
	}
}
