// Package pgserver runs a PostgreSQL server as a child of this process: for `taskd dev`, where it is the
// database, and for the tests.
//
// [Start] finds PostgreSQL 15 to 18 on the machine or downloads it, creates the data directory when it
// is new, and starts the server on 127.0.0.1 with a random password that is kept in the data directory.
// PostgreSQL refuses to run as root, so root runs it as the user postgres or
// nobody.
//
// The server never outlives its parent on Linux: a clean [Server.Stop] shuts it down in order, and when
// the parent is killed the kernel sends the server the signal for the same fast shutdown. Data that was
// committed survives all of these; the next Start on the same directory recovers it.
package pgserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/perceptor/perceptor/internal/subprocess"
)

// Reasons why a server cannot start; test with [errors.Is].
var (
	ErrNotFound  = errors.New("no PostgreSQL 15 to 18 found")
	ErrInUse     = errors.New("data directory is in use")
	ErrVersion   = errors.New("data directory belongs to another PostgreSQL version")
	ErrPortInUse = errors.New("port is in use")
)

const (
	superuser = "postgres"
	portTries = 5
	quitWait  = 5 * time.Second
)

// Options says which server to start. Only DataDir is required.
type Options struct {
	// DataDir holds the data; it is created when it does not exist. Its parent directory must allow
	// the server's user to enter.
	DataDir string
	// Port on 127.0.0.1; 0 picks a free one.
	Port int
	// Binaries to use; the zero value means those that [Find] finds, else a download.
	Binaries Binaries
	// Settings of postgresql.conf, given on the command line.
	Settings map[string]string
	// Preferred settings are dropped one by one where this build of PostgreSQL does not accept them.
	Preferred map[string]string
	// Scratch data need not survive a crash, so its creation is not forced to
	// disk.
	Scratch bool
	// Progress, if not nil, is called for long operations: a download, the
	// creation of the data directory.
	Progress func(what string)
}

// Server is a running PostgreSQL server. Its methods may be called concurrently.
type Server struct {
	process  *subprocess.Process
	dataDir  string
	port     int
	major    int
	password string
}

// Start starts a server and returns when it accepts connections, or when ctx ends; the server lives on
// when ctx ends later. Errors wrap one of this package's where the cause is known, and end with the
// server's own last words otherwise.
func Start(ctx context.Context, opts Options) (*Server, error) {
	if opts.DataDir == "" {
		return nil, errors.New("start PostgreSQL: DataDir is empty")
	}
	if opts.Port < 0 || opts.Port > 65535 {
		return nil, fmt.Errorf("start PostgreSQL: Port is %d, not within 0 to 65535", opts.Port)
	}
	if opts.Progress == nil {
		opts.Progress = func(string) {}
	}
	dir, err := filepath.Abs(opts.DataDir)
	if err != nil {
		return nil, fmt.Errorf("start PostgreSQL: %w", err)
	}
	opts.DataDir = dir

	l, err := prepare(ctx, opts)
	if err != nil {
		return nil, fmt.Errorf("start PostgreSQL: %w", err)
	}
	s, err := l.launchOnSomePort(ctx)
	if err != nil {
		return nil, fmt.Errorf("start PostgreSQL: %w", err)
	}
	return s, nil
}

// DSN is the connection string of the superuser for the database named postgres. It holds the password.
func (s *Server) DSN() string { return s.DSNFor("postgres") }

// DSNFor is [Server.DSN] for another database.
func (s *Server) DSNFor(database string) string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword(superuser, s.password),
		Host:     net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)),
		Path:     "/" + database,
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// Port on 127.0.0.1.
func (s *Server) Port() int { return s.port }

// Major is the PostgreSQL version, such as 17.
func (s *Server) Major() int { return s.major }

// DataDir is absolute.
func (s *Server) DataDir() string { return s.dataDir }

// LogPath returns the path of the server's log.
func (s *Server) LogPath() string { return filepath.Join(s.dataDir, logName) }

// PID is the postmaster's process id.
func (s *Server) PID() int { return s.process.PID() }

// Done is closed when the server has ended, for whatever reason.
func (s *Server) Done() <-chan struct{} { return s.process.Done() }

// Stop shuts the server down: clients are disconnected, everything is written (a fast shutdown). When
// ctx ends first, the server is stopped at once and recovers at its next start; the error then says so.
// Stopping a server that has ended is no error.
func (s *Server) Stop(ctx context.Context) error {
	if !s.process.Running() {
		return nil
	}
	err := errors.Join(s.Resume(), s.process.Signal(syscall.SIGINT)) // it may be paused
	if err != nil && s.process.Running() {
		return fmt.Errorf("stop PostgreSQL: %w", err)
	}
	select {
	case <-s.process.Done():
		return nil
	case <-ctx.Done():
	}
	quit, cancel := context.WithTimeout(context.WithoutCancel(ctx), quitWait)
	defer cancel()
	if err := s.process.Stop(quit, syscall.SIGQUIT); err != nil {
		return fmt.Errorf("stop PostgreSQL: %w", err)
	}
	return fmt.Errorf("stop PostgreSQL: fast shutdown took too long, it will recover at its next start: %w", ctx.Err())
}

// Kill ends every process of the server with SIGKILL, as the loss of its machine would, and returns
// when they are gone. Killing a server that has ended is no error.
func (s *Server) Kill() error {
	pids := s.PIDs()
	if err := s.process.Kill(); err != nil {
		return fmt.Errorf("kill PostgreSQL: %w", err)
	}
	return endChildren(pids)
}

// Pause stops every process of the server with SIGSTOP: connections stay open and nothing answers.
func (s *Server) Pause() error {
	if err := s.process.Signal(syscall.SIGSTOP); err != nil { // first, so that it starts no others
		return fmt.Errorf("pause PostgreSQL: %w", err)
	}
	if err := subprocess.AwaitStopped(s.PID()); err != nil {
		return fmt.Errorf("pause PostgreSQL: %w", err)
	}
	for _, pid := range s.PIDs()[1:] {
		if err := signalIfThere(pid, syscall.SIGSTOP); err != nil {
			return fmt.Errorf("pause PostgreSQL: %w", err)
		}
		if err := subprocess.AwaitStopped(pid); err != nil {
			return fmt.Errorf("pause PostgreSQL: %w", err)
		}
	}
	return nil
}

// Resume ends a Pause.
func (s *Server) Resume() error {
	for _, pid := range s.PIDs()[1:] {
		if err := signalIfThere(pid, syscall.SIGCONT); err != nil {
			return fmt.Errorf("resume PostgreSQL: %w", err)
		}
	}
	if err := s.process.Signal(syscall.SIGCONT); err != nil {
		return fmt.Errorf("resume PostgreSQL: %w", err)
	}
	return nil
}

// PIDs returns the process ids of the server, the postmaster's first.
func (s *Server) PIDs() []int {
	pids := []int{s.PID()}
	if !s.process.Running() {
		return pids
	}
	children, err := subprocess.Children(s.PID())
	if err != nil {
		return pids
	}
	return append(pids, children...)
}

// CPUTime is the processor time that the server's processes have used, those that have ended included.
func (s *Server) CPUTime() (time.Duration, error) {
	var total time.Duration
	for i, pid := range s.PIDs() {
		used, err := subprocess.CPUTime(pid)
		if err != nil && i == 0 {
			return 0, err
		}
		total += used // a backend that ended meanwhile is counted with the postmaster next time
	}
	return total, nil
}

func signalIfThere(pid int, sig syscall.Signal) error {
	if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("signal pid %d with %v: %w", pid, sig, err)
	}
	return nil
}

// endChildren kills what the dead postmaster left and waits until it is gone. pids[0] is the postmaster.
func endChildren(pids []int) error {
	deadline := time.Now().Add(quitWait)
	for _, pid := range pids[1:] {
		for subprocess.Alive(pid) {
			if err := signalIfThere(pid, syscall.SIGKILL); err != nil {
				return err
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("kill PostgreSQL: pid %d is still there after SIGKILL", pid)
			}
			time.Sleep(time.Millisecond)
		}
	}
	return nil
}
