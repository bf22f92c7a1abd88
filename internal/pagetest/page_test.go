package pagetest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var shellBlock = regexp.MustCompile("(?ms)^```sh\n(.*?)^```$")

// blocks returns the shell blocks of a page, in order.
func blocks(t *testing.T, page string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root(t), "docs", page))
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, m := range shellBlock.FindAllStringSubmatch(string(text), -1) {
		all = append(all, m[1])
	}
	if len(all) == 0 {
		t.Fatalf("%s has no shell block", page)
	}
	return all
}

// root returns the top of the tree.
func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

var assignment = regexp.MustCompile(`^export ([A-Z_]+)=`)

// withValues replaces the values of a block whose lines are all of the form export NAME=VALUE. It
// fails unless the block has exactly the names that are given.
func withValues(t *testing.T, text string, values map[string]string) string {
	t.Helper()
	var out strings.Builder
	seen := map[string]bool{}
	for line := range strings.Lines(text) {
		m := assignment.FindStringSubmatch(line)
		if m == nil {
			t.Fatalf("the block of values has the line %q", line)
		}
		value, known := values[m[1]]
		if !known {
			t.Fatalf("the page asks for %s, which the test does not know", m[1])
		}
		seen[m[1]] = true
		out.WriteString("export " + m[1] + "='" + strings.ReplaceAll(value, "'", `'\''`) + "'\n")
	}
	for name := range values {
		if !seen[name] {
			t.Errorf("the page does not ask for %s", name)
		}
	}
	return out.String()
}
