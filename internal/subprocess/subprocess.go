// Package subprocess runs a server as a child of this process. It guarantees three things:
//
//   - The child dies when this process dies, even by kill -9.
//   - A Ctrl-C in the terminal reaches only this process, which then stops its children in order.
//   - A signal never reaches another process that has the process id of an ended child.
//
// The kernel sends the parent-death signal when the thread that forked the child ends. Therefore, a
// goroutine that is locked to its thread starts the child and waits until the child has ended.
// Only Linux has this signal. On other systems a child can outlive a parent that is killed.
package subprocess

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// killWait bounds the wait for the end of a process after SIGKILL. stopWait bounds the wait for all
// threads of a process to stop after SIGSTOP. A busy machine may give a process of low priority no time to end.
const killWait, stopWait = time.Minute, time.Minute

// Process is a started child. Its methods may be called concurrently.
type Process struct {
	name string
	cmd  *exec.Cmd
	done chan struct{}
	exit string // set before done is closed
}

// Start starts cmd in a process group of its own. When this process dies, the child gets the signal
// onParentDeath. cmd must not have been started. Start keeps its SysProcAttr.Credential.
func Start(cmd *exec.Cmd, onParentDeath syscall.Signal) (*Process, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	setParentDeathSignal(cmd.SysProcAttr, onParentDeath)

	p := &Process{name: cmd.Path, cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		started <- nil
		if err := cmd.Wait(); err != nil {
			p.exit = err.Error()
		} else {
			p.exit = cmd.ProcessState.String()
		}
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", cmd.Path, err)
	}
	return p, nil
}

// PID returns the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done returns a channel that is closed after the child has ended and was waited for.
func (p *Process) Done() <-chan struct{} { return p.done }

// Exit describes how the child ended, such as "exit status 1" or "signal: killed". It returns
// "running" while the child runs.
func (p *Process) Exit() string {
	if p.Running() {
		return "running"
	}
	return p.exit
}

// Running reports whether the child has not ended.
func (p *Process) Running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Signal sends sig to the child. It returns [os.ErrProcessDone] if the child has ended.
func (p *Process) Signal(sig syscall.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("signal %s (pid %d) with %v: %w", p.name, p.PID(), sig, err)
	}
	return nil
}

// AwaitStopped waits until all threads of a process that was sent SIGSTOP have stopped. The kernel
// stops each thread when it next gets a core, which takes a while on a busy machine.
func AwaitStopped(pid int) error {
	for deadline := time.Now().Add(stopWait); !stopped(pid); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("pid %d is still running %v after SIGSTOP", pid, stopWait)
		}
	}
	return nil
}

// Kill ends the child with SIGKILL and waits until it has ended. It returns nil if the child had ended
// before.
func (p *Process) Kill() error {
	if err := p.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(killWait):
		return fmt.Errorf("%s (pid %d) is still running %v after SIGKILL", p.name, p.PID(), killWait)
	}
}

// Stop sends sig to the child and waits until the child has ended. If ctx ends first, Stop kills the
// child and returns an error that says so. It returns nil if the child had ended before.
func (p *Process) Stop(ctx context.Context, sig syscall.Signal) error {
	if err := p.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-ctx.Done():
	}
	if err := p.Kill(); err != nil {
		return err
	}
	return fmt.Errorf("%s (pid %d) did not end after %v and was killed: %w", p.name, p.PID(), sig, ctx.Err())
}
