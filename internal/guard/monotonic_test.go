package guard

import (
	"go/ast"
	"slices"
	"strings"
	"testing"
)

// byTheWall lists the files that need the number of an instant of the wall clock, with the reason.
var byTheWall = map[string]string{
	"cmd/perceptorctl/importinput.go": "a hash of the times of files",
	"dispatch/batchwindow.go":         "windows of all dispatchers begin at the same instants",
	"server/revoked.go":               "time while a machine is suspended counts; a step back costs questions, and a step forward cached answers",
	"store/move/switch.go":            "a number that differs from those before",
}

// noPrograms lists folders with what is no part of the programs and of the SDK.
var noPrograms = []string{"examples/", "loadtest/", "internal/testenv", "internal/virtualtest", "internal/timingspec"}

// A difference of Unix times is wrong by as much as the clock was set meanwhile. After a step back by an hour,
// what is done every few seconds, such as a check of credentials, would not be done for an hour.
func TestElapsedTimeIsMeasuredByTheMonotonicClock(t *testing.T) {
	unused := map[string]bool{}
	for name := range byTheWall {
		unused[name] = true
	}
	for _, f := range goFiles(t) {
		if f.test || slices.ContainsFunc(noPrograms, func(folder string) bool { return strings.HasPrefix(f.path, folder) }) {
			continue
		}
		ast.Inspect(f.tree, func(n ast.Node) bool {
			if x, ok := n.(*ast.SelectorExpr); ok && x.Sel.Name == "UnixNano" {
				if byTheWall[f.path] == "" {
					t.Errorf("%s: UnixNano is of the wall clock: keep a time.Time, which has a reading of the monotonic clock, too", f.at(n))
				}
				delete(unused, f.path)
			}
			return true
		})
	}
	for name := range unused {
		t.Errorf("%s: has no UnixNano", name)
	}
}
