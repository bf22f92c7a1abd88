package pages

import (
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const decisions = "docs/adr/README.md"

// TestTheIndexOfDecisionsIsCurrent compares the index with the first lines of all decisions.
func TestTheIndexOfDecisionsIsCurrent(t *testing.T) {
	pages := read(t)
	var index strings.Builder
	index.WriteString("# Decisions\n\nEach page (an ADR, architecture decision record) has one decision about the design: the question, what was decided and why, what it costs, and what was not done. Numbers are never used\n" +
		"again, and some are not used at all. `go generate ./internal/pages` writes this list.\n\n")
	for _, name := range slices.Sorted(maps.Keys(pages)) {
		if path.Dir(name) != path.Dir(decisions) || name == decisions {
			continue
		}
		first, _, _ := strings.Cut(pages[name].Text, "\n")
		number, title, ok := strings.Cut(strings.TrimPrefix(first, "# "), ". ")
		if !ok {
			t.Errorf("%s begins with %q instead of its number and title", name, first)
		}
		fmt.Fprintf(&index, "* %s: [%s](%s)\n", number, title, path.Base(name))
	}
	file := filepath.Join(root, decisions)
	if *write {
		if err := os.WriteFile(file, []byte(index.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != index.String() {
		t.Errorf("%s is not current: run go generate ./internal/pages (%v)", decisions, err)
	}
}
