package pgserver

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Files that this package adds to the data directory.
const (
	passwordName = "perceptor.password"
	logName      = "server.log"
)

const pidName = "postmaster.pid"

// dataMajor returns the major version of a data directory, or 0 if dir does not exist or is empty.
func dataMajor(dir string) (int, error) {
	text, err := os.ReadFile(filepath.Join(dir, "PG_VERSION"))
	if errors.Is(err, os.ErrNotExist) {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return 0, fmt.Errorf("read data directory: %w", err)
		}
		if len(entries) > 0 {
			return 0, fmt.Errorf("%s is neither empty nor a PostgreSQL data directory", dir)
		}
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read data directory: %w", err)
	}
	major, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("read data directory: %s/PG_VERSION contains %q, want a version number", dir, text)
	}
	return major, nil
}

// create makes a new data directory. It makes a draft beside it and renames the draft, so that an
// interrupted creation leaves nothing that looks like a data directory.
func (l *launcher) create(ctx context.Context) error {
	l.opts.Progress("creating a PostgreSQL data directory in " + l.opts.DataDir)
	draft := l.opts.DataDir + ".new"
	if err := os.RemoveAll(draft); err != nil {
		return fmt.Errorf("create data directory: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(draft), 0o755); err != nil {
		return fmt.Errorf("create data directory: %w", err)
	}
	if err := l.account.canEnter(draft); err != nil {
		return err
	}
	fill := l.initdb
	if initial := l.opts.Initial; initial != "" {
		fill = func(ctx context.Context, dir string) error { return Copy(ctx, initial, dir) }
	}
	if err := fill(ctx, draft); err != nil {
		return err
	}
	if err := os.Rename(draft, l.opts.DataDir); err != nil {
		return fmt.Errorf("create data directory: %w", err)
	}
	return nil
}

// initdb makes a data directory without databases of its own.
func (l *launcher) initdb(ctx context.Context, dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("create data directory: %w", err)
	}
	if err := l.account.own(dir); err != nil {
		return err
	}
	password := dir + ".password"
	if err := os.WriteFile(password, []byte(rand.Text()), 0o600); err != nil {
		return fmt.Errorf("write password: %w", err)
	}
	defer os.Remove(password)
	if err := l.account.own(password); err != nil {
		return err
	}
	args := []string{
		"--pgdata", dir, "--username", superuser, "--pwfile", password,
		"--auth", "scram-sha-256", "--encoding", "UTF8", "--locale", "C",
	}
	if l.opts.Scratch {
		args = append(args, "--no-sync")
	}
	cmd := exec.CommandContext(ctx, filepath.Join(l.binaries.Dir, "initdb"), args...)
	cmd.Dir = dir
	cmd.SysProcAttr = l.account.attr()
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("create data directory: initdb: %w: %s", err, bytes.TrimSpace(out))
	}
	if err := os.Rename(password, filepath.Join(dir, passwordName)); err != nil {
		return fmt.Errorf("store password: %w", err)
	}
	return nil
}

// checkUnused returns [ErrInUse] if a server runs on dir. It removes a pid file that names a process of
// another program, because PostgreSQL would mistake that process for a server. It keeps a pid file whose
// process has ended, because PostgreSQL uses it to find survivors of a crash.
func checkUnused(dir string) error {
	path := filepath.Join(dir, pidName)
	pid, err := readPID(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if pid == 0 {
		return fmt.Errorf("%w: a server is starting on %s; if no server is starting, remove %s", ErrInUse, dir, path)
	}
	if err := syscall.Kill(pid, 0); err != nil && !errors.Is(err, syscall.EPERM) {
		return nil
	}
	users := usersOf(dir, pid)
	if len(users) > 0 {
		return fmt.Errorf("%w: %s by PostgreSQL with pid %d", ErrInUse, dir, users[0])
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("remove stale %s: %w", path, err)
	}
	return nil
}

// readPID returns the process id in a pid file, or 0 if the file is empty.
func readPID(path string) (int, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("read pid file: %w", err)
	}
	if len(text) == 0 {
		return 0, nil
	}
	line, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil || pid <= 0 {
		return 0, fmt.Errorf("%s does not begin with a process id: remove it if no PostgreSQL runs on %s", path, filepath.Dir(path))
	}
	return pid, nil
}

func readPassword(dir string) (string, error) {
	password, err := os.ReadFile(filepath.Join(dir, passwordName))
	if err != nil {
		return "", fmt.Errorf("%s was not created by Perceptor, or its password file was removed: %w", dir, err)
	}
	return strings.TrimSpace(string(password)), nil
}
