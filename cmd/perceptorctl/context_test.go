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

// Not in parallel: the variables are those of the process.
func TestAContextWhoseAddressIsNoneIsRefused(t *testing.T) {
	t.Setenv("PERCEPTOR_TOKEN", "pct_1_x")
	t.Setenv(contextsVariable, filepath.Join(t.TempDir(), "contexts.yaml"))
	for _, address := range []string{"perceptor.example.com", "http://127.0.0.1:7071", ":7070"} {
		if code, out, said := runCtl(t, "context", "add", "prod", "--address", address); code != cli.Usage || !strings.Contains(said, address+`" is not host:port`) {
			t.Errorf("%s: ended with %d: %s%s", address, code, out, said)
		}
	}
	if all, err := readContexts(); err != nil || len(all.Contexts) > 0 {
		t.Errorf("stored %v, %v", all.Contexts, err)
	}
}
