package cli

import (
	"encoding/json"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func versionOf(t *testing.T, args ...string) (int, string) {
	t.Helper()
	root := &cobra.Command{Use: "program"}
	root.AddCommand(VersionCommand("tzdata-1"))
	var out strings.Builder
	root.SetOut(&out)
	root.SetErr(&out)
	root.SetArgs(append([]string{"version"}, args...))
	code := Run(t.Context(), root)
	return code, out.String()
}

func released(t *testing.T) {
	version, commit, date = "v1.2.3", "0123456789abcdef", "2026-01-31T12:00:00Z"
	t.Cleanup(func() { version, commit, date = "", "", "" })
}

func TestAReleaseSaysWhatTheLinkerWasTold(t *testing.T) {
	released(t)
	code, out := versionOf(t)
	if want := "program v1.2.3 commit 0123456789abcdef of 2026-01-31T12:00:00Z go1."; code != 0 || !strings.HasPrefix(out, want) || !strings.HasSuffix(out, " tzdata-1\n") {
		t.Errorf("ended with %d and %q, want %q", code, out, want)
	}
	if got := Version(); got != "v1.2.3" {
		t.Errorf("the log says %q", got)
	}
}

func TestTheVersionIsReadableForPrograms(t *testing.T) {
	released(t)
	_, out := versionOf(t, "-o", "json")
	var b Build
	if err := json.Unmarshal([]byte(out), &b); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	if b.Program != "program" || b.Version != "v1.2.3" || b.Commit != "0123456789abcdef" || b.Date != "2026-01-31T12:00:00Z" || len(b.Parts) != 1 {
		t.Errorf("got %+v", b)
	}
	if code, out := versionOf(t, "-o", "yaml"); code != 0 || !strings.Contains(out, "\nversion: v1.2.3\n") {
		t.Errorf("as YAML: %d, %s", code, out)
	}
	if code, out := versionOf(t, "-o", "xml"); code != Usage || !strings.Contains(out, `"xml"`) {
		t.Errorf("an unknown format: %d, %s", code, out)
	}
}

func TestABuildOfACloneSaysItsCommit(t *testing.T) {
	t.Parallel()
	b := Build{Version: "devel", Commit: unknown, Date: unknown}
	b.fromModule(&debug.BuildInfo{GoVersion: "go1.26.0", Main: debug.Module{Version: "(devel)"}, Settings: []debug.BuildSetting{
		{Key: "vcs.modified", Value: "true"}, {Key: "vcs.revision", Value: "abc"}, {Key: "vcs.time", Value: "2026-01-31T12:00:00Z"},
	}})
	if b.Version != "devel" || b.Commit != "abc-dirty" || b.Date != "2026-01-31T12:00:00Z" || b.Go != "go1.26.0" {
		t.Errorf("got %+v", b)
	}
}
