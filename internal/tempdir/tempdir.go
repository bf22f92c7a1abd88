// Package tempdir makes directories of temporary data that go with their
// process: Close removes them, and when the process was killed first, the next
// one that makes such a directory does.
package tempdir

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/perceptor/perceptor/internal/subprocess"
)

// lockName is a file that a living process holds locked. A directory that is
// kept has none.
const lockName = "owner.lock"

// Dir is a directory of this process.
type Dir struct {
	// Path is absolute. Every user may enter: PostgreSQL may run as another one.
	Path   string
	keep   bool
	unlock func()
}

// New makes a directory whose name begins with prefix. One that is to be kept
// stays after Close.
func New(prefix string, keep bool) (*Dir, error) {
	RemoveOrphans(prefix, lockName)
	path, err := os.MkdirTemp("", prefix)
	if err != nil {
		return nil, fmt.Errorf("create temporary directory: %w", err)
	}
	if err := os.Chmod(path, 0o755); err != nil {
		return nil, fmt.Errorf("open temporary directory: %w", err)
	}
	unlock, err := subprocess.TryLockFile(filepath.Join(path, lockName))
	if err != nil {
		return nil, fmt.Errorf("own temporary directory: %w", err)
	}
	return &Dir{path, keep, unlock}, nil
}

// Close removes the directory or releases it. It never waits for ctx.
func (d *Dir) Close(context.Context) error {
	defer d.unlock()
	if d.keep {
		return os.Remove(filepath.Join(d.Path, lockName))
	}
	return os.RemoveAll(d.Path)
}

// RemoveOrphans removes the directories of temporary data whose names begin with
// prefix and whose owner is gone: the lock on its file named lock went with it.
func RemoveOrphans(prefix, lock string) {
	locks, err := filepath.Glob(filepath.Join(os.TempDir(), prefix+"*", lock))
	if err != nil {
		return
	}
	for _, name := range locks {
		unlock, err := subprocess.TryLockFile(name)
		if err != nil {
			continue
		}
		_ = os.RemoveAll(filepath.Dir(name)) // if not now, the next one tries again
		unlock()
	}
}
