package dev

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/perceptor/perceptor/internal/subprocess"
	"github.com/perceptor/perceptor/internal/tempdir"
)

const (
	formatName = "format"
	format     = "perceptor-dev 1\n"
	lockName   = "lock"
	// ephemeralPrefix is the prefix of directories that are removed after use.
	ephemeralPrefix = "perceptor-dev-"
)

// DefaultDataDir returns the default data directory. For root it is outside the
// home directory, because root runs PostgreSQL as another user, who could not
// enter that.
func DefaultDataDir() string {
	if os.Geteuid() == 0 {
		return "/var/lib/perceptor/dev"
	}
	if dir := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "perceptor", "dev")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		home = os.TempDir()
	}
	return filepath.Join(home, ".local", "share", "perceptor", "dev")
}

// dataDir is a locked data directory.
type dataDir struct {
	path      string
	ephemeral bool
	unlock    func()
}

// openDataDir creates the directory if it is new, and locks it.
func openDataDir(path string) (*dataDir, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	if err := os.MkdirAll(path, 0o755); err != nil {
		return nil, fmt.Errorf("create data directory: %w", err)
	}
	if err := checkFormat(path); err != nil {
		return nil, err
	}
	return lockDataDir(path, false)
}

// openEphemeral makes a directory that close removes. It first removes those that
// killed processes have left. In the moment before the new directory is locked,
// another process may lock it as an orphan. Then openEphemeral tries again.
func openEphemeral() (d *dataDir, err error) {
	tempdir.RemoveOrphans(ephemeralPrefix, lockName)
	for range 3 {
		if d, err = makeEphemeral(); !errors.Is(err, subprocess.ErrLocked) {
			break
		}
	}
	return d, err
}

func makeEphemeral() (*dataDir, error) {
	path, err := os.MkdirTemp("", ephemeralPrefix)
	if err != nil {
		return nil, fmt.Errorf("create data directory: %w", err)
	}
	// PostgreSQL may run as another user, who must enter the directory.
	if err := os.Chmod(path, 0o755); err != nil {
		return nil, fmt.Errorf("set mode of data directory: %w", err)
	}
	if err := checkFormat(path); err != nil {
		return nil, err
	}
	return lockDataDir(path, true)
}

// checkFormat writes the format file into an empty directory. It refuses
// directories of other programs and of other formats.
func checkFormat(path string) error {
	name := filepath.Join(path, formatName)
	text, err := os.ReadFile(name)
	switch {
	case err == nil && string(text) == format:
		return nil
	case err == nil:
		return fmt.Errorf("data directory %s has the format %.40q, this program needs %q: choose another with --data-dir", path, strings.TrimSpace(string(text)), strings.TrimSpace(format))
	case !errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("data directory: %w", err)
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	if len(entries) > 0 {
		return fmt.Errorf("data directory %s is not empty and was not made by taskd dev: choose another with --data-dir", path)
	}
	if err := os.WriteFile(name, []byte(format), 0o644); err != nil {
		return fmt.Errorf("mark data directory: %w", err)
	}
	return nil
}

func lockDataDir(path string, ephemeral bool) (*dataDir, error) {
	name := filepath.Join(path, lockName)
	unlock, err := subprocess.TryLockFile(name)
	if errors.Is(err, subprocess.ErrLocked) {
		holder, _ := os.ReadFile(name) // for the message only
		return nil, fmt.Errorf("data directory %s is in use by another taskd dev (pid %s): stop it, or choose another with --data-dir (%w)", path, strings.TrimSpace(string(holder)), subprocess.ErrLocked)
	}
	if err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	if err := os.WriteFile(name, []byte(strconv.Itoa(os.Getpid())+"\n"), 0o600); err != nil {
		unlock()
		return nil, fmt.Errorf("lock data directory: %w", err)
	}
	return &dataDir{path: path, ephemeral: ephemeral, unlock: unlock}, nil
}

func (d *dataDir) join(name string) string { return filepath.Join(d.path, name) }

// close unlocks the directory. It removes an ephemeral one.
func (d *dataDir) close() error {
	defer d.unlock()
	if !d.ephemeral {
		return nil
	}
	return os.RemoveAll(d.path)
}

// readSecret returns a stored secret, or "" if there is none.
func (d *dataDir) readSecret(name string) string {
	text, err := os.ReadFile(d.join(name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

func (d *dataDir) writeSecret(name, secret string) error {
	if err := os.WriteFile(d.join(name), []byte(secret+"\n"), 0o600); err != nil {
		return fmt.Errorf("store token: %w", err)
	}
	return nil
}
