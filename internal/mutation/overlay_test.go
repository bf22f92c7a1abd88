package mutation

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

// variable names the mutation that a program built with the overlay shows.
const variable = "PERCEPTOR_MUTATION"

// loader is the call that reads every file of SQL. The overlay lets it return the
// changed text of the active mutation.
var loader = mutation{
	name: "loader of SQL",
	in:   "store/statement",
	old:  "fs.ReadFile(dir, name)",
	new:  "readActive(dir, name)",
}

// A source holds the text of files by their path below the root, with the
// mutations of Go code in it, and the files of SQL that single mutations change.
type source struct {
	text map[string]string
	sql  map[string]change
}

// A change is the text of a file before and after a mutation of SQL.
type change struct{ old, new string }

// mutate applies all mutations to the module's files; its error names each that
// does not apply.
func mutate() (*source, error) {
	s := &source{text: map[string]string{}, sql: map[string]change{}}
	var faults []error
	for _, m := range append(slices.Clone(mutations), loader) {
		apply := s.replaceGo
		if m.statement != "" {
			apply = s.replaceSQL
		}
		if err := apply(m); err != nil {
			faults = append(faults, fmt.Errorf("mutation %s: %w", m.name, err))
		}
	}
	return s, errors.Join(faults...)
}

// replaceGo puts a mutation into the one file that holds its old text.
func (s *source) replaceGo(m mutation) error {
	paths, err := files(m.in, ".go")
	if err != nil {
		return err
	}
	var path, text string
	var found int
	for _, p := range paths {
		t, err := s.read(p)
		if err != nil {
			return err
		}
		if n := strings.Count(t, m.old); n > 0 {
			path, text, found = p, t, found+n
		}
	}
	if found != 1 {
		return fmt.Errorf("%q occurs %d times in the Go files of %s, want once", m.old, found, m.in)
	}
	active := fmt.Sprintf("(activeMutation == %q)", m.name)
	s.text[path] = strings.Replace(text, m.old, strings.ReplaceAll(m.new, "MUTATED", active), 1)
	return nil
}

// replaceSQL notes how a mutation changes the file that defines its statement.
func (s *source) replaceSQL(m mutation) error {
	paths, err := files(m.in, ".sql")
	if err != nil {
		return err
	}
	header := regexp.MustCompile(`(?m)^-- (name|fragment): ` + m.statement + `\b`)
	for _, p := range paths {
		text, err := os.ReadFile(filepath.Join(root, p))
		if err != nil {
			return err
		}
		at := header.FindIndex(text)
		if at == nil {
			continue
		}
		before, body, after := string(text[:at[1]]), string(text[at[1]:]), ""
		if next := regexp.MustCompile(`(?m)^-- (name|fragment): `).FindStringIndex(body); next != nil {
			body, after = body[:next[0]], body[next[0]:]
		}
		if n := strings.Count(body, m.old); n != 1 {
			return fmt.Errorf("%q occurs %d times in %s of %s, want once", m.old, n, m.statement, p)
		}
		s.sql[m.name] = change{string(text), before + strings.Replace(body, m.old, m.new, 1) + after}
		return nil
	}
	return fmt.Errorf("no .sql file of %s defines %s", m.in, m.statement)
}

// read returns the text of a file with the mutations applied so far.
func (s *source) read(path string) (string, error) {
	if t, ok := s.text[path]; ok {
		return t, nil
	}
	text, err := os.ReadFile(filepath.Join(root, path))
	return string(text), err
}

// files lists the files of a folder and the folders below that end in ext, but
// no tests, by their path below the root.
func files(folder, ext string) ([]string, error) {
	var paths []string
	err := fs.WalkDir(os.DirFS(root), folder, func(path string, _ fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, ext) && !strings.HasSuffix(path, "_test.go") {
			paths = append(paths, path)
		}
		return err
	})
	return paths, err
}

// overlay writes the changed files and the file of the -overlay flag, and returns
// the latter's path.
func (s *source) overlay(t *testing.T) string {
	t.Helper()
	written := maps.Clone(s.text)
	for path := range s.text {
		written[filepath.Join(filepath.Dir(path), "active_mutation.go")] = s.switches(t, path)
	}
	dir, replaced := t.TempDir(), map[string]string{}
	for path, text := range written {
		original, err := filepath.Abs(filepath.Join(root, path))
		if err != nil {
			t.Fatal(err)
		}
		replaced[original] = filepath.Join(dir, fmt.Sprintf("%d.go", len(replaced)))
		if err := os.WriteFile(replaced[original], []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		t.Fatal(err)
	}
	list := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(list, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return list
}

// switches returns the Go file that tells the package of a changed file which
// mutation is active, and how the loader reads SQL. It is the same for all packages.
func (s *source) switches(t *testing.T, path string) string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, s.text[path], parser.PackageClauseOnly)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "package %s\n\nimport (\n\t\"io/fs\"\n\t\"os\"\n)\n\n", file.Name)
	fmt.Fprintf(&b, "var activeMutation = os.Getenv(%q)\n\n", variable)
	b.WriteString("func readActive(dir fs.FS, name string) ([]byte, error) {\n\ttext, err := fs.ReadFile(dir, name)\n\tswitch {\n")
	for name, c := range s.sql {
		fmt.Fprintf(&b, "\tcase activeMutation == %q && string(text) == %q:\n\t\treturn []byte(%q), nil\n", name, c.old, c.new)
	}
	b.WriteString("\t}\n\treturn text, err\n}\n")
	return b.String()
}
