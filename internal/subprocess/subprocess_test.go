package subprocess

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// parentVariable is an environment variable. If it is set, the test binary starts a sleeping child and
// waits, so that a test can kill the parent.
const parentVariable = "PERCEPTOR_SUBPROCESS_TEST_PARENT"

const patience = time.Minute

func TestMain(m *testing.M) {
	if os.Getenv(parentVariable) != "" {
		beParent()
		return
	}
	goleak.VerifyTestMain(m)
}

func beParent() {
	p, err := Start(exec.Command("sleep", "600"), syscall.SIGTERM)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(p.PID())
	<-p.Done()
}

func start(t *testing.T, script string) *Process {
	t.Helper()
	p, err := Start(exec.Command("sh", "-c", script), syscall.SIGKILL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Kill(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func waitFor(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: did not happen within %v", what, patience)
		}
	}
}

func TestChildDiesWhenItsParentIsKilled(t *testing.T) {
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), parentVariable+"=1")
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	var child int
	if _, err := fmt.Sscan(line, &child); err != nil {
		t.Fatalf("parent printed %q, want a process id", line)
	}
	if !Alive(child) {
		t.Fatal("the child is not running before its parent is killed")
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	parent.Wait() //nolint:errcheck // it was killed
	waitFor(t, "end of the child", func() bool { return !Alive(child) })
}

func TestExitTellsHowTheChildEnded(t *testing.T) {
	for script, want := range map[string]string{
		"exit 0":         "exit status 0",
		"exit 3":         "exit status 3",
		"kill -TERM $$":  "signal: terminated",
		"exec sleep 600": "running",
	} {
		p := start(t, script)
		if want != "running" {
			<-p.Done()
		}
		if got := p.Exit(); got != want {
			t.Errorf("Exit after %q = %q, want %q", script, got, want)
		}
	}
}

func TestStopKillsAChildThatIgnoresTheSignal(t *testing.T) {
	p := start(t, "trap '' TERM; echo ready; while :; do sleep 600; done")
	waitFor(t, "the trap", func() bool { children, _ := Children(p.PID()); return len(children) > 0 })
	sleeping, err := Children(p.PID())
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Kill(sleeping[0], syscall.SIGKILL) //nolint:errcheck // the killed shell does not end it

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := p.Stop(ctx, syscall.SIGTERM); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Stop: got %v, want the deadline's error", err)
	}
	if p.Running() {
		t.Error("the child is still running after Stop")
	}
}

func TestStoppingAnEndedChildIsNoError(t *testing.T) {
	p := start(t, "exit 1")
	<-p.Done()
	if err := p.Stop(t.Context(), syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if err := p.Kill(); err != nil {
		t.Error(err)
	}
	if err := p.Signal(syscall.SIGTERM); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("Signal to an ended child: got %v, want %v", err, os.ErrProcessDone)
	}
}

func TestStartOfAMissingProgramFails(t *testing.T) {
	if _, err := Start(exec.Command("/no/such/program"), syscall.SIGKILL); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Start: got %v, want %v", err, os.ErrNotExist)
	}
}

func TestNothingRunsAnyMoreWhenAStopWasAwaited(t *testing.T) {
	p := start(t, "while :; do :; done")
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := AwaitStopped(p.PID()); err != nil {
		t.Fatal(err)
	}
	before, err := CPUTime(p.PID())
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(50 * time.Millisecond)
	if after, err := CPUTime(p.PID()); err != nil || after != before {
		t.Errorf("CPU time of a stopped process = %v, %v, want %v as before", after, err, before)
	}
}

func TestCPUTimeGrowsWithWork(t *testing.T) {
	p := start(t, "while :; do :; done")
	waitFor(t, "50 ms of processor time", func() bool {
		used, err := CPUTime(p.PID())
		if err != nil {
			t.Fatal(err)
		}
		return used >= 50*time.Millisecond
	})
}

func TestMemoryOfAProcessIsWithinItsPeak(t *testing.T) {
	now, peak, err := Memory(os.Getpid())
	if err != nil || now < 1<<20 || peak < 1<<20 {
		t.Errorf("Memory of this process = %d, %d, %v, want at least 1 MiB each", now, peak, err)
	}
	if _, _, err := Memory(1 << 30); err == nil {
		t.Error("Memory of a process that does not exist returned no error")
	}
}

func TestFreePortCanBeBound(t *testing.T) {
	port, err := FreePort()
	if err != nil {
		t.Fatal(err)
	}
	if port < lowestPort || port > highestPort {
		t.Errorf("FreePort = %d, want a port from %d to %d", port, lowestPort, highestPort)
	}
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	listener.Close()
}

func TestFileLockHasOneHolder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	unlock, err := TryLockFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := TryLockFile(path); !errors.Is(err, ErrLocked) {
		t.Errorf("TryLockFile of a locked file: got %v, want %v", err, ErrLocked)
	}
	ctx, cancel := context.WithTimeout(t.Context(), lockEvery)
	defer cancel()
	if _, err := LockFile(ctx, path); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), path) {
		t.Errorf("LockFile of a locked file: got %v, want the deadline's error with the path", err)
	}
	unlock()
	unlock, err = LockFile(t.Context(), path)
	if err != nil {
		t.Fatalf("LockFile of an unlocked file: %v", err)
	}
	unlock()
}
