package guard

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestServicesThatUseTheSDKCompileTheseModules: whoever imports client compiles, checks and
// watches each module that client brings with it. An addition is a decision: put it into
// testdata/client-modules.txt, with the count at its top, and say why in the commit.
func TestServicesThatUseTheSDKCompileTheseModules(t *testing.T) {
	t.Parallel()
	count, want := listedModules(t)
	if len(want) != count {
		t.Errorf("testdata/client-modules.txt has %d modules and says %d", len(want), count)
	}
	got := clientModules(t)
	for _, m := range got {
		if !slices.Contains(want, m) {
			t.Errorf("client brings a further module: %s", m)
		}
	}
	for _, m := range want {
		if !slices.Contains(got, m) {
			t.Errorf("client no longer brings %s: remove it from testdata/client-modules.txt", m)
		}
	}
}

// clientModules returns the modules of others with a package that client compiles.
func clientModules(t *testing.T) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	const format = "{{with .Module}}{{if not .Main}}{{.Path}}{{end}}{{end}}"
	out, err := exec.CommandContext(ctx, "go", "list", "-deps", "-f", format, "../../client").Output()
	if err != nil {
		t.Fatal(err)
	}
	modules := strings.Fields(string(out))
	slices.Sort(modules)
	return slices.Compact(modules)
}

// listedModules reads testdata/client-modules.txt.
func listedModules(t *testing.T) (count int, modules []string) {
	t.Helper()
	text, err := os.ReadFile("testdata/client-modules.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		switch n, counts := strings.CutPrefix(line, "count "); {
		case strings.HasPrefix(line, "#"), line == "":
		case counts:
			if count, err = strconv.Atoi(n); err != nil {
				t.Fatal(err)
			}
		default:
			modules = append(modules, line)
		}
	}
	return count, modules
}
