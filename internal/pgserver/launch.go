package pgserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/perceptor/perceptor/internal/ctxtime"
	"github.com/perceptor/perceptor/internal/subprocess"
)

const (
	pollEvery   = 10 * time.Millisecond
	startWait   = 2 * time.Minute // long enough for crash recovery of a large data directory
	logLimit    = 8 << 20
	lastWords   = 2 << 10
	readyLine   = 7 // of postmaster.pid, counted from 0
	survivors   = "pre-existing shared memory block"
	survivorTry = 500 * time.Millisecond
)

// launcher starts a server.
type launcher struct {
	opts     Options
	binaries Binaries
	account  account
	password string
}

// prepare does everything that precedes the start: it chooses binaries and user, creates the data
// directory if it is new, and reads the password.
func prepare(ctx context.Context, opts Options) (*launcher, error) {
	l := &launcher{opts: opts, binaries: opts.Binaries}
	major, err := dataMajor(opts.DataDir)
	if err != nil {
		return nil, err
	}
	if major != 0 && (major < oldestMajor || major > newestMajor) {
		return nil, fmt.Errorf("%w: %s has version %d, supported versions are %d to %d", ErrVersion, opts.DataDir, major, oldestMajor, newestMajor)
	}
	if l.binaries, err = chooseBinaries(ctx, opts, major); err != nil {
		return nil, err
	}
	if l.account, err = serverAccount(); err != nil {
		return nil, err
	}
	if major == 0 {
		if err := l.create(ctx); err != nil {
			return nil, err
		}
	} else {
		if err := l.account.canEnter(opts.DataDir); err != nil {
			return nil, err
		}
		if err := checkUnused(opts.DataDir); err != nil {
			return nil, err
		}
	}
	if err := l.installTLS(); err != nil {
		return nil, err
	}
	l.password, err = readPassword(opts.DataDir)
	return l, err
}

// chooseBinaries returns binaries of the data directory's major version. Version 0 stands for any.
func chooseBinaries(ctx context.Context, opts Options, major int) (Binaries, error) {
	b := opts.Binaries
	var err error
	if b == (Binaries{}) {
		b, err = findMajor(ctx, major)
	}
	if errors.Is(err, ErrNotFound) {
		b, err = Download(ctx, major, opts.Progress)
	}
	if err != nil {
		return Binaries{}, err
	}
	if major != 0 && b.Major != major {
		return Binaries{}, fmt.Errorf("%w: %s has version %d, the programs in %s have version %d; use another directory, or pg_upgrade",
			ErrVersion, opts.DataDir, major, b.Dir, b.Major)
	}
	return b, nil
}

func (l *launcher) launchOnSomePort(ctx context.Context) (*Server, error) {
	if l.opts.Port != 0 {
		return l.launchDespiteSurvivors(ctx, l.opts.Port)
	}
	var err error
	for range portTries {
		port, portErr := subprocess.FreePort()
		if portErr != nil {
			return nil, portErr
		}
		var s *Server
		if s, err = l.launchDespiteSurvivors(ctx, port); err == nil || !errors.Is(err, ErrPortInUse) {
			return s, err
		}
	}
	return nil, err
}

// launchDespiteSurvivors starts the server. If backends of a killed server still run, it waits a while
// for them, since they end by themselves, and tries again.
func (l *launcher) launchDespiteSurvivors(ctx context.Context, port int) (*Server, error) {
	for deadline := time.Now().Add(quitWait); ; {
		s, err := l.launch(ctx, port)
		if err == nil || !strings.Contains(err.Error(), survivors) || time.Now().After(deadline) {
			return s, err
		}
		if !ctxtime.Sleep(ctx, survivorTry) {
			return nil, err
		}
	}
}

func (l *launcher) launch(ctx context.Context, port int) (*Server, error) {
	log, start, err := l.openLog()
	if err != nil {
		return nil, err
	}
	defer log.Close()

	cmd := exec.Command(filepath.Join(l.binaries.Dir, "postgres"), l.args(ctx, port)...)
	cmd.Dir = l.opts.DataDir
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = l.account.attr()
	process, err := subprocess.Start(cmd, syscall.SIGINT)
	if err != nil {
		return nil, err
	}
	s := &Server{process: process, account: l.account, binaries: l.binaries, dataDir: l.opts.DataDir, port: port, password: l.password, ca: l.caFile()}
	if err := s.waitReady(ctx, start); err != nil {
		return nil, err
	}
	return s, nil
}

func (l *launcher) args(ctx context.Context, port int) []string {
	settings := map[string]string{
		"listen_addresses":        "127.0.0.1",
		"unix_socket_directories": "",
		"logging_collector":       "off",
	}
	if l.opts.TLS != nil {
		maps.Copy(settings, map[string]string{
			"ssl": "on", "ssl_cert_file": certName, "ssl_key_file": keyName, "hba_file": filepath.Join(l.opts.DataDir, hbaName),
		})
	}
	maps.Copy(settings, l.opts.Settings)
	for name, value := range l.opts.Preferred {
		if l.accepts(ctx, name, value) {
			settings[name] = value
		}
	}
	args := []string{"-D", l.opts.DataDir, "-p", strconv.Itoa(port)}
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "-c", name+"="+settings[name])
	}
	return args
}

// accepts reports whether the program postgres accepts a setting.
func (l *launcher) accepts(ctx context.Context, name, value string) bool {
	cmd := exec.CommandContext(ctx, filepath.Join(l.binaries.Dir, "postgres"),
		"-D", l.opts.DataDir, "-c", name+"="+value, "-C", name)
	cmd.Dir = l.opts.DataDir
	cmd.SysProcAttr = l.account.attr()
	return cmd.Run() == nil
}

// openLog opens the log for appending and returns the offset at which this server's part begins.
func (l *launcher) openLog() (*os.File, int64, error) {
	path := filepath.Join(l.opts.DataDir, logName)
	if info, err := os.Stat(path); err == nil && info.Size() > logLimit {
		if err := os.Rename(path, path+".1"); err != nil {
			return nil, 0, fmt.Errorf("rotate log: %w", err)
		}
	}
	log, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, 0, fmt.Errorf("open log: %w", err)
	}
	start, err := log.Seek(0, io.SeekEnd)
	if err == nil {
		err = l.account.own(path)
	}
	if err != nil {
		log.Close()
		return nil, 0, fmt.Errorf("open log: %w", err)
	}
	return log, start, nil
}

// waitReady returns when the server's pid file says that it accepts connections. It kills a server that
// does not become ready in time.
func (s *Server) waitReady(ctx context.Context, logStart int64) error {
	ctx, cancel := context.WithTimeout(ctx, startWait)
	defer cancel()
	poll := time.NewTicker(pollEvery)
	defer poll.Stop()
	for {
		if s.ready() {
			return nil
		}
		select {
		case <-poll.C:
		case <-s.process.Done():
			return s.explain(logStart)
		case <-ctx.Done():
			words := s.lastWords(logStart)
			if err := s.Kill(); err != nil {
				return err
			}
			return fmt.Errorf("server did not accept connections in time: %w: %s", ctx.Err(), words)
		}
	}
}

// ready reports whether the server is ready. It reads the pid file as pg_ctl does: the first line is the
// process id, the eighth line is the state.
func (s *Server) ready() bool {
	text, err := os.ReadFile(filepath.Join(s.dataDir, pidName))
	if err != nil {
		return false
	}
	lines := strings.Split(string(text), "\n")
	return len(lines) > readyLine &&
		strings.TrimSpace(lines[0]) == strconv.Itoa(s.PID()) &&
		strings.TrimSpace(lines[readyLine]) == "ready"
}

// explain returns the reason why the server ended before it was ready.
func (s *Server) explain(logStart int64) error {
	words := s.lastWords(logStart)
	switch {
	case strings.Contains(words, "Address already in use"), strings.Contains(words, "could not bind"):
		return fmt.Errorf("%w: %d on 127.0.0.1", ErrPortInUse, s.port)
	case strings.Contains(words, `lock file "`+pidName+`"`): // another server has or is writing the file
		return fmt.Errorf("%w: %s: %s", ErrInUse, s.dataDir, words)
	default:
		return fmt.Errorf("server ended during its start (%s): %s", s.process.Exit(), words)
	}
}

func (s *Server) lastWords(logStart int64) string {
	text, err := os.ReadFile(s.LogPath())
	if err != nil {
		return err.Error()
	}
	text = text[min(logStart, int64(len(text))):]
	text = text[max(0, len(text)-lastWords):]
	return string(bytes.TrimSpace(text))
}
