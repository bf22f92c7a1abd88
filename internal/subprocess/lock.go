package subprocess

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

const lockEvery = 50 * time.Millisecond

// ErrLocked is returned by [TryLockFile] while another holds the lock.
var ErrLocked = errors.New("locked by another process")

// LockFile takes a lock that one holder at a time has, and that ends with its process. It waits until
// ctx ends. The file is created and stays.
func LockFile(ctx context.Context, path string) (unlock func(), err error) {
	for {
		unlock, err := TryLockFile(path)
		if err == nil || !errors.Is(err, ErrLocked) {
			return unlock, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", err, ctx.Err())
		case <-time.After(lockEvery):
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
