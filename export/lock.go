package export

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/perceptor/perceptor/internal/subprocess"
)

// lockFile is the name of the file whose lock the program has that writes to the directory. The lock ends
// with its process; the file stays.
const lockFile = "export.lock"

// ErrHeld is the error of a directory to which another program, or [Dir], writes.
var ErrHeld = errors.New("another program writes to the directory")

// lock locks a directory. It fails with [ErrHeld] if another one has it.
func lock(path string) (unlock func(), err error) {
	unlock, err = subprocess.TryLockFile(filepath.Join(path, lockFile))
	if errors.Is(err, subprocess.ErrLocked) {
		return nil, fmt.Errorf("%s: %w", path, ErrHeld)
	}
	return unlock, err
}
