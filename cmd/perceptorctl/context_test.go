package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/perceptor/perceptor/internal/cli"
)

// Not in parallel: the variable is that of the process.
func TestAFileOfContextsThatOthersMayReadIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "contexts.yaml")
	t.Setenv(contextsVariable, path)
	if err := (&contexts{Current: "a", Contexts: map[string]*apiContext{"a": {Address: "a:1", Token: "secret-1"}}}).write(); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("written as %v, %v", info, err)
	}
	if all, err := readContexts(); err != nil || all.Contexts["a"].Token != "secret-1" {
		t.Fatalf("read %+v, %v", all, err)
	}
	if err := os.Chmod(path, 0o640); err != nil { //nolint:gosec // that is the fault
		t.Fatal(err)
	}
	if _, err := readContexts(); err == nil || !strings.Contains(err.Error(), "0640") || strings.Contains(err.Error(), "secret-1") {
		t.Errorf("got %v", err)
	}
	cmd := newCommand()
	cmd.SetArgs([]string{"task", "list"})
	if code := cli.Run(t.Context(), cmd); code != cli.Usage {
		t.Errorf("a command ended with %d", code)
	}
}
