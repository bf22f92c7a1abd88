package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/perceptor/perceptor/internal/subprocess"
	"github.com/perceptor/perceptor/internal/testenv"
)

// mainVariable is an environment variable. If it is set, the test binary runs the
// example.
const mainVariable = "SHAREFILES_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(mainVariable) != "" {
		main()
		return
	}
	testenv.Main(m)
}

// output collects what a process prints.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) lines() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.Split(strings.TrimSpace(o.text.String()), "\n")
}

func TestThreeProcessesShareADirectoryAndOneOfThemDies(t *testing.T) {
	const files = 300
	dir := t.TempDir()
	for i := range files {
		name := fmt.Sprintf("%c%03d.txt", "abcdefghijklmnopqrstuvwxyz_"[i%27], i)
		if err := os.WriteFile(filepath.Join(dir, name), []byte("hello"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	server := testenv.NewZooKeeper(t)
	outputs, processes := [3]output{}, [3]*subprocess.Process{}
	for i := range processes {
		cmd := exec.Command(os.Args[0], "--zookeeper", server.Addr(), "--dir", dir, "--takes", "20ms", "--session", "2s")
		cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), mainVariable+"=1"), &outputs[i], os.Stderr
		p, err := subprocess.Start(cmd, syscall.SIGKILL)
		if err != nil {
			t.Fatal(err)
		}
		processes[i] = p
		t.Cleanup(func() { _ = p.Kill() })
	}
	done := func() int {
		read, err := os.ReadDir(filepath.Join(dir, "done"))
		if err != nil {
			return 0
		}
		return len(read)
	}
	await(t, "each has read some", func() bool {
		return len(outputs[0].lines()) > 2 && len(outputs[1].lines()) > 2 && len(outputs[2].lines()) > 2
	})
	if err := processes[1].Kill(); err != nil {
		t.Fatal(err)
	}
	await(t, "all files are read", func() bool { return done() == files })
	for _, i := range []int{0, 2} {
		if err := processes[i].Stop(t.Context(), syscall.SIGTERM); err != nil || processes[i].Exit() != "exit status 0" {
			t.Errorf("process %d: %v, %s", i, err, processes[i].Exit())
		}
	}
	seen := map[string]bool{}
	for i := range outputs {
		for _, line := range outputs[i].lines() {
			if seen[line] {
				t.Errorf("read twice: %s", line)
			}
			seen[line] = true
		}
	}
	if len(seen) < files-2 { // the killed process may have moved files without printing them
		t.Errorf("printed files = %d, want at least %d of %d", len(seen), files-2, files)
	}
}

func await(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !cond(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: did not happen within two minutes", what)
		}
	}
}
