package guard

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Workflows run on machines of others, so nobody notices here what is wrong with them.
func TestWorkflowsNameTargetsAndVersionsThatExist(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	workflows, err := filepath.Glob(filepath.Join(root, ".github/workflows/*.yml"))
	if err != nil || len(workflows) == 0 {
		t.Fatalf("no workflows: %v", err)
	}
	uses := regexp.MustCompile(`uses: (.+)`)
	exact := regexp.MustCompile(`^[\w./-]+@[0-9a-f]{40} # v\d+\.\d+(\.\d+)?$`)
	pinned := map[string]string{}
	targets := regexp.MustCompile(`run: (?:make |\.ci/run )([a-z-]+)`)
	for _, name := range workflows {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range uses.FindAllStringSubmatch(string(text), -1) {
			if !exact.MatchString(m[1]) {
				t.Errorf("%s: %s: name a commit, which nobody can move, and its version: NAME@COMMIT # v1.2.3", name, m[1])
			}
			action, at, _ := strings.Cut(m[1], "@")
			if other := pinned[action]; other != "" && other != at {
				t.Errorf("%s: %s is at %s, elsewhere at %s", name, action, at, other)
			}
			pinned[action] = at
		}
		for _, m := range targets.FindAllStringSubmatch(string(text), -1) {
			if !strings.Contains(string(makefile), "\n"+m[1]+":") {
				t.Errorf("%s: the Makefile has no target %s", name, m[1])
			}
		}
	}
}
