// Package pgserver runs a PostgreSQL server as a child of this process. `taskd dev` and the tests use it.
//
// [Start] finds PostgreSQL 15 to 18 on the machine or downloads it, creates the data directory if it is
// new, and starts the server on 127.0.0.1 with a random password that is kept in the data directory.
// PostgreSQL refuses to run as root, so root runs it as the user postgres or nobody.
//
// On Linux the server does not outlive its parent. [Server.Stop] shuts it down in order. If the parent is
// killed, the kernel sends the server the signal for the same fast shutdown. Committed data survives a
// stop and a kill; the next Start on the same directory recovers it.
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

// Errors of [Start]; test for them with [errors.Is].
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

// Options configures a server. Only DataDir is required.
type Options struct {
	// DataDir is the data directory. Start creates it if it does not exist. The server's user must be
	// allowed to enter its parent directory.
	DataDir string
	// Initial, if set, is the data directory of a server that was stopped, of the same version. A new
	// data directory is a copy of it, with its databases and its password.
	Initial string
	// Port is the port on 127.0.0.1. If it is 0, Start picks a free one.
	Port int
	// Binaries are the programs to use. If it is the zero value, Start uses those that [Find] finds, or
	// else downloads them.
	Binaries Binaries
	// Settings are parameters of postgresql.conf. They are passed on the command line.
	Settings map[string]string
	// Preferred are like Settings, but those that this build of PostgreSQL does not accept are dropped.
	Preferred map[string]string
	// TLS, if set, makes the server refuse connections without TLS.
	TLS *TLS
	// Scratch says that the data need not survive a crash. Its creation is then
	// not forced to disk.
	Scratch bool
	// Progress, if not nil, is called before long operations: a download and the
	// creation of the data directory.
	Progress func(what string)
}

// TLS names the files of a server's certificate, its private key and the CA that signs it.
type TLS struct{ CertFile, KeyFile, CAFile string }

// Server is a running PostgreSQL server. Its methods may be called concurrently.
type Server struct {
	process  *subprocess.Process
	account  account
	binaries Binaries
	dataDir  string
	port     int
	password string
	// ca is the file of the CA; empty without TLS.
	ca string
}

// Start starts a server and waits until it accepts connections or ctx ends. The server keeps running when
// ctx ends later. The error wraps one of this package's errors if the cause is known. Otherwise it ends
// with the last lines of the server's log.
func Start(ctx context.Context, opts Options) (*Server, error) {
	if opts.DataDir == "" {
		return nil, errors.New("start PostgreSQL: DataDir is empty")
	}
	if opts.Port < 0 || opts.Port > 65535 {
		return nil, fmt.Errorf("start PostgreSQL: Port is %d, want 0 to 65535", opts.Port)
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

// DSN returns the connection string of the superuser for the database named postgres. It contains the
// password.
func (s *Server) DSN() string { return s.DSNFor("postgres") }

// DSNFor returns the connection string of the superuser for a database.
func (s *Server) DSNFor(database string) string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword(superuser, s.password),
		Host:     net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)),
		Path:     "/" + database,
		RawQuery: "sslmode=disable",
	}
	if s.ca != "" {
		u.RawQuery = url.Values{"sslmode": {"verify-full"}, "sslrootcert": {s.ca}}.Encode()
	}
	return u.String()
}

// Port returns the server's port on 127.0.0.1.
func (s *Server) Port() int { return s.port }

// Major returns the major version of PostgreSQL, such as 17.
func (s *Server) Major() int { return s.binaries.Major }

// DataDir returns the absolute path of the data directory.
func (s *Server) DataDir() string { return s.dataDir }

// LogPath returns the path of the server's log.
func (s *Server) LogPath() string { return filepath.Join(s.dataDir, logName) }

// PID returns the postmaster's process id.
func (s *Server) PID() int { return s.process.PID() }

// Done returns a channel that is closed when the server has ended for any reason.
func (s *Server) Done() <-chan struct{} { return s.process.Done() }

// Stop shuts the server down (a fast shutdown): it disconnects clients and writes all data. If ctx ends
// first, Stop ends the server at once and returns an error; the server recovers at its next start. Stop
// returns nil if the server had ended before.
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

// Kill ends every process of the server with SIGKILL, like the loss of its machine, and returns when they
// have ended. It returns nil if the server had ended before.
func (s *Server) Kill() error {
	pids := s.PIDs()
	if err := s.process.Kill(); err != nil {
		return fmt.Errorf("kill PostgreSQL: %w", err)
	}
	return endChildren(pids)
}

// Pause suspends every process of the server with SIGSTOP until Resume. Connections stay open, but the
// server does not answer.
func (s *Server) Pause() error {
	if err := s.process.Signal(syscall.SIGSTOP); err != nil { // the postmaster first, so that it starts no others
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

// CPUTime returns the processor time that the server's processes have used, including ended processes.
func (s *Server) CPUTime() (time.Duration, error) {
	var total time.Duration
	for i, pid := range s.PIDs() {
		used, err := subprocess.CPUTime(pid)
		if err != nil && i == 0 {
			return 0, err
		}
		total += used // a backend that has just ended counts with the postmaster in the next call
	}
	return total, nil
}

func signalIfThere(pid int, sig syscall.Signal) error {
	if err := syscall.Kill(pid, sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("signal pid %d with %v: %w", pid, sig, err)
	}
	return nil
}

// endChildren kills the children of the dead postmaster and waits until they have ended. pids[0] is the
// postmaster.
func endChildren(pids []int) error {
	deadline := time.Now().Add(quitWait)
	for _, pid := range pids[1:] {
		for subprocess.Alive(pid) {
			if err := signalIfThere(pid, syscall.SIGKILL); err != nil {
				return err
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("kill PostgreSQL: pid %d is still running after SIGKILL", pid)
			}
			time.Sleep(time.Millisecond)
		}
	}
	return nil
}
