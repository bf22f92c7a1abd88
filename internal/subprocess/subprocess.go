// Package subprocess runs a server as a child of this process and promises three things about it:
// it dies when this process dies, even by kill -9; a Ctrl-C in the terminal reaches only this process,
// which then stops the child in its own order; and a signal never reaches a stranger that was given the
// child's old process id.
//
// The kernel sends the parent-death signal when the *thread* that forked the child ends. A goroutine
// locked to its thread therefore starts the child and stays with it until the child has ended.
// Systems other than Linux have no such signal: there a child can outlive a parent that is killed.
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

// killWait bounds the wait for a process to be gone after SIGKILL, and stopWait for it to stand still
// after SIGSTOP.
const killWait, stopWait = 10 * time.Second, 10 * time.Second

// Process is a started child. Its methods may be called concurrently.
type Process struct {
	name string
	cmd  *exec.Cmd
	done chan struct{}
	exit string // set before done is closed
}

// Start runs cmd in a process group of its own. When this process dies, the child gets onParentDeath.
// cmd must not have been started; its SysProcAttr.Credential is kept.
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

// Done is closed when the child has ended and was waited for.
func (p *Process) Done() <-chan struct{} { return p.done }

// Exit says how the child ended, such as "exit status 1" or "signal: killed"; "running" while it runs.
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

// Signal sends sig to the child. Signalling a child that has ended is an error ([os.ErrProcessDone]).
func (p *Process) Signal(sig syscall.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil {
		return fmt.Errorf("signal %s (pid %d) with %v: %w", p.name, p.PID(), sig, err)
	}
	return nil
}

// AwaitStopped returns when all threads of a process that was sent SIGSTOP stand still. The kernel
// stops them one by one as they get a core, which on a busy machine takes a while.
func AwaitStopped(pid int) error {
	for deadline := time.Now().Add(stopWait); !stopped(pid); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			return fmt.Errorf("pid %d still runs %v after SIGSTOP", pid, stopWait)
		}
	}
	return nil
}

// Kill ends the child with SIGKILL and waits until it is gone. It is no error if it has ended before.
func (p *Process) Kill() error {
	if err := p.Signal(syscall.SIGKILL); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(killWait):
		return fmt.Errorf("%s (pid %d) is still there %v after SIGKILL", p.name, p.PID(), killWait)
	}
}

// Stop asks the child to end with sig and waits for it. When ctx ends first, the child is killed and
// the error says so. It is no error if the child has ended before.
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
