package stack

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// mountDisk mounts a file system of the given size, in memory, on dir.
func mountDisk(dir string, bytes int64) (unmount func() error, err error) {
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d,mode=755", bytes)); err != nil {
		return nil, fmt.Errorf("mount a disk: %w", err)
	}
	return func() error { return syscall.Unmount(dir, syscall.MNT_DETACH) }, nil
}

// fillDisk writes a file that takes all free space of its file system.
func fillDisk(path string) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("fill a disk: %w", err)
	}
	defer file.Close()
	block := make([]byte, 64<<10)
	for {
		if _, err := file.Write(block); errors.Is(err, syscall.ENOSPC) {
			return nil
		} else if err != nil {
			return fmt.Errorf("fill a disk: %w", err)
		}
	}
}
