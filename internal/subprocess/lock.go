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

// LockFile takes a lock that one process at a time holds, and that ends with its process. It waits until
// ctx ends. The file is created and stays.
func LockFile(ctx context.Context, path string) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	for {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { file.Close() }, nil //nolint:errcheck // closing ends the lock whatever it returns
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			file.Close() //nolint:errcheck // the lock's error is the one to tell
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		select {
		case <-ctx.Done():
			file.Close() //nolint:errcheck // the lock's error is the one to tell
			return nil, fmt.Errorf("lock %s, which another process holds: %w", path, ctx.Err())
		case <-time.After(lockEvery):
		}
	}
}
