package guard

import (
	"go/ast"
	"go/token"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// logKeys are the keys of log attributes. Units come last in a name.
func logKeys(t *testing.T) map[string]bool {
	t.Helper()
	page, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## Log\n")
	section, _, _ = strings.Cut(section, "\n## ")
	keys := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| (`[a-z_]+`(?:, `[a-z_]+`)*) \\|").FindAllStringSubmatch(section, -1) {
		for _, key := range strings.Split(row[1], ", ") {
			keys[strings.Trim(key, "`")] = true
		}
	}
	return keys
}

var (
	logLevels    = regexp.MustCompile(`^(Debug|Info|Warn|Error)(Context)?$`)
	loggers      = regexp.MustCompile(`(?i)^(log|logger)$`)
	slogAttrs    = regexp.MustCompile(`^(Any|Bool|Duration|Float64|Int|Int64|String|Time|Uint64)$`)
	needsPerson  = regexp.MustCompile(`(?i)trying again|retrying`)
	plainMessage = regexp.MustCompile(`^[^\n]*[^.\n]$`)
)

// literal returns the text of a string literal.
func literal(e ast.Expr) (string, bool) {
	l, ok := e.(*ast.BasicLit)
	if !ok || l.Kind != token.STRING {
		return "", false
	}
	text, err := strconv.Unquote(l.Value)
	return text, err == nil
}

// nameOf returns the last name of an expression such as a.b.c or c().
func nameOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.CallExpr:
		return nameOf(e.Fun)
	}
	return ""
}

// logged returns the message and the keys of a call that logs; ok is false for any
// other call.
func logged(call *ast.CallExpr) (level, message string, keys []ast.Expr, ok bool) {
	f, isSelector := call.Fun.(*ast.SelectorExpr)
	if !isSelector {
		return "", "", nil, false
	}
	if nameOf(f.X) == "slog" && slogAttrs.MatchString(f.Sel.Name) && len(call.Args) == 2 {
		return "", "", call.Args[:1], true
	}
	if !loggers.MatchString(nameOf(f.X)) {
		return "", "", nil, false
	}
	args := call.Args
	if f.Sel.Name == "With" {
		args = append([]ast.Expr{nil}, args...) // no message
	} else if !logLevels.MatchString(f.Sel.Name) {
		return "", "", nil, false
	}
	if strings.HasSuffix(f.Sel.Name, "Context") {
		args = args[1:]
	}
	if len(args) == 0 {
		return "", "", nil, false
	}
	message, _ = literal(args[0])
	for i := 1; i < len(args); i += 2 {
		keys = append(keys, args[i])
	}
	return strings.TrimSuffix(f.Sel.Name, "Context"), message, keys, true
}

func TestLogKeysAreOnTheListOfTheOperationsPage(t *testing.T) {
	listed, used := logKeys(t), map[string]bool{}
	for _, f := range goFiles(t) {
		if f.test || strings.HasPrefix(f.pkg, "examples") {
			continue
		}
		ast.Inspect(f.tree, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			level, message, keys, ok := logged(call)
			if !ok {
				return true
			}
			for _, k := range keys {
				key, isText := literal(k)
				if !isText {
					continue // an attribute; its key is looked at where it is made
				}
				used[key] = true
				if !listed[key] {
					t.Errorf("%s: %q logs the key %q, which the operations page does not list", f.path, message, key)
				}
			}
			if message != "" && !plainMessage.MatchString(message) {
				t.Errorf("%s: the message %q ends in a full stop or has several lines", f.path, message)
			}
			if level == "Error" && needsPerson.MatchString(message) {
				t.Errorf("%s: %q heals itself, so it is a warning", f.path, message)
			}
			return true
		})
	}
	for key := range listed {
		if !used[key] {
			t.Errorf("the operations page lists the log key %q, which nothing logs", key)
		}
	}
}
