package testenv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/perceptor/perceptor/internal/subprocess"
)

const (
	oldestJava = 17
	noJava     = "Java 17 or newer is needed for ZooKeeper and Kafka; install it with: " +
		"apt-get install openjdk-17-jre-headless, or set " + KafkaVariable + "=host:port and " +
		ZooKeeperVariable + "=host:port to use running ones"
	bindTries = 5
	readyWait = 90 * time.Second
	pollEvery = 20 * time.Millisecond
	lastWords = 2 << 10
	serverLog = "server.log"
)

var javaVersion = regexp.MustCompile(`version "(?:1\.)?(\d+)`)

// findJava returns the java program of JAVA_HOME or PATH.
func findJava(ctx context.Context) (string, error) {
	java := "java"
	if home := os.Getenv("JAVA_HOME"); home != "" {
		java = filepath.Join(home, "bin", "java")
	}
	path, err := exec.LookPath(java)
	if err != nil {
		return "", errors.New(noJava)
	}
	out, err := exec.CommandContext(ctx, path, "-version").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s (%s -version: %w)", noJava, path, err)
	}
	words := javaVersion.FindSubmatch(out)
	if words == nil {
		return "", fmt.Errorf("%s (%s says %q)", noJava, path, bytes.TrimSpace(out))
	}
	if major, err := strconv.Atoi(string(words[1])); err != nil || major < oldestJava {
		return "", fmt.Errorf("%s (%s is version %s)", noJava, path, words[1])
	}
	return path, nil
}

// javaServer is the part that ZooKeeperServer and KafkaServer have in common. Its
// methods may be called concurrently.
type javaServer struct {
	addr     string // host:port
	dir      string
	external bool
	program  func() *exec.Cmd            // the server's command line, for each start
	answers  func(context.Context) error // nil once the server serves

	mu      sync.Mutex
	process *subprocess.Process
}

// Addr returns host:port of the server.
func (s *javaServer) Addr() string { return s.addr }

// LogPath returns the path of the server's log.
func (s *javaServer) LogPath() string { return filepath.Join(s.dir, serverLog) }

// PID returns the process id of the server, or 0 if this process did not start it.
func (s *javaServer) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil {
		return 0
	}
	return s.process.PID()
}

// CPUTime returns the processor time that the server has used since its last start.
func (s *javaServer) CPUTime() (time.Duration, error) {
	pid := s.PID()
	if pid == 0 {
		return 0, ErrShared
	}
	return subprocess.CPUTime(pid)
}

// Answers asks the server, as a client would, whether it serves, and waits about a second for the answer.
func (s *javaServer) Answers(ctx context.Context) error { return s.answers(ctx) }

// Stop shuts the server down in order. If the server is still running when ctx ends, Stop kills it.
// Stop returns nil if the server is not running.
func (s *javaServer) Stop(ctx context.Context) error {
	return s.with(func(p *subprocess.Process) error {
		if !p.Running() {
			return nil
		}
		if err := p.Signal(syscall.SIGCONT); err != nil && p.Running() {
			return err
		}
		return p.Stop(ctx, syscall.SIGTERM)
	})
}

// Kill ends the server with SIGKILL and returns when it has ended.
func (s *javaServer) Kill() error { return s.with((*subprocess.Process).Kill) }

// Pause suspends the server until Resume. Its connections stay open, but it does not answer.
func (s *javaServer) Pause() error {
	return s.with(func(p *subprocess.Process) error {
		if err := p.Signal(syscall.SIGSTOP); err != nil {
			return err
		}
		return subprocess.AwaitStopped(p.PID())
	})
}

// Resume ends a Pause.
func (s *javaServer) Resume() error {
	return s.with(func(p *subprocess.Process) error { return p.Signal(syscall.SIGCONT) })
}

// Restart starts the server with the same port and data. It stops a running server first.
func (s *javaServer) Restart(ctx context.Context) error {
	if err := s.Stop(ctx); err != nil {
		return err
	}
	return s.launch(ctx)
}

func (s *javaServer) with(f func(*subprocess.Process) error) error {
	if s.external {
		return ErrShared
	}
	s.mu.Lock()
	p := s.process
	s.mu.Unlock()
	if p == nil {
		return errors.New("the server was not started")
	}
	return f(p)
}

// launch starts the program and returns when the server answers.
func (s *javaServer) launch(ctx context.Context) error {
	log, err := os.OpenFile(s.LogPath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	defer log.Close()
	cmd := s.program()
	cmd.Dir = s.dir
	cmd.Stdout, cmd.Stderr = log, log
	process, err := subprocess.Start(cmd, syscall.SIGKILL)
	if err != nil {
		return err
	}
	if err := s.waitReady(ctx, process); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.process = process
	return nil
}

func (s *javaServer) waitReady(ctx context.Context, process *subprocess.Process) error {
	ctx, cancel := context.WithTimeout(ctx, readyWait)
	defer cancel()
	poll := time.NewTicker(pollEvery)
	defer poll.Stop()
	var last error
	for {
		if last = s.answers(ctx); last == nil {
			return nil
		}
		select {
		case <-poll.C:
		case <-process.Done():
			return fmt.Errorf("server ended during its start (%s): %s", process.Exit(), s.lastWords())
		case <-ctx.Done():
			if err := process.Kill(); err != nil {
				return err
			}
			return fmt.Errorf("server did not answer in time (%w): %s", last, s.lastWords())
		}
	}
}

func (s *javaServer) lastWords() string {
	text, err := os.ReadFile(s.LogPath())
	if err != nil {
		return err.Error()
	}
	return string(bytes.TrimSpace(text[max(0, len(text)-lastWords):]))
}

// launchOnSomePort starts the server on a free port. If another process binds that port first, it tries
// again with another one.
func launchOnSomePort(ctx context.Context, s *javaServer, configure func(port int) error) error {
	var err error
	for range bindTries {
		port, portErr := subprocess.FreePort()
		if portErr != nil {
			return portErr
		}
		s.addr = fmt.Sprintf("127.0.0.1:%d", port)
		if err = configure(port); err != nil {
			return err
		}
		if err = s.launch(ctx); err == nil || !bytes.Contains([]byte(err.Error()), []byte("Address already in use")) {
			return err
		}
	}
	return err
}
