// Package tempdir makes temporary directories that do not outlive their process
// for long. Close removes a directory. If its process was killed first, the next
// process that makes a directory with the same prefix removes it.
package tempdir

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/perceptor/perceptor/internal/subprocess"
)

// lockName is the name of a file that the owner of the directory keeps locked
// while it runs. A directory that was kept has no such file.
const lockName = "owner.lock"

// Dir is a temporary directory that this process owns.
type Dir struct {
	// Path is absolute. Every user may enter the directory, because PostgreSQL
	// may run as another user.
	Path   string
	keep   bool
	unlock func()
}

// New makes a directory whose name begins with prefix. If keep is set, Close does
// not remove it. New also removes orphans with the same prefix.
func New(prefix string, keep bool) (*Dir, error) {
	RemoveOrphans(prefix, lockName)
	path, err := os.MkdirTemp("", prefix)
	if err != nil {
		return nil, fmt.Errorf("create temporary directory: %w", err)
	}
	if err := os.Chmod(path, 0o755); err != nil {
		return nil, fmt.Errorf("set mode of temporary directory: %w", err)
	}
	unlock, err := subprocess.TryLockFile(filepath.Join(path, lockName))
	if err != nil {
		return nil, fmt.Errorf("lock temporary directory: %w", err)
	}
	return &Dir{path, keep, unlock}, nil
}

// Close removes the directory, or releases it if it is to be kept. It ignores its
// context.
func (d *Dir) Close(context.Context) error {
	defer d.unlock()
	if d.keep {
		return os.Remove(filepath.Join(d.Path, lockName))
	}
	return os.RemoveAll(d.Path)
}

// RemoveOrphans removes the temporary directories whose names begin with prefix
// and whose owner has ended. An owner keeps the file named lock locked while it
// runs.
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
		_ = os.RemoveAll(filepath.Dir(name)) // the next call tries again
		unlock()
	}
}
