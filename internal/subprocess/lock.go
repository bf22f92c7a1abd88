package subprocess

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/perceptor/perceptor/internal/ctxtime"
)

const lockEvery = 50 * time.Millisecond

// ErrLocked is returned by [TryLockFile] while another holder has the lock.
var ErrLocked = errors.New("locked by another process")

// LockFile acquires an exclusive lock on the file at path, which it creates if it does not exist. It
// waits for the lock until ctx ends. The lock ends with its process; the file stays.
func LockFile(ctx context.Context, path string) (unlock func(), err error) {
	for {
		unlock, err := TryLockFile(path)
		if err == nil || !errors.Is(err, ErrLocked) {
			return unlock, err
		}
		if !ctxtime.Sleep(ctx, lockEvery) {
			return nil, fmt.Errorf("%w: %w", err, ctx.Err())
		}
	}
}

// TryLockFile is [LockFile] without the wait: it returns [ErrLocked] instead.
func TryLockFile(path string) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		return func() { file.Close() }, nil
	}
	file.Close()
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = ErrLocked
	}
	return nil, fmt.Errorf("lock %s: %w", path, err)
}
