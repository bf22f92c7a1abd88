package export

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// lockFile is the name of the file whose lock the program has that writes to the directory. The lock ends
// with its process; the file stays.
const lockFile = "export.lock"

// ErrHeld is the error of a directory to which another program, or [Dir], writes.
var ErrHeld = errors.New("another program writes to the directory")

// lock locks a directory. It fails with [ErrHeld] if another one has it.
func lock(path string) (unlock func() error, err error) {
	f, err := os.OpenFile(filepath.Join(path, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	switch {
	case err == nil:
		return f.Close, nil
	case errors.Is(err, syscall.EWOULDBLOCK):
		err = fmt.Errorf("%s: %w", path, ErrHeld)
	default:
		err = fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return nil, errors.Join(err, f.Close())
}
