package pages

import (
	"context"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// Shell returns a shell that runs a script in a folder, as somebody who pastes it into a
// terminal, with further variables of the environment. The end of ctx asks all its
// processes to stop, and kills them 10 s later.
func Shell(ctx context.Context, dir, script string, environ ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "sh", "-c", script)
	cmd.Dir = dir
	// `go run` finds what tests compile with these flags in the cache.
	cmd.Env = append(append(os.Environ(), "GOFLAGS=-trimpath -buildvcs=false"), environ...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}
