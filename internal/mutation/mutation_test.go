package mutation

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

func TestEveryMutationApplies(t *testing.T) {
	if _, err := mutate(); err != nil {
		t.Errorf("%v\n\nThe comment of package mutation says how to change an entry.", err)
	}
	for _, m := range mutations {
		if m.statement == "" && !strings.Contains(m.new, "MUTATED") {
			t.Errorf("mutation %s: the new text has no MUTATED, so it is always active", m.name)
		}
		for _, pattern := range strings.Split(m.tests, "|") {
			if !hasTest(t, m.pkg, pattern) {
				t.Errorf("mutation %s: package %s has no test like %s", m.name, m.pkg, pattern)
			}
		}
	}
}

func hasTest(t *testing.T, pkg, pattern string) bool {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(root, pkg, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && regexp.MustCompile(pattern).MatchString(f.Name.Name) {
				return true
			}
		}
	}
	return false
}

// TestEveryMutationIsFound runs the tests with each mutation in turn and demands
// that they fail, and that those of the same program pass while none is active; of
// storms the ordinary run shows that. Storms, each of a dozen processes, come one
// after the other, beside everything else.
func TestEveryMutationIsFound(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the tests of four packages anew; make test runs it")
	}
	s, err := mutate()
	if err != nil {
		t.Fatal(err)
	}
	binaries := build(t, s.overlay(t))
	for pkg, c := range control() {
		t.Run("none of "+path.Base(pkg), func(t *testing.T) {
			t.Parallel()
			if out, err := c.run(t, binaries[pkg], ""); err != nil || !strings.Contains(out, "PASS") {
				t.Errorf("%s of %s fails without a mutation: %v\n%s", c.tests, pkg, err, out)
			}
		})
	}
	for _, name := range []string{"storms", "tests"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, m := range mutations {
				if (m.pkg == storms) != (name == "storms") {
					continue
				}
				t.Run(m.name, func(t *testing.T) {
					if m.pkg != storms {
						t.Parallel()
					}
					m.mustBeFound(t, binaries[m.pkg])
				})
			}
		})
	}
}

// tries bounds how often tests run to find a mutation. On a busy machine a test that waits a moment for
// what must not happen may miss it, and a storm, which disturbs at random, may pass without the one disturbance
// that matters.
const tries = 3

// mustBeFound fails the test unless the tests of m fail while m is active.
func (m *mutation) mustBeFound(t *testing.T, binary string) {
	t.Helper()
	var out string
	var err error
	for range tries {
		if out, err = m.run(t, binary, m.name); err != nil && strings.Contains(out, "--- FAIL") {
			return
		}
	}
	t.Errorf("%s of %s did not find the mutation in %d runs: %v\n%s", m.tests, m.pkg, tries, err, out)
}

// run runs the tests of a mutation in the program that has them all; active is the
// name of one, or empty.
func (m *mutation) run(t *testing.T, binary, active string) (string, error) {
	t.Helper()
	run := exec.CommandContext(t.Context(), binary, "-test.run", m.tests, "-test.timeout", "2m")
	run.Dir = filepath.Join(root, m.pkg)
	run.Env = append(os.Environ(), variable+"="+active)
	out, err := run.CombinedOutput()
	return string(out), err
}

// control returns, for each package but that of storms, all tests of its mutations.
func control() map[string]*mutation {
	all := map[string]*mutation{}
	for _, m := range mutations {
		switch c := all[m.pkg]; {
		case m.pkg == storms:
		case c == nil:
			all[m.pkg] = &mutation{pkg: m.pkg, tests: m.tests}
		default:
			c.tests += "|" + m.tests
		}
	}
	return all
}

// build builds the tests of every package of the list with all mutations in them.
func build(t *testing.T, overlay string) map[string]string {
	t.Helper()
	binaries := map[string]string{}
	for _, m := range mutations {
		if binaries[m.pkg] != "" {
			continue
		}
		binaries[m.pkg] = filepath.Join(t.TempDir(), "tests")
		run := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-overlay", overlay, "-o", binaries[m.pkg], m.pkg)
		run.Dir = root
		if out, err := run.CombinedOutput(); err != nil {
			t.Fatalf("build %s: %v\n%s", m.pkg, err, out)
		}
	}
	return binaries
}
