package guard

import (
	"go/ast"
	"testing"
)

// ofPeople lists the packages that read what people write.
var ofPeople = []string{"cmd/...", "internal/config", "internal/cli"}

func TestPeopleMayWriteDaysWhereverADurationIsTaken(t *testing.T) {
	for _, f := range goFiles(t) {
		if f.test || !matchesAny(ofPeople, f.pkg) {
			continue
		}
		ast.Inspect(f.tree, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			x, isSelector := call.Fun.(*ast.SelectorExpr)
			if !isSelector {
				return true
			}
			switch name := x.Sel.Name; {
			case name == "ParseDuration", name == "DurationVar", name == "DurationVarP", name == "DurationP",
				name == "Duration" && nameOf(x.X) != "time" && len(call.Args) > 1:
				t.Errorf("%s: %s takes no days: use package internal/duration", f.at(n), name)
			}
			return true
		})
	}
}
