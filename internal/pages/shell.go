package pages

import (
	"context"
	"os/exec"
	"syscall"
	"time"
)

// Shell returns a shell that runs a script in a folder, as somebody who pastes it into a
// terminal. The end of ctx asks all its processes to stop, and kills them 10 s later.
func Shell(ctx context.Context, dir, script string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "sh", "-c", script)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}
