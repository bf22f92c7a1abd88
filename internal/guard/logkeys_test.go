package guard

import (
	"go/ast"
	"go/parser"
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

// timeUnits end the names of methods that turn a duration into a number, and clocked begin
// those of functions that return a duration.
var (
	timeUnits = regexp.MustCompile(`^(Nano|Micro)?[sS]econds$|^(Minutes|Hours)$`)
	clocked   = regexp.MustCompile(`^(Since|Until|Sub|Round|Truncate|Abs|Duration)$`)
	otherUnit = regexp.MustCompile(`_(ns|us|s|sec|secs|seconds|millis|min|minutes|h|hours|kb|mb|kib|mib)$`)
	needsUnit = regexp.MustCompile(`^(took|late|lateness|age|elapsed|duration|delay|wait|waited|timeout|interval|latency|size|length)$`)
	inMillis  = regexp.MustCompile(`_ms$`)
	millisOf  = "Milliseconds"
)

// unitFault says what is wrong with the unit of a value that is logged under a key, or returns
// "". Durations are whole milliseconds under keys that end in _ms; a duration itself would be a
// number of nanoseconds in JSON.
func unitFault(key string, value ast.Expr) string {
	call, isCall := value.(*ast.CallExpr)
	method := ""
	if isCall {
		method = nameOf(call.Fun)
	}
	switch {
	case otherUnit.MatchString(key) || needsUnit.MatchString(key):
		return "durations have keys that end in _ms, sizes in _bytes"
	case clocked.MatchString(method):
		return "is a duration: log its Milliseconds"
	case timeUnits.MatchString(method):
		return "has another unit than milliseconds"
	case method == millisOf && !inMillis.MatchString(key):
		return "are milliseconds, so its key ends in _ms"
	case inMillis.MatchString(key) && method != millisOf:
		return "is not the Milliseconds of a duration"
	}
	return ""
}

// pairs calls f for each key and value of a call that logs.
func pairs(call *ast.CallExpr, f func(key string, value ast.Expr)) {
	_, _, keys, ok := logged(call)
	if !ok {
		return
	}
	for _, k := range keys {
		for i, a := range call.Args {
			if a == k && i+1 < len(call.Args) {
				if key, isText := literal(k); isText {
					f(key, call.Args[i+1])
				}
			}
		}
	}
}

func TestDurationsInTheLogAreMilliseconds(t *testing.T) {
	for _, f := range goFiles(t) {
		if f.test || strings.HasPrefix(f.pkg, "examples") {
			continue
		}
		ast.Inspect(f.tree, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if x, isSelector := call.Fun.(*ast.SelectorExpr); isSelector && nameOf(x.X) == "slog" && x.Sel.Name == "Duration" {
				t.Errorf("%s: slog.Duration writes nanoseconds", f.at(n))
			}
			pairs(call, func(key string, value ast.Expr) {
				if fault := unitFault(key, value); fault != "" {
					t.Errorf("%s: the log value of %q %s", f.at(n), key, fault)
				}
			})
			return true
		})
	}
}

func TestTheGuardOfUnitsFindsWhatHasNone(t *testing.T) {
	t.Parallel()
	for call, bad := range map[string]bool{
		`log.Warn("m", "took_ms", time.Since(began).Milliseconds())`:      false,
		`slog.Int64("took_ms", took.Milliseconds())`:                      false,
		`log.Warn("m", "attempt", n, "took_ms", t.Sub(u).Milliseconds())`: false,
		`log.Warn("m", "took", took)`:                                     true,
		`log.Warn("m", "took_ms", took)`:                                  true,
		`log.Warn("m", "took_ms", took.Seconds())`:                        true,
		`log.Warn("m", "age_s", oldest.Seconds())`:                        true,
		`log.Warn("m", "op", time.Since(began))`:                          true,
		`slog.Int64("op", took.Milliseconds())`:                           true,
	} {
		parsed, err := parser.ParseExpr(call)
		if err != nil {
			t.Fatal(err)
		}
		found := false
		pairs(parsed.(*ast.CallExpr), func(key string, value ast.Expr) { found = found || unitFault(key, value) != "" })
		if found != bad {
			t.Errorf("%s: a fault %v, want %v", call, found, bad)
		}
	}
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
