package guard

import (
	"go/ast"
	"slices"
	"strings"
	"testing"
)

// pure lists the packages that decide and do nothing else: time and chance come in
// as arguments, and they start no goroutine.
var pure = []string{"task", "record", "dispatch/fair", "sizing"}

// forbidden are packages that read a clock, share memory or do input and output.
var forbidden = []string{
	"context", "database/sql", "io/fs", "log", "log/slog", "math/rand", "net", "net/http", "os", "sync", "sync/atomic", "syscall",
}

// clocks are the functions of package time that read or wait on the clock.
var clocks = []string{"After", "AfterFunc", "NewTicker", "NewTimer", "Now", "Since", "Sleep", "Tick", "Until"}

func TestPureCodeHasNoClockAndNoGoroutines(t *testing.T) {
	for _, f := range goFiles(t) {
		if f.test || !slices.Contains(pure, f.pkg) {
			continue
		}
		for _, path := range f.imports() {
			if slices.Contains(forbidden, path) {
				t.Errorf("%s imports %s", f.path, path)
			}
		}
		ast.Inspect(f.tree, func(n ast.Node) bool {
			if what := impure(n); what != "" {
				t.Errorf("%s: %s in pure code", f.at(n), what)
			}
			return true
		})
	}
}

// impure says what makes a node impure; nothing if it is not.
func impure(n ast.Node) string {
	switch n := n.(type) {
	case *ast.GoStmt:
		return "a goroutine"
	case *ast.SendStmt, *ast.SelectStmt, *ast.ChanType:
		return "a channel"
	case *ast.SelectorExpr:
		if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && slices.Contains(clocks, n.Sel.Name) {
			return strings.Join([]string{"time", n.Sel.Name}, ".")
		}
	}
	return ""
}
