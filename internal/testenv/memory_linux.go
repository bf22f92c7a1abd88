package testenv

import (
	"bufio"
	"os"
	"strconv"
	"strings"
	"syscall"
)

const (
	sharedMemory = "/dev/shm"
	tmpfsMagic   = 0x01021994
	noExec       = 8 // ST_NOEXEC of statfs(2)
	// What must be free so that temporary data is kept in memory. All tests together need some 3 GB of it, and
	// the programs as much again.
	leastFree      = 8 << 30
	leastAvailable = 12 << 30
)

// memoryDir returns a directory in memory for temporary data, or "" if the machine has none with enough
// space. Each copy of the databases has thousands of files, which take a disk seconds to create.
func memoryDir() string {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(sharedMemory, &fs); err != nil || fs.Type != tmpfsMagic || fs.Flags&noExec != 0 {
		return ""
	}
	if fs.Bavail*uint64(fs.Bsize) < leastFree || availableMemory() < leastAvailable {
		return ""
	}
	return sharedMemory
}

// availableMemory returns how much memory programs can still use, in bytes, or 0 if that is not known.
func availableMemory() uint64 {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0
	}
	defer f.Close() //nolint:errcheck // it was only read
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if rest, ok := strings.CutPrefix(lines.Text(), "MemAvailable:"); ok {
			kB, _ := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return kB << 10
		}
	}
	return 0
}
