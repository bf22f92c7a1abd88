package workload

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/perceptor/perceptor/internal/subprocess"
)

const lastWords = 4 << 10

// Listener is a listener process, seen from the process that started it.
type Listener struct {
	process *subprocess.Process
	logPath string
	ready   chan struct{}
	closed  chan struct{} // when its output has ended

	mu   sync.Mutex
	last Progress
	late float64 // largest lateness not taken yet
}

// StartListener starts a process of its own by command, which must end in
// [ServeListener]. What it logs goes to logPath.
func StartListener(command []string, cfg ListenerConfig, logPath string) (*Listener, error) {
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("start listener: open log: %w", err)
	}
	defer log.Close()
	text, err := json.Marshal(cfg)
	if err != nil {
		return nil, fmt.Errorf("start listener: %w", err)
	}
	output, input, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start listener: %w", err)
	}
	defer input.Close()
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(text), input, log
	process, err := subprocess.Start(cmd, syscall.SIGKILL)
	if err != nil {
		output.Close()
		return nil, err
	}
	l := &Listener{process: process, logPath: logPath, ready: make(chan struct{}), closed: make(chan struct{})}
	go l.read(output)
	return l, nil
}

// read takes the progress in until the process has ended.
func (l *Listener) read(output io.ReadCloser) {
	defer close(l.closed)
	defer output.Close()
	lines := bufio.NewScanner(output)
	var once sync.Once
	for lines.Scan() {
		var p Progress
		if json.Unmarshal(lines.Bytes(), &p) != nil {
			continue
		}
		l.mu.Lock()
		l.last, l.late = p, max(l.late, p.LatestMs)
		l.mu.Unlock()
		if p.Ready {
			once.Do(func() { close(l.ready) })
		}
	}
}

// AwaitReady returns when the listener has joined its group.
func (l *Listener) AwaitReady(ctx context.Context) error {
	select {
	case <-l.ready:
		return nil
	case <-l.process.Done():
		return fmt.Errorf("the listener ended at once (%s): %s", l.process.Exit(), l.said())
	case <-ctx.Done():
		return fmt.Errorf("the listener is not ready (%w): %s", ctx.Err(), l.said())
	}
}

// Progress returns what the listener has told, with the largest lateness since
// the call before.
func (l *Listener) Progress() Progress {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := l.last
	p.LatestMs, l.late = l.late, 0
	return p
}

// Callbacks is how many calls of the handler the listener has told of.
func (l *Listener) Callbacks() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last.Callbacks
}

// PID is the process id.
func (l *Listener) PID() int { return l.process.PID() }

// CPUTime is the processor time that it has used.
func (l *Listener) CPUTime() (time.Duration, error) { return subprocess.CPUTime(l.process.PID()) }

// Died returns an error when the listener has ended; call it before Stop.
func (l *Listener) Died() error {
	if l.process.Running() {
		return nil
	}
	return fmt.Errorf("the listener ended by itself (%s): %s", l.process.Exit(), l.said())
}

// Kill ends the listener with SIGKILL and returns when it is gone.
func (l *Listener) Kill() error {
	err := l.process.Kill()
	<-l.closed
	return err
}

// Stop lets the listener finish what it works on and write its history.
func (l *Listener) Stop(ctx context.Context) error {
	err := l.process.Stop(ctx, syscall.SIGTERM)
	select {
	case <-l.closed:
	case <-ctx.Done():
	}
	if exit := l.process.Exit(); err == nil && exit != "exit status 0" {
		err = errors.New(exit)
	}
	if err != nil {
		return fmt.Errorf("stop the listener: %w: %s", err, l.said())
	}
	return nil
}

func (l *Listener) said() string {
	text, err := os.ReadFile(l.logPath)
	if err != nil {
		return err.Error()
	}
	return string(bytes.TrimSpace(text[max(0, len(text)-lastWords):]))
}
